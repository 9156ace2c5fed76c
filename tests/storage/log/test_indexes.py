"""Offset, time and transaction index: bytes of their entries, and lookups compared with a linear
search."""

from __future__ import annotations

import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.seams.files import Path
from odradek.storage.log.index_file import STEP_BYTES, CorruptIndex
from odradek.storage.log.offset_index import OffsetIndex
from odradek.storage.log.time_index import TimeIndex
from odradek.storage.log.transaction_index import AbortedTransaction, TransactionIndex
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

PATH = Path("/x.index")


def files() -> VirtualFiles:
    return VirtualFiles(VirtualDisk())


def offset_index(base: int, entries: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex(files(), PATH, base)
    index.create()
    index.reserve(len(entries))
    for offset, position in entries:
        index.append([(offset, position)])
    return index


def time_index(base: int, entries: list[tuple[int, int]]) -> TimeIndex:
    index = TimeIndex(files(), PATH, base)
    index.create()
    index.reserve(len(entries))
    for timestamp, offset in entries:
        index.append([(timestamp, offset)])
    return index


rising = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=40).map(
    lambda steps: _accumulate(steps)
)


def _accumulate(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    entries, first, second = [], 0, 0
    for one, other in steps:
        first, second = first + one, second + other
        entries.append((first, second))
    return entries


def test_offset_index_entry_is_relative_offset_and_position() -> None:
    index = offset_index(1000, [(1009, 4200), (1022, 8410)])
    index.trim()
    assert index.file.read_at(0, 100) == struct.pack(">iiii", 9, 4200, 22, 8410)
    assert index.last == (1022, 8410)


def test_index_space_is_reserved_in_steps_and_freed_by_trim() -> None:
    index = offset_index(0, [(5, 100)])
    assert index.file.size == STEP_BYTES
    index.reserve(STEP_BYTES // 8 - 1)
    assert index.file.size == STEP_BYTES
    index.reserve(STEP_BYTES // 8)
    assert index.file.size == 2 * STEP_BYTES
    index.trim()
    assert index.file.size == 8


def test_reserved_space_is_multiple_of_entry_size() -> None:
    """As in Kafka, whose tools, and `dump --verify`, report remaining bytes as corruption."""
    index = time_index(0, [])
    for count in (1, STEP_BYTES // 12, STEP_BYTES // 12 + 1, 1000):
        index.reserve(count)
        assert index.capacity >= count
        assert index.file.size == 12 * index.capacity


@pytest.mark.parametrize("mapped", [True, False])
@given(entries=rising, target=st.integers(-5, 2100), base=st.sampled_from([0, 1 << 40]))
def test_offset_lookup_returns_last_entry_at_or_below(
    entries: list[tuple[int, int]], target: int, base: int, mapped: bool
) -> None:
    index = offset_index(base, [(base + offset, position) for offset, position in entries])
    offset, position = max((entry for entry in entries if entry[0] <= target), default=(0, 0))
    assert index.lookup(base + target, mapped=mapped) == (base + offset, position)


@given(entries=rising, position=st.integers(0, 210_000))
def test_upper_bound_returns_first_entry_at_or_past_position(
    entries: list[tuple[int, int]], position: int
) -> None:
    want = min((entry for entry in entries if entry[1] >= position), default=None)
    assert offset_index(0, entries).upper_bound(position) == want


@given(entries=rising, cut=st.integers(0, 2100))
def test_truncated_offset_index_keeps_batches_that_end_below(
    entries: list[tuple[int, int]], cut: int
) -> None:
    old = offset_index(0, entries)
    fresh = old.truncated(cut)
    kept = [entry for entry in entries if entry[0] < cut]
    assert fresh.file.read_at(0, 10_000) == b"".join(struct.pack(">ii", *entry) for entry in kept)
    assert fresh.last == (kept[-1] if kept else (0, 0))
    # Readers of the old file find all its entries.
    assert old.count == len(entries)


def test_trimmed_offset_index_is_loaded_with_last_entry() -> None:
    index = offset_index(100, [(105, 60), (190, 4500)])
    index.trim()
    again = OffsetIndex(index._files, PATH, 100)
    again.load(5000)
    assert (again.count, again.last) == (2, (190, 4500))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"1234567", id="no whole entry"),
        pytest.param(bytes(16), id="zeros: it was never trimmed"),
        pytest.param(struct.pack(">ii", 5, 5000), id="a position past the segment"),
        pytest.param(struct.pack(">ii", -5, 50), id="an offset below the base"),
    ],
)
def test_corrupt_offset_index_raises(data: bytes) -> None:
    disk = files()
    disk.open(PATH, create=True).append_v([data])
    with pytest.raises(CorruptIndex):
        OffsetIndex(disk, PATH, 100).load(5000)


def test_time_index_entry_is_timestamp_and_relative_offset_and_increases() -> None:
    index = time_index(1000, [(77, 1005), (77, 1008), (70, 1009), (99, 1010)])
    index.trim()
    assert index.file.read_at(0, 100) == struct.pack(">qiqi", 77, 5, 99, 10)
    assert index.last == (99, 1010)


@given(entries=rising, target=st.integers(-5, 2100))
def test_time_lookup_returns_entry_before_last_one_at_or_before(
    entries: list[tuple[int, int]], target: int
) -> None:
    found = [entry for entry in entries if entry[0] <= target]
    assert time_index(0, entries).entry_before(target) == (found[-2] if len(found) > 1 else (-1, 0))


@given(entries=rising, cut=st.integers(0, 210_000))
def test_truncated_time_index_keeps_entries_below(entries: list[tuple[int, int]], cut: int) -> None:
    fresh = time_index(0, entries).truncated(cut)
    kept = [entry for entry in entries if entry[1] < cut]
    assert fresh.count == len(kept)
    assert fresh.last == (kept[-1] if kept else (-1, 0))


def test_reopened_time_index_removes_entry_of_clean_close() -> None:
    index = time_index(0, [(10, 5), (20, 9), (30, 14)])
    index.reopen(9)
    assert index.last == (20, 9)
    index.append([(40, 20), (40, 24)])
    index.trim()
    assert index.file.read_at(0, 100) == struct.pack(">qiqiqi", 10, 5, 20, 9, 40, 20)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"1234567890123", id="no whole entries"),
        pytest.param(struct.pack(">qiqi", 50, 5, 0, 0), id="zeros at the end"),
        pytest.param(bytes(24), id="zeros"),
        pytest.param(bytes(12), id="zeros for one entry"),
        pytest.param(b"", id="nothing for a segment that is not empty"),
        pytest.param(struct.pack(">qi", -2, 5), id="a negative timestamp"),
    ],
)
def test_corrupt_time_index_raises(data: bytes) -> None:
    disk = files()
    disk.open(PATH, create=True).append_v([data])
    with pytest.raises(CorruptIndex):
        TimeIndex(disk, PATH, 300).load(5000)


@pytest.mark.parametrize("entries", [[], [(50, 300)], [(0, 301)], [(1, 300), (2, 301)]])
def test_valid_time_index_is_loaded(entries: list[tuple[int, int]]) -> None:
    index = time_index(300, entries)
    index.trim()
    again = TimeIndex(index._files, PATH, 300)
    again.load(5000 if entries else 0)
    assert again.count == len(entries)


def aborted(first: int, last: int, stable: int, producer: int = 7) -> AbortedTransaction:
    return AbortedTransaction(producer, first, last, stable)


def transaction_index(*entries: AbortedTransaction) -> TransactionIndex:
    index = TransactionIndex(files(), PATH, exists=False)
    for entry in entries:
        index.append(entry)
    return index


def test_transaction_index_entry_has_34_bytes_and_is_created_by_first_abort() -> None:
    index = transaction_index()
    assert index.entries == ()
    assert not index._files.exists(PATH)
    index.append(aborted(3, 9, 10, producer=1))
    assert index._files.read(PATH) == struct.pack(">hqqqq", 0, 1, 3, 9, 10)
    assert TransactionIndex(index._files, PATH, exists=True).entries == (aborted(3, 9, 10, 1),)


def test_collect_returns_overlapping_transactions_and_completeness() -> None:
    one, two, three = aborted(0, 10, 11), aborted(5, 20, 21), aborted(15, 30, 16)
    index = transaction_index(one, two, three)
    assert index.collect(0, 12) == ([one, two], True)
    assert index.collect(11, 100) == ([two, three], False)
    assert index.collect(40, 100) == ([], False)


def test_truncated_transaction_index_keeps_markers_below() -> None:
    index = transaction_index(aborted(0, 10, 11), aborted(5, 20, 21))
    fresh = index.truncated(20)
    assert fresh.entries == (aborted(0, 10, 11),)
    assert len(index._files.read(PATH)) == 34
    gone = fresh.truncated(10)
    assert not gone.exists
    assert not index._files.exists(PATH)
    gone.append(aborted(1, 2, 3))
    assert gone.entries == (aborted(1, 2, 3),)


@pytest.mark.parametrize("cut_at", [None, 21])
@pytest.mark.parametrize("is_closed", [False, True])
def test_transaction_index_is_synced_after_file_was_taken_over(
    cut_at: int | None, is_closed: bool
) -> None:
    """A truncation that removes none of its entries passes the file unchanged to another index
    object."""
    index = transaction_index(aborted(0, 10, 11), aborted(5, 20, 21))
    index._files.sync_directory(PATH.parent)
    if is_closed:
        index.close()
    if cut_at is not None:
        index = index.truncated(cut_at)
    index.sync()
    for seed in range(10):
        left = VirtualFiles(index._files.disk.crash(seed))  # type: ignore[attr-defined]
        assert TransactionIndex(left, PATH, exists=True).entries == index.entries


def test_reload_after_crash_keeps_whole_entries_below_offset() -> None:
    index = transaction_index(aborted(0, 10, 11), aborted(5, 20, 21))
    index._files.open(PATH, write=True).append_v([b"torn"])
    again = TransactionIndex(index._files, PATH, exists=True)
    again.reload(100)
    assert len(again.entries) == 2
    assert len(index._files.read(PATH)) == 68
    again.reload(20)
    assert again.entries == (aborted(0, 10, 11),)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param([(3, 7, 24, 25, 26)], "unknown version 3", id="version"),
        pytest.param([(0, -7, 24, 25, 26)], "invalid entry: producer -7", id="producer"),
        pytest.param([(0, 7, 25, 24, 25)], "offsets 25 to 24", id="first offset"),
        pytest.param([(0, 7, 10, 14, 15)], "offsets 10 to 14", id="below the base offset"),
        pytest.param([(0, 7, 24, 25, 27)], "last stable offset 27", id="last stable offset"),
        pytest.param([(0, 7, 21, 23, 24), (0, 8, 21, 23, 24)], "producer 8", id="two markers"),
        pytest.param([(0, 7, 21, 23, 24), (0, 8, 21, 25, 22)], "producer 8", id="order"),
    ],
)
def test_invalid_entry_of_transaction_index_is_reported(
    data: list[tuple[int, ...]], problem: str
) -> None:
    disk = files()
    right = struct.pack(">hqqqq", 0, 6, 5, 20, 21)
    parts = [right, *(struct.pack(">hqqqq", *each) for each in data)]
    disk.open(PATH, create=True).append_v(parts)
    index = TransactionIndex(disk, PATH, exists=True, base_offset=15)
    assert problem in (index.problem or "")
    assert index.entries[0] == aborted(5, 20, 21, producer=6)
    assert len(index.entries) == len(data)


def test_incomplete_entry_of_transaction_index_is_reported() -> None:
    disk = transaction_index(aborted(5, 20, 21))._files
    disk.open(PATH, write=True).append_v([bytes(5)])
    index = TransactionIndex(disk, PATH, exists=True)
    assert "39 bytes, which is not a multiple of 34" in (index.problem or "")
    assert index.entries == (aborted(5, 20, 21),)


def test_repaired_transaction_index_keeps_entries_appended_meanwhile() -> None:
    disk = transaction_index(aborted(0, 10, 11))._files
    index = TransactionIndex(disk, PATH, exists=True)
    assert index.entries
    index.append(aborted(5, 20, 21))
    index.repair([aborted(2, 10, 11)], 15)
    index.append(aborted(25, 30, 31))
    right = (aborted(2, 10, 11), aborted(5, 20, 21), aborted(25, 30, 31))
    assert index.entries == right
    assert TransactionIndex(disk, PATH, exists=True).entries == right
    index.close()


def test_truncated_transaction_index_is_not_repaired_by_earlier_reader() -> None:
    index = transaction_index(aborted(0, 10, 11), aborted(5, 20, 21))
    fresh = index.truncated(20)
    with pytest.raises(ValueError, match="truncated"):
        index.repair([aborted(0, 10, 11), aborted(5, 20, 21)], 25)
    assert len(index._files.read(PATH)) == 34
    assert index._files.list(PATH.parent) == [PATH.name]
    fresh.append(aborted(5, 22, 23))
    assert fresh.entries == (aborted(0, 10, 11), aborted(5, 22, 23))


def test_copy_of_transaction_index_follows_repair_of_source() -> None:
    disk = files()
    source = TransactionIndex(disk, PATH.with_name("source"), exists=False)
    for each in (aborted(0, 10, 11), aborted(5, 20, 21)):
        source.append(each)
    copy = TransactionIndex(disk, PATH, exists=False)
    copy.catch_up(source)
    source.repair([aborted(0, 10, 11), aborted(6, 20, 21)], 25)
    source.append(aborted(25, 30, 31))
    copy.catch_up(source)
    assert copy.entries == source.entries
    assert disk.read(PATH) == disk.read(source.path)


def test_append_during_first_read_is_kept() -> None:
    one, two = aborted(0, 10, 11), aborted(5, 20, 21)
    disk = transaction_index(one)._files
    index = TransactionIndex(disk, PATH, exists=True)
    appender = threading.Thread(target=index.append, args=(two,))
    read = disk.read

    def overtaken(path: Path) -> bytes:
        data = read(path)
        disk.read = read  # type: ignore[method-assign]
        appender.start()
        appender.join(0.1)
        return data

    disk.read = overtaken  # type: ignore[method-assign]
    assert one in index.entries
    appender.join(10)
    assert index.entries == (one, two)
    assert len(disk.read(PATH)) == 68
