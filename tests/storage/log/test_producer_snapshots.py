"""Producer snapshot files: Kafka's format, invalid files, and which snapshots are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.records.batch import Batch
from odradek.seams.files import Path
from odradek.storage.log.producer_snapshots import (
    CorruptSnapshot,
    ProducerSnapshots,
    decode_snapshot,
    encode_snapshot,
)
from odradek.storage.log.producer_state import BatchMetadata, ProducerEntry, ProducerStates
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from tests.support.partition_logs import NOW_MS, idempotent

ROOT = Path("/")


def test_snapshot_has_kafka_format() -> None:
    """Expected bytes are written by hand from the format (REQUIREMENTS C)."""
    entries = [
        ProducerEntry(1, 2, 3, 400, 50, [BatchMetadata(9, 61, 4, 400)]),
        ProducerEntry(77, 0, -1, -1),
    ]
    body = (
        "0000000000000001"
        "0002"
        "00000009"
        "000000000000003d"
        "00000004"
        "0000000000000190"
        "00000003"
        "0000000000000032"
        "000000000000004d"
        "0000"
        "ffffffff"
        "ffffffffffffffff"
        "00000000"
        "ffffffffffffffff"
        "ffffffff"
        "ffffffffffffffff"
    )
    data = encode_snapshot(entries)
    assert data[:2].hex() == "0001"
    assert data[6:10].hex() == "00000002"
    assert data[10:].hex() == body
    assert len(data) == 10 + 2 * 46


def fields(entry: ProducerEntry) -> tuple[object, ...]:
    return (
        entry.producer_id,
        entry.epoch,
        entry.coordinator_epoch,
        entry.last_timestamp,
        entry.transaction_start,
        entry.batches,
    )


kept = st.builds(
    BatchMetadata,
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**31 - 1),
    st.just(5),
)
producers = st.builds(
    ProducerEntry,
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.just(5),
    st.integers(-1, 2**63 - 1),
    st.lists(kept, max_size=1),
)


@given(st.lists(producers, max_size=5))
def test_written_snapshot_is_read_back(entries: list[ProducerEntry]) -> None:
    again = decode_snapshot(encode_snapshot(entries))
    assert [fields(entry) for entry in again] == [fields(entry) for entry in entries]


@given(st.lists(producers, min_size=1, max_size=3), st.data())
def test_corrupt_snapshot_raises(entries: list[ProducerEntry], data: st.DataObject) -> None:
    whole = encode_snapshot(entries)
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(whole[: data.draw(st.integers(0, len(whole) - 1))])
    spoiled = bytearray(whole)
    spoiled[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(bytes(spoiled))


def states_at(offset: int, producer: int = 1) -> ProducerStates:
    states = ProducerStates("t-0", expiration_ms=lambda: 1000)
    found = Batch(idempotent(producer, 0))
    found.stamp(offset - 1, 0)
    states.apply(found)
    states.map_end_offset = offset
    return states


@pytest.fixture
def files() -> VirtualFiles:
    return VirtualFiles(VirtualDisk())


def snapshots(files: VirtualFiles, *offsets: int) -> ProducerSnapshots:
    made = ProducerSnapshots(files, ROOT, ())
    for offset in offsets:
        made.take(states_at(offset, producer=offset))
    return made


def load(made: ProducerSnapshots, *, up_to: int, start: int = 0, now_ms: int = NOW_MS) -> list[int]:
    states = ProducerStates("t-0", expiration_ms=lambda: 1000)
    made.load(states, up_to=up_to, start=start, now_ms=now_ms)
    assert states.map_end_offset == max(
        [offset for offset in made.offsets if offset <= up_to] or [start]
    )
    return sorted(states.active)


def test_snapshot_is_taken_once_per_offset_and_not_for_empty_state(files: VirtualFiles) -> None:
    made = snapshots(files, 5, 5, 9)
    made.take(ProducerStates("t-0", expiration_ms=lambda: 1000))
    assert made.offsets == (5, 9)
    assert files.list(ROOT) == ["00000000000000000005.snapshot", "00000000000000000009.snapshot"]


def test_load_uses_latest_snapshot_at_or_below_offset_and_removes_others(
    files: VirtualFiles,
) -> None:
    made = snapshots(files, 5, 9, 14)
    assert load(made, up_to=13, start=5) == [9]
    assert made.offsets == (9,)
    assert len(files.list(ROOT)) == 1


def test_load_skips_corrupt_snapshot(files: VirtualFiles) -> None:
    made = snapshots(files, 5, 9)
    torn = files.open(made.path(9), write=True)
    torn.truncate(torn.size - 1)
    assert load(made, up_to=20) == [5]
    assert made.offsets == (5,)


def test_load_without_snapshots_starts_empty(files: VirtualFiles) -> None:
    assert load(snapshots(files), up_to=20, start=3) == []


def test_load_removes_idle_producers(files: VirtualFiles) -> None:
    assert load(snapshots(files, 5), up_to=20, now_ms=NOW_MS + 1000) == []


def test_keep_only_keeps_snapshots_of_segments_and_latest(files: VirtualFiles) -> None:
    made = snapshots(files, 5, 7, 9, 14)
    made.keep_only([5, 9])
    assert made.offsets == (5, 9, 14)
    made.keep_only([5, 20])
    assert made.offsets == (5,)


def test_snapshot_is_synced_by_flush(files: VirtualFiles) -> None:
    made = snapshots(files, 5)
    syncs = files.syncs
    made.sync()
    assert files.syncs == syncs + 1
    made.sync()
    assert files.syncs == syncs + 1


def test_renamed_snapshot_is_restored(files: VirtualFiles) -> None:
    made = snapshots(files, 5, 9)
    before = files.list(ROOT)
    aside = made.rename_to_deleted(5)
    assert aside is not None
    assert made.offsets == (9,)
    made.undo_rename_to_deleted(5, aside)
    assert made.offsets == (5, 9)
    assert files.list(ROOT) == before


def test_renamed_snapshot_is_removed_later(files: VirtualFiles) -> None:
    made = snapshots(files, 5)
    assert made.rename_to_deleted(4) is None
    assert made.rename_to_deleted(5) == ROOT / "00000000000000000005.snapshot.deleted"
    assert made.offsets == ()
