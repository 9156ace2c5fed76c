"""Leader epoch cache, after Kafka's LeaderEpochFileCacheTest (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.seams.files import Path
from odradek.storage.log.leader_epoch_cache import (
    CorruptEpochs,
    EpochEnd,
    EpochStart,
    LeaderEpochCache,
    format_checkpoint,
    parse_checkpoint,
)
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

ROOT = Path("/")
UNKNOWN = EpochEnd(-1, -1)


def cache(*entries: tuple[int, int], end: int = 100) -> LeaderEpochCache:
    return LeaderEpochCache(
        VirtualFiles(VirtualDisk()), ROOT, lambda: end, [EpochStart(*entry) for entry in entries]
    )


def listed(epochs: LeaderEpochCache) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in epochs.entries]


@pytest.mark.parametrize(
    ("asked", "response"),
    [
        (2, EpochEnd(2, 11)),  # before the first epoch: it ends at its start
        (3, EpochEnd(3, 21)),
        (4, EpochEnd(3, 21)),  # unknown epoch: the previous one
        (5, EpochEnd(5, 50)),
        (7, EpochEnd(7, 100)),  # the latest epoch ends at the log end offset
        (8, UNKNOWN),  # after the latest epoch
        (-1, UNKNOWN),
    ],
)
def test_end_offset_for_epoch(asked: int, response: EpochEnd) -> None:
    assert cache((3, 11), (5, 21), (7, 50)).end_offset_for(asked) == response


def test_empty_cache_returns_undefined_epoch_and_offset() -> None:
    empty = cache()
    assert (empty.latest, empty.earliest, empty.epoch_for(5)) == (None, None, None)
    assert empty.end_offset_for(0) == UNKNOWN


def test_epoch_for_offset() -> None:
    epochs = cache((3, 11), (5, 21))
    assert [epochs.epoch_for(offset) for offset in (10, 11, 20, 21, 999)] == [None, 3, 3, 5, 5]


@pytest.mark.parametrize(
    ("assigned", "result"),
    [
        ((7, 50), [(3, 11), (5, 21), (7, 50)]),
        ((5, 21), [(3, 11), (5, 21)]),  # repeated
        ((5, 30), [(3, 11), (5, 21)]),  # it started before
        ((5, 15), [(3, 11), (5, 15)]),  # it starts earlier than known
        ((7, 21), [(3, 11), (7, 21)]),  # epoch 5 has no records
        ((4, 15), [(3, 11), (4, 15)]),  # epoch 5 conflicts
        ((2, 5), [(2, 5)]),
    ],
)
def test_assign_removes_conflicting_entries(
    assigned: tuple[int, int], result: list[tuple[int, int]]
) -> None:
    epochs = cache((3, 11), (5, 21))
    epochs.assign(*assigned)
    assert listed(epochs) == result


def test_assign_negative_epoch_raises() -> None:
    with pytest.raises(ValueError):
        cache().assign(-1, 0)


@pytest.mark.parametrize(
    ("end", "result"),
    [(50, [(3, 11), (5, 21)]), (21, [(3, 11)]), (22, [(3, 11), (5, 21)]), (0, [])],
)
def test_truncate_from_end(end: int, result: list[tuple[int, int]]) -> None:
    epochs = cache((3, 11), (5, 21), (7, 50))
    epochs.truncate_from_end(end)
    assert listed(epochs) == result


@pytest.mark.parametrize(
    ("start", "result"),
    [
        (5, [(3, 11), (5, 21), (7, 50)]),
        (11, [(3, 11), (5, 21), (7, 50)]),
        (15, [(3, 15), (5, 21), (7, 50)]),
        (21, [(5, 21), (7, 50)]),
        (60, [(7, 60)]),
    ],
)
def test_truncate_from_start(start: int, result: list[tuple[int, int]]) -> None:
    epochs = cache((3, 11), (5, 21), (7, 50))
    epochs.truncate_from_start(start)
    assert listed(epochs) == result


def test_entries_in_offset_range() -> None:
    epochs = cache((3, 11), (5, 21), (7, 50))
    assert epochs.entries_in(15, 50) == (EpochStart(3, 15), EpochStart(5, 21))


def test_checkpoint_has_kafka_format_and_is_written_only_if_outdated() -> None:
    epochs = cache((3, 11))
    files = epochs._files
    epochs.save()
    assert not files.exists(ROOT / "leader-epoch-checkpoint")
    epochs.assign(5, 21)
    epochs.save()
    assert files.read(ROOT / "leader-epoch-checkpoint") == b"0\n2\n3 11\n5 21\n"
    again = LeaderEpochCache.load(files, ROOT, lambda: 0)
    assert listed(again) == [(3, 11), (5, 21)]


def test_failed_save_is_repeated() -> None:
    epochs = cache()
    disk = epochs._files.disk  # type: ignore[attr-defined]
    epochs.assign(1, 0)
    fault = disk.fail("*")
    with pytest.raises(OSError):
        epochs.save()
    disk.heal(fault)
    epochs.save()
    assert epochs._files.read(ROOT / "leader-epoch-checkpoint") == b"0\n1\n1 0\n"


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))))
def test_written_checkpoint_is_parsed_back(entries: list[tuple[int, int]]) -> None:
    starts = [EpochStart(*entry) for entry in entries]
    assert parse_checkpoint(format_checkpoint(starts)) == starts


@given(st.binary(max_size=60))
def test_invalid_checkpoint_raises(data: bytes) -> None:
    with suppress(CorruptEpochs):
        parse_checkpoint(data)
