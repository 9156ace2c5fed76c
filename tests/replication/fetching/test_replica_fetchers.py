"""Replica fetchers of a node: leaders, connections, fetch sessions, backoff and throttling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.client.connection import MAX_RESPONSE_BYTES
from odradek.protocol.apis import FETCH
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import MetadataImage
from odradek.replication.fetching.replica_fetcher import ReplicaFetcher
from odradek.replication.partition.follower_role import FollowerRole
from odradek.storage.log.partition_log import PartitionLog
from tests.support.partition_logs import batch
from tests.support.replica_fetching import (
    FOLLOWER,
    SMALL,
    FollowerWithLeaders,
    LeadingBroker,
    is_same,
)

A, B, C = ((UUID(int=number), 0) for number in (1, 2, 3))
THROTTLED = replace(SMALL, follower_replication_throttled_replicas=(f"0:{FOLLOWER}",))


def requested(broker: LeadingBroker) -> list[int]:
    """Return the number of partitions in each fetch."""
    return [sum(len(topic.partitions) for topic in each.topics) for each in broker.requests]


def test_partitions_of_one_broker_share_a_session() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    first, second = broker.lead(A, 0), broker.lead(B, 0)

    async def test() -> None:
        first.append()
        second.append()
        logs = [await scenario.follow(key, 1, 0) for key in (A, B)]
        await scenario.until(lambda: all(log.end_offset == 1 for log in logs))
        await scenario.clock.run_for(0.1)
        named = len(broker.requests)
        first.append()
        await scenario.until(lambda: logs[0].end_offset == 2)
        await scenario.clock.run_for(0.1)
        # The fetch continues there; the other partition is unchanged
        assert requested(broker)[named:] == [1]
        assert {each.session_id for each in broker.requests[1:]} != {0}
        assert broker.connections == 1
        assert {each.replica_id for each in broker.requests} == {FOLLOWER}

    scenario.run(test)


def test_max_bytes_is_limited_by_response_limit() -> None:
    """replica.fetch.response.max.bytes may exceed the limit of a connection: each large response would fail."""
    scenario = FollowerWithLeaders()
    scenario.settings = replace(scenario.settings, response_max_bytes=2**31 - 1)
    led = scenario.broker(1).lead(A, 0)
    led.append()

    async def test() -> None:
        log = await scenario.follow(A, 1, 0)
        await scenario.until(lambda: log.end_offset == 1)
        assert {each.max_bytes < MAX_RESPONSE_BYTES for each in scenario.brokers[1].requests} == {
            True
        }

    scenario.run(test)


def test_is_catching_up_while_any_partition_is_behind() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    leading, idle = broker.lead(A, 0), broker.lead(B, 0)

    async def test() -> None:
        assert not scenario.followers.is_catching_up
        leading.append(times=3)
        logs = [await scenario.follow(key, 1, 0) for key in (A, B)]
        assert scenario.followers.is_catching_up
        await scenario.until(lambda: logs[0].end_offset == leading.log.end_offset)
        await scenario.until(lambda: not scenario.followers.is_catching_up)
        assert idle.log.end_offset == 0

    scenario.run(test)


@pytest.mark.parametrize("step", ["next_action", "fetched"])
def test_unexpected_error_of_a_partition_fails_only_that_partition(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    leading = [broker.lead(key, 0) for key in (A, B)]
    original = getattr(FollowerRole, step)

    def planted(role: FollowerRole, *args: Any) -> Any:
        if role.partition.topic_id == A[0]:
            raise RuntimeError("planted")
        return original(role, *args)

    monkeypatch.setattr(FollowerRole, step, planted)

    async def test() -> None:
        for each in leading:
            each.append(times=3)
        logs = [await scenario.follow(key, 1, 0) for key in (A, B)]
        await scenario.until(lambda: logs[1].end_offset == leading[1].log.end_offset)
        await scenario.clock.run_for(5)
        assert logs[0].end_offset == 0
        assert caplog.text.count("RuntimeError: planted") == 1
        assert "partition marked as failed" in caplog.text

    scenario.run(test)


def test_unexpected_error_of_a_fetcher_restarts_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scenario = FollowerWithLeaders()
    leading = scenario.broker(1).lead(A, 0)

    async def planted(*args: object) -> None:
        raise RuntimeError("planted")

    async def test() -> None:
        leading.append(times=3)
        with monkeypatch.context() as patched:
            patched.setattr(ReplicaFetcher, "_fetch_on", planted)
            log = await scenario.follow(A, 1, 0)
            await scenario.clock.run_for(0.5)
        assert "Unexpected error in a replica fetcher (broker 1)" in caplog.text
        await scenario.until(lambda: log.end_offset == leading.log.end_offset)

    scenario.run(test)


def test_idle_leader_is_fetched_twice_a_second() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    broker.lead(A, 0)

    async def test() -> None:
        await scenario.follow(A, 1, 0)
        await scenario.clock.run_for(0.1)
        before = len(broker.requests)
        await scenario.clock.run_for(5)
        assert len(broker.requests) - before == 10

    scenario.run(test)


def test_lost_session_is_recreated() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    led = broker.lead(A, 0)

    async def test() -> None:
        led.append()
        log = await scenario.follow(A, 1, 0)
        await scenario.until(lambda: log.end_offset == 1)
        broker.sessions._sessions.clear()
        led.append()
        await scenario.until(lambda: log.end_offset == 2, seconds=1)

    scenario.run(test)


def test_broker_with_full_session_cache_gets_full_requests() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    broker.sessions._slots = 0
    first, second = broker.lead(A, 0), broker.lead(B, 0)

    async def test() -> None:
        logs = [await scenario.follow(key, 1, 0) for key in (A, B)]
        for _ in range(3):
            first.append()
            second.append()
            await scenario.clock.run_for(0.6)
        assert is_same(logs[0], first.log)
        assert is_same(logs[1], second.log)
        assert set(requested(broker)[1:]) == {2}

    scenario.run(test)


def test_repeated_top_level_error_backs_off() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    led = broker.lead(A, 0)
    led.append()
    broker.refuses_session = ErrorCode.fetch_session_topic_id_error

    async def test() -> None:
        log = await scenario.follow(A, 1, 0)
        await scenario.clock.run_for(2)
        assert 5 < len(broker.requests) < 20
        broker.refuses_session = None
        await scenario.until(lambda: log.end_offset == 1, seconds=0.5)

    scenario.run(test)


def test_lost_connection_is_reopened() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    led = broker.lead(A, 0)

    async def test() -> None:
        log = await scenario.follow(A, 1, 0)
        for _ in range(5):
            led.append()
            scenario.world.wires.cut("follower", broker.node.name)
            await scenario.until(lambda: log.end_offset == led.log.end_offset, seconds=1)
        assert broker.connections >= 5

    scenario.run(test)


def test_unreachable_broker_is_retried() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    led = broker.lead(A, 0)
    led.append()

    async def test() -> None:
        broker.stop()
        log = await scenario.follow(A, 1, 0)
        await scenario.clock.run_for(3)
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.serve)
            await scenario.until(lambda: log.end_offset == 1, seconds=0.3)
            nursery.cancel_scope.cancel()

    scenario.run(test)


def test_broker_with_new_address_is_reconnected() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    led = broker.lead(A, 0)

    async def test() -> None:
        log = await scenario.follow(A, 1, 0)
        await scenario.clock.run_for(0.1)
        # The old connection does not respond
        scenario.world.wires.partition("follower", broker.node.name)
        led.append()
        await scenario.clock.run_for(1)
        elsewhere = LeadingBroker(scenario.world, 1)
        elsewhere.node = scenario.world.node("elsewhere")
        elsewhere.led = broker.led
        async with trio.open_nursery() as nursery:
            await nursery.start(elsewhere.serve)
            scenario.know(elsewhere)
            scenario.followers.brokers_changed()
            await scenario.until(lambda: log.end_offset == 1, seconds=0.3)
            nursery.cancel_scope.cancel()

    scenario.run(test)


def test_unregistered_broker_is_waited_for() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    led = broker.lead(A, 0)
    led.append()
    scenario.image = MetadataImage()

    async def test() -> None:
        log = await scenario.follow(A, 1, 0)
        await scenario.clock.run_for(1)
        assert broker.connections == 0
        scenario.know(broker)
        scenario.followers.brokers_changed()
        await scenario.until(lambda: log.end_offset == 1, seconds=0.3)

    scenario.run(test)


def test_broker_without_topic_ids_is_not_fetched() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    broker.versions = {FETCH: (4, 12)}
    broker.lead(A, 0).append()

    async def test() -> None:
        log = await scenario.follow(A, 1, 0)
        await scenario.clock.run_for(2)
        assert (log.end_offset, broker.requests) == (0, [])

    scenario.run(test)


# Leader changes


def test_new_leader_is_fetched_from_log_end() -> None:
    scenario = FollowerWithLeaders()
    old, new = scenario.broker(1), scenario.broker(2)
    before, after = old.lead(A, 0), new.lead(A, 1)

    async def test() -> None:
        before.append(times=10)
        before.commit(6)
        log = await scenario.follow(A, 1, 0)
        await scenario.until(lambda: log.end_offset == 10)
        after.leader_epoch = 0
        after.log.epochs.clear()
        after.append(times=6)  # its records of the same epoch
        after.leader_epoch = 1
        after.append(times=3)
        after.commit()
        await scenario.follow(A, 2, 1)
        await scenario.until(lambda: is_same(log, after.log))
        asked = len(old.requests)
        await scenario.clock.run_for(5)
        assert len(old.requests) == asked  # no partition remains
        assert log.epochs.end_offset_for(0).end_offset == 6

    scenario.run(test)


def test_held_fetch_is_cancelled_for_new_leader() -> None:
    """Otherwise its producers would wait for this follower until that fetch completes."""
    scenario = FollowerWithLeaders()
    scenario.settings = replace(scenario.settings, wait_max_ms=10_000)
    broker = scenario.broker(1)
    broker.lead(A, 0)
    led = broker.lead(B, 4)

    async def test() -> None:
        await scenario.follow(A, 1, 0)
        await scenario.clock.run_for(2)
        led.append()
        log = await scenario.follow(B, 1, 4)
        await scenario.until(lambda: is_same(log, led.log), seconds=0.05)

    scenario.run(test)


def test_successive_new_leaders_do_not_starve_fetcher() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    led = broker.lead(A, 0)

    async def test() -> None:
        log = await scenario.follow(A, 1, 0)
        for number in range(100, 200):
            broker.lead((UUID(int=number), 0), 0)
            await scenario.follow((UUID(int=number), 0), 1, 0)
            led.append()
            await scenario.clock.run_for(0.02)
        assert log.end_offset > 90
        assert broker.connections <= 4

    scenario.run(test)


def test_partition_without_leader_is_not_fetched() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    led = broker.lead(A, 1)

    async def test() -> None:
        led.append()
        log = await scenario.follow(A, 1, 1)
        await scenario.until(lambda: log.end_offset == 1)
        await scenario.follow(A, -1, 2)
        led.append()
        await scenario.clock.run_for(2)
        assert log.end_offset == 1
        led.leader_epoch = 3
        await scenario.follow(A, 1, 3)
        await scenario.until(lambda: log.end_offset == 2)

    scenario.run(test)


def test_removed_replica_is_not_fetched() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    first, second = broker.lead(A, 1), broker.lead(B, 1)

    async def test() -> None:
        logs = [await scenario.follow(key, 1, 1) for key in (A, B)]
        first.append()
        await scenario.until(lambda: logs[0].end_offset == 1)
        scenario.followers.gone("t1", 0)
        first.append()
        second.append()
        await scenario.until(lambda: logs[1].end_offset == 1)
        await scenario.clock.run_for(1)
        assert logs[0].end_offset == 1
        assert len(scenario.followers) == 1

    scenario.run(test)


def three_old_records(scenario: FollowerWithLeaders, log: PartitionLog) -> None:
    for _ in range(3):
        log.append_as_leader(batch(), leader_epoch=2, now_ms=scenario.clock.wall_ms())


def test_leadership_waits_for_truncation() -> None:
    scenario = FollowerWithLeaders()
    led = scenario.broker(1).lead(A, 3)
    led.append()

    async def test() -> None:
        three_old_records(scenario, log := await scenario.replica(A))
        scenario.node.offload.delay_seconds = 0.5
        await scenario.follow(A, 1, 3)
        partition = scenario.partitions[A]
        role = scenario.followers.follower_role("t1", 0)
        assert role is not None
        await scenario.until(lambda: role.state.is_changing)
        assert log.end_offset == 3
        await scenario.follow(A, FOLLOWER, 4)
        assert not partition.is_leader
        await scenario.until(lambda: partition.is_leader)
        assert log.end_offset == 0
        assert scenario.roles == [partition]
        scenario.followers.role_changed(partition)
        assert scenario.followers.follower_role("t1", 0) is None
        scenario.node.offload.delay_seconds = 0

    scenario.run(test)


def test_truncation_of_new_leader_is_superseded() -> None:
    scenario = FollowerWithLeaders()
    scenario.broker(1).lead(A, 3).append()

    async def test() -> None:
        three_old_records(scenario, log := await scenario.replica(A))
        give_a_task = scenario.followers.change

        def and_lead(*change: Any) -> None:
            give_a_task(*change)
            scenario.decide(A, FOLLOWER, 4)

        scenario.followers.change = and_lead  # type: ignore[method-assign]
        await scenario.follow(A, 1, 3)
        partition = scenario.partitions[A]
        await scenario.until(lambda: partition.is_leader)
        partition.append(batch(), acks=1, now_ms=scenario.clock.wall_ms())
        await scenario.clock.run_for(1)
        assert log.end_offset == 4

    scenario.run(test)


@pytest.mark.parametrize("leader", [FOLLOWER, -1])
def test_waiting_truncation_is_superseded_by_new_leader(leader: int) -> None:
    scenario = FollowerWithLeaders()
    scenario.broker(1).lead(A, 3).append()

    async def test() -> None:
        three_old_records(scenario, log := await scenario.replica(A))
        async with scenario.logs.directory_logs_of(log).file_lock:
            await scenario.follow(A, 1, 3)
            role = scenario.followers.follower_role("t1", 0)
            assert role is not None
            await scenario.until(lambda: role.state.is_changing)
            await scenario.clock.run_for(0.1)
            await scenario.follow(A, leader, 4)
            assert scenario.partitions[A].leader == leader
        await scenario.clock.run_for(1)
        assert log.end_offset == 3

    scenario.run(test)


# Many partitions


def test_many_partitions_start_over_several_requests() -> None:
    scenario = FollowerWithLeaders()
    broker = scenario.broker(1)
    keys = [(UUID(int=7), number) for number in range(600)]

    async def test() -> None:
        for key in keys:
            broker.lead(key, 0)
        broker.led[keys[-1]].append()
        logs = [await scenario.follow(key, 1, 0) for key in keys]
        await scenario.until(lambda: logs[-1].end_offset == 1)
        assert max(requested(broker)) == 500
        await scenario.clock.run_for(0.1)
        named = len(broker.requests)
        broker.led[keys[5]].append()
        await scenario.until(lambda: logs[5].end_offset == 1)
        await scenario.clock.run_for(0.1)
        assert sum(requested(broker)[named:]) == 1

    scenario.run(test)


def test_partitions_are_distributed_over_fetchers() -> None:
    scenario = FollowerWithLeaders()
    scenario.settings = replace(scenario.settings, fetchers=3)
    broker = scenario.broker(1)

    async def test() -> None:
        logs: list[PartitionLog] = []
        for number in range(6):
            broker.lead((UUID(int=7), number), 0).append()
            logs.append(await scenario.follow((UUID(int=7), number), 1, 0))
        await scenario.until(lambda: all(log.end_offset == 1 for log in logs))
        assert len(scenario.followers._fetchers) == 3
        scenario.settings = replace(scenario.settings, fetchers=1)
        scenario.followers.settings_changed()
        for led in broker.led.values():
            led.append()
        await scenario.until(lambda: all(log.end_offset == 2 for log in logs))
        await scenario.clock.run_for(1)
        asked = len(broker.requests)
        await scenario.clock.run_for(5)
        assert len(broker.requests) - asked == 10

    scenario.run(test)


# Throttling


@pytest.mark.parametrize("is_listed", [True, False])
def test_throttled_lagging_replica_keeps_the_rate(is_listed: bool) -> None:
    scenario = FollowerWithLeaders(config=THROTTLED if is_listed else SMALL)
    scenario.settings = replace(scenario.settings, fetch_max_bytes=500)
    scenario.rate = 1000.0
    led = scenario.broker(1).lead(A, 0)

    async def test() -> None:
        led.append(times=200)  # about 20 kB
        led.commit()
        began = scenario.clock.monotonic()
        log = await scenario.follow(A, 1, 0)
        await scenario.until(lambda: is_same(log, led.log), seconds=40)
        took = scenario.clock.monotonic() - began
        if is_listed:
            assert took == pytest.approx(log.size_bytes / scenario.rate, rel=0.15)
        else:
            assert took < 0.1

    scenario.run(test)


def test_unthrottled_partitions_do_not_wait_for_throttled_ones() -> None:
    scenario = FollowerWithLeaders(config=THROTTLED)
    scenario.rate = 100.0
    broker = scenario.broker(1)
    slow, quick = broker.lead(A, 0), broker.lead((UUID(int=2), 1), 0)

    async def test() -> None:
        slow.append(times=40)
        slow.commit()
        await scenario.follow(A, 1, 0)
        log = await scenario.follow((UUID(int=2), 1), 1, 0)
        for _ in range(9):
            quick.append()
            await scenario.until(lambda: log.end_offset == quick.log.end_offset, seconds=0.6)

    scenario.run(test)


def test_throttled_caught_up_replica_stays_in_isr() -> None:
    scenario = FollowerWithLeaders(config=THROTTLED)
    scenario.rate = 10.0
    led = scenario.broker(1).lead(A, 0)

    async def test() -> None:
        log = await scenario.follow(A, 1, 0)
        for _ in range(9):
            led.append()
            await scenario.until(lambda: log.end_offset == led.log.end_offset, seconds=0.6)
            led.commit()
            await scenario.clock.run_for(0.1)

    scenario.run(test)
