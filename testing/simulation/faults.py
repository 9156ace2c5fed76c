"""Injects the faults of a plan into a cluster, and ends them.

Two faults may affect one node at the same time; in the end `heal` ends all of them together,
because a network or a disk is repaired as a whole. A node that is down is not killed again. A fault that
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

from odradek.broker.diskless.file_workers import FILE_AGE_MS
from odradek.client.errors import ClientError
from odradek.protocol.errors import KafkaError
from odradek.replication.raft.voters import ReplicaKey
from odradek.testing.simulation.checkers import STEP_S, Checkers
from odradek.testing.simulation.cluster import CLIENTS, SimulatedCluster, host
from odradek.testing.simulation.file_corruption import flip_bit, other_nodes_have_all
from odradek.testing.simulation.plan import (
    ADMIN_REQUEST_S,
    DATA,
    KILLS,
    NEEDS_ANOTHER_CONTROLLER,
    OTHER_DATA,
    UNCLEAN,
    WITHOUT_NODE,
    Fault,
    FaultKind,
)
from odradek.testing.simulation.store_faults import STORE_KINDS, StoreFaults
from odradek.testing.simulation.tiering_disablement import (
    DrawnDisablement,
    TieringDisablement,
    draw_disablement,
)
from odradek.testing.simulation.topic_recreation import RECREATED_TOPIC, TopicRecreation
from odradek.testing.simulation.workload import MOVED, TOPIC
from odradek.testing.virtual_files import CHANGES, NAME_CHANGES, CrashPoint
from odradek.testing.virtual_network_faults import NetworkFault

CRASH_SEED, BIT_FLIP_SEED = "strike", "rot"
"""Prefixes of seeds; other ones would change the runs of all seeds."""
SLOW_NETWORK_S = (0.05, 0.4)
SLOW_DISK_S = 0.3
CLOCK_JUMP_MS = 60_000
FREE_BYTES_MAX = 4096
"""The maximum free space of a full disk."""
MISSED_EPOCH_S = 1.0
"""The time limit for the leader changes: shorter than a broker session timeout."""
STALE_LEADER_S = 0.25
"""The duration of the leadership without metadata updates, and of the interim leadership."""
LAGGING_VOTER_S = 1.0
"""How long a voter is partitioned before the others are killed: a fetch timeout and an election."""
CRASH_OPERATIONS: Sequence[tuple[frozenset[str], int]] = (
    (CHANGES, 40),
    (frozenset({"write"}), 25),
    (frozenset({"sync"}), 15),
    (NAME_CHANGES, 8),
)
"""The operations at which a node crashes, and the maximum number that succeed before.

They occur within about a second, or during the node's start.
"""
CRASH_WITHIN_S = 2.0
DIRECTORY_FAILURES: Sequence[frozenset[str]] = (
    frozenset({"write", "sync"}),
    frozenset({"read"}),
    frozenset({"open", "read", "write", "sync", "create", "rename", "remove"}),
)
"""The operations that fail in a failing directory."""
RECORDS_BEFORE_DELETION = 4
"""Records in each partition of a topic before its deletion: more than in the recreated topic."""
COPY_S = 0.6
"""Time for the first of the old records to be copied to the remote tier."""
REPAIR_S = 3.0
"""How long a damaging fault waits until earlier damage is repaired."""

Coverage = Counter[tuple[str, str]]
"""The number of effects of each fault kind, by the state of the node."""


class FaultAdministrator(Protocol):
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

    async def set_remote_copy(self, copies: bool) -> None:
        """Enable or disable copies of the topic to the remote tier."""
        ...

    async def delete_first_records(self, fault: Fault) -> bool:
        """Delete a share of the records of the diskless topic; return whether that was acknowledged."""
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
        administrator: FaultAdministrator,
        store: StoreFaults,
        recreation: TopicRecreation,
        tiering: TieringDisablement,
        replicated_topic: str,
    ) -> None:
        """`replicated_topic` is the topic whose replicas the administrator reassigns."""
        self._replicated_topic = replicated_topic
        self.coverage: Coverage = Counter()
        self._cluster = cluster
        self._world = cluster.world
        self._checkers = checkers
        self._administrator = administrator
        self._store = store
        self._recreation = recreation
        self._tiering = tiering
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
            await self._inject(fault)
            return
        with trio.move_on_after(REPAIR_S) as waiting:
            async with self._damaging:
                await self._checkers.wait_in_sync()
                waiting.deadline = float("inf")
                await self._inject(fault)
                await self._checkers.wait_in_sync()

    async def _inject(self, fault: Fault) -> None:
        if fault.kind in NEEDS_ANOTHER_CONTROLLER and self._active_controller() in (
            None,
            fault.node,
        ):
            return
        state = self._state(fault.node)
        what = fault.kind.value
        if fault.kind not in WITHOUT_NODE:
            what += f" of {host(fault.node)}"
        self._cluster.trace.add(f"{what} for {fault.seconds} s")
        if await _INJECTORS[fault.kind](self, fault):
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
        sync_state = "all in sync" if self._checkers.is_in_sync() else "some out of sync"
        return f"{role}, {sync_state}"

    async def heal(self) -> None:
        """End all faults, and start every node that is down."""
        self._world.wires.heal()
        self._store.heal()
        for node in self._cluster:
            node.disk.heal()
            for seconds in list(node.slow_faults_s):
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
        was_up, silent = self._is_up(fault), fault.variant >= 0.5
        await self._cluster.lose_power(fault.node, int(fault.amount * 1000), silent=silent)
        await self._restart(fault)
        return was_up

    async def _kill_at_operation(self, fault: Fault) -> bool:
        return await self._crash_at_operation(fault, None, lambda: not self._damaging.locked())

    async def _lose_power_at_operation(self, fault: Fault) -> bool:
        return await self._crash_at_operation(fault, int(fault.amount * 1000), lambda: True)

    async def _crash_at_operation(
        self, fault: Fault, seed: int | None, may_occur: Callable[[], bool]
    ) -> bool:
        """Kill the node at a file operation; in half of the cases, during its log recovery."""
        chance = random.Random(f"{CRASH_SEED} {fault.variant}")
        silent = seed is not None and chance.random() < 0.5
        if chance.random() < 0.5:
            if seed is None:
                await self._cluster.kill(fault.node)
            else:
                await self._cluster.lose_power(fault.node, seed, silent=silent)
            await self._cluster.start(fault.node)
        operations, passes_max = chance.choice(CRASH_OPERATIONS)
        crash_point = CrashPoint(
            operations, chance.randrange(passes_max), chance.random(), may_occur
        )
        await self._cluster.crash_at_operation(
            fault.node, crash_point, CRASH_WITHIN_S, seed, silent=silent
        )
        await self._restart(fault)
        return crash_point.has_occurred

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
        return await self._hold_faults(
            fault, [wires.partition(here, other) for other in self._others(fault)]
        )

    async def _partition_one_way(self, fault: Fault) -> bool:
        here, there = host(fault.node), host(fault.other)
        return await self._hold_faults(
            fault, [self._world.wires.partition(here, there, one_way=True)]
        )

    async def _partition_clients(self, fault: Fault) -> bool:
        return await self._hold_faults(
            fault, [self._world.wires.partition(host(fault.node), CLIENTS)]
        )

    async def _slow_down_network(self, fault: Fault) -> bool:
        here, wires = host(fault.node), self._world.wires
        low, high = (each * fault.amount for each in SLOW_NETWORK_S)
        return await self._hold_faults(
            fault, [wires.slow(here, other, low, high) for other in self._others(fault)]
        )

    async def _hold_faults(self, fault: Fault, network_faults: Sequence[NetworkFault]) -> bool:
        await trio.sleep(fault.seconds)
        for network_fault in network_faults:
            self._world.wires.heal(network_fault)
        return any(network_fault.had_effect for network_fault in network_faults)

    async def _drop_connections(self, fault: Fault) -> bool:
        lost = [
            self._world.wires.drop(host(fault.node), other)
            for other in (*self._others(fault), CLIENTS)
        ]
        return any(lost)

    async def _slow_down_disk(self, fault: Fault) -> bool:
        was_up = self._is_up(fault)
        self._cluster.slow_down(fault.node, SLOW_DISK_S * fault.amount)
        await trio.sleep(fault.seconds)
        self._cluster.speed_up(fault.node, SLOW_DISK_S * fault.amount)
        return was_up or self._is_up(fault)

    async def _flip_bit(self, fault: Fault) -> bool:
        """Flip a bit on the node's disk once the others have all its records.

        If the node reports lost storage, it gets an empty disk.
        """
        async with self._few_voters:
            return await self._flip_bit_on_stopped_node(fault)

    async def _flip_bit_on_stopped_node(self, fault: Fault) -> bool:
        node, chance = (
            self._cluster.nodes[fault.node],
            random.Random(f"{BIT_FLIP_SEED} {fault.variant}"),
        )
        if chance.random() < 0.5:
            await self._cluster.kill(fault.node)
        else:
            silent = chance.random() < 0.5
            await self._cluster.lose_power(fault.node, int(fault.amount * 1000), silent=silent)
        start_count = node.start_count
        await trio.sleep(fault.seconds)
        with trio.move_on_after(REPAIR_S):
            await self._until(lambda: other_nodes_have_all(self._cluster, fault.node))
        where = None
        if (
            not node.is_up
            and node.start_count == start_count
            and other_nodes_have_all(self._cluster, fault.node)
        ):
            where, node.disk.has_flipped_bits = flip_bit(node.disk, chance), True
            self._cluster.trace.add(f"a bit of {host(fault.node)} flips: {where}")
        await self._cluster.start(fault.node)
        await self._until(lambda: self._checkers.is_in_sync() or self._reports_loss(fault.node))
        if self._reports_loss(fault.node):
            await self._cluster.kill(fault.node)  # it may still be the leader
            await self._until(lambda: other_nodes_have_all(self._cluster, fault.node))
            await self._cluster.replace_disk(fault.node)
            await self._cluster.start(fault.node)
        return where is not None

    def _reports_loss(self, number: int) -> bool:
        """Whether the node has an offline log directory or log, or ended by a storage failure."""
        node = self._cluster.nodes[number]
        if node.broker is None or not node.serves:
            return bool(node.lost)
        logs = node.broker.logs
        return bool(logs.offline) or any(each.failed for each in logs.directories.all)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._world.clock.sleep(STEP_S)

    async def _fill_disk(self, fault: Fault) -> bool:
        """Fill the disk for a while; then restart the node."""
        node = self._cluster.nodes[fault.node]
        mount = node.disk.root.mount
        before, refused = mount.capacity_bytes, mount.refused
        mount.capacity_bytes = mount.used_bytes + int(FREE_BYTES_MAX * fault.amount)
        await trio.sleep(fault.seconds)
        mount.capacity_bytes = before
        await self._kill_and_restart(fault)
        return mount.refused > refused

    async def _fail_disk(self, fault: Fault) -> bool:
        return await self._fail(fault, DATA, {"write", "sync"})

    async def _fail_directory(self, fault: Fault) -> bool:
        chance = random.Random(f"directory {fault.variant}")
        return await self._fail(fault, OTHER_DATA, chance.choice(DIRECTORY_FAILURES))

    async def _fail_reads(self, fault: Fault) -> bool:
        return await self._fail(fault, DATA, {"read"})

    async def _fail(self, fault: Fault, directory: str, operations: Collection[str]) -> bool:
        disk = self._cluster.nodes[fault.node].disk
        broken = disk.fail(f"{directory}/*", errno.EIO, operations)
        await trio.sleep(fault.seconds)
        disk.heal(broken)
        await self._kill_and_restart(fault)
        return broken.failed > 0

    async def _kill_and_restart(self, fault: Fault) -> None:
        """Restart the node: a failed log directory stays offline until then."""
        await self._cluster.kill(fault.node)
        await self._cluster.start(fault.node)

    async def _jump_clock(self, fault: Fault) -> bool:
        clock = self._cluster.nodes[fault.node].clock
        clock.skew_ms += int(CLOCK_JUMP_MS * (2 * fault.amount - 1))
        return self._is_up(fault)

    async def _store_fault(self, fault: Fault) -> bool:
        self._store.begin(fault)
        await trio.sleep(fault.seconds)
        return self._store.end(fault)

    async def _kill_at_store_request(self, fault: Fault) -> bool:
        """Kill the next node that sends a request to the store; restart it at the end."""
        up = [node.number for node in self._cluster if node.is_up]
        self._store.begin(fault)
        await trio.sleep(fault.seconds)
        had_effect = self._store.end(fault)
        for number in up:
            await self._cluster.start(number)
        return had_effect

    async def _reassign(self, fault: Fault) -> bool:
        images = [broker.metadata.image for _, broker in self._cluster.running()]
        newest = max(images, key=lambda image: image.offset, default=None)
        there = newest.partition(self._replicated_topic, MOVED) if newest else None
        wanted = self._cluster.nodes.keys() - {fault.node}
        before = set(there.replicas) if there is not None else set()
        return await self._administrator.reassign(fault) and before != wanted

    async def _move_directories(self, fault: Fault) -> bool:
        return await self._administrator.move_directories(fault)

    async def _delete_records(self, fault: Fault) -> bool:
        return await self._administrator.delete_first_records(fault)

    async def _advance_clocks(self, fault: Fault) -> bool:
        for node in self._cluster:
            node.clock.skew_ms += FILE_AGE_MS + CLOCK_JUMP_MS
        return True

    async def _disable_copies(self, fault: Fault) -> bool:
        is_off = False
        for copies in (False, True):
            with suppress(KafkaError, ClientError), trio.move_on_after(ADMIN_REQUEST_S):
                await self._administrator.set_remote_copy(copies)
                is_off |= not copies
            if not copies:
                await trio.sleep(fault.seconds)
        return is_off

    async def _disable_tiering(self, fault: Fault) -> bool:
        """Disable tiered storage and, in half of the cases, enable it again at the end."""
        drawn = draw_disablement(fault)
        if drawn.deletes_topic:
            return await self._delete_disabling_topic(fault, drawn)
        was_disabled = await self._tiering.disable(TOPIC, drawn.form)
        if drawn.failover_s is not None:
            await trio.sleep(drawn.failover_s)
            await self._kill_active_controller(fault)
        if drawn.waits:
            await self._tiering.wait_until_disabled(TOPIC)
        else:
            await trio.sleep(fault.seconds)
        if drawn.enables:
            await self._tiering.enable(TOPIC)
        return was_disabled

    async def _delete_disabling_topic(self, fault: Fault, drawn: DrawnDisablement) -> bool:
        """Delete the other topic while its tiered storage is being disabled; in half of the cases, recreate it."""
        topic = self._recreation
        if not topic.was_created and await topic.make():
            await topic.fill(RECORDS_BEFORE_DELETION)
        await trio.sleep(COPY_S)
        was_disabled = await self._tiering.disable(RECREATED_TOPIC, drawn.form)
        was_deleted = await topic.delete()
        if drawn.enables:
            await topic.make()
        return was_disabled and was_deleted

    async def _kill_active_controller(self, fault: Fault) -> None:
        """Kill the active controller, unless replicas are damaged, and restart it at the end."""
        controller = self._active_controller()
        if controller is not None and not self._damaging.locked():
            await self._cluster.kill(controller)
            await trio.sleep(fault.seconds)
            await self._cluster.start(controller)

    async def _remove_voter(self, fault: Fault) -> bool:
        was_removed = False
        with trio.move_on_after(REPAIR_S):
            async with self._few_voters:
                await self._until(self._checkers.all_are_voters)
                key = self._cluster.nodes[fault.node].key
                was_removed = await self._administrator.remove_voter(key)
                if was_removed:
                    await self._checkers.wait_in_sync()
        return was_removed

    async def _recreate_topic(self, fault: Fault) -> bool:
        """Delete and recreate the topic during a transaction.

        In one of four cases it is not recreated; in another, the node returns in between.
        """
        topic = self._recreation
        if not topic.was_created and await topic.make():
            await topic.fill(RECORDS_BEFORE_DELETION)
        await topic.begin()
        if topic.is_tiered:
            await trio.sleep(COPY_S)
        come_back = await self._stop_or_partition(fault)
        was_deleted, is_made = await topic.delete(), fault.amount < 3 / 4
        if fault.amount < 1 / 4:
            await come_back()
        was_created = is_made and await topic.make()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(topic.fill)
            if fault.amount >= 1 / 4:
                await come_back()
        return was_deleted and was_created is is_made

    async def _stop_or_partition(self, fault: Fault) -> Callable[[], Awaitable[None]]:
        """Kill, stop or partition the node, or do nothing; return the function that reverts it."""

        async def start() -> None:
            await self._restart(fault)

        async def join() -> None:
            await self._hold_faults(fault, network_faults)

        network_faults: Sequence[NetworkFault] = ()
        if fault.variant < 1 / 3 and not self._damaging.locked():
            await self._cluster.kill(fault.node)
            return start
        if fault.variant >= 2 / 3:
            await self._cluster.stop(fault.node)
            return start
        if fault.variant >= 1 / 2:
            here, wires = host(fault.node), self._world.wires
            network_faults = [wires.partition(here, other) for other in self._others(fault)]
        return join

    async def _miss_leader_epoch(self, fault: Fault) -> bool:
        """Make a leader miss a leader epoch, and lead again.

        One of its followers has the records that it appends meanwhile, and truncates them when it
        follows the interim leader. In half of the cases the leader is then partitioned from this
        follower and killed, and the follower takes over.
        """
        controller = self._active_controller()
        assert controller is not None
        wires = self._world.wires
        here, unreached = host(fault.node), max(set(self._cluster.nodes) - {fault.node, controller})
        lead = partial(self._administrator.lead, by=controller)
        network_faults: list[NetworkFault] = []
        with trio.move_on_after(MISSED_EPOCH_S) as waiting:
            await lead([fault.node, unreached, controller])
            network_faults.append(wires.partition(host(controller), here))
            await trio.sleep(STALE_LEADER_S)
            await lead([fault.other, *sorted(self._cluster.nodes.keys() - {fault.other})])
            await trio.sleep(STALE_LEADER_S)
            await lead([fault.node, unreached, controller])
        cut_off = [wires.partition(here, host(unreached))] if fault.amount < 0.5 else []
        for network_fault in network_faults:
            wires.heal(network_fault)
        await trio.sleep(fault.seconds * fault.amount)
        if fault.amount < 0.5 and not self._damaging.locked():
            await self._cluster.kill(fault.node)
            await trio.sleep(fault.seconds)
            await self._cluster.start(fault.node)
        for network_fault in cut_off:
            wires.heal(network_fault)
        return not waiting.cancelled_caught

    async def _make_voter_lag(self, fault: Fault) -> bool:
        """Let the others commit without the node, and then kill them.

        A restarted voter has no leader yet.
        """
        controller = self._active_controller()
        assert controller is not None
        here, there = host(controller), host(fault.node)
        network_fault = self._world.wires.partition(here, there, one_way=True)
        await trio.sleep(LAGGING_VOTER_S)
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
        self._world.wires.heal(network_fault)
        return may_kill

    def _active_controller(self) -> int | None:
        """The node that is the active controller."""
        return next(
            (node.number for node, broker in self._cluster.running() if broker.metadata.is_active),
            None,
        )


_INJECTORS: dict[FaultKind, Callable[[Faults, Fault], Awaitable[bool]]] = {
    FaultKind.KILL: Faults._kill,
    FaultKind.POWER_LOSS: Faults._lose_power,
    FaultKind.KILL_AT_OPERATION: Faults._kill_at_operation,
    FaultKind.POWER_LOSS_AT_OPERATION: Faults._lose_power_at_operation,
    FaultKind.STOP: Faults._stop,
    FaultKind.PARTITION: Faults._partition,
    FaultKind.ONE_WAY_PARTITION: Faults._partition_one_way,
    FaultKind.CLIENTS_PARTITIONED: Faults._partition_clients,
    FaultKind.DROPPED_CONNECTIONS: Faults._drop_connections,
    FaultKind.SLOW_NETWORK: Faults._slow_down_network,
    FaultKind.SLOW_DISK: Faults._slow_down_disk,
    FaultKind.FULL_DISK: Faults._fill_disk,
    FaultKind.FAILING_DISK: Faults._fail_disk,
    FaultKind.FAILING_DIRECTORY: Faults._fail_directory,
    FaultKind.UNREADABLE_DISK: Faults._fail_reads,
    FaultKind.BIT_FLIP: Faults._flip_bit,
    FaultKind.CLOCK_JUMP: Faults._jump_clock,
    FaultKind.REASSIGNMENT: Faults._reassign,
    FaultKind.MISSED_LEADER_EPOCH: Faults._miss_leader_epoch,
    FaultKind.LAGGING_VOTER: Faults._make_voter_lag,
    FaultKind.DIRECTORY_MOVE: Faults._move_directories,
    FaultKind.COPY_DISABLED: Faults._disable_copies,
    FaultKind.TOPIC_RECREATED: Faults._recreate_topic,
    FaultKind.VOTER_REMOVED: Faults._remove_voter,
    FaultKind.TIERING_DISABLED: Faults._disable_tiering,
    FaultKind.RECORDS_DELETED: Faults._delete_records,
    FaultKind.CLOCKS_ADVANCED: Faults._advance_clocks,
    **dict.fromkeys(STORE_KINDS, Faults._store_fault),
    FaultKind.STORE_FALSE_SUCCESS: Faults._store_fault,
    FaultKind.STORE_REQUEST_CRASH: Faults._kill_at_store_request,
}
