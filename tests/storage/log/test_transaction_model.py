"""Transactions of a log compared with a list of its batches, after random operations: last stable
offset and aborted transactions. The state from appends equals the state from replaying the log."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

import pytest

from odradek.storage.errors import InvalidTransactionState
from odradek.storage.log.transaction_index import AbortedTransaction
from tests.support.partition_logs import FOREVER, LogWorld, batch, idempotent, marker

PRODUCERS = (1, 2, 3)


@dataclass(frozen=True)
class Written:
    """A batch of the model; `ends` is whether a marker commits."""

    first: int
    count: int
    producer: int
    sequence: int = -1
    ends: bool | None = None

    @property
    def end(self) -> int:
        return self.first + self.count


@dataclass(frozen=True)
class Transaction:
    producer: int
    first: int
    marker: int | None = None
    is_commit: bool = False


def transactions(written: list[Written]) -> list[Transaction]:
    """In the order of their markers, the ongoing ones last."""
    found: list[Transaction] = []
    ongoing: dict[int, int] = {}
    for each in written:
        if each.producer < 0:
            continue
        if each.ends is None:
            ongoing.setdefault(each.producer, each.first)
        elif each.producer in ongoing:
            first = ongoing.pop(each.producer)
            found.append(Transaction(each.producer, first, each.first, each.ends))
    return [*found, *(Transaction(producer, first) for producer, first in ongoing.items())]


class TransactionModel:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        config = dataclasses.replace(
            FOREVER,
            internal_segment_bytes=rng.choice([300, 700, 5000]),
            index_interval_bytes=100,
        )
        self.world = LogWorld(config)
        self.written: list[Written] = []
        self.high_watermark = self.flushed = 0
        self.was_cut = False

    @property
    def end(self) -> int:
        return self.written[-1].end if self.written else 0

    def _next_sequence(self, producer: int) -> int:
        for each in reversed(self.written):
            if each.producer == producer and each.ends is None:
                return each.sequence + each.count
        return 0

    def write(self) -> None:
        producer, count = self.rng.choice(PRODUCERS), self.rng.randint(1, 3)
        sequence = self._next_sequence(producer)
        first = self.end
        data = idempotent(producer, sequence, count, transactional=True, size=10)
        assert self.world.append(data).first_offset == first
        self.written.append(Written(first, count, producer, sequence))

    def write_without_guard(self) -> None:
        """Append without a guard: continue an open transaction, and start none."""
        producer = self.rng.choice(PRODUCERS)
        is_open = any(
            each.producer == producer and each.marker is None for each in transactions(self.written)
        )
        sequence, first = self._next_sequence(producer), self.end
        data = idempotent(producer, sequence, transactional=True, size=10)
        if is_open:
            self.world.append(data, guard=None)
            self.written.append(Written(first, 1, producer, sequence))
        else:
            with pytest.raises(InvalidTransactionState):
                self.world.append(data, guard=None)

    def write_plainly(self) -> None:
        self.written.append(Written(self.end, 1, -1))
        self.world.append(batch(1, size=10))

    def end_transaction(self) -> None:
        producer, commit = self.rng.choice(PRODUCERS), self.rng.random() < 0.3
        first = self.end
        self.world.coordinate(marker(producer, commit=commit))
        self.written.append(Written(first, 1, producer, ends=commit))

    def roll(self) -> None:
        self.world.log.roll()

    def flush(self) -> None:
        self.world.log.flush(self.rng.randint(0, self.end))
        self.world.recovery_point = self.flushed = self.world.log.recovery_point

    def replicate(self) -> None:
        offset = self.rng.randint(0, self.end)
        self.world.log.advance_high_watermark(offset)
        self.high_watermark = max(self.high_watermark, offset)

    def truncate(self) -> None:
        back = self.rng.randint(1, 8)
        self.was_cut = True
        ends = [0, *(each.end for each in self.written)]
        self._cut(ends[max(0, len(ends) - 1 - back)])
        self.world.log.truncate_to(self.end)

    def _cut(self, end: int) -> None:
        self.written = [each for each in self.written if each.end <= end]
        self.high_watermark = min(self.high_watermark, end)
        self.flushed = min(self.flushed, end)

    # Restarts of a leader that is the only in-sync replica, so that all records are replicated

    def _restarted(self) -> None:
        log = self.world.log
        assert log.end_offset >= self.flushed
        self._cut(log.end_offset)
        log.advance_high_watermark(log.end_offset)
        self.high_watermark = log.end_offset

    def restart(self) -> None:
        end = self.end
        self.world.reopen()
        self.flushed = end
        self._restarted()
        assert self.end == end

    def kill(self) -> None:
        end = self.end
        self.world.kill()
        self._restarted()
        assert self.end == end

    def lose_power(self) -> None:
        self.world.power_cut(self.rng.getrandbits(32))
        self._restarted()

    # Invariants

    def expected_stable_offset(self) -> None:
        """A transaction counts until its marker is replicated; after a truncation, as in Kafka,
        only until it is completed, because its outcome is final."""
        all_ = transactions(self.written)
        undecided = [each.first for each in all_ if each.marker is None]
        unreplicated = [each.first for each in all_ if (each.marker or 0) >= self.high_watermark]
        self.was_cut = self.was_cut and self.high_watermark < self.end
        least = min([*undecided, *unreplicated, self.high_watermark])
        most = min([*undecided, self.high_watermark]) if self.was_cut else least
        assert least <= self.world.log.last_stable_offset <= most

    def what_is_open(self) -> None:
        found = {
            entry.producer_id: entry.transaction_start
            for entry in self.world.log.producers.active.values()
            if entry.transaction_start >= 0
        }
        wanted = {t.producer: t.first for t in transactions(self.written) if t.marker is None}
        assert found == wanted

    def what_was_aborted(self) -> None:
        aborted = [
            (each.producer, each.first, each.marker)
            for each in transactions(self.written)
            if each.marker is not None and not each.is_commit
        ]
        for _ in range(5):
            start, end = sorted(self.rng.randint(0, self.end) for _ in range(2))
            if start == end:
                continue
            found = self.world.log.aborted_transactions(start, end)
            assert [_without_stable(each) for each in found] == [
                each for each in aborted if each[2] >= start and each[1] < end
            ]


def _without_stable(each: AbortedTransaction) -> tuple[int, int, int]:
    assert each.first_offset < each.last_offset
    return each.producer_id, each.first_offset, each.last_offset


STEPS = {
    TransactionModel.write: 10,
    TransactionModel.end_transaction: 8,
    TransactionModel.write_without_guard: 2,
    TransactionModel.write_plainly: 2,
    TransactionModel.replicate: 5,
    TransactionModel.flush: 2,
    TransactionModel.roll: 1,
    TransactionModel.truncate: 1,
    TransactionModel.restart: 0.5,
    TransactionModel.kill: 0.5,
    TransactionModel.lose_power: 0.5,
}


@pytest.mark.parametrize("seed", range(30))
def test_transaction_state_matches_batches_of_log(seed: int) -> None:
    rng = random.Random(seed)
    model = TransactionModel(rng)
    for _ in range(120):
        (step,) = rng.choices(list(STEPS), list(STEPS.values()))
        step(model)
        model.expected_stable_offset()
        model.what_is_open()
        model.what_was_aborted()
