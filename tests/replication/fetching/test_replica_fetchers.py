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
from odradek.storage.log.partition_log import PartitionLog
from tests.support.partition_logs import batch
from tests.support.replica_fetching import (
    FOLLOWER,
    SMALL,
    LeadingBroker,
    Stand,
    is_same,
)

A, B, C = ((UUID(int=number), 0) for number in (1, 2, 3))
THROTTLED = replace(SMALL, follower_replication_throttled_replicas=(f"0:{FOLLOWER}",))


def requested(broker: LeadingBroker) -> list[int]:
    """Return the number of partitions in each fetch."""
    return [sum(len(topic.partitions) for topic in each.topics) for each in broker.requests]


def test_partitions_of_one_broker_share_a_session() -> None:
    stand = Stand()
    broker = stand.broker(1)
    first, second = broker.lead(A, 0), broker.lead(B, 0)

    async def test() -> None:
        first.append()
        second.append()
        logs = [await stand.follow(key, 1, 0) for key in (A, B)]
        await stand.until(lambda: all(log.end_offset == 1 for log in logs))
        await stand.clock.run_for(0.1)
        named = len(broker.requests)
        first.append()
        await stand.until(lambda: logs[0].end_offset == 2)
        await stand.clock.run_for(0.1)
        # The fetch continues there; the other partition is unchanged
        assert requested(broker)[named:] == [1]
        assert {each.session_id for each in broker.requests[1:]} != {0}
        assert broker.connections == 1
        assert {each.replica_id for each in broker.requests} == {FOLLOWER}

    stand.run(test)


def test_max_bytes_is_limited_by_response_limit() -> None:
    """replica.fetch.response.max.bytes may exceed the limit of a connection: each large response would fail."""
    stand = Stand()
    stand.settings = replace(stand.settings, response_max_bytes=2**31 - 1)
    led = stand.broker(1).lead(A, 0)
    led.append()

    async def test() -> None:
        log = await stand.follow(A, 1, 0)
        await stand.until(lambda: log.end_offset == 1)
        assert {each.max_bytes < MAX_RESPONSE_BYTES for each in stand.brokers[1].requests} == {True}

    stand.run(test)


def test_is_catching_up_while_any_partition_is_behind() -> None:
    stand = Stand()
    broker = stand.broker(1)
    leading, idle = broker.lead(A, 0), broker.lead(B, 0)

    async def test() -> None:
        assert not stand.followers.is_catching_up
        leading.append(times=3)
        logs = [await stand.follow(key, 1, 0) for key in (A, B)]
        assert stand.followers.is_catching_up
        await stand.until(lambda: logs[0].end_offset == leading.log.end_offset)
        await stand.until(lambda: not stand.followers.is_catching_up)
        assert idle.log.end_offset == 0

    stand.run(test)


def test_idle_leader_is_fetched_twice_a_second() -> None:
    stand = Stand()
    broker = stand.broker(1)
    broker.lead(A, 0)

    async def test() -> None:
        await stand.follow(A, 1, 0)
        await stand.clock.run_for(0.1)
        before = len(broker.requests)
        await stand.clock.run_for(5)
        assert len(broker.requests) - before == 10

    stand.run(test)


def test_lost_session_is_recreated() -> None:
    stand = Stand()
    broker = stand.broker(1)
    led = broker.lead(A, 0)

    async def test() -> None:
        led.append()
        log = await stand.follow(A, 1, 0)
        await stand.until(lambda: log.end_offset == 1)
        broker.sessions._sessions.clear()
        led.append()
        await stand.until(lambda: log.end_offset == 2, seconds=1)

    stand.run(test)


def test_broker_with_full_session_cache_gets_full_requests() -> None:
    stand = Stand()
    broker = stand.broker(1)
    broker.sessions._slots = 0
    first, second = broker.lead(A, 0), broker.lead(B, 0)

    async def test() -> None:
        logs = [await stand.follow(key, 1, 0) for key in (A, B)]
        for _ in range(3):
            first.append()
            second.append()
            await stand.clock.run_for(0.6)
        assert is_same(logs[0], first.log)
        assert is_same(logs[1], second.log)
        assert set(requested(broker)[1:]) == {2}

    stand.run(test)


def test_repeated_top_level_error_backs_off() -> None:
    stand = Stand()
    broker = stand.broker(1)
    led = broker.lead(A, 0)
    led.append()
    broker.refuses_session = ErrorCode.fetch_session_topic_id_error

    async def test() -> None:
        log = await stand.follow(A, 1, 0)
        await stand.clock.run_for(2)
        assert 5 < len(broker.requests) < 20
        broker.refuses_session = None
        await stand.until(lambda: log.end_offset == 1, seconds=0.5)

    stand.run(test)


def test_lost_connection_is_reopened() -> None:
    stand = Stand()
    broker = stand.broker(1)
    led = broker.lead(A, 0)

    async def test() -> None:
        log = await stand.follow(A, 1, 0)
        for _ in range(5):
            led.append()
            stand.world.wires.cut("follower", broker.node.name)
            await stand.until(lambda: log.end_offset == led.log.end_offset, seconds=1)
        assert broker.connections >= 5

    stand.run(test)


def test_unreachable_broker_is_retried() -> None:
    stand = Stand()
    broker = stand.broker(1)
    led = broker.lead(A, 0)
    led.append()

    async def test() -> None:
        broker.stop()
        log = await stand.follow(A, 1, 0)
        await stand.clock.run_for(3)
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.serve)
            await stand.until(lambda: log.end_offset == 1, seconds=0.3)
            nursery.cancel_scope.cancel()

    stand.run(test)


def test_broker_with_new_address_is_reconnected() -> None:
    stand = Stand()
    broker = stand.broker(1)
    led = broker.lead(A, 0)

    async def test() -> None:
        log = await stand.follow(A, 1, 0)
        await stand.clock.run_for(0.1)
        # The old connection does not respond
        stand.world.wires.partition("follower", broker.node.name)
        led.append()
        await stand.clock.run_for(1)
        elsewhere = LeadingBroker(stand.world, 1)
        elsewhere.node = stand.world.node("elsewhere")
        elsewhere.led = broker.led
        async with trio.open_nursery() as nursery:
            await nursery.start(elsewhere.serve)
            stand.know(elsewhere)
            stand.followers.brokers_changed()
            await stand.until(lambda: log.end_offset == 1, seconds=0.3)
            nursery.cancel_scope.cancel()

    stand.run(test)


def test_unregistered_broker_is_waited_for() -> None:
    stand = Stand()
    broker = stand.broker(1)
    led = broker.lead(A, 0)
    led.append()
    stand.image = MetadataImage()

    async def test() -> None:
        log = await stand.follow(A, 1, 0)
        await stand.clock.run_for(1)
        assert broker.connections == 0
        stand.know(broker)
        stand.followers.brokers_changed()
        await stand.until(lambda: log.end_offset == 1, seconds=0.3)

    stand.run(test)


def test_broker_without_topic_ids_is_not_fetched() -> None:
    stand = Stand()
    broker = stand.broker(1)
    broker.versions = {FETCH: (4, 12)}
    broker.lead(A, 0).append()

    async def test() -> None:
        log = await stand.follow(A, 1, 0)
        await stand.clock.run_for(2)
        assert (log.end_offset, broker.requests) == (0, [])

    stand.run(test)


# Leader changes


def test_new_leader_is_fetched_from_log_end() -> None:
    stand = Stand()
    old, new = stand.broker(1), stand.broker(2)
    before, after = old.lead(A, 0), new.lead(A, 1)

    async def test() -> None:
        before.append(times=10)
        before.commit(6)
        log = await stand.follow(A, 1, 0)
        await stand.until(lambda: log.end_offset == 10)
        after.leader_epoch = 0
        after.log.epochs.clear()
        after.append(times=6)  # its records of the same epoch
        after.leader_epoch = 1
        after.append(times=3)
        after.commit()
        await stand.follow(A, 2, 1)
        await stand.until(lambda: is_same(log, after.log))
        asked = len(old.requests)
        await stand.clock.run_for(5)
        assert len(old.requests) == asked  # no partition remains
        assert log.epochs.end_offset_for(0).end_offset == 6

    stand.run(test)


def test_held_fetch_is_cancelled_for_new_leader() -> None:
    """Otherwise its producers would wait for this follower until that fetch completes."""
    stand = Stand()
    stand.settings = replace(stand.settings, wait_max_ms=10_000)
    broker = stand.broker(1)
    broker.lead(A, 0)
    led = broker.lead(B, 4)

    async def test() -> None:
        await stand.follow(A, 1, 0)
        await stand.clock.run_for(2)
        led.append()
        log = await stand.follow(B, 1, 4)
        await stand.until(lambda: is_same(log, led.log), seconds=0.05)

    stand.run(test)


def test_successive_new_leaders_do_not_starve_fetcher() -> None:
    stand = Stand()
    broker = stand.broker(1)
    led = broker.lead(A, 0)

    async def test() -> None:
        log = await stand.follow(A, 1, 0)
        for number in range(100, 200):
            broker.lead((UUID(int=number), 0), 0)
            await stand.follow((UUID(int=number), 0), 1, 0)
            led.append()
            await stand.clock.run_for(0.02)
        assert log.end_offset > 90
        assert broker.connections <= 4

    stand.run(test)


def test_partition_without_leader_is_not_fetched() -> None:
    stand = Stand()
    broker = stand.broker(1)
    led = broker.lead(A, 1)

    async def test() -> None:
        led.append()
        log = await stand.follow(A, 1, 1)
        await stand.until(lambda: log.end_offset == 1)
        await stand.follow(A, -1, 2)
        led.append()
        await stand.clock.run_for(2)
        assert log.end_offset == 1
        led.leader_epoch = 3
        await stand.follow(A, 1, 3)
        await stand.until(lambda: log.end_offset == 2)

    stand.run(test)


def test_removed_replica_is_not_fetched() -> None:
    stand = Stand()
    broker = stand.broker(1)
    first, second = broker.lead(A, 1), broker.lead(B, 1)

    async def test() -> None:
        logs = [await stand.follow(key, 1, 1) for key in (A, B)]
        first.append()
        await stand.until(lambda: logs[0].end_offset == 1)
        stand.followers.gone("t1", 0)
        first.append()
        second.append()
        await stand.until(lambda: logs[1].end_offset == 1)
        await stand.clock.run_for(1)
        assert logs[0].end_offset == 1
        assert len(stand.followers) == 1

    stand.run(test)


def three_old_records(stand: Stand, log: PartitionLog) -> None:
    for _ in range(3):
        log.append_as_leader(batch(), leader_epoch=2, now_ms=stand.clock.wall_ms())


def test_leadership_waits_for_truncation() -> None:
    stand = Stand()
    led = stand.broker(1).lead(A, 3)
    led.append()

    async def test() -> None:
        three_old_records(stand, log := await stand.replica(A))
        stand.node.offload.delay_seconds = 0.5
        await stand.follow(A, 1, 3)
        partition = stand.partitions[A]
        role = stand.followers.follower_role("t1", 0)
        assert role is not None
        await stand.until(lambda: role.state.is_changing)
        assert log.end_offset == 3
        await stand.follow(A, FOLLOWER, 4)
        assert not partition.is_leader
        await stand.until(lambda: partition.is_leader)
        assert log.end_offset == 0
        assert stand.roles == [partition]
        stand.followers.role_changed(partition)
        assert stand.followers.follower_role("t1", 0) is None
        stand.node.offload.delay_seconds = 0

    stand.run(test)


def test_truncation_of_new_leader_is_superseded() -> None:
    stand = Stand()
    stand.broker(1).lead(A, 3).append()

    async def test() -> None:
        three_old_records(stand, log := await stand.replica(A))
        give_a_task = stand.followers.change

        def and_lead(*change: Any) -> None:
            give_a_task(*change)
            stand.decide(A, FOLLOWER, 4)

        stand.followers.change = and_lead  # type: ignore[method-assign]
        await stand.follow(A, 1, 3)
        partition = stand.partitions[A]
        await stand.until(lambda: partition.is_leader)
        partition.append(batch(), acks=1, now_ms=stand.clock.wall_ms())
        await stand.clock.run_for(1)
        assert log.end_offset == 4

    stand.run(test)


@pytest.mark.parametrize("leader", [FOLLOWER, -1])
def test_waiting_truncation_is_superseded_by_new_leader(leader: int) -> None:
    stand = Stand()
    stand.broker(1).lead(A, 3).append()

    async def test() -> None:
        three_old_records(stand, log := await stand.replica(A))
        async with stand.logs.directory_logs_of(log).file_lock:
            await stand.follow(A, 1, 3)
            role = stand.followers.follower_role("t1", 0)
            assert role is not None
            await stand.until(lambda: role.state.is_changing)
            await stand.clock.run_for(0.1)
            await stand.follow(A, leader, 4)
            assert stand.partitions[A].leader == leader
        await stand.clock.run_for(1)
        assert log.end_offset == 3

    stand.run(test)


# Many partitions


def test_many_partitions_start_over_several_requests() -> None:
    stand = Stand()
    broker = stand.broker(1)
    keys = [(UUID(int=7), number) for number in range(600)]

    async def test() -> None:
        for key in keys:
            broker.lead(key, 0)
        broker.led[keys[-1]].append()
        logs = [await stand.follow(key, 1, 0) for key in keys]
        await stand.until(lambda: logs[-1].end_offset == 1)
        assert max(requested(broker)) == 500
        await stand.clock.run_for(0.1)
        named = len(broker.requests)
        broker.led[keys[5]].append()
        await stand.until(lambda: logs[5].end_offset == 1)
        await stand.clock.run_for(0.1)
        assert sum(requested(broker)[named:]) == 1

    stand.run(test)


def test_partitions_are_distributed_over_fetchers() -> None:
    stand = Stand()
    stand.settings = replace(stand.settings, fetchers=3)
    broker = stand.broker(1)

    async def test() -> None:
        logs: list[PartitionLog] = []
        for number in range(6):
            broker.lead((UUID(int=7), number), 0).append()
            logs.append(await stand.follow((UUID(int=7), number), 1, 0))
        await stand.until(lambda: all(log.end_offset == 1 for log in logs))
        assert len(stand.followers._fetchers) == 3
        stand.settings = replace(stand.settings, fetchers=1)
        stand.followers.settings_changed()
        for led in broker.led.values():
            led.append()
        await stand.until(lambda: all(log.end_offset == 2 for log in logs))
        await stand.clock.run_for(1)
        asked = len(broker.requests)
        await stand.clock.run_for(5)
        assert len(broker.requests) - asked == 10

    stand.run(test)


# Throttling


@pytest.mark.parametrize("is_listed", [True, False])
def test_throttled_lagging_replica_keeps_the_rate(is_listed: bool) -> None:
    stand = Stand(config=THROTTLED if is_listed else SMALL)
    stand.settings = replace(stand.settings, fetch_max_bytes=500)
    stand.rate = 1000.0
    led = stand.broker(1).lead(A, 0)

    async def test() -> None:
        led.append(times=200)  # about 20 kB
        led.commit()
        began = stand.clock.monotonic()
        log = await stand.follow(A, 1, 0)
        await stand.until(lambda: is_same(log, led.log), seconds=40)
        took = stand.clock.monotonic() - began
        if is_listed:
            assert took == pytest.approx(log.size_bytes / stand.rate, rel=0.15)
        else:
            assert took < 0.1

    stand.run(test)


def test_unthrottled_partitions_do_not_wait_for_throttled_ones() -> None:
    stand = Stand(config=THROTTLED)
    stand.rate = 100.0
    broker = stand.broker(1)
    slow, quick = broker.lead(A, 0), broker.lead((UUID(int=2), 1), 0)

    async def test() -> None:
        slow.append(times=40)
        slow.commit()
        await stand.follow(A, 1, 0)
        log = await stand.follow((UUID(int=2), 1), 1, 0)
        for _ in range(9):
            quick.append()
            await stand.until(lambda: log.end_offset == quick.log.end_offset, seconds=0.6)

    stand.run(test)


def test_throttled_caught_up_replica_stays_in_isr() -> None:
    stand = Stand(config=THROTTLED)
    stand.rate = 10.0
    led = stand.broker(1).lead(A, 0)

    async def test() -> None:
        log = await stand.follow(A, 1, 0)
        for _ in range(9):
            led.append()
            await stand.until(lambda: log.end_offset == led.log.end_offset, seconds=0.6)
            led.commit()
            await stand.clock.run_for(0.1)

    stand.run(test)
