"""The seams of any number of simulated nodes, all derived from one seed.

    world = VirtualWorld(seed=7)
    node = world.node("broker-1")
    world.run(main)                       # trio on the world's clock, scheduled by the seed
    node = world.restart(node, seed=3)    # power cut; the disk as that crash left it

The same seed and the same code give the same run: time is virtual, there are no threads, and the
seed decides trio's order of tasks. (To compare processes, set PYTHONHASHSEED as well.)
"""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, MutableSequence
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from odradek.seams import Seams
from odradek.seams.clock import Clock
from odradek.seams.entropy import SeededEntropy
from odradek.testing.power import Power
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from odradek.testing.virtual_network import VirtualNetwork, VirtualWires
from odradek.testing.virtual_object_store import VirtualBucket, VirtualObjectStore
from odradek.testing.virtual_offload import VirtualOffload
from odradek.testing.virtual_workers import VirtualWorkers

T = TypeVar("T")

PASSES_PER_POLL = 1000
"""Passes of the busy loop between two polls for I/O: about 0.1 s."""


@dataclass(frozen=True)
class VirtualNode:
    """The seams of a node, with one power switch."""

    name: str
    power: Power
    disk: VirtualDisk
    files: VirtualFiles
    network: VirtualNetwork
    offload: VirtualOffload
    objects: VirtualObjectStore
    workers: VirtualWorkers
    seams: Seams


class VirtualWorld:
    def __init__(self, seed: int = 0, *, fragment: bool = False) -> None:
        self.seed = seed
        self.clock = VirtualClock()
        self.wires = VirtualWires(self._entropy("wires"), fragment=fragment, clock=self.clock)
        self.bucket = VirtualBucket(self.clock)
        self._starts = 0

    def node(
        self, name: str, disk: VirtualDisk | None = None, *, clock: Clock | None = None
    ) -> VirtualNode:
        """Create a node that starts on `disk` (default: an empty one), with its own `clock` if
        given."""
        self._starts += 1
        power = Power()
        entropy = self._entropy(f"{name} {self._starts}")
        files = VirtualFiles(disk or VirtualDisk(), power)
        network = self.wires.host(name, power)
        offload = VirtualOffload(power, entropy, self.clock)
        objects = VirtualObjectStore(self.bucket, power, offload.extend_current_call)
        workers = VirtualWorkers(files, power)
        return VirtualNode(
            name=name,
            power=power,
            disk=files.disk,
            files=files,
            network=network,
            offload=offload,
            objects=objects,
            workers=workers,
            seams=Seams(
                clock=clock or self.clock,
                entropy=entropy,
                network=network,
                files=files,
                offload=offload,
                workers=workers,
                open_objects=objects.at,
                databases=files.disk.databases.of_node(power),
            ),
        )

    def restart(self, node: VirtualNode, seed: int) -> VirtualNode:
        """Cut the node's power if it is on, and start it on its disk after the crash.

        The caller cancels the tasks of the old node afterwards.
        """
        node.power.cut()
        return self.node(node.name, node.disk.crash(seed))

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run `trio.run` on this clock; the seed decides the order of tasks."""
        runner: Any = trio._core._run  # no public interface; hypothesis uses the same attribute
        before = runner._ALLOW_DETERMINISTIC_SCHEDULING, runner._r
        runner._ALLOW_DETERMINISTIC_SCHEDULING, runner._r = (
            True,
            _SeededTaskOrder(self.seed, before[1]),
        )
        try:
            return trio.run(_run_with_rare_polls, main, clock=self.clock)
        finally:
            runner._ALLOW_DETERMINISTIC_SCHEDULING, runner._r = before

    def _entropy(self, name: str) -> SeededEntropy:
        return SeededEntropy(random.Random(f"{self.seed} {name}"))


class _SeededTaskOrder:
    """Replaces trio's source of randomness, which the whole process shares.

    A broker in another thread must not draw from the world's. Most passes have one task, whose
    order needs no draw.
    """

    def __init__(self, seed: int, elsewhere: random.Random) -> None:
        self._own = random.Random(seed)
        self._elsewhere = elsewhere
        self._thread = threading.get_ident()

    def shuffle(self, tasks: MutableSequence[Any]) -> None:
        if len(tasks) > 1:
            is_own = threading.get_ident() == self._thread
            (self._own if is_own else self._elsewhere).shuffle(tasks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._elsewhere, name)


class _RarelyPolledIoManager:
    """Replaces trio's I/O polling, which polls in each pass: 5% of the cost of a simulated cluster.

    Nothing but Ctrl-C arrives through it.
    """

    def __init__(self, io_manager: Any) -> None:
        self._io_manager = io_manager
        self._passes = 0

    def get_events(self, timeout: float) -> Any:
        self._passes += 1
        if timeout <= 0 and self._passes % PASSES_PER_POLL:
            return ()
        return self._io_manager.get_events(timeout)

    def process_events(self, events: Any) -> None:
        if events:
            self._io_manager.process_events(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io_manager, name)


async def _run_with_rare_polls(main: Callable[[], Awaitable[T]]) -> T:
    runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    runner.io_manager = _RarelyPolledIoManager(runner.io_manager)
    return await main()
