"""Injects the faults of a plan into a cluster: how each begins, and how it ends.

Two faults may affect one node at the same time; in the end `heal` ends all of them together,
because a network or a disk heals as a whole. A node that is down is not killed again. A fault that
damages a replica waits until the damage of an earlier one is repaired (`plan.UNCLEAN`), or is
skipped; so is a fault whose precondition does not occur. Coverage counts only faults that had an
effect: a running node was killed, bytes were delayed, a write failed.
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
from odradek.replication.raft.voters import ReplicaKey
from odradek.testing.simulation.checkers import STEP_S, Checkers
from odradek.testing.simulation.cluster import CLIENTS, SimulatedCluster, host
from odradek.testing.simulation.made_anew import TopicMadeAnew
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
from odradek.testing.simulation.workload import MOVED, TOPIC
from odradek.testing.virtual_files import CHANGES, NAMES, Strike
from odradek.testing.virtual_troubles import Trouble

SLOW_NETWORK_S = (0.05, 0.4)
SLOW_DISK_S = 0.3
CLOCK_JUMP_MS = 60_000
ROOM_BYTES = 4096
"""The maximum free space of a full disk."""
MISSED_S = 1.0
"""Shorter than a broker session timeout."""
LED_ALONE_S = 0.25
"""How long a leader without metadata updates leads before its successor, and how long that one
leads."""
LAGGED_S = 1.0
"""How long a voter is partitioned before the others end: a fetch timeout, and an election."""
STRUCK: Sequence[tuple[frozenset[str], int]] = (
    (CHANGES, 40),
    (frozenset({"write"}), 25),
    (frozenset({"sync"}), 15),
    (NAMES, 8),
)
"""The operations at which a node is struck, and the maximum number that succeed before.

They occur within about a second, or during the node's start.
"""
STRUCK_WITHIN_S = 2.0
FAILING: Sequence[frozenset[str]] = (
    frozenset({"write", "sync"}),
    frozenset({"read"}),
    frozenset({"open", "read", "write", "sync", "create", "rename", "remove"}),
)
"""The operations that fail in a failing directory."""
OLD_RECORDS = 4
"""Records in each partition of a topic before its deletion: more than in the recreated topic."""
COPIED_S = 0.6
"""Time for the first of the old records to be copied to the remote tier."""
MADE_GOOD_S = 3.0
"""How long a damaging fault waits until earlier damage is repaired."""

Coverage = Counter[tuple[str, str]]
"""The number of effects of each fault kind, by the state of the node."""


class Administrator(Protocol):
    """Sends the requests of an operator to the cluster."""

    async def reassign(self, fault: Fault) -> bool:
        """Reassign a partition as the fault specifies; return whether it began."""
        ...

    async def lead(self, replicas: Sequence[int], *, by: int) -> None:
        """Make the first replica the leader, or the next one that is available, through controller
        `by`."""
        ...

    async def move_directories(self, fault: Fault) -> bool:
        """Move replicas between log directories; return whether there was a move."""
        ...

    async def copy_at_all(self, copies: bool) -> None:
        """Enable or disable copies of the topic to the remote tier."""
        ...

    async def remove_voter(self, key: ReplicaKey) -> bool:
        """Remove a voter from the quorum; return whether it was removed."""
        ...


class Faults:
    """Injects the faults of a plan, and counts those that had an effect."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        checkers: Checkers,
        administrator: Administrator,
        store: StoreFaults,
        made_anew: TopicMadeAnew,
    ) -> None:
        self.coverage: Coverage = Counter()
        self._cluster = cluster
        self._world = cluster.world
        self._checkers = checkers
        self._administrator = administrator
        self._store = store
        self._made_anew = made_anew
        self._damaging = trio.Lock()
        self._few_voters = trio.Lock()
        """Held while a voter is removed or may be lost permanently.

        No other voter may be then, until all nodes are voters again.
        """

    async def play(self, faults: tuple[Fault, ...]) -> None:
        """Inject all faults; returns when the last one has ended."""
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
        state = self._state(fault.node)
        what = fault.kind.value
        if fault.kind not in OF_NO_NODE:
            what += f" of {host(fault.node)}"
        self._cluster.trace.add(f"{what} for {fault.seconds} s")
        if await _HAPPEN[fault.kind](self, fault):
            self.coverage[fault.kind.value, state] += 1
        self._cluster.trace.add(f"{what} is over")

    def _state(self, number: int) -> str:
        """The state of the node in the coverage table."""
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
        """End all faults, and start every node that is down."""
        self._world.wires.heal()
        self._store.heal()
        for node in self._cluster:
            node.disk.heal()
            for seconds in list(node.slowed_s):
                self._cluster.speed_up(node.number, seconds)
            await self._cluster.start(node.number)

    # The fault kinds; each method returns whether the fault had an effect

    def _is_up(self, fault: Fault) -> bool:
        return self._cluster.nodes[fault.node].is_up

    async def _kill(self, fault: Fault) -> bool:
        was_up = self._is_up(fault)
        await self._cluster.kill(fault.node)
        await self._restart(fault)
        return was_up

    async def _lose_power(self, fault: Fault) -> bool:
        was_up, silent = self._is_up(fault), fault.how >= 0.5
        await self._cluster.lose_power(fault.node, int(fault.amount * 1000), silent=silent)
        await self._restart(fault)
        return was_up

    async def _kill_at_work(self, fault: Fault) -> bool:
        return await self._strike(fault, None, lambda: not self._damaging.locked())

    async def _lose_power_at_work(self, fault: Fault) -> bool:
        return await self._strike(fault, int(fault.amount * 1000), lambda: True)

    async def _strike(self, fault: Fault, seed: int | None, may_happen: Callable[[], bool]) -> bool:
        """Kill the node at work; in half of the cases, while it recovers from a kill."""
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
        return strike.has_happened

    async def _stop(self, fault: Fault) -> bool:
        was_up = self._is_up(fault)
        await self._cluster.stop(fault.node)
        await self._restart(fault)
        return was_up

    async def _restart(self, fault: Fault) -> None:
        await trio.sleep(fault.seconds)
        await self._cluster.start(fault.node)

    def _others(self, fault: Fault) -> list[str]:
        return [host(each) for each in self._cluster.nodes if each != fault.node]

    async def _partition(self, fault: Fault) -> bool:
        here, wires = host(fault.node), self._world.wires
        return await self._while(
            fault, [wires.partition(here, other) for other in self._others(fault)]
        )

    async def _one_way(self, fault: Fault) -> bool:
        here, there = host(fault.node), host(fault.other)
        return await self._while(fault, [self._world.wires.partition(here, there, one_way=True)])

    async def _clients_cut_off(self, fault: Fault) -> bool:
        return await self._while(fault, [self._world.wires.partition(host(fault.node), CLIENTS)])

    async def _slow_network(self, fault: Fault) -> bool:
        here, wires = host(fault.node), self._world.wires
        low, high = (each * fault.amount for each in SLOW_NETWORK_S)
        return await self._while(
            fault, [wires.slow(here, other, low, high) for other in self._others(fault)]
        )

    async def _while(self, fault: Fault, troubles: Sequence[Trouble]) -> bool:
        await trio.sleep(fault.seconds)
        for trouble in troubles:
            self._world.wires.heal(trouble)
        return any(trouble.has_struck for trouble in troubles)

    async def _drop(self, fault: Fault) -> bool:
        lost = [
            self._world.wires.drop(host(fault.node), other)
            for other in (*self._others(fault), CLIENTS)
        ]
        return any(lost)

    async def _slow_disk(self, fault: Fault) -> bool:
        was_up = self._is_up(fault)
        self._cluster.slow_down(fault.node, SLOW_DISK_S * fault.amount)
        await trio.sleep(fault.seconds)
        self._cluster.speed_up(fault.node, SLOW_DISK_S * fault.amount)
        return was_up or self._is_up(fault)

    async def _rot(self, fault: Fault) -> bool:
        """Flip a bit on the node's disk once the others have all its records.

        If the node reports lost storage, it gets an empty disk.
        """
        async with self._few_voters:
            return await self._rot_alone(fault)

    async def _rot_alone(self, fault: Fault) -> bool:
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
        where = None
        if not node.is_up and node.lives == life and others_have_all(self._cluster, fault.node):
            where, node.disk.has_rotted = rot(node.disk, chance), True
            self._cluster.trace.add(f"{host(fault.node)} rots: {where}")
        await self._cluster.start(fault.node)
        await self._until(lambda: self._checkers.is_whole() or self._says_loss(fault.node))
        if self._says_loss(fault.node):
            await self._cluster.kill(fault.node)  # it may still be the leader
            await self._until(lambda: others_have_all(self._cluster, fault.node))
            await self._cluster.replace_disk(fault.node)
            await self._cluster.start(fault.node)
        return where is not None

    def _says_loss(self, number: int) -> bool:
        """Whether the node reports that its disk, a log directory or a log has failed."""
        node = self._cluster.nodes[number]
        if node.broker is None or not node.serves:
            return bool(node.lost)
        logs = node.broker.logs
        return bool(logs.offline) or any(each.failed for each in logs.directories.all)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._world.clock.sleep(STEP_S)

    async def _full_disk(self, fault: Fault) -> bool:
        """Fill the disk for a while; then restart the node."""
        node = self._cluster.nodes[fault.node]
        mount = node.disk.root.mount
        before, refused = mount.capacity_bytes, mount.refused
        mount.capacity_bytes = mount.used_bytes + int(ROOM_BYTES * fault.amount)
        await trio.sleep(fault.seconds)
        mount.capacity_bytes = before
        await self._start_anew(fault)
        return mount.refused > refused

    async def _bad_disk(self, fault: Fault) -> bool:
        return await self._fail(fault, DATA, {"write", "sync"})

    async def _bad_directory(self, fault: Fault) -> bool:
        chance = random.Random(f"directory {fault.how}")
        return await self._fail(fault, OTHER_DATA, chance.choice(FAILING))

    async def _unreadable_disk(self, fault: Fault) -> bool:
        return await self._fail(fault, DATA, {"read"})

    async def _fail(self, fault: Fault, directory: str, operations: Collection[str]) -> bool:
        disk = self._cluster.nodes[fault.node].disk
        broken = disk.fail(f"{directory}/*", errno.EIO, operations)
        await trio.sleep(fault.seconds)
        disk.heal(broken)
        await self._start_anew(fault)
        return broken.failed > 0

    async def _start_anew(self, fault: Fault) -> None:
        """Restart the node: a failed log directory stays offline until then."""
        await self._cluster.kill(fault.node)
        await self._cluster.start(fault.node)

    async def _clock_jump(self, fault: Fault) -> bool:
        clock = self._cluster.nodes[fault.node].clock
        clock.skew_ms += int(CLOCK_JUMP_MS * (2 * fault.amount - 1))
        return self._is_up(fault)

    async def _store_fault(self, fault: Fault) -> bool:
        self._store.begin(fault)
        await trio.sleep(fault.seconds)
        return self._store.end(fault)

    async def _kill_at_the_store(self, fault: Fault) -> bool:
        """Kill the next node that sends a request to the store; restart it at the end."""
        up = [node.number for node in self._cluster if node.is_up]
        self._store.begin(fault)
        await trio.sleep(fault.seconds)
        has_struck = self._store.end(fault)
        for number in up:
            await self._cluster.start(number)
        return has_struck

    async def _reassignment(self, fault: Fault) -> bool:
        images = [broker.metadata.image for _, broker in self._cluster.running()]
        newest = max(images, key=lambda image: image.offset, default=None)
        there = newest.topics_by_name[TOPIC].partitions[MOVED].replicas if newest else ()
        wanted = self._cluster.nodes.keys() - {fault.node}
        return await self._administrator.reassign(fault) and set(there) != wanted

    async def _move_directories(self, fault: Fault) -> bool:
        return await self._administrator.move_directories(fault)

    async def _switch_copies_off(self, fault: Fault) -> bool:
        is_off = False
        for copies in (False, True):
            with suppress(KafkaError, ClientError), trio.move_on_after(ASKED_S):
                await self._administrator.copy_at_all(copies)
                is_off |= not copies
            if not copies:
                await trio.sleep(fault.seconds)
        return is_off

    async def _remove_voter(self, fault: Fault) -> bool:
        was_removed = False
        with trio.move_on_after(MADE_GOOD_S):
            async with self._few_voters:
                await self._until(self._checkers.all_vote)
                key = self._cluster.nodes[fault.node].key
                was_removed = await self._administrator.remove_voter(key)
                if was_removed:
                    await self._checkers.until_whole()
        return was_removed

    async def _make_anew(self, fault: Fault) -> bool:
        """Delete and recreate the topic during a transaction.

        In one of four cases it is not recreated; in another, the node returns in between.
        """
        topic = self._made_anew
        if not topic.was_made and await topic.make():
            await topic.fill(OLD_RECORDS)
        await topic.begin()
        if topic.is_tiered:
            await trio.sleep(COPIED_S)
        come_back = await self._take_away(fault)
        was_deleted, is_made = await topic.delete(), fault.amount < 3 / 4
        if fault.amount < 1 / 4:
            await come_back()
        was_made = is_made and await topic.make()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(topic.fill)
            if fault.amount >= 1 / 4:
                await come_back()
        return was_deleted and was_made is is_made

    async def _take_away(self, fault: Fault) -> Callable[[], Awaitable[None]]:
        """Kill, stop or partition the node, or do nothing; return the function that reverts it."""

        async def start() -> None:
            await self._restart(fault)

        async def join() -> None:
            await self._while(fault, troubles)

        troubles: Sequence[Trouble] = ()
        if fault.how < 1 / 3 and not self._damaging.locked():
            await self._cluster.kill(fault.node)
            return start
        if fault.how >= 2 / 3:
            await self._cluster.stop(fault.node)
            return start
        if fault.how >= 1 / 2:
            here, wires = host(fault.node), self._world.wires
            troubles = [wires.partition(here, other) for other in self._others(fault)]
        return join

    async def _miss_an_epoch(self, fault: Fault) -> bool:
        """Make a leader miss a leader epoch, and lead again.

        One of its followers has the records that it appends meanwhile, and truncates them when it
        follows the interim leader. In half of the cases the leader is then partitioned from this
        follower and killed, and the follower takes over.
        """
        controller = self._controller()
        assert controller is not None
        wires = self._world.wires
        here, unreached = host(fault.node), max(set(self._cluster.nodes) - {fault.node, controller})
        lead = partial(self._administrator.lead, by=controller)
        troubles: list[Trouble] = []
        with trio.move_on_after(MISSED_S) as asking:
            await lead([fault.node, unreached, controller])
            troubles.append(wires.partition(host(controller), here))
            await trio.sleep(LED_ALONE_S)
            await lead([fault.other, *sorted(self._cluster.nodes.keys() - {fault.other})])
            await trio.sleep(LED_ALONE_S)
            await lead([fault.node, unreached, controller])
        cut_off = [wires.partition(here, host(unreached))] if fault.amount < 0.5 else []
        for trouble in troubles:
            wires.heal(trouble)
        await trio.sleep(fault.seconds * fault.amount)
        if fault.amount < 0.5 and not self._damaging.locked():
            await self._cluster.kill(fault.node)
            await trio.sleep(fault.seconds)
            await self._cluster.start(fault.node)
        for trouble in cut_off:
            wires.heal(trouble)
        return not asking.cancelled_caught

    async def _lag(self, fault: Fault) -> bool:
        """Let the others commit without the node, and then kill them.

        A restarted voter has no leader yet.
        """
        controller = self._controller()
        assert controller is not None
        here, there = host(controller), host(fault.node)
        trouble = self._world.wires.partition(here, there, one_way=True)
        await trio.sleep(LAGGED_S)
        may_kill = not self._damaging.locked()
        if may_kill:
            others = [each for each in self._cluster.nodes if each != fault.node]
            for each in others:
                await self._cluster.kill(each)
            for each in others:
                if each != controller:
                    await self._cluster.start(each)
            await trio.sleep(fault.seconds)
            await self._cluster.start(controller)
        self._world.wires.heal(trouble)
        return may_kill

    def _controller(self) -> int | None:
        """The node that is the active controller."""
        return next(
            (node.number for node, broker in self._cluster.running() if broker.metadata.is_active),
            None,
        )


_HAPPEN: dict[Kind, Callable[[Faults, Fault], Awaitable[bool]]] = {
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
    Kind.TOPIC_MADE_ANEW: Faults._make_anew,
    Kind.VOTER_REMOVED: Faults._remove_voter,
    **dict.fromkeys(STORE_KINDS, Faults._store_fault),
    Kind.STORE_LIES: Faults._store_fault,
    Kind.STORE_KILLS: Faults._kill_at_the_store,
}
