"""Detection of logs with one record per offset (DENSE), for any split of their bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.records.control import end_marker
from odradek.protocol.records.records import Record, build_batch
from odradek.storage.tiered import custom_metadata
from odradek.storage.tiered.custom_metadata import DensityCheck

FIRST = 1 << 33


def batches(counts: list[int]) -> list[bytes]:
    found, offset = [], FIRST
    for number, count in enumerate(counts):
        records = [Record(offset + at, at, None, b"v" * at) for at in range(count)]
        found.append(bytes(build_batch(records, base_offset=offset, compression=number % 5)))
        offset += count
    return found


def is_dense(log: bytes, last: int, cuts: list[int] | None = None) -> bool:
    check = DensityCheck(FIRST, last)
    for begin, end in pairwise([0, *sorted(cuts or ()), len(log)]):
        check.feed(memoryview(log)[begin:end])
    return check.is_dense


some_counts = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(some_counts, st.data())
def test_log_with_all_offsets_is_dense_for_any_split(
    counts: list[int], data: st.DataObject
) -> None:
    log = b"".join(batches(counts))
    cuts = data.draw(st.lists(st.integers(0, len(log)), max_size=8))
    assert is_dense(log, FIRST + sum(counts) - 1, cuts)


@given(some_counts, st.data())
def test_corrupt_log_is_not_dense(counts: list[int], data: st.DataObject) -> None:
    """Except in leader epochs, which are not checked."""
    log = bytearray(b"".join(batches(counts)))
    at = data.draw(st.integers(0, len(log) - 1))
    begin = 0
    while begin + 12 + int.from_bytes(log[begin + 8 : begin + 12], "big") <= at:
        begin += 12 + int.from_bytes(log[begin + 8 : begin + 12], "big")
    is_epoch = at - begin in range(12, 16)
    log[at] ^= 1 << data.draw(st.integers(0, 7))
    cuts = data.draw(st.lists(st.integers(0, len(log)), max_size=3))
    assert is_dense(bytes(log), FIRST + sum(counts) - 1, cuts) is is_epoch


def _without_one(log: list[bytes]) -> list[bytes]:
    return [log[0], log[2]]


def _with_one_twice(log: list[bytes]) -> list[bytes]:
    return [log[0], log[0], log[1], log[2]]


def _cut_short(log: list[bytes]) -> list[bytes]:
    return [log[0], log[1], log[2][:-1]]


def _cut_in_a_header(log: list[bytes]) -> list[bytes]:
    return [*log, log[2][:40]]


def _with_a_marker(log: list[bytes]) -> list[bytes]:
    marker = end_marker(
        commit=True,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=FIRST + 5,
    )
    return [log[0], bytes(marker), *batches([6, 7])[1:]]


def _with_fewer_records(log: list[bytes]) -> list[bytes]:
    """A batch after compaction: it keeps its offsets."""
    left = [Record(FIRST + 5, 0, None, b""), Record(FIRST + 10, 0, None, b"")]
    return [log[0], bytes(build_batch(left, base_offset=FIRST + 5)), log[2]]


def _empty(log: list[bytes]) -> list[bytes]:
    return []


@pytest.mark.parametrize(
    "change",
    [
        _without_one, _with_one_twice, _cut_short, _cut_in_a_header, _with_a_marker,
        _with_fewer_records, _empty,
    ],
)  # fmt: skip
def test_log_with_missing_offsets_is_not_dense(
    change: Callable[[list[bytes]], list[bytes]],
) -> None:
    log = batches([5, 6, 7])
    last = FIRST + 17
    assert is_dense(b"".join(log), last)
    assert not is_dense(b"".join(change(log)), last)


@pytest.mark.parametrize(("count", "dense"), [(1, False), (10, True)])
def test_log_of_many_small_batches_is_not_checked(count: int, dense: bool) -> None:
    """It would take too long."""
    offset, log = FIRST, bytearray()
    while len(log) <= 2 * custom_metadata.ALWAYS_BYTES:
        records = [Record(-1, 0, None, b"v" * 100)] * count
        log += build_batch(records, base_offset=offset)
        offset += count
    check = DensityCheck(FIRST, offset - 1)
    for at in range(0, len(log), custom_metadata.ALWAYS_BYTES):
        check.feed(memoryview(log)[at : at + custom_metadata.ALWAYS_BYTES])
    assert check.is_dense is dense


@pytest.mark.parametrize("last", [FIRST + 16, FIRST + 18, FIRST - 1])
def test_log_with_another_end_offset_is_not_dense(last: int) -> None:
    assert not is_dense(b"".join(batches([5, 6, 7])), last)
