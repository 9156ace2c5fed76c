"""A log compared with a list: random operations, with restarts, kills and power failures in
between."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from odradek.protocol.records.batch import batches
from odradek.protocol.records.records import Record
from odradek.storage.errors import OutOfOrderSequence
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.partition_log import LogRead
from tests.support.partition_logs import (
    FOREVER,
    NOW_MS,
    LogWorld,
    batch,
    check_indexes,
    idempotent,
    records_in,
)

PRODUCERS = (1, 2)


@dataclass(frozen=True)
class Written:
    """A batch of the model."""

    first: int
    count: int
    epoch: int
    producer: int = -1
    sequence: int = -1

    @property
    def end(self) -> int:
        return self.first + self.count


class LogModel(RuleBasedStateMachine):
    world: LogWorld

    @initialize(
        segment_bytes=st.sampled_from([450, 900, 3000]), interval=st.sampled_from([0, 100, 400])
    )
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.world = LogWorld(
            dataclasses.replace(
                FOREVER, internal_segment_bytes=segment_bytes, index_interval_bytes=interval
            )
        )
        self.written: list[Written] = []
        self.records: dict[int, Record] = {}
        self.start = self.end = self.high_watermark = self.flushed = self.epoch = 0
        self.is_reopened = False
        self.pinned: list[tuple[LogRead, bytes]] = []

    # Operations

    def _appended(self, data: memoryview, count: int, producer: int, sequence: int) -> None:
        first = self.end
        appended = self.world.append(data, epoch=self.epoch)
        assert (appended.first_offset, appended.last_offset) == (first, first + count - 1)
        assert not appended.duplicate
        self.written.append(Written(first, count, self.epoch, producer, sequence))
        self.end = first + count
        for record in records_in(self.world.log, first):
            self.records[record.offset] = record
        self.is_reopened = False

    @rule(
        count=st.integers(1, 4),
        size=st.integers(0, 60),
        time=st.integers(0, 5),
        new_epoch=st.booleans(),
    )
    def append(self, count: int, size: int, time: int, new_epoch: bool) -> None:
        self.epoch += new_epoch
        self._appended(batch(count, size=size, timestamps=NOW_MS + time), count, -1, -1)

    def _last_of(self, producer: int) -> Written | None:
        return next((each for each in reversed(self.written) if each.producer == producer), None)

    @rule(producer=st.sampled_from(PRODUCERS), count=st.integers(1, 3))
    def produce(self, producer: int, count: int) -> None:
        last = self._last_of(producer)
        sequence = 0 if last is None else last.sequence + last.count
        if last is None:  # unknown or expired: it may start with any sequence
            known = self.world.log.producers.get(producer)
            sequence = 0 if known is None else known.last_sequence + 1
        self._appended(idempotent(producer, sequence, count), count, producer, sequence)

    @rule(producer=st.sampled_from(PRODUCERS), gap=st.integers(1, 3))
    def produce_with_a_gap(self, producer: int, gap: int) -> None:
        last = self._last_of(producer)
        if last is not None:
            with pytest.raises(OutOfOrderSequence):
                self.world.append(idempotent(producer, last.sequence + last.count + gap, 1))

    @rule(producer=st.sampled_from(PRODUCERS))
    def produce_again(self, producer: int) -> None:
        last = self._last_of(producer)
        if last is not None:
            again = self.world.append(idempotent(producer, last.sequence, last.count))
            assert again.duplicate
            assert (again.first_offset, again.last_offset) == (last.first, last.end - 1)

    @rule()
    def roll(self) -> None:
        self.world.log.roll()
        self.is_reopened = False

    @rule(part=st.floats(0, 1))
    def flush(self, part: float) -> None:
        self.world.log.flush(self.start + int(part * (self.end - self.start)))
        self.world.recovery_point = self.world.log.recovery_point
        self.flushed = self.world.recovery_point

    @rule(part=st.floats(0, 1))
    def replicate(self, part: float) -> None:
        offset = self.start + int(part * (self.end - self.start))
        self.world.log.advance_high_watermark(offset)
        self.high_watermark = max(self.high_watermark, offset)

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        ends = [self.start, *(each.end for each in self.written)]
        cut = ends[max(0, len(ends) - 1 - back)]  # the log start offset may be within a batch
        self.world.log.truncate_to(cut)
        self._cut(cut)

    def _cut(self, end: int) -> None:
        """Truncate the model."""
        if end < self.end:
            self.is_reopened = False
        self.end = end
        self.flushed = min(self.flushed, end)
        self.high_watermark = min(self.high_watermark, end)
        self.written = [each for each in self.written if each.end <= end]
        self.records = {offset: each for offset, each in self.records.items() if offset < end}

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        offset = self.start + int(part * (self.high_watermark - self.start))
        self.world.log.advance_log_start(offset, "test")
        self._begin_at(offset)

    def _begin_at(self, start: int) -> None:
        self.start = start
        self.flushed = max(self.flushed, start)
        self.world.recovery_point = max(self.world.recovery_point, start)
        self.written = [each for each in self.written if each.end > start]
        self.records = {offset: each for offset, each in self.records.items() if offset >= start}

    @rule(kept_bytes=st.integers(0, 2000))
    def expire(self, kept_bytes: int) -> None:
        log = self.world.log
        before = len(log.segments)
        log.update_config(dataclasses.replace(self.world.config, retention_bytes=kept_bytes))
        gone = log.delete_expired(NOW_MS)
        log.update_config(self.world.config)
        assert log.log_start_offset <= max(self.high_watermark, self.start)
        if gone == before:
            self.is_reopened = False
        self._begin_at(log.log_start_offset)

    @rule()
    def unlink(self) -> None:
        self.world.log.remove_deleted(NOW_MS + 10**9)

    @rule(offset=st.integers(0, 30))
    def truncate_fully(self, offset: int) -> None:
        if offset > 3:  # rarely
            return
        self.world.log.truncate_fully_and_start_at(self.end + offset)
        self._cut(self.start)
        self.start = self.end = self.high_watermark = self.world.log.end_offset
        self.flushed = self.start

    @precondition(lambda self: self.end > self.start)
    @rule(part=st.floats(0, 1))
    def pin(self, part: float) -> None:
        offset = self.start + int(part * (self.end - 1 - self.start))
        read = self.world.log.read(offset, 2000, limit=self.end)
        assert read.slice is not None
        self.pinned.append((read, read.slice.read()))

    # Restarts

    def _restarted(self) -> None:
        self.pinned.clear()
        self.high_watermark = self.start
        log = self.world.log
        assert log.log_start_offset == self.start
        assert log.end_offset >= self.flushed
        self._cut(log.end_offset)

    @rule()
    def restart(self) -> None:
        self.world.reopen()
        self.flushed = self.end
        self._restarted()
        assert self.world.log.end_offset == self.end
        self.is_reopened = True

    @rule()
    def kill(self) -> None:
        end = self.end
        self.world.log_start_offset = self.start
        self.world.kill()
        assert self.world.log.end_offset == end
        self._restarted()
        self.is_reopened = False

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        self.world.log_start_offset = self.start
        self.world.power_cut(seed)
        self._restarted()
        self.is_reopened = True  # the last segment may have been sealed, and the next one lost

    # Invariants

    @invariant()
    def all_records_are_readable(self) -> None:
        log = self.world.log
        assert (log.log_start_offset, log.end_offset) == (self.start, self.end)
        found = records_in(log, self.start)
        assert found == [self.records[offset] for offset in sorted(self.records)]

    @invariant()
    def size_equals_size_of_segment_files(self) -> None:
        log = self.world.log
        assert log.size_bytes == sum(segment.file.size for segment in log.segments)

    @invariant()
    def epochs_match_batches(self) -> None:
        wanted: list[EpochStart] = []
        for epoch, group in itertools.groupby(self.written, key=lambda each: each.epoch):
            wanted.append(EpochStart(epoch, max(self.start, next(iter(group)).first)))
        found = [entry for entry in self.world.log.epochs.entries if entry.start_offset < self.end]
        assert found == wanted

    @invariant()
    def indexes_match_rebuilt_indexes(self) -> None:
        check_indexes(self.world, reopened=self.is_reopened)

    @invariant()
    def offsets_are_ordered(self) -> None:
        log = self.world.log
        assert log.log_start_offset <= log.high_watermark <= log.end_offset
        assert log.recovery_point <= log.end_offset

    @invariant()
    def slices_are_what_they_were(self) -> None:
        for read, before in self.pinned:
            assert read.slice is not None
            assert read.slice.read() == before
            for _ in batches(memoryview(before), check=True, allow_partial=True):
                pass


LogModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLogModel = LogModel.TestCase
