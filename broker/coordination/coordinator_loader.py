"""Replays an internal partition from its start to its end (Kafka's CoordinatorLoader).

Of non-transactional records only the last of each key is decoded and replayed, in log order. The
result equals that of replaying the compacted log and bounds the cost. Transactional records and
markers are replayed one by one.

Any client may write to an internal topic while there are no ACLs, so a record that cannot be decoded or replayed is
skipped. Kafka fails the load instead.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records import records as log_records
from odradek.protocol.records.batch import Batch, batches
from odradek.seams.files import Buffer

log = logging.getLogger("odradek.coordination")

NO_PRODUCER = -1
REPLAYS_PER_STEP = 64
"""Number of records replayed before other tasks may run."""
UNKNOWN_TYPES_MAX = 5
"""Number of unknown types that the log line of a load lists."""
COMMIT_MARKER, ABORT_MARKER = 1, 0


class CoordinatorLoader(ABC):
    """Replays batches in steps. The state is complete only after `finish`."""

    def __init__(self) -> None:
        self._latest: dict[bytes, tuple[int, bytes | None, bool]] = {}
        """Offset and value of the last non-transactional record of each key, in log order, and
        whether a tombstone preceded it. A tombstone also removes pending transactional commits."""
        self._unknown: dict[str, int] = {}
        self.next_offset = 0
        self.record_count = 0
        self.invalid_count = 0
        self.first_invalid = ""
        """Offset and error of the first invalid record."""

    @abstractmethod
    def replay(self, key: bytes, value: bytes | None, offset: int, producer_id: int) -> None:
        """Replay one record. Raises KafkaError if it cannot be decoded."""

    def has_pending(self, key: bytes) -> bool:
        """Whether a tombstone of this key also removes pending transactional records."""
        return False

    @abstractmethod
    def complete_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Replay a transaction marker."""

    def feed(self, data: Buffer) -> Iterator[None]:
        """Replay whole batches; yields where other tasks may run.

        Raises KafkaError for a corrupt batch, which fails the load.
        """
        for batch in batches(memoryview(data)):
            if batch.is_control:
                yield from self._flush()
                self._control(batch)
            elif batch.is_transactional:
                yield from self._flush()
                yield from self._for_each_record(
                    batch, partial(self._replay_pending, batch.producer_id)
                )
            else:
                yield from self._for_each_record(batch, self._remember)
            self.next_offset = batch.last_offset + 1
            self.record_count += batch.record_count
            yield

    def _for_each_record(
        self, batch: Batch, act: Callable[[log_records.Record], None]
    ) -> Iterator[None]:
        try:
            for count, record in enumerate(log_records.decode_lazily(batch)):
                if record.key is None:
                    self.skip("no key")
                else:
                    act(record)
                if count % REPLAYS_PER_STEP == REPLAYS_PER_STEP - 1:
                    yield
        except CorruptBatch as error:
            self._skip_invalid(batch.base_offset, error)

    def _replay_pending(self, producer_id: int, record: log_records.Record) -> None:
        self._replay_valid(record.key or b"", record.value, record.offset, producer_id)

    def _replay_valid(self, key: bytes, value: bytes | None, offset: int, producer_id: int) -> None:
        try:
            self.replay(key, value, offset, producer_id)
        except Exception as error:  # what a client has written must not fail the load
            self._skip_invalid(offset, error)

    def _skip_invalid(self, offset: int, error: Exception) -> None:
        self.invalid_count += 1
        if self.invalid_count == 1:
            self.first_invalid = f"offset {offset}: {error!r}"

    def finish(self) -> Iterator[None]:
        yield from self._flush()
        if self._unknown:
            log.warning(
                "Skipped %d records of unknown types (%s)",
                sum(self._unknown.values()),
                ", ".join(f"{name}: {count}" for name, count in self._unknown.items()),
            )

    def skip(self, record_type: str) -> None:
        """Count a record that is not replayed."""
        if record_type not in self._unknown and len(self._unknown) >= UNKNOWN_TYPES_MAX:
            record_type = "other types"
        self._unknown[record_type] = self._unknown.get(record_type, 0) + 1

    def _remember(self, record: log_records.Record) -> None:
        key = record.key or b""
        _, before, ended = self._latest.pop(key, (-1, b"", False))
        self._latest[key] = (record.offset, record.value, ended or before is None)

    def _flush(self) -> Iterator[None]:
        latest, self._latest = self._latest, {}
        for count, (key, (offset, value, ended)) in enumerate(latest.items()):
            if ended and self.has_pending(key):
                self._replay_valid(key, None, offset, NO_PRODUCER)
            self._replay_valid(key, value, offset, NO_PRODUCER)
            if count % REPLAYS_PER_STEP == REPLAYS_PER_STEP - 1:
                yield

    def _control(self, batch: Batch) -> None:
        for record in log_records.decode(batch):
            marker = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
            if record.key is not None and marker in (COMMIT_MARKER, ABORT_MARKER):
                self.complete_transaction(batch.producer_id, committed=marker == COMMIT_MARKER)
