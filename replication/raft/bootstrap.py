"""Bootstrap of a cluster: the formatted metadata directory and the first records of the metadata log.

`format_directory` writes what `kafka-storage format --standalone` writes: `bootstrap.checkpoint` with
all feature levels, and a snapshot `0-0` with kraft.version 1 and this node as the only voter. The first
active controller appends the bootstrap records in a metadata transaction, with the cluster-level
`min.insync.replicas` that ELR requires. A step that was not completed is repeated at the next start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from odradek.protocol.records.control import ControlType
from odradek.protocol.records.records import decode
from odradek.protocol.schemas.control_records import KRaftVersionRecord
from odradek.protocol.schemas.serde import decode_metadata_record, encode_metadata_record
from odradek.replication.controller.features import (
    DEFAULT_FEATURES,
    METADATA_VERSION,
    TRANSACTIONS_SUPPORT,
    elr_enabled,
    metadata_version,
)
from odradek.replication.controller.image import BROKER, InvalidMetadata, MetadataImage
from odradek.replication.controller.leader_and_isr_updates import MIN_ISR
from odradek.replication.raft.metadata_log import DIRECTORY
from odradek.replication.raft.snapshots import (
    SnapshotContents,
    SnapshotId,
    SnapshotStore,
    SnapshotWriter,
)
from odradek.replication.raft.voters import Voter, voters_record
from odradek.seams.files import Files, Path

BOOTSTRAP_FILE = "bootstrap.checkpoint"
BOOTSTRAP_REMEDY = (
    "copy the file of another controller, or remove it to start with the default feature levels and "
    "without the other records that were formatted"
)
FIRST_SNAPSHOT = SnapshotId(0, 0)
KRAFT_VERSION = 1


def is_formatted(files: Files, directory: Path) -> bool:
    """Whether the metadata log directory contains a log segment or a snapshot."""
    log_directory = directory / DIRECTORY
    return files.is_directory(log_directory) and any(
        name.endswith((".checkpoint", ".log")) for name in files.list(log_directory)
    )


def format_directory(files: Files, directory: Path, voter: Voter, *, now_ms: int) -> None:
    """Format `directory` as the metadata directory of a new cluster with one voter. Blocks.

    The snapshot is written last, because `is_formatted` looks for it.
    """
    if not files.exists(directory / BOOTSTRAP_FILE):
        write_bootstrap_file(files, directory, feature_records(DEFAULT_FEATURES), now_ms)
    write_first_snapshot(files, directory, [voter], now_ms=now_ms)


def write_first_snapshot(
    files: Files,
    directory: Path,
    voters: Iterable[Voter],
    *,
    now_ms: int,
    kraft_version: int = KRAFT_VERSION,
) -> None:
    """Write the snapshot `0-0` with the first voters of a dynamic quorum (KIP-853). It is durable
    when this returns."""
    log_directory = directory / DIRECTORY
    files.make_directory(log_directory)
    files.sync_directory(directory)
    store = SnapshotStore(files, log_directory)
    writer = store.writer(
        FIRST_SNAPSHOT,
        now_ms=now_ms,
        timestamp_ms=now_ms,
        control=quorum_records(kraft_version, voters),
    )
    writer.end()
    store.publish(FIRST_SNAPSHOT, writer)


def quorum_records(kraft_version: int, voters: Iterable[Voter]) -> list[tuple[ControlType, Any]]:
    """KRaftVersionRecord and VotersRecord of a dynamic quorum; empty for a static one (KIP-853)."""
    if kraft_version < 1:
        return []
    version = KRaftVersionRecord(version=0, kraft_version=kraft_version)
    return [
        (ControlType.KRAFT_VERSION, version),
        (ControlType.KRAFT_VOTERS, voters_record(voters)),
    ]


def write_bootstrap_file(
    files: Files, directory: Path, records: Sequence[Any], now_ms: int
) -> None:
    """Write `bootstrap.checkpoint` with the records that the first active controller appends. It is
    durable when this returns."""
    part = directory / f"{BOOTSTRAP_FILE}.part"
    files.remove(part, missing_ok=True)
    writer = SnapshotWriter(files.open(part, create=True), epoch=0)
    writer.begin(now_ms, timestamp_ms=0)
    writer.append([encode_metadata_record(record, 0) for record in records])
    writer.end()
    writer.file.sync()
    writer.file.close()
    files.rename(part, directory / BOOTSTRAP_FILE)
    files.sync_directory(directory)


def feature_records(features: Mapping[str, int]) -> list[Any]:
    from odradek.protocol.schemas.cluster_records import FeatureLevelRecord

    return [FeatureLevelRecord(name=name, feature_level=level) for name, level in features.items()]


def read_bootstrap_records(files: Files, directory: Path) -> list[Any]:
    """Records of `bootstrap.checkpoint`, or the default feature levels if there is no file.

    Raises InvalidMetadata.
    """
    path = directory / BOOTSTRAP_FILE
    if not files.exists(path):
        return feature_records(DEFAULT_FEATURES)
    try:
        return [
            decode_metadata_record(record.value)
            for batch in SnapshotContents(path, files.read(path)).batches()
            if not batch.is_control
            for record in decode(batch)
            if record.value is not None
        ]
    except InvalidMetadata as error:
        raise InvalidMetadata(f"{error}: {BOOTSTRAP_REMEDY}") from None


def activation_records(
    image: MetadataImage,
    bootstrap: Sequence[Any],
    *,
    in_transaction: bool,
    min_insync_replicas: int,
) -> list[Any]:
    """First records of a new active controller (Kafka's `ActivationRecordsGenerator`).

    They abort a metadata transaction that the previous controller left open. If the image has no
    metadata.version, they are followed by the bootstrap records.
    """
    from odradek.protocol.schemas import cluster_records as schemas

    aborted = []
    if in_transaction:
        aborted.append(schemas.AbortTransactionRecord(reason="Controller failover"))
    if METADATA_VERSION in image.features:
        return aborted
    levels = {
        record.name: record.feature_level
        for record in bootstrap
        if isinstance(record, schemas.FeatureLevelRecord)
    }
    records = list(bootstrap)
    if elr_enabled(levels):
        records.append(_cluster_min_isr(min_insync_replicas))
    if metadata_version(levels) < TRANSACTIONS_SUPPORT:
        return records
    begin = schemas.BeginTransactionRecord(name="Bootstrap records")
    return [*aborted, begin, *records, schemas.EndTransactionRecord()]


def _cluster_min_isr(value: int) -> Any:
    from odradek.protocol.schemas.topic_records import ConfigRecord

    return ConfigRecord(resource_type=BROKER, resource_name="", name=MIN_ISR, value=str(value))
