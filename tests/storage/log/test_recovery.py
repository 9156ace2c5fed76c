"""Log recovery after an unclean shutdown: each row of recovery.py's tables, and changes of any
byte of the files."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.records.batch import Batch
from odradek.seams.files import Path, WouldBlock
from odradek.storage.errors import CorruptRecords
from odradek.storage.log.config import LogConfig
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.transaction_index import AbortedTransaction
from tests.support.partition_logs import (
    DIRECTORY,
    FOREVER,
    NOW_MS,
    LogWorld,
    batch,
    check_indexes,
    idempotent,
    marker,
    offsets_in,
    read_batches,
    records_in,
)

CONFIG = dataclasses.replace(FOREVER, internal_segment_bytes=700, index_interval_bytes=100)
BATCH_BYTES = 110
UNCHECKED_BYTES = 16
"""At a batch's start: base offset and leader epoch lie outside its CRC (and the length between)."""


def filled(config: LogConfig = CONFIG) -> LogWorld:
    """A log with offsets 0 to 29, in segments that begin at 0, 6, 12, 18, 24."""
    world = LogWorld(config)
    for n in range(30):
        world.append(idempotent(7, n, size=40, timestamps=NOW_MS - n), epoch=n // 10)
    return world


@pytest.fixture
def world() -> LogWorld:
    return filled()


def path(offset: int, kind: str) -> Path:
    return DIRECTORY / f"{offset:020d}.{kind}"


def spoil(world: LogWorld, where: Path, at: int) -> None:
    file = world.files.open(where, write=True)
    byte = file.read_at(at % file.size, 1)
    file.write_at(at % file.size, bytes([byte[0] ^ 0x55]))


def cut(world: LogWorld, where: Path, size: int) -> None:
    world.files.open(where, write=True).truncate(size)


def test_batch_size_matches_constants_of_tests(world: LogWorld) -> None:
    assert {len(each.view) for each in read_batches(world.log, 0, 30)} == {BATCH_BYTES}


@pytest.mark.parametrize("point", [0, 1, 6, 9, 17, 18, 24, 27, 30])
def test_killed_process_loses_no_records(world: LogWorld, point: int) -> None:
    before = records_in(world.log)
    world.log.flush(up_to=point)
    world.recovery_point = world.log.recovery_point
    log = world.kill()
    assert log.recovery_point == point
    assert records_in(log) == before
    assert log.epochs.entries == tuple(EpochStart(n, n * 10) for n in range(3))
    check_indexes(world)
    assert world.append(idempotent(7, 29)).first_offset == 29
    assert world.append(idempotent(7, 30)).first_offset == 30
    check_indexes(world)


@pytest.mark.parametrize("lost", [1, 50, 60, 61, 114, 115, 116, 300])
def test_incomplete_batch_at_end_is_truncated(world: LogWorld, lost: int) -> None:
    size = world.files.file_size(path(24, "log"))
    each = size // 6
    cut(world, path(24, "log"), size - lost)
    log = world.kill()
    left = 24 + (size - lost) // each
    assert log.end_offset == left
    assert offsets_in(log) == list(range(left))
    check_indexes(world)
    assert world.append(idempotent(7, left)).first_offset == left


def test_invalid_crc_truncates_segment_and_removes_later_segments(world: LogWorld) -> None:
    spoil(world, path(12, "log"), BATCH_BYTES * 3 - 1)
    log = world.kill()
    assert log.end_offset == 14
    assert offsets_in(log) == list(range(14))
    assert [segment.base_offset for segment in log.segments] == [0, 6, 12]
    assert not world.files.exists(path(18, "log"))
    assert not world.files.exists(path(18, "snapshot"))
    assert log.epochs.entries == (EpochStart(0, 0), EpochStart(1, 10))
    check_indexes(world)


def test_data_below_recovery_point_is_trusted(world: LogWorld) -> None:
    world.flush()
    spoil(world, path(12, "log"), 100)
    spoil(world, path(24, "log"), 100)
    assert world.kill().end_offset == 30


def test_corrupt_end_of_sealed_segment_is_readable_up_to_corruption(
    world: LogWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.log.close(True)
    cut(world, path(12, "log"), 2 * BATCH_BYTES + 50)
    log = world.open(clean=True)
    for offset in range(14):
        assert log.read(offset, 300, limit=30).base_offset == offset
    for offset in range(14, 18):
        with pytest.raises(CorruptRecords):
            log.read(offset, 300, limit=30)
    assert offsets_in(log, 18) == list(range(18, 30))
    (told,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert told.startswith(f"corruption found in segment {path(12, 'log')}, its index ends there: ")


def test_only_data_past_recovery_point_is_read(world: LogWorld) -> None:
    world.log.flush(up_to=18)
    world.recovery_point = 18
    read: set[str] = set()
    check = world.disk.check

    def spy(operation: str, where: Path | str) -> None:
        if operation == "read":
            read.add(Path(where).name)
        check(operation, where)

    world.disk.check = spy  # type: ignore[method-assign]
    world.kill()
    assert {name for name in read if name.endswith(".log")} == {
        path(18, "log").name,
        path(24, "log").name,
    }


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_lost_end_of_segment_removes_later_segments(world: LogWorld, policy: str) -> None:
    """The end of one segment was not written to the disk, but the next segment was."""
    world.config = dataclasses.replace(CONFIG, cleanup_policy=(policy,))
    each = world.files.file_size(path(18, "log")) // 6
    cut(world, path(18, "log"), each * 4)
    log = world.kill()
    assert log.end_offset == 22
    assert offsets_in(log) == list(range(22))
    check_indexes(world)


@pytest.mark.parametrize("known", ["recovery_point", "accepted_gaps_end"])
@pytest.mark.parametrize(("up_to", "is_loss"), [(23, True), (24, False), (30, False)])
def test_gap_below_accepted_gaps_end_is_no_loss(
    world: LogWorld, known: str, up_to: int, is_loss: bool
) -> None:
    world.log.close(False)
    each = world.files.file_size(path(18, "log")) // 6
    cut(world, path(18, "log"), each * 4)
    setattr(world, known, up_to)
    log = world.kill()
    assert offsets_in(log) == [*range(22), *(() if is_loss else range(24, 30))]


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("offset", [0, 12, 24])
@pytest.mark.parametrize("damage", ["missing", "empty", "zeros", "garbage"])
@pytest.mark.parametrize("clean", [True, False])
def test_indexes_are_rebuilt(
    world: LogWorld, kind: str, offset: int, damage: str, clean: bool
) -> None:
    world.log.close(True)
    where = path(offset, kind)
    if damage == "missing":
        world.files.remove(where)
    else:
        size = world.files.file_size(where)
        cut(world, where, 0)
        file = world.files.open(where, write=True)
        if damage == "zeros":
            file.append_v([bytes(size)])
        elif damage == "garbage":
            file.append_v([b"\xee" * (size + 1)])
    log = world.open(clean=clean)
    world.log = log
    for n in range(30):
        found = log.find_timestamp(NOW_MS - n)
        assert found is not None
        assert found.offset == 0
    assert offsets_in(log) == list(range(30))
    if damage != "empty" or not clean:  # an empty index is valid
        sealed = log.segments[-1]
        sealed.locate(29)
        world.append(idempotent(7, 30))
        check_indexes(world)


@pytest.mark.parametrize("damage", ["missing", "spoiled"])
def test_corrupt_index_is_rebuilt_off_the_loop(world: LogWorld, damage: str) -> None:
    world.log.close(True)
    if damage == "missing":
        world.files.remove(path(0, "index"))
    else:
        spoil(world, path(0, "index"), 6)
    log = world.open(clean=True)
    with pytest.raises(WouldBlock):
        log.read(1, 100, limit=30, nowait=True)
    assert log.read(1, 100, limit=30).base_offset == 1
    if damage == "missing":
        assert log.read(1, 100, limit=30, nowait=True).base_offset == 1


def test_producer_state_is_loaded_from_latest_valid_snapshot(world: LogWorld) -> None:
    spoil(world, path(24, "snapshot"), 20)
    world.flush()
    log = world.kill()
    entry = log.producers.get(7)
    assert entry is not None
    assert [kept.last_offset for kept in entry.batches] == [25, 26, 27, 28, 29]


def test_producer_state_without_snapshots_is_rebuilt_from_log(world: LogWorld) -> None:
    world.flush()
    for name in world.names():
        if name.endswith("snapshot"):
            world.files.remove(DIRECTORY / name)
    log = world.kill()
    assert world.append(idempotent(7, 27)).duplicate
    assert log.producers.map_end_offset == 30


def test_transactions_across_recovery_point_are_recovered(world: LogWorld) -> None:
    world.append(idempotent(8, 0, transactional=True))
    world.append(idempotent(9, 0, transactional=True))
    world.flush()
    world.coordinate(marker(8, commit=False))
    world.append()
    log = world.kill()
    assert log.aborted_transactions(0, 40) == [AbortedTransaction(8, 30, 32, 31)]
    log.advance_high_watermark(log.end_offset)
    assert log.last_stable_offset == 31


def test_corrupt_leader_epoch_checkpoint_is_rebuilt_from_batches(world: LogWorld) -> None:
    world.log.close(True)
    world.files.write_new(DIRECTORY / "leader-epoch-checkpoint", b"0\nnonsense")
    assert world.open(clean=False).epochs.entries == tuple(EpochStart(n, n * 10) for n in range(3))


def test_wrong_clean_shutdown_file_is_detected(world: LogWorld) -> None:
    world.log.close(True)
    cut(world, path(24, "log"), world.files.file_size(path(24, "log")) - 1)
    log = world.open(clean=True)
    assert log.end_offset == 29


def test_log_without_files_starts_at_checkpointed_log_start(world: LogWorld) -> None:
    world.log.close(True)
    for name in world.names():
        if not name.endswith("metadata"):
            world.files.remove(DIRECTORY / name)
    world.log_start_offset = 12
    log = world.open(clean=True)
    assert (log.log_start_offset, log.end_offset) == (12, 12)


def test_log_that_ends_before_its_start_is_deleted(world: LogWorld) -> None:
    world.log.close(True)
    world.log_start_offset = 77
    for clean in (True, False):
        log = world.open(clean=clean)
        assert (log.log_start_offset, log.end_offset) == (77, 77)
        assert [segment.base_offset for segment in log.segments] == [77]
        log.close(clean)


def test_second_recovery_changes_nothing(world: LogWorld) -> None:
    cut(world, path(12, "log"), 300)
    world.kill()
    first = {name: world.files.read(DIRECTORY / name) for name in world.names()}
    world.kill()
    assert {name: world.files.read(DIRECTORY / name) for name in world.names()} == first


def test_segment_of_random_bytes_is_truncated_to_empty(world: LogWorld) -> None:
    file = world.files.open(path(24, "log"), write=True)
    size = file.size
    file.write_at(0, bytes(size))
    log = world.kill()
    assert (log.end_offset, log.segments[-1].size) == (24, 0)
    assert world.append(idempotent(7, 24)).first_offset == 24


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_file_change_leaves_prefix_of_log(data: st.DataObject) -> None:
    world = filled()
    before = records_in(world.log)
    point = data.draw(st.sampled_from([0, 7, 18, 30]))
    if point:
        world.log.flush(up_to=point)
        world.recovery_point = point
    world.log.close(False)
    victims = [name for name in world.names() if name[0].isdigit()]
    if point:  # data past the recovery point, and files that can be rebuilt
        victims = [
            name
            for name in victims
            if name.endswith((".snapshot", ".index", ".timeindex"))
            or int(name.split(".")[0]) > point
        ]
    for _ in range(data.draw(st.integers(1, 4))):
        where = DIRECTORY / data.draw(st.sampled_from(victims))
        if not world.files.exists(where):
            continue
        size = world.files.file_size(where)
        how = data.draw(st.sampled_from(["cut", "spoil", "remove", "grow"]))
        if how == "remove":
            world.files.remove(where)
        elif how == "grow":
            world.files.open(where, write=True).append_v([data.draw(st.binary(max_size=80))])
        elif size and how == "cut":
            cut(world, where, data.draw(st.integers(0, size - 1)))
        elif size:
            at = data.draw(st.integers(0, size - 1))
            if where.suffix != ".log" or at % BATCH_BYTES >= UNCHECKED_BYTES:
                spoil(world, where, at)
    log = world.kill()
    assert log.end_offset >= min(point, 30) or log.segments[0].base_offset > 0
    if log.segments[0].base_offset == 0:
        assert records_in(log) == before[: log.end_offset]
    end = log.end_offset
    assert world.append(batch(), epoch=9).first_offset == end


def replicated(*offsets: int, config: LogConfig = CONFIG) -> LogWorld:
    """A follower's log with two records at each of these offsets, like the log of a leader that
    was compacted; the log cleaner of this node has not processed it."""
    world = LogWorld(config)
    for offset in offsets:
        follow(world, offset)
    return world


def follow(world: LogWorld, offset: int) -> None:
    found = Batch(batch(2, size=40))
    found.stamp(offset, 0)
    world.log.append_as_follower(found.view)


@pytest.mark.parametrize("together", [False, True])
def test_replicated_gap_is_no_loss(together: bool) -> None:
    """A new segment begins at the log end offset, wherever the previous one ends."""
    offsets = [number * number for number in range(2, 50)]
    world = replicated(*([] if together else offsets))
    if together:
        data = b"".join(batch(2, size=40, base_offset=offset) for offset in offsets)
        world.log.append_as_follower(memoryview(bytearray(data)))
    before = records_in(world.log)
    assert len(before) == 2 * len(offsets)
    assert len(world.log.segments) > 8
    log = world.kill()
    assert log.recovery_point == 0
    assert records_in(log) == before
    check_indexes(world)


def test_gap_wider_than_segment_is_no_loss() -> None:
    """It is below the recovery point before the append returns."""
    offsets = [0, 1 << 31, (1 << 31) + 5, 1 << 40, (1 << 40) + (1 << 31) - 2]
    for count in range(2, len(offsets) + 1):
        world = replicated(*offsets[:count])
        before = records_in(world.log)
        log = world.kill()
        assert records_in(log) == before
        assert len(before) == 2 * count


def test_lost_segment_is_detected_in_log_with_gaps() -> None:
    world = replicated(*[number * number for number in range(2, 50)])
    lost = world.log.segments[4]
    kept = records_in(world.log, limit=lost.base_offset)
    for kind in ("log", "index", "timeindex"):
        world.files.remove(lost.path(f".{kind}"))
    assert records_in(world.kill()) == kept


@pytest.mark.parametrize("cut_to", [21, 23, 24, 25, 26])
def test_log_truncated_in_gap_ends_after_last_batch(cut_to: int) -> None:
    """So the next segment begins there too, and recovery does not treat the gap as a loss."""
    world = replicated(14, 16, 19, 24, 30)
    world.log.truncate_to(cut_to)
    end = 21 if cut_to < 26 else 26
    assert world.log.end_offset == end
    world.log.roll()
    follow(world, 40)
    before = offsets_in(world.log)
    assert offsets_in(world.kill()) == before
    assert before[-1] == 41


def test_missing_segment_below_log_start_offset_is_no_loss(world: LogWorld) -> None:
    world.log.advance_high_watermark(30)
    world.log.advance_log_start(18, "DeleteRecords")
    world.log_start_offset = 18
    cut(world, path(12, "log"), world.files.file_size(path(12, "log")) // 6 * 4)
    log = world.kill()
    assert offsets_in(log, 18) == list(range(18, 30))
