"""Logs of a follower get the leader's bytes, epochs, high watermark and log start offset, whatever they contain."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from odradek.broker.fetch.session_cache import CachedPartition
from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.replication.partition.follower_role import CHUNK_BATCHES, first_chunk
from odradek.replication.partition.follower_state import ReplicaFetchState
from odradek.storage.errors import DiskFull
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.partition_log import PartitionLog
from tests.support.partition_logs import batch
from tests.support.replica_fetching import SMALL, FollowerWithLeaders, LeaderPartition, is_same

A = (UUID(int=1), 0)


def write(log: PartitionLog, *epochs: int, count: int = 1) -> None:
    """Append a batch of each of these leader epochs, as the earlier log of a replica."""
    for epoch in epochs:
        log.append_as_leader(batch(count), leader_epoch=epoch, now_ms=log.clock.wall_ms())


def lead(scenario: FollowerWithLeaders, epoch: int, *epochs: int) -> LeaderPartition:
    """Let broker 1 lead in `epoch`, with a batch of each of `epochs`."""
    led = scenario.broker(1).lead(A, epochs[0] if epochs else epoch)
    for each in epochs:
        led.leader_epoch = each
        led.append()
    led.leader_epoch = epoch
    led.log.assign_epoch(epoch, led.log.end_offset)
    led.commit()
    return led


def test_follower_replicates_leader_appends() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 3)

    async def test() -> None:
        led.append(5, times=3)
        log = await scenario.follow(A, 1, 3)
        await scenario.until(lambda: log.end_offset == 15)
        led.append(2, times=40)  # several segments
        led.commit(70)
        await scenario.until(lambda: is_same(log, led.log))
        assert len(log.segments) > 1
        assert log.epochs.latest == 3

    scenario.run(test)


def test_many_small_batches_are_appended_in_chunks() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 0, config=replace(SMALL, internal_segment_bytes=1 << 20))

    async def test() -> None:
        led.append(times=5 * CHUNK_BATCHES + 7)
        log = await scenario.follow(A, 1, 0)
        ends = []
        taken = log.append_as_follower

        def spied(records: memoryview, *, leader_epoch: int | None = None) -> object:
            appended = taken(records, leader_epoch=leader_epoch)
            ends.append(log.end_offset)
            return appended

        log.append_as_follower = spied  # type: ignore[assignment,method-assign]
        await scenario.until(lambda: is_same(log, led.log))
        fetches = [offset for offset in led.asked if offset < led.log.end_offset]
        assert len(ends) > len(fetches)
        steps = [after - before for before, after in zip([0, *ends], ends, strict=False)]
        assert max(steps) <= CHUNK_BATCHES

    scenario.run(test)


@pytest.mark.parametrize("flush_messages", [1, 3])
def test_fetch_waits_for_flush_messages(flush_messages: int) -> None:
    """Because the leader treats the fetch offset as replicated and acknowledges the records."""
    scenario = FollowerWithLeaders(config=replace(SMALL, flush_messages=flush_messages))
    led = scenario.broker(1).lead(A, 0)

    async def test() -> None:
        log = await scenario.follow(A, 1, 0)
        lost: list[int] = []  # after a power loss at a fetch
        read = led.read

        def spied(wanted: CachedPartition) -> FetchedPartition:
            lost.append(wanted.offset - log.recovery_point)
            return read(wanted)

        led.read = spied  # type: ignore[method-assign]
        for _ in range(20):
            led.append(2)
            await scenario.until(lambda: is_same(log, led.log))
        assert log.end_offset == 40
        assert max(lost) < flush_messages

    scenario.run(test)


def test_incomplete_batch_is_fetched_again() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 0)
    led.cut_bytes = 5

    async def test() -> None:
        led.append(times=10)
        log = await scenario.follow(A, 1, 0)
        await scenario.until(lambda: is_same(log, led.log))
        assert led.asked[:3] == [0, 9, 10]

    scenario.run(test)


def test_response_without_records_advances_offsets() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 0)

    async def test() -> None:
        led.append(times=10)
        log = await scenario.follow(A, 1, 0)
        await scenario.until(lambda: log.end_offset == 10)
        assert log.high_watermark == 0
        led.commit(7)
        await scenario.until(lambda: log.high_watermark == 7)
        led.log.advance_log_start(4, "as asked")
        await scenario.until(lambda: log.log_start_offset == 4)

    scenario.run(test)


@pytest.mark.parametrize(
    ("mine", "leaders"),
    [
        ((0, 0, 1, 1, 1), (0, 0, 1)),  # a tail that was never replicated
        ((0, 0, 1, 1), (0, 0, 2, 2, 2)),  # KIP-101: another leader wrote in a later epoch
        ((0, 1, 1, 3, 3), (0, 1, 1, 2, 2)),  # KIP-279: an epoch that the leader does not have
        ((1, 1, 3, 5, 5), (0, 2, 4, 6)),  # no common records
        ((7,), (3, 3, 8)),
    ],
)
def test_diverging_log_is_truncated(mine: tuple[int, ...], leaders: tuple[int, ...]) -> None:
    scenario = FollowerWithLeaders()
    led = lead(scenario, 9, *leaders)

    async def test() -> None:
        write(await scenario.replica(A), *mine)
        log = await scenario.follow(A, 1, 9)
        await scenario.until(lambda: is_same(log, led.log))

    scenario.run(test)


def test_log_past_leader_end_is_truncated() -> None:
    """The leader has no epoch as late as the follower's last one: out of range, by KIP-320."""
    scenario = FollowerWithLeaders()
    led = lead(scenario, 9, 0, 0, 1)

    async def test() -> None:
        write(await scenario.replica(A), 0, 0, 1, 8, 8)
        log = await scenario.follow(A, 1, 9)
        await scenario.until(lambda: is_same(log, led.log))

    led.log.epochs.truncate_from_end(3)
    scenario.run(test)
    assert "ListOffsets" in scenario.brokers[1].asked_for


def test_log_below_leader_start_is_truncated_fully() -> None:
    scenario = FollowerWithLeaders()
    led = lead(scenario, 2, 0, 0, 1, 1, 2, 2)
    led.log.advance_log_start(4, "retention")

    async def test() -> None:
        write(await scenario.replica(A), 0)
        log = await scenario.follow(A, 1, 2)
        await scenario.until(lambda: is_same(log, led.log))
        assert log.log_start_offset == 4
        assert log.epochs.entries == (EpochStart(2, 4),)

    scenario.run(test)


def test_leader_log_start_within_batch_is_replicated() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 2)
    led.append(10, times=3)
    led.commit()
    led.log.advance_log_start(14, "records were deleted")

    async def test() -> None:
        log = await scenario.follow(A, 1, 2)
        await scenario.until(lambda: log.end_offset == 30 and log.log_start_offset == 14)
        assert log.segments[0].base_offset == 10
        assert log.high_watermark == 30

    scenario.run(test)


def test_remote_records_are_not_fetched_again() -> None:
    scenario = FollowerWithLeaders()
    led = lead(scenario, 2, *[0] * 4, *[1] * 4)
    led.local_start = 5

    async def test() -> None:
        log = await scenario.follow(A, 1, 2)
        await scenario.until(lambda: log.end_offset == 8)
        assert log.log_start_offset == 5
        led.append()
        await scenario.until(lambda: log.end_offset == 9)

    scenario.run(test)


def test_restarted_follower_continues_at_log_end() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 1)

    async def test() -> None:
        led.append(times=20)
        led.commit()
        log = await scenario.follow(A, 1, 1)
        await scenario.until(lambda: is_same(log, led.log))

    scenario.run(test)
    led.asked.clear()
    scenario.partitions.clear()
    led.append(times=3)
    led.commit()
    scenario.run(test)
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
def test_leader_error_is_retried(error: ErrorCode) -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 1)
    led.append()
    led.error = error

    async def test() -> None:
        log = await scenario.follow(A, 1, 1)
        await scenario.clock.run_for(1.0)
        assert 5 < len(scenario.brokers[1].requests) < 30
        led.error = None
        await scenario.until(lambda: is_same(log, led.log), seconds=0.3)

    scenario.run(test)


def test_leader_behind_its_election_is_retried_soon() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 1)
    led.append()

    async def test() -> None:
        log = await scenario.follow(A, 1, 2)
        await scenario.clock.run_for(0.03)
        led.leader_epoch = 2
        led.append()
        await scenario.until(lambda: is_same(log, led.log), seconds=0.05)

    scenario.run(test)


def test_fenced_follower_waits_for_new_epoch() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 5)
    led.append()

    async def test() -> None:
        log = await scenario.follow(A, 1, 4)
        await scenario.clock.run_for(2)
        asked = len(scenario.brokers[1].requests)
        await scenario.clock.run_for(2)
        assert len(scenario.brokers[1].requests) == asked
        assert log.end_offset == 0
        await scenario.follow(A, 1, 5)
        await scenario.until(lambda: is_same(log, led.log))

    scenario.run(test)


def test_full_disk_is_retried() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 1)
    led.append()

    async def test() -> None:
        log = await scenario.follow(A, 1, 1)
        taken = log.append_as_follower

        def full(records: memoryview, *, leader_epoch: int | None = None) -> object:
            raise DiskFull("no space left")

        log.append_as_follower = full  # type: ignore[assignment,method-assign]
        await scenario.clock.run_for(1)
        log.append_as_follower = taken  # type: ignore[method-assign]
        await scenario.until(lambda: is_same(log, led.log), seconds=0.3)

    scenario.run(test)


def test_failed_log_is_not_followed() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 1)
    led.append()

    async def test() -> None:
        log = await scenario.follow(A, 1, 1)
        await scenario.until(lambda: log.end_offset == 1)
        log.fail(OSError(5, "its disk"))
        led.append()
        await scenario.clock.run_for(2)
        asked = len(scenario.brokers[1].requests)
        await scenario.clock.run_for(2)
        assert len(scenario.brokers[1].requests) == asked
        role = scenario.followers.follower_role("t1", 0)
        assert role is not None
        assert role.state.state is ReplicaFetchState.STOPPED

    scenario.run(test)


def test_corrupt_records_are_rejected_and_fetched_again() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 1)
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
        log = await scenario.follow(A, 1, 1)
        await scenario.clock.run_for(0.5)
        assert log.end_offset == 0
        led.read = read  # type: ignore[method-assign]
        await scenario.until(lambda: is_same(log, led.log), seconds=0.3)

    scenario.run(test)


def test_batch_larger_than_segment_is_appended() -> None:
    """KAFKA-17375: segment.bytes was decreased. The batch gets its own segment."""
    scenario = FollowerWithLeaders(config=replace(SMALL, internal_segment_bytes=600))
    led = scenario.broker(1).lead(A, 1)
    led.append()
    led.append(3, size=500)
    led.append()

    async def test() -> None:
        log = await scenario.follow(A, 1, 1)
        await scenario.until(lambda: is_same(log, led.log))
        assert [segment.base_offset for segment in log.segments] == [0, 1, 4]

    scenario.run(test)


def test_first_chunk_has_whole_batches() -> None:
    one = bytes(batch(3))
    assert first_chunk(memoryview(b"")) == (0, -1)
    assert first_chunk(memoryview(one)) == (len(one), -1)
    assert first_chunk(memoryview(one * 5 + one[:70])) == (5 * len(one) + 70, -1)
    assert first_chunk(memoryview(one * (CHUNK_BATCHES + 1))) == (CHUNK_BATCHES * len(one), 2)
    assert first_chunk(memoryview(b"\0" * 500)) == (500, -1)
