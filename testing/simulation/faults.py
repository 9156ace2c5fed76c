"""Makes a plan's faults happen to a cluster: how each begins, and how it is over.

Two at once may be of one node, and what they did is undone together in the end (`heal`): a network is
healed as a whole, a disk too. A node that is down already is not taken down again. A fault that
damages a replica waits for the one before it to be made good (`plan.UNCLEAN`), or is left out; so is one
that the cluster gives no occasion for. Coverage counts what happened.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import trio

from odradek.client.errors import ClientError
from odradek.protocol.errors import KafkaError
from odradek.testing.simulation.checkers import STEP_S, Checkers
from odradek.testing.simulation.cluster import CLIENTS, SimulatedCluster, host
from odradek.testing.simulation.plan import (
    ASKED_S,
    DATA,
    KILLS,
    OF_NO_CONTROLLER,
    OF_NO_NODE,
    OTHER_DATA,
    UNCLEAN,
    Fault,
    Kind,
)
from odradek.testing.simulation.rot import others_have_all, rot
from odradek.testing.simulation.store_faults import STORE_KINDS, StoreFaults
from odradek.testing.virtual_files import CHANGES, NAMES, Strike

SLOW_NETWORK_S = (0.05, 0.4)
SLOW_DISK_S = 0.3
CLOCK_JUMP_MS = 60_000
ROOM_BYTES = 4096
"""What a full disk has left, at most."""
MISSED_S = 1.0
"""Shorter than a session."""
LED_ALONE_S = 0.25
"""How long a leader that misses what happens goes on before another one leads, and how long that one does."""
LAGGED_S = 1.0
"""For how long a voter hears nothing before the others end: the time-out of a fetch, and an election."""
STRUCK: Sequence[tuple[frozenset[str], int]] = (
    (CHANGES, 40),
    (frozenset({"write"}), 25),
    (frozenset({"sync"}), 15),
    (NAMES, 8),
)
"""What a node is struck at, and how much of it passes at most before: within a second or so, or its start."""
STRUCK_WITHIN_S = 2.0
FAILING: Sequence[frozenset[str]] = (
    frozenset({"write", "sync"}),
    frozenset({"read"}),
    frozenset({"open", "read", "write", "sync", "create", "rename", "remove"}),
)
"""What fails of a directory."""
MADE_GOOD_S = 3.0
"""How long a damaging fault waits for its turn."""

Coverage = Counter[tuple[str, str]]
"""How often a fault met a state of the node."""


class Administrator(Protocol):
    """Who asks the cluster for what is no fault."""

    async def reassign(self, fault: Fault) -> None:
        """What a reassignment says."""
        ...

    async def lead(self, replicas: Sequence[int], *, by: int) -> None:
        """That the first of them leads, and each of the others when those before it can't; it is `by`
        that is asked."""
        ...

    async def move_directories(self, fault: Fault) -> None:
        """What a move between log directories says."""
        ...

    async def copy_at_all(self, copies: bool) -> None:
        """Switch copies of the topic off, or on."""
        ...


class Faults:
    def __init__(
        self,
        cluster: SimulatedCluster,
        checkers: Checkers,
        administrator: Administrator,
        store: StoreFaults,
    ) -> None:
        self.coverage: Coverage = Counter()
        self._cluster = cluster
        self._world = cluster.world
        self._checkers = checkers
        self._administrator = administrator
        self._store = store
        self._damaging = trio.Lock()

    async def play(self, faults: tuple[Fault, ...]) -> None:
        """All of them; returns when the last one is over."""
        begun_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for fault in faults:
                nursery.start_soon(self._play, fault, begun_at + fault.at_s)

    async def _play(self, fault: Fault, at: float) -> None:
        await trio.sleep_until(at)
        if fault.kind not in UNCLEAN or (fault.kind in KILLS and not self._damaging.locked()):
            await self._happen(fault)
            return
        with trio.move_on_after(MADE_GOOD_S) as waiting:
            async with self._damaging:
                await self._checkers.until_whole()
                waiting.deadline = float("inf")
                await self._happen(fault)
                await self._checkers.until_whole()

    async def _happen(self, fault: Fault) -> None:
        if fault.kind in OF_NO_CONTROLLER and self._controller() in (None, fault.node):
            return
        self.coverage[fault.kind.value, self._state(fault.node)] += 1
        what = fault.kind.value
        if fault.kind not in OF_NO_NODE:
            what += f" of {host(fault.node)}"
        self._cluster.trace.add(f"{what} for {fault.seconds} s")
        await _HAPPEN[fault.kind](self, fault)
        self._cluster.trace.add(f"{what} is over")

    def _state(self, number: int) -> str:
        """What the node is at the moment, as coverage counts it."""
        node = self._cluster.nodes[number]
        if node.broker is None:
            return "down"
        if not node.serves:
            return "starting"
        metadata = node.broker.metadata
        if metadata.leader_id < 0:
            return "without a controller"
        role = "controller" if metadata.leader_id == number else "broker"
        whole = "all in sync" if self._checkers.is_whole() else "some out of sync"
        return f"{role}, {whole}"

    async def heal(self) -> None:
        """All is well from now on: every node is up, or about to be."""
        self._world.wires.heal()
        self._store.heal()
        for node in self._cluster:
            node.disk.heal()
            for seconds in list(node.slowed_s):
                self._cluster.speed_up(node.number, seconds)
            await self._cluster.start(node.number)

    # The kinds

    async def _kill(self, fault: Fault) -> None:
        await self._cluster.kill(fault.node)
        await self._restart(fault)

    async def _lose_power(self, fault: Fault) -> None:
        silent = fault.how >= 0.5
        await self._cluster.lose_power(fault.node, int(fault.amount * 1000), silent=silent)
        await self._restart(fault)

    async def _kill_at_work(self, fault: Fault) -> None:
        await self._strike(fault, None, lambda: not self._damaging.locked())

    async def _lose_power_at_work(self, fault: Fault) -> None:
        await self._strike(fault, int(fault.amount * 1000), lambda: True)

    async def _strike(self, fault: Fault, seed: int | None, may_happen: Callable[[], bool]) -> None:
        """In half of the cases it is what the node does to recover from another such end."""
        chance = random.Random(f"strike {fault.how}")
        silent = seed is not None and chance.random() < 0.5
        if chance.random() < 0.5:
            if seed is None:
                await self._cluster.kill(fault.node)
            else:
                await self._cluster.lose_power(fault.node, seed, silent=silent)
            await self._cluster.start(fault.node)
        operations, passes_max = chance.choice(STRUCK)
        strike = Strike(operations, chance.randrange(passes_max), chance.random(), may_happen)
        await self._cluster.struck(fault.node, strike, STRUCK_WITHIN_S, seed, silent=silent)
        await self._restart(fault)

    async def _stop(self, fault: Fault) -> None:
        await self._cluster.stop(fault.node)
        await self._restart(fault)

    async def _restart(self, fault: Fault) -> None:
        await trio.sleep(fault.seconds)
        await self._cluster.start(fault.node)

    def _others(self, fault: Fault) -> list[str]:
        return [host(each) for each in self._cluster.nodes if each != fault.node]

    async def _partition(self, fault: Fault) -> None:
        here = host(fault.node)
        for other in self._others(fault):
            self._world.wires.partition(here, other)
        await trio.sleep(fault.seconds)
        for other in self._others(fault):
            self._world.wires.heal(here, other)

    async def _one_way(self, fault: Fault) -> None:
        here, there = host(fault.node), host(fault.other)
        self._world.wires.partition(here, there, one_way=True)
        await trio.sleep(fault.seconds)
        self._world.wires.heal(here, there)

    async def _clients_cut_off(self, fault: Fault) -> None:
        self._world.wires.partition(host(fault.node), CLIENTS)
        await trio.sleep(fault.seconds)
        self._world.wires.heal(host(fault.node), CLIENTS)

    async def _drop(self, fault: Fault) -> None:
        for other in (*self._others(fault), CLIENTS):
            self._world.wires.drop(host(fault.node), other)

    async def _slow_network(self, fault: Fault) -> None:
        low, high = SLOW_NETWORK_S
        for other in self._others(fault):
            self._world.wires.slow(host(fault.node), other, low * fault.amount, high * fault.amount)
        await trio.sleep(fault.seconds)
        for other in self._others(fault):
            self._world.wires.heal(host(fault.node), other)

    async def _slow_disk(self, fault: Fault) -> None:
        self._cluster.slow_down(fault.node, SLOW_DISK_S * fault.amount)
        await trio.sleep(fault.seconds)
        self._cluster.speed_up(fault.node, SLOW_DISK_S * fault.amount)

    async def _rot(self, fault: Fault) -> None:
        """All that the node had others have, before a bit of it flips; one that says that its storage is
        lost, or some of it, gets a new disk."""
        node, chance = self._cluster.nodes[fault.node], random.Random(f"rot {fault.how}")
        if chance.random() < 0.5:
            await self._cluster.kill(fault.node)
        else:
            silent = chance.random() < 0.5
            await self._cluster.lose_power(fault.node, int(fault.amount * 1000), silent=silent)
        life = node.lives
        await trio.sleep(fault.seconds)
        with trio.move_on_after(MADE_GOOD_S):
            await self._until(lambda: others_have_all(self._cluster, fault.node))
        if not node.is_up and node.lives == life and others_have_all(self._cluster, fault.node):
            self._cluster.trace.add(f"{host(fault.node)} rots: {rot(node.disk, chance)}")
        await self._cluster.start(fault.node)
        await self._until(lambda: self._checkers.is_whole() or self._says_loss(fault.node))
        if self._says_loss(fault.node):
            await self._cluster.kill(fault.node)  # it may lead still
            await self._until(lambda: others_have_all(self._cluster, fault.node))
            await self._cluster.replace_disk(fault.node)
            await self._cluster.start(fault.node)

    def _says_loss(self, number: int) -> bool:
        node = self._cluster.nodes[number]
        return bool(node.lost or (node.serves and node.broker and node.broker.logs.offline))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._world.clock.sleep(STEP_S)

    async def _full_disk(self, fault: Fault) -> None:
        """The node is started again when there is room, should it have gone down."""
        node = self._cluster.nodes[fault.node]
        mount = node.disk.root.mount
        before = mount.capacity_bytes
        mount.capacity_bytes = mount.used_bytes + int(ROOM_BYTES * fault.amount)
        await trio.sleep(fault.seconds)
        mount.capacity_bytes = before
        await self._start_anew(fault)

    async def _bad_disk(self, fault: Fault) -> None:
        await self._fail(fault, DATA, {"write", "sync"})

    async def _bad_directory(self, fault: Fault) -> None:
        chance = random.Random(f"directory {fault.how}")
        await self._fail(fault, OTHER_DATA, chance.choice(FAILING))

    async def _unreadable_disk(self, fault: Fault) -> None:
        await self._fail(fault, DATA, {"read"})

    async def _fail(self, fault: Fault, directory: str, operations: Collection[str]) -> None:
        disk = self._cluster.nodes[fault.node].disk
        broken = disk.fail(f"{directory}/*", errno.EIO, operations)
        await trio.sleep(fault.seconds)
        disk.heal(broken)
        await self._start_anew(fault)

    async def _start_anew(self, fault: Fault) -> None:
        """A directory that failed stays offline until its node starts again."""
        await self._cluster.kill(fault.node)
        await self._cluster.start(fault.node)

    async def _clock_jump(self, fault: Fault) -> None:
        clock = self._cluster.nodes[fault.node].clock
        clock.skew_ms += int(CLOCK_JUMP_MS * (2 * fault.amount - 1))

    async def _store_fault(self, fault: Fault) -> None:
        self._store.begin(fault)
        await trio.sleep(fault.seconds)
        self._store.end(fault)

    async def _kill_at_the_store(self, fault: Fault) -> None:
        """Whoever asks the store next; it is started again when the time is over."""
        up = [node.number for node in self._cluster if node.is_up]
        self._store.begin(fault)
        await trio.sleep(fault.seconds)
        self._store.end(fault)
        for number in up:
            await self._cluster.start(number)

    async def _reassignment(self, fault: Fault) -> None:
        await self._administrator.reassign(fault)

    async def _move_directories(self, fault: Fault) -> None:
        await self._administrator.move_directories(fault)

    async def _switch_copies_off(self, fault: Fault) -> None:
        for copies in (False, True):
            with suppress(KafkaError, ClientError), trio.move_on_after(ASKED_S):
                await self._administrator.copy_at_all(copies)
            if not copies:
                await trio.sleep(fault.seconds)

    async def _miss_an_epoch(self, fault: Fault) -> None:
        """What the leader appends meanwhile one of its followers has, who is cut with the next leader;
        it is the one that is not reached then, and leads when the leader is gone."""
        controller = self._controller()
        assert controller is not None
        wires = self._world.wires
        here, unreached = host(fault.node), max(set(self._cluster.nodes) - {fault.node, controller})
        lead = partial(self._administrator.lead, by=controller)
        with trio.move_on_after(MISSED_S):
            await lead([fault.node, unreached, controller])
            wires.partition(host(controller), here)
            await trio.sleep(LED_ALONE_S)
            await lead([fault.other, *sorted(self._cluster.nodes.keys() - {fault.other})])
            await trio.sleep(LED_ALONE_S)
            await lead([fault.node, unreached, controller])
        if fault.amount < 0.5:
            wires.partition(here, host(unreached))
        wires.heal(host(controller), here)
        await trio.sleep(fault.seconds * fault.amount)
        if fault.amount < 0.5 and not self._damaging.locked():
            await self._cluster.kill(fault.node)
            await trio.sleep(fault.seconds)
            await self._cluster.start(fault.node)
        wires.heal(here, host(unreached))

    async def _lag(self, fault: Fault) -> None:
        """What the others commit meanwhile the node lacks; who is started again follows nobody yet."""
        controller = self._controller()
        assert controller is not None
        here, there = host(controller), host(fault.node)
        self._world.wires.partition(here, there, one_way=True)
        await trio.sleep(LAGGED_S)
        if not self._damaging.locked():
            others = [each for each in self._cluster.nodes if each != fault.node]
            for each in others:
                await self._cluster.kill(each)
            for each in others:
                if each != controller:
                    await self._cluster.start(each)
            await trio.sleep(fault.seconds)
            await self._cluster.start(controller)
        self._world.wires.heal(here, there)

    def _controller(self) -> int | None:
        """Which node is the active controller."""
        return next(
            (node.number for node, broker in self._cluster.running() if broker.metadata.is_active),
            None,
        )


_HAPPEN: dict[Kind, Callable[[Faults, Fault], Awaitable[None]]] = {
    Kind.KILL: Faults._kill,
    Kind.POWER_LOSS: Faults._lose_power,
    Kind.KILL_AT_WORK: Faults._kill_at_work,
    Kind.POWER_LOSS_AT_WORK: Faults._lose_power_at_work,
    Kind.STOP: Faults._stop,
    Kind.PARTITION: Faults._partition,
    Kind.ONE_WAY: Faults._one_way,
    Kind.CLIENTS_CUT_OFF: Faults._clients_cut_off,
    Kind.DROP: Faults._drop,
    Kind.SLOW_NETWORK: Faults._slow_network,
    Kind.SLOW_DISK: Faults._slow_disk,
    Kind.FULL_DISK: Faults._full_disk,
    Kind.BAD_DISK: Faults._bad_disk,
    Kind.BAD_DIRECTORY: Faults._bad_directory,
    Kind.UNREADABLE_DISK: Faults._unreadable_disk,
    Kind.BIT_ROT: Faults._rot,
    Kind.CLOCK_JUMP: Faults._clock_jump,
    Kind.REASSIGNMENT: Faults._reassignment,
    Kind.MISSED_EPOCH: Faults._miss_an_epoch,
    Kind.LAGGING_VOTER: Faults._lag,
    Kind.DIRECTORY_MOVE: Faults._move_directories,
    Kind.COPIES_OFF: Faults._switch_copies_off,
    **dict.fromkeys(STORE_KINDS, Faults._store_fault),
    Kind.STORE_LIES: Faults._store_fault,
    Kind.STORE_KILLS: Faults._kill_at_the_store,
}
