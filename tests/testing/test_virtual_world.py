"""The same seed gives the same run of a virtual world."""

from __future__ import annotations

import signal
import threading

import pytest
import trio

from odradek.seams.files import Path
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_world import PASSES_PER_POLL, VirtualWorld


def history(seed: int) -> list[str]:
    """The events of a small world in which the seed decides everything."""
    world = VirtualWorld(seed, fragment=True)
    happened: list[str] = []

    async def serve(name: str) -> None:
        node = world.node(name)
        [listener] = await node.network.listen("", 1)
        connection = await listener.accept()
        buffer = memoryview(bytearray(100))
        while got := await connection.receive_into(buffer):
            happened.append(f"{name} got {got} at {world.clock.monotonic():.3f}")
            await node.offload.run(happened.append, f"{name} wrote", lane="/d1")

    async def talk(name: str, to: str) -> None:
        node = world.node(name)
        connection = await node.network.connect(to, 1)
        for _ in range(5):
            await connection.send([node.seams.entropy.bytes(50)])
            await node.seams.clock.sleep(node.seams.entropy.uniform(0, 1))
        happened.append(f"{name} is {node.seams.entropy.uuid()}")
        await connection.aclose()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            world.wires.set_delay(0.0, 0.5)
            for n in range(4):
                nursery.start_soon(serve, f"s{n}")
            await world.clock.settle()
            for n in range(4):
                nursery.start_soon(talk, f"c{n}", f"s{n}")
            await world.clock.run_for(60)

    world.run(main)
    return happened


def test_same_seed_gives_the_same_run() -> None:
    for seed in range(5):
        assert history(seed) == history(seed)


def test_loop_in_another_thread_does_not_change_a_run() -> None:
    alone, over = history(0), threading.Event()

    async def loop() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(pass_by)

    async def pass_by() -> None:
        while not over.is_set():
            await trio.lowlevel.checkpoint()

    thread = threading.Thread(target=trio.run, args=[loop])
    thread.start()
    try:
        assert [history(0) for _ in range(20)] == [alone] * 20
    finally:
        over.set()
        thread.join()


def test_different_seed_gives_a_different_run() -> None:
    assert len({tuple(history(seed)) for seed in range(5)}) == 5


def test_restarted_node_has_its_disk_after_the_crash() -> None:
    world = VirtualWorld()
    node = world.node("b")
    node.files.write_new(Path("/synced"), b"x")
    node.files.open(Path("/unsynced"), create=True)
    found = set()
    for seed in range(20):
        again = world.restart(node, seed)
        found.add(tuple(again.files.list(Path("/"))))
    assert found == {("synced",), ("synced", "unsynced")}
    with pytest.raises(NodeCrashed):
        node.files.list(Path("/"))


@pytest.mark.usefixtures("own_ctrl_c")
def test_ctrl_c_ends_a_busy_world() -> None:
    passes = 0

    async def work() -> None:
        nonlocal passes
        # The signal arrives through trio's I/O polling, as all of trio's own wakeups do.
        signal.raise_signal(signal.SIGINT)
        while passes < 2 * PASSES_PER_POLL:
            await trio.lowlevel.checkpoint()
            passes += 1

    async def main() -> None:
        trio.lowlevel.spawn_system_task(work)
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        VirtualWorld().run(main)
    assert passes < 2 * PASSES_PER_POLL
