"""A follower's log moves to another log directory (KIP-113) during appends and truncation; it equals the leader's."""

from __future__ import annotations

from uuid import UUID

import pytest

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from tests.support.replica_fetching import Stand, is_same

KEY = (UUID(int=1), 0)
NAME = TopicPartition("t1", 0)
A, B = Path("/a"), Path("/b")


async def end_of_delays(stand: Stand) -> None:
    """Wait for running changes, because the clock does not advance during the shutdown."""
    stand.node.offload.delay_seconds = 0
    await stand.clock.run_for(0.1)


@pytest.mark.parametrize("seed", range(5))
def test_moving_log_keeps_following(seed: int) -> None:
    stand = Stand(seed, directories=(A, B))
    led = stand.broker(1).lead(KEY, 0)

    async def test() -> None:
        led.append(times=200)
        led.commit()
        log = await stand.follow(KEY, 1, 0)
        await stand.until(lambda: is_same(log, led.log))
        await stand.logs.mover.move(NAME, B)
        stand.node.offload.delay_seconds = 0.02
        while stand.logs.mover.moves():
            led.append(times=3)
            led.commit()
            await stand.clock.run_for(0.01)
        assert log.directory.parent == B
        await stand.until(lambda: is_same(log, led.log))
        await end_of_delays(stand)

    stand.run(test)


@pytest.mark.parametrize("seed", range(10))
def test_moving_log_is_truncated(seed: int) -> None:
    stand = Stand(seed, directories=(A, B))
    old, new = stand.broker(1).lead(KEY, 0), stand.broker(2).lead(KEY, 0)

    async def test() -> None:
        old.append(times=200)
        old.commit(50)
        new.append(times=60 + 10 * seed)
        new.leader_epoch = 1
        log = await stand.follow(KEY, 1, 0)
        await stand.until(lambda: is_same(log, old.log))
        await stand.logs.mover.move(NAME, B)
        stand.node.offload.delay_seconds = 0.02
        await stand.clock.run_for(0.01 * seed)
        new.append(times=100)
        new.commit()
        await stand.follow(KEY, 2, 1)
        await stand.until(lambda: is_same(log, new.log) and not stand.logs.mover.moves())
        assert log.directory.parent == B
        assert not stand.node.files.is_directory(A / "t1-0")
        await end_of_delays(stand)

    stand.run(test)
