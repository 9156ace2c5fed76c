"""A simulated cluster's nodes, up and down."""

from __future__ import annotations

import trio

from odradek.testing.simulation.cluster import SimulatedCluster
from odradek.testing.simulation.trace import Trace
from odradek.testing.virtual_world import VirtualWorld


def test_a_node_without_power_is_started_once_all_of_it_has_noticed() -> None:
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
            assert node.doors is not None
            node.doors.power.cut()  # as the store does, in the middle of a request
            assert node.is_up
            await cluster.start(1)
            await cluster.start(1)
            while not node.serves:
                await trio.sleep(0.01)
            assert node.lives == 2
            await cluster.stop_all()

    world.run(main)
    said = [line.partition("node-1 ")[2] for line in trace.lines]
    assert said == ["starts", "serves", "is gone", "starts", "serves", "is gone"]
