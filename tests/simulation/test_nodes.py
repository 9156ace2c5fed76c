"""Start, crash and restart of the nodes of a simulated cluster."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from odradek.client.admin import NewTopic, create_topics, delete_topics
from odradek.client.metadata import open_cluster
from odradek.seams.files import Path
from odradek.testing.simulation.cluster import CLIENTS, MULTI_NODE_CONFIGS, SimulatedCluster
from odradek.testing.simulation.plan import SMALL_METADATA
from odradek.testing.simulation.trace import Trace
from odradek.testing.virtual_files import CHANGES, CrashPoint
from odradek.testing.virtual_world import VirtualWorld


def _far_apart() -> VirtualWorld:
    world = VirtualWorld(1)
    world.clock.jumping = True
    world.wires.set_delay(0.001, 0.004)
    return world


async def _three(world: VirtualWorld, nursery: trio.Nursery) -> SimulatedCluster:
    """Return a cluster of three nodes that serve."""
    cluster = SimulatedCluster(world, 3, Trace(world.clock.monotonic), nursery)
    for node in cluster:
        await cluster.start(node.number)
    await _all_serve(cluster)
    return cluster


async def _all_serve(cluster: SimulatedCluster) -> None:
    while len(cluster.running()) < len(cluster.nodes):
        await trio.sleep(0.01)


def test_node_starts_after_all_tasks_of_its_last_run_ended() -> None:
    world = VirtualWorld(1)
    world.clock.jumping = True
    trace = Trace(world.clock.monotonic)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            cluster = SimulatedCluster(world, 1, trace, nursery)
            await cluster.start(1)
            node = cluster.nodes[1]
            while not node.serves:
                await trio.sleep(0.01)
            assert node.virtual_node is not None
            node.virtual_node.power.cut()  # as the store does during a request
            assert node.is_up
            await cluster.start(1)
            await cluster.start(1)
            while not node.serves:
                await trio.sleep(0.01)
            assert node.start_count == 2
            await cluster.stop_all()

    world.run(main)
    trace_events = [line.partition("node-1 ")[2] for line in trace.lines]
    assert trace_events == ["starts", "serves", "was killed", "starts", "serves", "was killed"]


def test_killed_controller_is_replaced_before_the_fetch_timeout() -> None:
    world = _far_apart()
    took: list[float] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            cluster = await _three(world, nursery)

            async def controller() -> int:
                while True:
                    for node in cluster:
                        if node.broker is not None and node.broker.metadata.is_active:
                            return node.number
                    await trio.sleep(0.001)

            for _ in range(5):
                await _all_serve(cluster)
                killed = await controller()
                await cluster.kill(killed)
                began = world.clock.monotonic()
                await controller()
                took.append(world.clock.monotonic() - began)
                await cluster.start(killed)
            await cluster.stop_all()

    world.run(main)
    fetch_timeout_s = int(MULTI_NODE_CONFIGS["controller.quorum.fetch.timeout.ms"]) / 1000
    assert max(took) < fetch_timeout_s / 2


def test_restarted_node_leads_no_partition_before_its_registration() -> None:
    """Its metadata log contains its earlier leadership, which the controller has to confirm."""
    world = _far_apart()
    opened: list[int] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            cluster = await _three(world, nursery)
            node = next(e for e in cluster if e.broker and not e.broker.metadata.is_active)
            await cluster.kill(node.number)
            await cluster.start(node.number)
            others = [each for each in (1, 2, 3) if each != node.number]
            new = NewTopic("t", assignments={0: [node.number, *others]})
            network = world.node(CLIENTS).network
            bootstrap = cluster.bootstrap
            async with open_cluster(network, bootstrap, timeout_s=1.0) as client:
                # The session of the killed process has not expired
                await create_topics(client, [new])
            while not (broker := node.broker) or "t" not in broker.metadata.image.topics_by_name:
                await trio.sleep(0.01)
            assert broker.metadata.image.topics_by_name["t"].partitions[0].leader == node.number
            while not broker.services.lifecycle.caught_up.is_set():
                opened.append(len(list(broker.partitions)))
                await trio.sleep(0.01)
            while not node.serves:
                await trio.sleep(0.01)
            assert len(list(broker.partitions)) == 1
            await cluster.stop_all()

    world.run(main)
    assert len(opened) > 50
    assert set(opened) == {0}


def test_topic_recreated_while_its_node_was_down_has_a_new_log() -> None:
    world = _far_apart()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            cluster = await _three(world, nursery)
            node = next(e for e in cluster if e.broker and not e.broker.metadata.is_active)
            others = [each for each in (1, 2, 3) if each != node.number]
            network = world.node(CLIENTS).network

            async def make(*replicas: int) -> UUID | None:
                async with open_cluster(network, cluster.bootstrap, timeout_s=5.0) as client:
                    (made,) = await create_topics(
                        client, [NewTopic("t", assignments={0: replicas})]
                    )
                    return made.topic_id

            await make(node.number, *others)
            while not node.broker or node.broker.partitions.opened("t", 0) is None:
                await trio.sleep(0.01)
            await cluster.kill(node.number)
            async with open_cluster(network, cluster.bootstrap, timeout_s=5.0) as client:
                await delete_topics(client, ["t"])
            topic_id = await make(*others, node.number)
            await cluster.start(node.number)
            await _all_serve(cluster)
            partition = await node.broker.partitions.get("t", None, 0)
            assert partition.topic_id == partition.log.topic_id == topic_id
            await trio.sleep(1)  # the renamed stray log is closed
            assert partition.log.failure is None
            await cluster.stop_all()

    world.run(main)


@pytest.mark.parametrize("seed", [None, 3])
def test_node_crashed_at_a_file_operation_starts_again(seed: int | None) -> None:
    world = VirtualWorld(1)
    world.clock.jumping = True

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            cluster = SimulatedCluster(world, 1, Trace(world.clock.monotonic), nursery)
            node = cluster.nodes[1]
            await cluster.start(1)
            disk = node.disk
            await cluster.crash_at_operation(1, crash_point := CrashPoint(CHANGES, 10), 5.0, seed)
            assert crash_point.has_occurred
            assert not node.is_up
            assert (node.disk is disk) is (seed is None)
            await cluster.start(1)
            await cluster.crash_at_operation(1, crash_point := CrashPoint(frozenset()), 5.0, seed)
            assert not crash_point.has_occurred
            assert node.serves
            await cluster.stop_all()

    world.run(main)


def test_slow_disk_stays_slow_after_a_restart() -> None:
    world = VirtualWorld(1)
    world.clock.jumping = True

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            trace = Trace(world.clock.monotonic)
            cluster = SimulatedCluster(world, 1, trace, nursery, offloaded_s=0.01)

            def pace() -> tuple[float, bool]:
                virtual_node = cluster.nodes[1].virtual_node
                assert virtual_node is not None
                return virtual_node.offload.delay_seconds, virtual_node.disk.is_slow

            await cluster.start(1)
            assert pace() == (0.01, False)
            cluster.slow_down(1, 0.2)
            cluster.slow_down(1, 0.1)
            await cluster.lose_power(1, 0)
            await cluster.start(1)
            assert pace() == (0.2, True)
            cluster.speed_up(1, 0.2)
            assert pace() == (0.1, True)
            cluster.speed_up(1, 0.1)
            assert pace() == (0.01, False)
            await cluster.stop_all()

    world.run(main)


def test_plans_with_small_metadata_logs_snapshot_and_prune_them() -> None:
    world = VirtualWorld(1)
    world.clock.jumping = True
    small = {each: str(sizes[0]) for each, sizes in SMALL_METADATA.items()}
    left: list[str] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            trace = Trace(world.clock.monotonic)
            cluster = SimulatedCluster(world, 3, trace, nursery, configs=small)
            for node in cluster:
                await cluster.start(node.number)
            await trio.sleep(10)
            left.extend(path for path, _ in cluster.nodes[2].disk.walk())
            await cluster.stop_all()

    world.run(main)
    metadata = [Path(each) for each in left if "__cluster_metadata-0/" in each]
    assert any(each.suffix == ".checkpoint" for each in metadata)
    assert "00000000000000000000.log" not in {each.name for each in metadata}
