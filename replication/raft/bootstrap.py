"""What a cluster begins with: a formatted directory, and the first records of its log.

Formatting is what `kafka-storage format --standalone` does: `bootstrap.checkpoint` with the levels of
all features, and a snapshot `0-0` that names kraft.version 1 and this node as the one voter. The
first leader then writes the levels to the log, in a metadata transaction, with the one config that
ELR needs. Every step is repeated at the next start unless it was completed.
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
from odradek.replication.controller.leader_and_isr import MIN_ISR
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
    "put another controller's in its place, or remove it to begin with the default features and nothing "
    "else that was formatted"
)
FIRST_SNAPSHOT = SnapshotId(0, 0)
KRAFT_VERSION = 1


def is_formatted(files: Files, directory: Path) -> bool:
    """Whether the directory holds a quorum's log, or was formatted to hold one."""
    log_directory = directory / DIRECTORY
    return files.is_directory(log_directory) and any(
        name.endswith((".checkpoint", ".log")) for name in files.list(log_directory)
    )


def format_directory(files: Files, directory: Path, voter: Voter, *, now_ms: int) -> None:
    """Make `directory` the metadata directory of a new cluster with one voter; blocks on the disk.

    The snapshot comes last: it is what makes the directory formatted.
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
    """The snapshot that names the first voters of a dynamic quorum (KIP-853); durable when this
    returns."""
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
    """The control records that carry a dynamic quorum; none for a static one (KIP-853)."""
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
    """The records that the first leader writes to the log; durable when this returns."""
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
    """The records of `bootstrap.checkpoint`, or the default ones. Raises InvalidMetadata."""
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
    """What a new leader of the quorum writes first: to an empty log the bootstrap records, after a
    transaction that the last leader left open its end.
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
