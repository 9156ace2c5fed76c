"""A follower's log moves to another log directory (KIP-113) during appends and truncation; it equals the leader's."""

from __future__ import annotations

from uuid import UUID

import pytest

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from tests.support.replica_fetching import FollowerWithLeaders, is_same

KEY = (UUID(int=1), 0)
NAME = TopicPartition("t1", 0)
A, B = Path("/a"), Path("/b")


async def end_of_delays(scenario: FollowerWithLeaders) -> None:
    """Wait for running changes, because the clock does not advance during the shutdown."""
    scenario.node.offload.delay_seconds = 0
    await scenario.clock.run_for(0.1)


@pytest.mark.parametrize("seed", range(5))
def test_moving_log_keeps_following(seed: int) -> None:
    scenario = FollowerWithLeaders(seed, directories=(A, B))
    led = scenario.broker(1).lead(KEY, 0)

    async def test() -> None:
        led.append(times=200)
        led.commit()
        log = await scenario.follow(KEY, 1, 0)
        await scenario.until(lambda: is_same(log, led.log))
        await scenario.logs.mover.move(NAME, B)
        scenario.node.offload.delay_seconds = 0.02
        while scenario.logs.mover.moves():
            led.append(times=3)
            led.commit()
            await scenario.clock.run_for(0.01)
        assert log.directory.parent == B
        await scenario.until(lambda: is_same(log, led.log))
        await end_of_delays(scenario)

    scenario.run(test)


@pytest.mark.parametrize("seed", range(10))
def test_moving_log_is_truncated(seed: int) -> None:
    scenario = FollowerWithLeaders(seed, directories=(A, B))
    old, new = scenario.broker(1).lead(KEY, 0), scenario.broker(2).lead(KEY, 0)

    async def test() -> None:
        old.append(times=200)
        old.commit(50)
        new.append(times=60 + 10 * seed)
        new.leader_epoch = 1
        log = await scenario.follow(KEY, 1, 0)
        await scenario.until(lambda: is_same(log, old.log))
        await scenario.logs.mover.move(NAME, B)
        scenario.node.offload.delay_seconds = 0.02
        await scenario.clock.run_for(0.01 * seed)
        new.append(times=100)
        new.commit()
        await scenario.follow(KEY, 2, 1)
        await scenario.until(lambda: is_same(log, new.log) and not scenario.logs.mover.moves())
        assert log.directory.parent == B
        assert not scenario.node.files.is_directory(A / "t1-0")
        await end_of_delays(scenario)

    scenario.run(test)
