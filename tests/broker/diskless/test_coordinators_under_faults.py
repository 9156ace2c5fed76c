"""Coordinators of diskless topics under random kills, network partitions and elections (KIP-1164, D-07, D-13 to D-19).

Idempotent producers commit files through random brokers, and repeat a batch in a new file until it is acknowledged. At the
end every acknowledged batch is at its offset, once, in the order of its producer, and all replicas have the same state.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from odradek.protocol.errors import ErrorCode
from odradek.storage.diskless.queries import FindPosition
from odradek.storage.diskless.state import DisklessState
from odradek.testing.power import NodeCrashed
from tests.support.diskless_cluster import BROKERS, DisklessCluster, run_cluster

PARTITIONS = 4
RECORDS = 2
NODES = [number for number, role in BROKERS.items() if role == "broker"]


class FaultyRun:
    """One run of a seed."""

    def __init__(self, cluster: DisklessCluster, rng: random.Random, seconds: float) -> None:
        """`seconds` is the virtual time under faults."""
        self.cluster = cluster
        self.seconds = seconds
        self.rng = rng
        self.scopes: dict[int, set[trio.CancelScope]] = {number: set() for number in NODES}
        """Scopes of the commits that run on each broker."""
        self.acknowledged: dict[int, list[int]] = {}
        """Base offsets of each producer's batches, in the order of their sequences."""
        self.is_over = False

    async def main(self) -> None:
        await self.cluster.create(PARTITIONS)
        # Without a delay, a record would be replicated as soon as it is appended.
        self.cluster.nodes.world.wires.set_delay(0.002, 0.05)
        async with trio.open_nursery() as nursery:
            for producer in range(2 * PARTITIONS):
                nursery.start_soon(self.produce, producer)
            await self.inflict_faults()
            self.is_over = True
        await self.check()

    # Producers

    async def produce(self, producer: int) -> None:
        """Commit batches of one producer until the faults are over."""
        offsets = self.acknowledged[producer] = []
        while not self.is_over:
            sequence = RECORDS * len(offsets)
            offset = await self.commit(producer, sequence)
            if offset is not None:
                offsets.append(offset)
            await trio.sleep(self.rng.uniform(0.01, 0.3))

    async def commit(self, producer: int, sequence: int) -> int | None:
        """Commit one batch through a random broker; None if it must be repeated."""
        running = [number for number in NODES if number in self.cluster.nodes.brokers]
        broker = self.rng.choice(running or NODES)
        if broker not in self.cluster.nodes.brokers:
            return None
        if self.cluster.nodes.brokers[broker].services.diskless is None:
            return None
        results: list[Any] = []
        with trio.CancelScope() as scope:
            self.scopes[broker].add(scope)
            try:
                request = self.cluster.request(
                    broker,
                    producer % PARTITIONS,
                    records=RECORDS,
                    producer_id=producer,
                    sequence=sequence,
                )
                results.extend(await self.cluster.diskless(broker).requests.commit_file(request))
            except* NodeCrashed:
                pass
            finally:
                self.scopes[broker].discard(scope)
        if not results or results[0].error_code is not ErrorCode.none:
            if results:
                assert results[0].error_code in ACCEPTABLE, results
            return None
        offset: int = results[0].assigned_base_offset
        return offset

    # Faults

    async def inflict_faults(self) -> None:
        end = trio.current_time() + self.seconds
        while trio.current_time() < end:
            await trio.sleep(self.rng.uniform(0.2, 4))
            fault = self.rng.choice([self.kill, self.kill, self.partition, self.stop])
            await fault()
        for number in NODES:
            await self.start(number)

    async def kill(self) -> None:
        number = self.rng.choice(NODES)
        if number in self.cluster.nodes.brokers:
            self.end_commits(number)
            self.cluster.nodes.kill(number)
            await trio.sleep(self.rng.choice([0.01, 1, 3]))
        await self.start(number)

    async def stop(self) -> None:
        number = self.rng.choice(NODES)
        if number in self.cluster.nodes.brokers:
            self.end_commits(number)
            await self.cluster.nodes.stop(number)
        await self.start(number)

    async def start(self, number: int) -> None:
        if number not in self.cluster.nodes.brokers:
            await self.cluster.nodes.start(number)

    def end_commits(self, number: int) -> None:
        for scope in self.scopes[number]:
            scope.cancel()

    async def partition(self) -> None:
        """Lose the packets between two brokers, or of one direction, for a while."""
        one, other = self.rng.sample(NODES, 2)
        wires = self.cluster.nodes.world.wires
        one_way = self.rng.random() < 0.5
        fault = wires.partition(f"node-{one}", f"node-{other}", one_way=one_way)
        await trio.sleep(self.rng.uniform(0.1, 4))
        wires.heal(fault)

    # Checks

    async def check(self) -> None:
        cluster = self.cluster
        for index in range(PARTITIONS):
            position = FindPosition(cluster.topic_id, index, 0, 1 << 30)
            (found,) = await cluster.diskless(4).requests.find_batches(
                [position], max_bytes=1 << 30, strict=True, timeout_s=60
            )
            bases = [batch.base_offset for batch in found.batches]
            assert bases == list(range(0, found.high_watermark, RECORDS))
            producers = [index, index + PARTITIONS]
            acknowledged = [offset for each in producers for offset in self.acknowledged[each]]
            assert len(set(acknowledged)) == len(acknowledged), "an offset was assigned twice"
            assert set(acknowledged) <= set(bases), "an acknowledged batch is lost"
            # the last batch of a producer may be committed without a response
            assert len(bases) <= len(acknowledged) + len(producers), "a batch is doubled"
        for offsets in self.acknowledged.values():
            assert offsets == sorted(offsets), "batches of a producer are reordered"
        await self.check_replicas()

    async def check_replicas(self) -> None:
        """All replicas of each coordinator have the same state."""
        for coordinator_id in self.cluster.diskless(4).requests.coordinator_ids():
            replicas = [self.cluster.diskless(number).coordinators for number in NODES]
            found = [each.find(coordinator_id) for each in replicas]
            coordinators = [each for each in found if each is not None]
            assert len(coordinators) == len(NODES)

            def are_equal(all_of_them: list[Any] = coordinators) -> bool:
                return len({each.applied_offset for each in all_of_them}) == 1

            await self.cluster.until(are_equal)
            states = [await each.query(_content) for each in coordinators]
            assert states[1:] == states[:-1]


def _content(state: DisklessState) -> Any:
    partitions = state.partitions()
    producers = [
        state.producer(each.topic_id, each.index, producer)
        for each in partitions
        for producer in range(2 * PARTITIONS)
    ]
    return list(partitions), producers, list(state.files("", 100_000)), state.counts()


ACCEPTABLE = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.network_exception,
    ErrorCode.request_timed_out,
)


def run_seed(seed: int, seconds: float) -> None:
    """Run a seed. Those that are odd have snapshots, after which the log is pruned (D-20)."""
    rng = random.Random(seed)
    interval = "25" if seed % 2 else "100000"

    async def main(cluster: DisklessCluster) -> None:
        await FaultyRun(cluster, rng, seconds).main()

    run_cluster(main, seed=seed, diskless_metadata_snapshot_interval_records=interval)


def test_acknowledged_commits_survive_faults() -> None:
    """D-07, D-13, D-17: no acknowledged batch is lost, doubled or reordered."""
    run_seed(1, 6.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 22))
def test_acknowledged_commits_survive_faults_of_many_seeds(seed: int) -> None:
    """D-07, D-13, D-17: as above, for longer."""
    run_seed(seed, 40.0)
