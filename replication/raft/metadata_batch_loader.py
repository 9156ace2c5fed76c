"""Decodes batches of the metadata log and applies them to an image (Kafka's `MetadataBatchLoader`).

Records of an open metadata transaction (KIP-868) are applied at its end. An aborted transaction, or
one that is open at the end of the log, is not applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import Batch
from odradek.protocol.records.control import ControlType, control_type
from odradek.protocol.records.records import Record, decode_lazily
from odradek.protocol.schemas.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotHeaderRecord,
    VotersRecord,
)
from odradek.protocol.schemas.serde import decode as decode_body
from odradek.protocol.schemas.serde import decode_metadata_record
from odradek.replication.controller.image import InvalidMetadata, MetadataDelta, MetadataImage
from odradek.replication.controller.image_builder import ImageBuilder
from odradek.replication.raft.voter_history import ControlChange
from odradek.replication.raft.voters import voters_of

RECORDS_A_STEP: Final = 50
"""Records decoded and applied per step, between which other tasks run."""


class MetadataTransaction:
    """Records of an open metadata transaction."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._held: list[Any] | None = [] if is_open else None

    @property
    def open(self) -> bool:
        return self._held is not None

    def copy(self) -> MetadataTransaction:
        """Independent copy of the current state."""
        other = MetadataTransaction()
        other._held = None if self._held is None else list(self._held)
        return other

    def pass_on(self, record: Any) -> Iterable[Any]:
        """Return the records that become effective with this one."""
        kind = type(record).__name__
        if kind == "BeginTransactionRecord":
            if self._held is not None:
                raise InvalidMetadata("a metadata transaction begins within another")
            self._held = []
            return ()
        if kind in ("EndTransactionRecord", "AbortTransactionRecord"):
            held, self._held = self._held, None
            if held is None:
                raise InvalidMetadata("a metadata transaction ends that never began")
            return held if kind == "EndTransactionRecord" else ()
        if self._held is None:
            return (record,)
        self._held.append(record)
        return ()


class MetadataBatchLoader:
    """Builds an image from a snapshot and the batches after it."""

    def __init__(
        self,
        image: MetadataImage | None = None,
        *,
        keep_records: bool = False,
        transactions: MetadataTransaction | None = None,
    ) -> None:
        """`transactions`: the transaction that is open at `image`."""
        self._draft = ImageBuilder(image or MetadataImage(), keep_records=keep_records)
        self.transactions = transactions or MetadataTransaction()
        self.changes: list[ControlChange] = []  # of kraft.version and voters
        self.static_voters: tuple[int, ...] = ()  # as the last leader named them
        self.offset, self.epoch, self.timestamp_ms = -1, 0, -1

    def batch(self, batch: Batch) -> None:
        """Apply the next batch of the log. Raises InvalidMetadata."""
        for _ in self.batch_in_steps(batch):
            pass

    def batch_in_steps(self, batch: Batch) -> Iterator[None]:
        """Like `batch`, one step at a time."""
        yield from self._contents(batch)
        self.offset, self.epoch = batch.last_offset, batch.leader_epoch
        self.timestamp_ms = batch.max_timestamp

    def snapshot(self, batches: Iterable[Batch], *, end_offset: int, epoch: int) -> None:
        """Apply a snapshot, before any batch of the log. Raises InvalidMetadata."""
        for _ in self.snapshot_in_steps(batches, end_offset=end_offset, epoch=epoch):
            pass

    def snapshot_in_steps(
        self, batches: Iterable[Batch], *, end_offset: int, epoch: int
    ) -> Iterator[None]:
        """Like `snapshot`, one step at a time."""
        for batch in batches:
            yield from self._contents(batch, of_snapshot=end_offset)
            yield
        self.offset, self.epoch = end_offset - 1, epoch

    def apply(self, record: Any) -> None:
        for each in self.transactions.pass_on(record):
            self._draft.apply(each)

    def finish(self) -> MetadataDelta:
        """Return the delta, once, without the records of an open transaction."""
        return self._draft.finish(self.offset, self.epoch, self.timestamp_ms)

    def _contents(self, batch: Batch, *, of_snapshot: int | None = None) -> Iterator[None]:
        try:
            for number, record in enumerate(decode_lazily(batch), 1):
                if batch.is_control:
                    offset = record.offset if of_snapshot is None else of_snapshot - 1
                    self._control(record, offset)
                elif record.value is not None:
                    self.apply(decode_metadata_record(record.value))
                if number % RECORDS_A_STEP == 0:
                    yield
        except InvalidMetadata:
            raise
        except Exception as error:  # of any kind: the bytes come from a peer or a disk
            reason = error if isinstance(error, KafkaError) else repr(error)
            raise InvalidMetadata(f"{batch} of the metadata log: {reason}") from error

    def _control(self, record: Record, offset: int) -> None:
        kind, value = control_type(record.key), record.value or b""
        if kind is ControlType.LEADER_CHANGE:
            version = int.from_bytes(value[:2], "big")
            change = decode_body(LeaderChangeMessage, version, value)
            self.static_voters = tuple(voter.voter_id for voter in change.voters)
        elif kind is ControlType.KRAFT_VERSION:
            level = decode_body(KRaftVersionRecord, 0, value).kraft_version
            self.changes.append(ControlChange(offset, kraft_version=level))
        elif kind is ControlType.KRAFT_VOTERS:
            voters = voters_of(decode_body(VotersRecord, 0, value))
            self.changes.append(ControlChange(offset, voters=voters))
        elif kind is ControlType.SNAPSHOT_HEADER:
            header = decode_body(SnapshotHeaderRecord, 0, value)
            self.timestamp_ms = header.last_contained_log_timestamp


def control_changes(batches: Iterable[Batch]) -> list[ControlChange]:
    """Changes of kraft.version and voters in these batches. Raises InvalidMetadata."""
    replay = MetadataBatchLoader()
    for batch in batches:
        if batch.is_control:
            replay.batch(batch)
    return replay.changes
