"""Random content of a compacted log: keys, tombstones, producers, transactions, all codecs."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

from odradek.protocol.records.records import Record, build_batch
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import AppendOrigin, PartitionLog
from odradek.storage.log.transaction_verification import VERIFICATION_DISABLED
from odradek.testing.virtual_clock import VirtualClock
from tests.storage.compaction.compaction_model import Kept, Producers, kept
from tests.support.partition_logs import marker, read_batches

COMPACTED = LogConfig(
    cleanup_policy=("compact",),
    internal_segment_bytes=2500,
    index_interval_bytes=200,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=60_000,
    file_delete_delay_ms=0,
)
DELETING = dataclasses.replace(COMPACTED, cleanup_policy=("compact", "delete"))


@dataclass
class History:
    """Appends to `log` at random from a seed, with consistent sequences and transactions."""

    log: PartitionLog
    rng: random.Random
    clock: VirtualClock
    keys: int = 12
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    in_transaction: set[int] = field(default_factory=set)

    def go_on(self, batches: int) -> None:
        for _ in range(batches):
            self._one()
        self.log.advance_high_watermark(self.log.end_offset)

    def seal(self) -> None:
        """End all transactions and roll, so that everything before may be compacted."""
        for producer in sorted(self.in_transaction):
            self._end(producer)
        self.log.advance_high_watermark(self.log.end_offset)
        self.log.roll()
        self.log.flush()

    def _one(self) -> None:
        rng = self.rng
        self.clock.advance(rng.random() * 5)
        self.epoch += rng.random() < 0.05
        producer = rng.randint(0, 7)  # 0: none; up to 3: idempotent; the rest: transactional
        if producer in self.in_transaction and rng.random() < 0.5:
            self._end(producer)
        elif producer == 0:
            self._append(self._records())
        else:
            self._produce(producer)

    def _records(self) -> list[Record]:
        rng = self.rng
        now_ms = self.clock.wall_ms()
        return [
            Record(
                -1,
                now_ms + rng.randint(-200_000, 1000),
                self._key(),
                None if rng.random() < 0.2 else bytes([rng.randrange(256)]) * rng.randint(0, 120),
                (("h", b"v"), ("n", None)) if rng.random() < 0.1 else (),
            )
            for _ in range(rng.randint(1, 5))
        ]

    def _key(self) -> bytes:
        number = self.rng.randrange(self.keys)
        return b"key %d" % number + b"+" * (number * 7 % 30 if number % 5 else 300)

    def _produce(self, producer: int) -> None:
        if producer > 3:
            self.in_transaction.add(producer)
        records = self._records()
        sequence = self.sequences.setdefault(producer, 0)
        self._append(
            records,
            producer_id=producer,
            producer_epoch=self.epochs.setdefault(producer, 0),
            base_sequence=sequence,
            transactional=producer > 3,
        )
        self.sequences[producer] = sequence + len(records)

    def _append(self, records: list[Record], **more: int | bool) -> None:
        data = build_batch(records, compression=self.rng.choice((0, 0, 1, 2, 3, 4)), **more)  # type: ignore[arg-type]
        now_ms = self.clock.wall_ms()
        self.log.append_as_leader(
            memoryview(data), leader_epoch=self.epoch, now_ms=now_ms, guard=VERIFICATION_DISABLED
        )

    def _end(self, producer: int) -> None:
        self.in_transaction.remove(producer)
        epoch = self.epochs[producer]
        if self.rng.random() < 0.3:  # transaction.version 2: each transaction increments the epoch
            epoch += 1
            self.sequences[producer] = 0
        self.epochs[producer] = epoch
        now_ms = self.clock.wall_ms()
        data = marker(producer, epoch, commit=self.rng.random() < 0.6, timestamp=now_ms)
        self.log.append_as_leader(
            data, leader_epoch=self.epoch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
        )


def content(log: PartitionLog) -> list[Kept]:
    """All batches, as a reader receives them."""
    return [kept(batch) for batch in read_batches(log, log.log_start_offset, log.end_offset)]


def last_batches(log: PartitionLog) -> Producers:
    return {
        number: (entry.batches[-1].last_offset if entry.batches else None, entry.epoch)
        for number, entry in log.producers.active.items()
    }
