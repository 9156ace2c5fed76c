"""What a node fetches from its leaders ends up in its logs: the same bytes, epochs, high watermark and
start, whatever was there before."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from odradek.broker.fetch.session_cache import CachedPartition
from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch import FetchedPartition
from odradek.replication.partition.follower_role import CHUNK_BATCHES, first_chunk
from odradek.replication.partition.follower_state import ReplicaFetchState
from odradek.storage.errors import DiskFull
from odradek.storage.log.epochs import EpochStart
from odradek.storage.log.partition_log import PartitionLog
from tests.replication.fetching.fetching_world import SMALL, Led, Stand, is_same
from tests.storage.log.log_world import batch

A = (UUID(int=1), 0)


def write(log: PartitionLog, *epochs: int, count: int = 1) -> None:
    """A batch in each of these leader epochs: what a replica has from before."""
    for epoch in epochs:
        log.append_as_leader(batch(count), leader_epoch=epoch, now_ms=log.clock.wall_ms())


def lead(stand: Stand, epoch: int, *epochs: int) -> Led:
    """Broker 1 leads in `epoch`, and its log has a batch of each of `epochs`."""
    led = stand.broker(1).lead(A, epochs[0] if epochs else epoch)
    for each in epochs:
        led.leader_epoch = each
        led.append()
    led.leader_epoch = epoch
    led.log.assign_epoch(epoch, led.log.end_offset)
    led.commit()
    return led


def test_it_copies_what_its_leader_appends() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 3)

    async def test() -> None:
        led.append(5, times=3)
        log = await stand.follow(A, 1, 3)
        await stand.until(lambda: log.end_offset == 15)
        led.append(2, times=40)  # several segments
        led.commit(70)
        await stand.until(lambda: is_same(log, led.log))
        assert len(log.segments) > 1
        assert log.epochs.latest == 3

    stand.run(test)


def test_many_small_batches_come_in_pieces() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 0, config=replace(SMALL, internal_segment_bytes=1 << 20))

    async def test() -> None:
        led.append(times=5 * CHUNK_BATCHES + 7)
        log = await stand.follow(A, 1, 0)
        ends = []
        taken = log.append_as_follower

        def spied(records: memoryview, *, leader_epoch: int | None = None) -> object:
            appended = taken(records, leader_epoch=leader_epoch)
            ends.append(log.end_offset)
            return appended

        log.append_as_follower = spied  # type: ignore[assignment,method-assign]
        await stand.until(lambda: is_same(log, led.log))
        fetches = [offset for offset in led.asked if offset < led.log.end_offset]
        assert len(ends) > len(fetches)
        steps = [after - before for before, after in zip([0, *ends], ends, strict=False)]
        assert max(steps) <= CHUNK_BATCHES

    stand.run(test)


@pytest.mark.parametrize("flush_messages", [1, 3])
def test_a_fetch_tells_of_nothing_that_is_to_be_on_the_disk_first(flush_messages: int) -> None:
    """The leader takes it for what this replica has, and acknowledges it."""
    stand = Stand(config=replace(SMALL, flush_messages=flush_messages))
    led = stand.broker(1).lead(A, 0)

    async def test() -> None:
        log = await stand.follow(A, 1, 0)
        lost: list[int] = []  # if the power went at a fetch
        read = led.read

        def spied(wanted: CachedPartition) -> FetchedPartition:
            lost.append(wanted.offset - log.recovery_point)
            return read(wanted)

        led.read = spied  # type: ignore[method-assign]
        for _ in range(20):
            led.append(2)
            await stand.until(lambda: is_same(log, led.log))
        assert log.end_offset == 40
        assert max(lost) < flush_messages

    stand.run(test)


def test_what_is_cut_short_is_fetched_again() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 0)
    led.cut_bytes = 5

    async def test() -> None:
        led.append(times=10)
        log = await stand.follow(A, 1, 0)
        await stand.until(lambda: is_same(log, led.log))
        assert led.asked[:3] == [0, 9, 10]

    stand.run(test)


def test_the_high_watermark_and_the_start_follow_without_records() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 0)

    async def test() -> None:
        led.append(times=10)
        log = await stand.follow(A, 1, 0)
        await stand.until(lambda: log.end_offset == 10)
        assert log.high_watermark == 0
        led.commit(7)
        await stand.until(lambda: log.high_watermark == 7)
        led.log.advance_log_start(4, "as asked")
        await stand.until(lambda: log.log_start_offset == 4)

    stand.run(test)


@pytest.mark.parametrize(
    ("mine", "leaders"),
    [
        ((0, 0, 1, 1, 1), (0, 0, 1)),  # a tail that was never replicated
        ((0, 0, 1, 1), (0, 0, 2, 2, 2)),  # KIP-101: another one wrote in a later epoch
        ((0, 1, 1, 3, 3), (0, 1, 1, 2, 2)),  # KIP-279: an epoch that the leader never saw
        ((1, 1, 3, 5, 5), (0, 2, 4, 6)),  # nothing in common
        ((7,), (3, 3, 8)),
    ],
)
def test_it_is_cut_where_the_logs_part(mine: tuple[int, ...], leaders: tuple[int, ...]) -> None:
    stand = Stand()
    led = lead(stand, 9, *leaders)

    async def test() -> None:
        write(await stand.replica(A), *mine)
        log = await stand.follow(A, 1, 9)
        await stand.until(lambda: is_same(log, led.log))

    stand.run(test)


def test_past_its_leader_s_last_epoch_it_is_cut_at_its_end() -> None:
    """The leader has no epoch as late as the follower's last one: out of range, by KIP-320."""
    stand = Stand()
    led = lead(stand, 9, 0, 0, 1)

    async def test() -> None:
        write(await stand.replica(A), 0, 0, 1, 8, 8)
        log = await stand.follow(A, 1, 9)
        await stand.until(lambda: is_same(log, led.log))

    led.log.epochs.truncate_from_end(3)
    stand.run(test)
    assert "ListOffsets" in stand.brokers[1].asked_for


def test_below_its_leader_s_start_it_starts_anew() -> None:
    stand = Stand()
    led = lead(stand, 2, 0, 0, 1, 1, 2, 2)
    led.log.advance_log_start(4, "retention")

    async def test() -> None:
        write(await stand.replica(A), 0)
        log = await stand.follow(A, 1, 2)
        await stand.until(lambda: is_same(log, led.log))
        assert log.log_start_offset == 4
        assert log.epochs.entries == (EpochStart(2, 4),)

    stand.run(test)


def test_a_leader_s_log_that_starts_within_a_batch_is_followed() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 2)
    led.append(10, times=3)
    led.commit()
    led.log.advance_log_start(14, "records were deleted")

    async def test() -> None:
        log = await stand.follow(A, 1, 2)
        await stand.until(lambda: log.end_offset == 30 and log.log_start_offset == 14)
        assert log.segments[0].base_offset == 10
        assert log.high_watermark == 30

    stand.run(test)


def test_what_is_in_the_tier_is_not_asked_for_again() -> None:
    stand = Stand()
    led = lead(stand, 2, *[0] * 4, *[1] * 4)
    led.local_start = 5

    async def test() -> None:
        log = await stand.follow(A, 1, 2)
        await stand.until(lambda: log.end_offset == 8)
        assert log.log_start_offset == 5
        led.append()
        await stand.until(lambda: log.end_offset == 9)

    stand.run(test)


def test_it_goes_on_where_it_was_after_a_restart() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 1)

    async def test() -> None:
        led.append(times=20)
        led.commit()
        log = await stand.follow(A, 1, 1)
        await stand.until(lambda: is_same(log, led.log))

    stand.run(test)
    led.asked.clear()
    stand.partitions.clear()
    led.append(times=3)
    led.commit()
    stand.run(test)
    assert min(led.asked) == 20


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_server_error,
    ],
)
def test_an_error_of_the_leader_s_is_waited_out(error: ErrorCode) -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 1)
    led.append()
    led.error = error

    async def test() -> None:
        log = await stand.follow(A, 1, 1)
        await stand.clock.run_for(1.0)
        assert 5 < len(stand.brokers[1].requests) < 30
        led.error = None
        await stand.until(lambda: is_same(log, led.log), seconds=0.3)

    stand.run(test)


def test_a_leader_that_has_not_heard_of_its_election_is_asked_again_soon() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 1)
    led.append()

    async def test() -> None:
        log = await stand.follow(A, 1, 2)
        await stand.clock.run_for(0.03)
        led.leader_epoch = 2
        led.append()
        await stand.until(lambda: is_same(log, led.log), seconds=0.05)

    stand.run(test)


def test_fenced_it_waits_for_a_new_epoch() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 5)
    led.append()

    async def test() -> None:
        log = await stand.follow(A, 1, 4)
        await stand.clock.run_for(2)
        asked = len(stand.brokers[1].requests)
        await stand.clock.run_for(2)
        assert len(stand.brokers[1].requests) == asked
        assert log.end_offset == 0
        await stand.follow(A, 1, 5)
        await stand.until(lambda: is_same(log, led.log))

    stand.run(test)


def test_a_full_disk_is_waited_out() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 1)
    led.append()

    async def test() -> None:
        log = await stand.follow(A, 1, 1)
        taken = log.append_as_follower

        def full(records: memoryview, *, leader_epoch: int | None = None) -> object:
            raise DiskFull("no space left")

        log.append_as_follower = full  # type: ignore[assignment,method-assign]
        await stand.clock.run_for(1)
        log.append_as_follower = taken  # type: ignore[method-assign]
        await stand.until(lambda: is_same(log, led.log), seconds=0.3)

    stand.run(test)


def test_a_log_that_failed_is_let_be() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 1)
    led.append()

    async def test() -> None:
        log = await stand.follow(A, 1, 1)
        await stand.until(lambda: log.end_offset == 1)
        log.fail(OSError(5, "its disk"))
        led.append()
        await stand.clock.run_for(2)
        asked = len(stand.brokers[1].requests)
        await stand.clock.run_for(2)
        assert len(stand.brokers[1].requests) == asked
        role = stand.followers.follower_role("t1", 0)
        assert role is not None
        assert role.state.state is ReplicaFetchState.STOPPED

    stand.run(test)


def test_garbage_is_not_taken_and_asked_for_again() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 1)
    led.append(times=3)

    async def test() -> None:
        read = led.read

        def corrupted(wanted: object) -> object:
            response = read(wanted)  # type: ignore[arg-type]
            if response.records:
                data = bytearray(response.records[0])  # type: ignore[arg-type]
                data[-1] ^= 1
                response.records = (bytes(data),)
            return response

        led.read = corrupted  # type: ignore[assignment,method-assign]
        log = await stand.follow(A, 1, 1)
        await stand.clock.run_for(0.5)
        assert log.end_offset == 0
        led.read = read  # type: ignore[method-assign]
        await stand.until(lambda: is_same(log, led.log), seconds=0.3)

    stand.run(test)


def test_a_batch_that_its_leader_took_when_segments_were_larger_is_taken() -> None:
    """KAFKA-17375: segment.bytes was lowered since. It has a segment of its own."""
    stand = Stand(config=replace(SMALL, internal_segment_bytes=600))
    led = stand.broker(1).lead(A, 1)
    led.append()
    led.append(3, size=500)
    led.append()

    async def test() -> None:
        log = await stand.follow(A, 1, 1)
        await stand.until(lambda: is_same(log, led.log))
        assert [segment.base_offset for segment in log.segments] == [0, 1, 4]

    stand.run(test)


def test_a_first_piece_is_whole_batches() -> None:
    one = bytes(batch(3))
    assert first_chunk(memoryview(b"")) == (0, -1)
    assert first_chunk(memoryview(one)) == (len(one), -1)
    assert first_chunk(memoryview(one * 5 + one[:70])) == (5 * len(one) + 70, -1)
    assert first_chunk(memoryview(one * (CHUNK_BATCHES + 1))) == (CHUNK_BATCHES * len(one), 2)
    assert first_chunk(memoryview(b"\0" * 500)) == (500, -1)
