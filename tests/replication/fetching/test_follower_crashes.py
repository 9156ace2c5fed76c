"""Power cuts of a follower at every sync, and random faults by seed.

After each restart the follower's log must equal the leader's. The random faults are leader changes with diverging
logs, lost connections and power cuts, in a slow network.
"""

from __future__ import annotations

import itertools
import random
from uuid import UUID

import pytest
import trio

from odradek.protocol.records.batch import Batch, batches
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.log.partition_log import PartitionLog
from odradek.testing.power import NodeCrashed
from tests.support.replica_fetching import FollowerWithLeaders, all_of, is_same

A = (UUID(int=1), 0)
POINTS = [Checkpoint.RECOVERY_POINT, Checkpoint.HIGH_WATERMARK, Checkpoint.LOG_START]


class Story:
    """Three successive leaders; each of them lacks records of the previous one."""

    def __init__(self) -> None:
        self.scenario = FollowerWithLeaders()
        first, second, third = (self.scenario.broker(number) for number in (1, 2, 3))
        self.first, self.second, self.third = first.lead(A, 0), second.lead(A, 0), third.lead(A, 5)
        self.first.append(3, times=30)
        self.first.commit(60)
        self.second.append(3, times=20)
        self.second.leader_epoch = 2
        self.second.append(3, times=30)
        self.second.commit()
        self.third.append(50, times=6)
        self.third.commit()
        self.third.log.advance_log_start(220, "retention")  # within a batch

    async def life(self) -> None:
        scenario = self.scenario
        log = await scenario.follow(A, 1, 0)
        await scenario.until(lambda: log.end_offset == self.first.log.end_offset)
        await self._flush(log)
        await scenario.follow(A, 2, 2)
        await scenario.until(lambda: is_same(log, self.second.log))
        await self._flush(log)
        await scenario.follow(A, 3, 5)
        await self._ended(log)
        await self._flush(log)

    async def _flush(self, log: PartitionLog) -> None:
        await self.scenario.logs.flush(log, log.end_offset)
        await self.scenario.logs.checkpoint(POINTS)

    async def _ended(self, log: PartitionLog) -> None:
        theirs = self.third.log
        await self.scenario.until(
            lambda: (log.log_start_offset, log.high_watermark) == (220, theirs.end_offset)
        )

    async def next_life(self) -> None:
        async with self.scenario.living():
            await self._ended(await self.scenario.follow(A, 3, 5))


def run(story: Story, *, seed: int = 0) -> int:
    """Run the first part, which may crash, and the second after a restart. Returns the syncs of the first part."""
    scenario = story.scenario

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for broker in scenario.brokers.values():
                await nursery.start(broker.serve)
            try:
                async with scenario.living():
                    await story.life()
            except BaseException as error:
                if not _is_crash(error):
                    raise
            syncs.append(scenario.node.files.syncs)
            scenario.node = scenario.world.restart(scenario.node, seed)
            scenario.partitions.clear()
            await story.next_life()
            nursery.cancel_scope.cancel()

    syncs: list[int] = []
    scenario.world.run(main)
    return syncs[0]


def _is_crash(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_crash(each) or isinstance(each, trio.Cancelled) for each in error.exceptions)
    return isinstance(error, NodeCrashed)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at", "after"])
def test_power_cut_at_every_sync(when: str) -> None:
    syncs = run(Story())
    assert syncs > 30
    for number in range(1, syncs + 1):
        story = Story()
        files = story.scenario.node.files
        (files.cut_power_at if when == "at" else files.cut_power_after)(number)
        run(story, seed=number)


class Chaos:
    """One follower and its leaders. Records in `committed` must not change."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.scenario = FollowerWithLeaders(seed, fragment=self.chance.random() < 0.3)
        self.committed = b""
        self.epoch = 0
        self.leader = 1
        for number in (1, 2, 3):
            self.scenario.broker(number)
        self.led = self.scenario.brokers[1].lead(A, 0)
        self.log: PartitionLog | None = None

    def elect(self) -> None:
        """Elect a leader that has all committed records, and perhaps some others."""
        rest = [bytes(each.view) for each in batches(memoryview(all_of(self.led.log)))]
        kept = self.chance.randint(len(list(batches(memoryview(self.committed)))), len(rest))
        del self.scenario.brokers[self.leader].led[A]
        self.epoch += 1
        self.leader = self.chance.choice([1, 2, 3])
        had = b"".join(rest[:kept])
        self.led = self.scenario.brokers[self.leader].lead(A, self.epoch, had=had)
        self.commit(0)

    def append(self) -> None:
        self.led.append(self.chance.randint(1, 3), times=self.chance.randint(1, 6))

    def commit(self, more: int) -> None:
        """Commit more records, which every ISR member has; this follower need not be in the ISR."""
        every = [bytes(each.view) for each in batches(memoryview(all_of(self.led.log)))]
        known = len(list(batches(memoryview(self.committed))))
        self.committed = b"".join(every[: known + more])
        self.led.commit(sum(Batch(memoryview(each)).record_count for each in every[: known + more]))

    def check(self) -> None:
        log = self.log
        if log is None or log.failure is not None:
            return
        mine = [bytes(each.view) for each in batches(memoryview(all_of(log)))]
        ends = itertools.accumulate(Batch(memoryview(each)).record_count for each in mine)
        below = b"".join(
            each for each, end in zip(mine, ends, strict=True) if end <= log.high_watermark
        )
        assert self.committed.startswith(below)

    async def step(self) -> None:
        scenario, chance = self.scenario, self.chance
        happens = chance.random()
        if happens < 0.4:
            self.append()
        elif happens < 0.6:
            self.commit(chance.randint(0, 4))
        elif happens < 0.7:
            self.elect()
        elif happens < 0.85:
            await self.send_role()
        elif happens < 0.9:
            scenario.world.wires.cut("follower", f"broker-{self.leader}")
        elif happens < 0.95:
            scenario.world.wires.partition("follower", f"broker-{self.leader}")
        else:
            scenario.world.wires.heal()
        await scenario.clock.run_for(chance.choice([0, 0.001, 0.01, 0.1, 0.6]))
        self.check()

    async def send_role(self) -> None:
        """Send the leader and epoch to the follower."""
        self.log = await self.scenario.follow(A, self.leader, self.epoch)

    async def life(self) -> None:
        for _ in range(60):
            await self.step()

    async def heal(self) -> None:
        self.scenario.world.wires.heal()
        self.elect()
        self.append()
        self.commit(100)
        await self.send_role()
        assert self.log is not None
        mine, theirs = self.log, self.led.log
        await self.scenario.until(lambda: is_same(mine, theirs), seconds=120)


@pytest.mark.parametrize("seed", range(12))
def test_follower_after_crashes_equals_leader(seed: int) -> None:
    chaos = Chaos(seed)
    scenario = chaos.scenario

    async def main() -> None:
        scenario.world.wires.set_delay(0, chaos.chance.choice([0, 0.002, 0.05]))
        async with trio.open_nursery() as nursery:
            for broker in scenario.brokers.values():
                await nursery.start(broker.serve)
            for _ in range(3):
                scenario.node.files.cut_power_after(chaos.chance.randint(5, 60))
                try:
                    async with scenario.living():
                        await chaos.life()
                        scenario.node.power.cut()
                except BaseException as error:
                    if not _is_crash(error):
                        raise
                scenario.node = scenario.world.restart(scenario.node, seed)
                scenario.partitions.clear()
                chaos.log = None
            async with scenario.living():
                await chaos.heal()
            nursery.cancel_scope.cancel()

    scenario.world.run(main)
