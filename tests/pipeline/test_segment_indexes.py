"""Wrong indexes hide no records, because their entries are compared with the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import product
from uuid import UUID

import pytest

from odradek.protocol.records.records import Record, build_batch
from odradek.seams.entropy import SeededEntropy
from odradek.storage.log import offset_index, time_index
from odradek.storage.tiered.object_names import LOG_SUFFIX, segment_key
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.virtual_object_store import VirtualObjectStore

pytest.importorskip("pyarrow")

from odradek.pipeline.decoding.record_decoder import RecordSelection
from odradek.pipeline.decoding.record_selection import INT64_MAX, INT64_MIN
from odradek.pipeline.segment_columns import SegmentSlice
from odradek.pipeline.segment_reader import narrowed_to_time, read_slice

FIRST, A_BATCH = 100, 3
TIMES = (10, 20, 15, 30, 40, 35, 50, 60)
"""Maximum timestamp of each batch, in ms."""
LAST = FIRST + A_BATCH * len(TIMES) - 1


class StoredSegment:
    """Segment in a store whose indexes have an entry for each batch."""

    def __init__(self, times: Sequence[int] = TIMES) -> None:
        self.log, self.positions, self.entries, self.times = b"", [0], [], []
        newest = -1
        for number, at in enumerate(times):
            base = FIRST + number * A_BATCH
            records = [
                Record(base + n, at - A_BATCH + 1 + n, None, b"v" * number * 7)
                for n in range(A_BATCH)
            ]
            last = base + A_BATCH - 1 - FIRST
            if number:
                self.entries.append((last, len(self.log)))
            if at > newest:
                self.times.append((at, last))
                newest = at
            self.log += build_batch(records, base_offset=base, compression=number % 5)
            self.positions.append(len(self.log))
        self.segment = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "t", 0), UUID(int=2)),
            FIRST, FIRST + A_BATCH * len(times) - 1, 1, max(times), 0, (EpochStart(0, FIRST),), len(self.log),
            SegmentState.COPY_SEGMENT_FINISHED,
        )  # fmt: skip
        self._objects = VirtualObjectStore()
        self.storage = ObjectStoreStorage(self._objects, SeededEntropy(1))
        self.put(LOG_SUFFIX, self.log)
        self.put_offsets(b"".join(offset_index.ENTRY.pack(*each) for each in self.entries))
        self.put_times(b"".join(time_index.ENTRY.pack(*each) for each in self.times))

    def put(self, suffix: str, data: bytes) -> None:
        self._objects.bucket.objects[segment_key(self.segment, suffix)] = data

    def put_offsets(self, data: bytes) -> None:
        self.put(IndexType.OFFSET.value, data)

    def put_times(self, data: bytes) -> None:
        self.put(IndexType.TIMESTAMP.value, data)

    def read(
        self, low: int, high: int, since_ms: int = INT64_MIN, until_ms: int = INT64_MAX
    ) -> list[int]:
        wanted = RecordSelection("t", 0, ("offset",), low, high, since_ms, until_ms, until_ms)
        tables = read_slice(self.storage, SegmentSlice(self.segment, low, high), wanted)
        return [offset for table in tables for offset in table.column(0).to_pylist()]


def _ranges() -> list[tuple[int, int]]:
    steps = range(FIRST, LAST + 2, 2)
    return [(low, high) for low, high in product(steps, (*steps, LAST + 1)) if low < high]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(TIMES) - 1))
def test_wrong_entry_hides_no_record(number: int) -> None:
    stored = StoredSegment()
    relative, true = stored.entries[number]
    elsewhere = [*stored.positions, 1, true - 1, true + 1, true + 61, len(stored.log) + 1, -1]
    for position in elsewhere:
        entries = [*stored.entries]
        entries[number] = relative, position
        stored.put_offsets(b"".join(offset_index.ENTRY.pack(*each) for each in entries))
        for low, high in _ranges():
            assert stored.read(low, high) == list(range(low, high))


@pytest.mark.slow
def test_flipped_bit_of_an_offset_index_hides_no_record() -> None:
    stored = StoredSegment()
    good = b"".join(offset_index.ENTRY.pack(*each) for each in stored.entries)
    for bit in range(len(good) * 8):
        index = bytearray(good)
        index[bit // 8] ^= 1 << bit % 8
        stored.put_offsets(bytes(index))
        for low in range(FIRST, LAST + 1, A_BATCH):
            assert stored.read(low, low + 1) == [low]


def test_wrong_index_is_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    stored = StoredSegment()
    relative, _ = stored.entries[0]
    stored.put_offsets(offset_index.ENTRY.pack(relative, stored.positions[-2]))
    with caplog.at_level(logging.WARNING):
        assert stored.read(FIRST + 10, FIRST + 12) == [FIRST + 10, FIRST + 11]
    assert f"{segment_key(stored.segment, LOG_SUFFIX)} is read from its beginning" in caplog.text


@pytest.mark.slow
def test_flipped_bit_of_a_time_index_hides_no_record() -> None:
    stored = StoredSegment()
    good = b"".join(time_index.ENTRY.pack(*each) for each in stored.times)
    every = {
        FIRST + number * A_BATCH + n: at - A_BATCH + 1 + n
        for number, at in enumerate(TIMES)
        for n in range(A_BATCH)
    }
    for bit in range(len(good) * 8):
        index = bytearray(good)
        index[bit // 8] ^= 1 << bit % 8
        stored.put_times(bytes(index))
        for since in (0, 20, 21, 39, 60):
            late = [offset for offset, at in every.items() if at >= since]
            assert stored.read(FIRST, LAST + 1, since) == late
            narrow = narrowed_to_time(
                stored.storage, SegmentSlice(stored.segment, FIRST, LAST + 1), since
            )
            assert narrow.low <= late[0] < narrow.high
        for until in (10, 21, 30, 55):
            first = next(offset for offset, at in every.items() if at >= until)
            early = [offset for offset, at in every.items() if at < until and offset < first]
            found = stored.read(FIRST, LAST + 1, until_ms=until)
            assert found[: len(early)] == early


@pytest.mark.parametrize("relative", [10, 11], ids=["a bit is wrong", "all of it is"])
def test_entry_with_the_offset_of_a_later_batch_hides_no_record(
    relative: int, caplog: pytest.LogCaptureFixture
) -> None:
    """That batch has the entry's timestamp as its maximum, but the batch before has a later one."""
    stored = StoredSegment((10, 30, 35, 10, 40))
    first, *rest = stored.times
    assert first == (10, 2)
    entries = [(10, relative), *rest]
    stored.put_times(b"".join(time_index.ENTRY.pack(*each) for each in entries))
    low, high = FIRST, FIRST + 5 * A_BATCH
    assert stored.read(low, high, 25)[0] == FIRST + A_BATCH
    name = segment_key(stored.segment, IndexType.TIMESTAMP.value)
    assert f"without {name}: " in caplog.text
    assert "has an invalid entry: timestamp 30" in caplog.text


def test_batches_excluded_by_a_correct_time_index_are_not_read() -> None:
    stored = StoredSegment()
    segment_slice = SegmentSlice(stored.segment, FIRST, LAST + 1)
    assert narrowed_to_time(stored.storage, segment_slice, 31) == SegmentSlice(
        stored.segment, FIRST + 4 * A_BATCH - 1, FIRST + 5 * A_BATCH
    )
