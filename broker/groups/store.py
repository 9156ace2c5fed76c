"""Group state in `__consumer_offsets`: which partition, how records get there, how they come back.

A group lives in one partition, found from its id's hash, and in the memory of that partition's
leader. Records are written in Kafka's formats, so that its tools and brokers read them. Loading
replays a partition from its start to its end. Of plain commits and generations only the last record
of each key is decoded and replayed, in the order of the log, which gives the same state as replaying
all (as replaying the compacted log does) and bounds what millions of commits cost. Transactional commits and markers
depend on what is around them and are replayed one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

from odradek.broker.groups import records as group_records
from odradek.broker.groups.actions import Record
from odradek.broker.groups.offsets import NO_PRODUCER
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import records as log_records
from odradek.protocol.records.batch import HEADER_SIZE, Batch, batches
from odradek.protocol.schemas.serde import UnknownRecord
from odradek.seams.files import Buffer

log = logging.getLogger("odradek.groups")

RECORD_OVERHEAD_MAX = 32
"""Bytes that a record in a batch may take beside its key and value."""
REPLAYS_PER_STEP = 64
"""How many records are replayed between two chances for others to run."""
COMMIT_MARKER, ABORT_MARKER = 1, 0


class CoordinatorLog(Protocol):
    """`__consumer_offsets`, as far as a coordinator sees it; the node connects it to its partitions.

    Errors are KafkaErrors: not_leader_or_follower, not_enough_replicas, kafka_storage_error,
    record_too_large (message_too_large), unknown_topic_or_partition.
    """

    def partition_count(self) -> int:
        """How many partitions the topic has; 0 while it does not exist."""
        ...

    def batch_bytes_max(self, partition: int) -> int:
        """The largest batch that `append` takes (the topic's max.message.bytes)."""
        ...

    def append(self, partition: int, batch: bytearray, now_ms: int) -> int:
        """Append one record batch as leader, stamped in place; the offset of its first record.

        Synchronous: when it returns the batch is in the log of this node, when it raises no byte of
        it is. Needs min.insync.replicas as acks=all does, but waits for none.
        """
        ...

    def is_committed(self, partition: int, offset: int) -> bool:
        """Whether all in-sync replicas have the record at `offset` (it is below the high watermark)."""
        ...

    async def wait_committed(self, partition: int, offset: int) -> None:
        """Return once `is_committed`; raise KafkaError when this node does not lead any more."""
        ...

    def start_offset(self, partition: int) -> int: ...

    def end_offset(self, partition: int) -> int:
        """The offset that the next record gets."""
        ...

    async def read(self, partition: int, offset: int, max_bytes: int) -> Buffer:
        """Whole batches from the one that holds `offset` on, at least one, up to the end of the log.

        Empty at the end. More than `max_bytes` only where the first batch alone is larger.
        """
        ...


class Replayer(Protocol):
    """Whose state the records make."""

    def replay(self, record: Record, offset: int, producer_id: int = NO_PRODUCER) -> None: ...

    def end_transaction(self, producer_id: int, *, committed: bool) -> None: ...


class RecordsTooLarge(KafkaError):
    """Records that have to stand in one batch do not fit into one."""

    code: ErrorCode = ErrorCode.record_list_too_large


def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java, a signed 32-bit integer over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, partitions: int) -> int:
    """The partition of an internal topic that a group or transactional id belongs to."""
    hashed = java_string_hash(key)
    return 0 if hashed == -(1 << 31) else abs(hashed) % partitions


def build_batches(
    records: Sequence[Record],
    *,
    now_ms: int,
    compression: int,
    batch_bytes_max: int,
    atomic: bool,
) -> Iterator[tuple[bytearray, Sequence[Record]]]:
    """The batches that hold these records, in order, each with its records.

    Raises RecordsTooLarge if `atomic` ones would need more than one.
    """
    encoded = [group_records.encode(each) for each in records]
    sizes = [len(key) + len(value or b"") + RECORD_OVERHEAD_MAX for key, value in encoded]
    if atomic and HEADER_SIZE + sum(sizes) > batch_bytes_max and len(records) > 1:
        raise RecordsTooLarge(f"{len(records)} records of {sum(sizes)} bytes")
    start = 0
    while start < len(records):
        end, size = start, HEADER_SIZE
        while end < len(records) and (end == start or size + sizes[end] <= batch_bytes_max):
            size += sizes[end]
            end += 1
        batch = log_records.build_batch(
            [
                log_records.Record(position, now_ms, key, value)
                for position, (key, value) in enumerate(encoded[start:end])
            ],
            compression=compression,
        )
        yield batch, records[start:end]
        start = end


class Loader:
    """Replays what was read, a step at a time; nothing is complete before `finish`."""

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        self._latest: dict[bytes, tuple[int, bytes | None, bool]] = {}
        """Key to offset and value of the last plain record with it, in the order of the log, and
        whether there was a tombstone before: that ends pending commits, too."""
        self._unknown: dict[str, int] = {}
        self.next_offset = 0
        self.record_count = 0

    def feed(self, data: Buffer) -> Iterator[None]:
        """Take over whole batches; yields wherever others may run.

        Raises KafkaError for what can't be read: state that is not known is not guessed.
        """
        for batch in batches(memoryview(data)):
            if batch.is_control:
                yield from self._flush()
                self._control(batch)
            elif batch.is_transactional:
                yield from self._flush()
                for each in log_records.decode(batch):
                    self._replay(each.key, each.value, each.offset, batch.producer_id)
            else:
                for each in log_records.decode(batch):
                    self._remember(each)
            self.next_offset = batch.last_offset + 1
            self.record_count += batch.record_count
            yield

    def finish(self) -> Iterator[None]:
        yield from self._flush()
        for name, count in self._unknown.items():
            log.warning("%d records of an unknown kind (%s) were skipped", count, name)

    def _remember(self, record: log_records.Record) -> None:
        if record.key is None:
            self._skip("no key")
            return
        _, before, ended = self._latest.pop(record.key, (-1, b"", False))
        self._latest[record.key] = (record.offset, record.value, ended or before is None)

    def _flush(self) -> Iterator[None]:
        latest, self._latest = self._latest, {}
        for count, (key, (offset, value, ended)) in enumerate(latest.items()):
            if ended:
                self._replay(key, None, offset, NO_PRODUCER)
            self._replay(key, value, offset, NO_PRODUCER)
            if count % REPLAYS_PER_STEP == REPLAYS_PER_STEP - 1:
                yield

    def _replay(
        self, raw_key: bytes | None, raw_value: bytes | None, offset: int, producer_id: int
    ) -> None:
        try:
            if raw_key is None:
                raise group_records.OtherRecord("no key")
            key = group_records.decode_key(raw_key)
        except (group_records.OtherRecord, UnknownRecord) as error:
            self._skip(str(error))
            return
        value = None if raw_value is None else group_records.decode_value(key, raw_value)
        self._replayer.replay(Record(key, value), offset, producer_id)

    def _control(self, batch: Batch) -> None:
        for each in log_records.decode(batch):
            marker = int.from_bytes((each.key or b"")[2:4], "big", signed=True)
            if each.key is not None and marker in (COMMIT_MARKER, ABORT_MARKER):
                committed = marker == COMMIT_MARKER
                self._replayer.end_transaction(batch.producer_id, committed=committed)

    def _skip(self, what: str) -> None:
        self._unknown[what] = self._unknown.get(what, 0) + 1
