"""The nodes of a simulation: complete brokers on virtual seams that are killed and restarted.

A kill first cuts the node's power, so that nothing it does afterwards has an effect, and only then
cancels its tasks (`testing/power.py`). Its disk remains: with all writes after a kill, and with
what was durable after a power loss.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.lifecycle.errors import CannotStart, NodeFailed, Stopped
from odradek.broker.node import Node
from odradek.replication.controller.release_versions import initial_levels
from odradek.replication.raft.formatting import NodeFormat, format_node
from odradek.replication.raft.voters import NO_DIRECTORY, ReplicaKey, Voter, VoterEndpoint
from odradek.seams.network import Address
from odradek.storage.directories import meta_properties
from odradek.testing.power import NodeCrashed
from odradek.testing.simulation.log_watch import CURRENT_NODE_RUN, ErrorCause
from odradek.testing.simulation.plan import DATA, OTHER_DATA
from odradek.testing.simulation.trace import Trace
from odradek.testing.virtual_clock import SkewedClock
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import CrashPoint
from odradek.testing.virtual_object_store import VirtualBucket
from odradek.testing.virtual_world import VirtualNode, VirtualWorld

PORT = 9092
CONTROLLER_PORT = 9093
CLIENTS = "clients"
CLUSTER_ID = "simulated-cluster-0001"

COMMON_CONFIGS: Mapping[str, str] = {
    "log.dirs": DATA,
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.min.session.timeout.ms": "1500",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "100",
}
MULTI_NODE_CONFIGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "1500",
    "replica.lag.time.max.ms": "1500",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.election.backoff.max.ms": "100",
    "controller.quorum.retry.backoff.ms": "100",
}
TIERED_CONFIGS: Mapping[str, str] = {
    "log.dirs": f"{DATA},{OTHER_DATA}",
    "replica.alter.log.dirs.io.max.bytes.per.second": "10000",  # slow enough to overlap with copies to the remote tier
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "odradek.ObjectStore",
    "rsm.config.url": "memory:///",  # any URL opens the world's bucket
    "rsm.config.retries": "1",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    "remote.log.manager.task.interval.ms": "200",
    "remote.log.manager.task.retry.backoff.ms": "100",
    "remote.log.manager.task.retry.backoff.max.ms": "500",
    "remote.partition.remover.task.interval.ms": "1000",
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "0",
}
DISKLESS_CONFIGS: Mapping[str, str] = {
    "log.dirs": f"{DATA},{OTHER_DATA}",
    "replica.alter.log.dirs.io.max.bytes.per.second": "10000",
    "diskless.storage.system.enable": "true",
    "diskless.storage.url": "memory:///",  # any URL opens the world's bucket
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.coordinator.orphan.scan.grace.period.ms": "0",  # a longer minimum applies
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "0",
}


def host(number: int) -> str:
    """The host name of a node; 0 is the host of the clients."""
    return f"node-{number}" if number else CLIENTS


def config_of(
    number: int,
    nodes: int,
    *,
    tiered: bool = False,
    diskless: bool = False,
    dynamic_quorum: bool = False,
    more: Mapping[str, str] = MappingProxyType({}),
) -> ServerConfig:
    listeners = f"PLAINTEXT://{host(number)}:{PORT}"
    configs = {**COMMON_CONFIGS, "node.id": str(number), "listeners": listeners}
    if nodes > 1:
        controllers = {each: f"{host(each)}:{CONTROLLER_PORT}" for each in range(1, nodes + 1)}
        configs |= MULTI_NODE_CONFIGS
        configs["listeners"] += f",CONTROLLER://{host(number)}:{CONTROLLER_PORT}"
        if dynamic_quorum:
            configs["controller.quorum.bootstrap.servers"] = ",".join(controllers.values())
            configs["controller.quorum.auto.join.enable"] = "true"
        else:
            voters = (f"{each}@{address}" for each, address in controllers.items())
            configs["controller.quorum.voters"] = ",".join(voters)
    if tiered:
        prefix = "rlmm.config.remote.log.metadata.topic."
        configs |= TIERED_CONFIGS
        configs[prefix + "replication.factor"] = str(min(3, nodes))
        configs[prefix + "min.isr"] = str(min(2, nodes))
    if diskless:
        configs |= DISKLESS_CONFIGS
        configs["diskless.metadata.topic.replication.factor"] = str(min(3, nodes))
    return ServerConfig.from_properties({**configs, **more}, test_node=True)


@dataclass
class SimulatedNode:
    number: int
    clock: SkewedClock
    disk: VirtualDisk
    virtual_node: VirtualNode | None = None
    broker: Node | None = None
    """The running broker, also during its start."""
    serves: bool = False
    start_count: int = 0
    is_formatted: bool = False
    directory_id: UUID = NO_DIRECTORY
    """The id of the node's metadata directory, or of the one on its previous disk.

    NO_DIRECTORY before the first format.
    """
    lost: str = ""
    """The storage failure that ended the node, if one did."""
    slow_faults_s: list[float] = field(default_factory=list)
    """The slow disk faults that are active, by their delay; they outlive a restart."""
    power_loss_seed: int | None = None
    """The seed of a power loss, which is applied to the disk once the node is down."""
    node_run: SimulatedNodeRun | None = None
    """The current run of the node, or the last one."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    down: trio.Event = field(default_factory=trio.Event)
    """Set while the node does not run at all."""

    @property
    def is_up(self) -> bool:
        return self.broker is not None

    @property
    def key(self) -> ReplicaKey:
        """The node's replica key in the metadata quorum."""
        return ReplicaKey(self.number, self.directory_id)


@dataclass
class SimulatedNodeRun:
    """One run of a node, from start to end, with its seams."""

    name: str
    virtual_node: VirtualNode
    bucket: VirtualBucket
    refused_at_start: int
    """Disk calls that had failed before this run."""
    is_stopping: bool = False

    @property
    def is_dead(self) -> bool:
        return not self.virtual_node.power.on

    def is_affected_by(self, cause: ErrorCause) -> bool:
        if cause is ErrorCause.STORE:
            return self.bucket.affected_requests > 0
        return (
            self.virtual_node.disk.refused > self.refused_at_start
            or self.virtual_node.disk.has_flipped_bits
        )

    def has_reason(self, error: BaseException) -> bool:
        """Whether a correct node may end with this error."""
        if isinstance(error, Stopped):
            return self.is_stopping
        return self.is_affected_by(ErrorCause.DISK)


class SimulatedCluster:
    """Starts, kills, slows down and stops the nodes of a run."""

    def __init__(
        self,
        world: VirtualWorld,
        nodes: int,
        trace: Trace,
        nursery: trio.Nursery,
        *,
        tiered: bool = False,
        diskless: bool = False,
        dynamic_quorum: bool = False,
        offloaded_s: float = 0.0,
        configs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.world = world
        self.trace = trace
        self.failures: list[str] = []
        """Unexpected ends of nodes."""
        self.starts_cpu_s = 0.0
        """CPU time until all nodes served for the first time; 0 before that."""
        self._began_cpu_s = time.process_time()
        self._nursery = nursery
        self.on_state_stored: Callable[[str, bytes], None] | None = None
        """Called with each stored state of a diskless coordinator of any node, and its path."""
        self._tiered = tiered
        self._diskless = diskless
        self.has_dynamic_quorum = dynamic_quorum
        self._offloaded_s = offloaded_s
        self._configs = configs
        self.nodes = {
            number: SimulatedNode(number, SkewedClock(world.clock), self._new_disk())
            for number in range(1, nodes + 1)
        }
        for node in self.nodes.values():
            node.down.set()

    def _new_disk(self) -> VirtualDisk:
        disk = VirtualDisk()
        disk.databases.on_store = self._state_stored
        return disk

    def _state_stored(self, path: str, content: bytes) -> None:
        if self.on_state_stored is not None:
            self.on_state_stored(path, content)

    @property
    def bootstrap(self) -> list[Address]:
        return [Address(host(number), PORT) for number in self.nodes]

    def __iter__(self) -> Iterator[SimulatedNode]:
        return iter(self.nodes.values())

    def running(self) -> list[tuple[SimulatedNode, Node]]:
        """The nodes that serve, with their brokers."""
        return [(node, node.broker) for node in self if node.broker is not None and node.serves]

    # Start and stop

    async def start(self, number: int) -> None:
        """Start the node if it is not up.

        If its power was cut, wait first until it is down: it may not have noticed yet.
        """
        node = self.nodes[number]
        if node.is_up and node.virtual_node is not None and not node.virtual_node.power.on:
            await node.down.wait()
        if node.is_up:
            return
        node.start_count += 1
        self.world.wires.unsilence(host(number))
        node.virtual_node = self.world.node(host(number), node.disk, clock=node.clock)
        self._update_disk_delay(node)
        config = config_of(
            number,
            len(self.nodes),
            tiered=self._tiered,
            diskless=self._diskless,
            dynamic_quorum=self.has_dynamic_quorum,
            more=self._configs,
        )
        if len(self.nodes) > 1 and not node.is_formatted:
            is_first = node.directory_id == NO_DIRECTORY
            voters = self._first_voters() if self.has_dynamic_quorum and is_first else ()
            _format(node.virtual_node, config, voters)
            properties = node.virtual_node.files.read(
                config.metadata_log_dir / meta_properties.FILE_NAME
            )
            node.directory_id = meta_properties.parse(properties).directory_id or NO_DIRECTORY
        node.is_formatted, node.lost = True, ""
        node.node_run = SimulatedNodeRun(
            host(number), node.virtual_node, self.world.bucket, node.disk.refused
        )
        node.broker = Node(node.virtual_node.seams, config)
        node.scope = trio.CancelScope()
        node.down = trio.Event()
        self.trace.add(f"{host(number)} starts")
        self._nursery.start_soon(self._live, node, node.broker, node.node_run)

    def _first_voters(self) -> tuple[Voter, ...]:
        return tuple(
            Voter(
                number,
                UUID(int=(1 << 127) + number),
                (VoterEndpoint("CONTROLLER", host(number), CONTROLLER_PORT),),
            )
            for number in self.nodes
        )

    async def _live(self, node: SimulatedNode, broker: Node, node_run: SimulatedNodeRun) -> None:
        CURRENT_NODE_RUN.set(node_run)
        name, end = node_run.name, "was killed"
        try:
            with node.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(broker.run)
                    node.serves = True
                    self._record_start_time()
                    self.trace.add(f"{name} serves")
                end = "has stopped"
        except* NodeCrashed:
            pass
        except* (CannotStart, NodeFailed) as group:
            end = f"ended: {group.exceptions[0]}"
            if not isinstance(group.exceptions[0], Stopped):
                node.lost = end
            if not all(map(node_run.has_reason, group.exceptions)):
                self.failures.append(f"{name} {end}, without a fault that explains it")
        except* Exception as group:
            end = f"ended by {group.exceptions!r}"
            self.failures.append(f"{name} {end}")
        self.trace.add(f"{name} {end}")
        if node_run.is_dead:
            self._crash_databases(node)
        if node.power_loss_seed is not None:
            node.disk, node.power_loss_seed = node.disk.crash(node.power_loss_seed), None
        node.broker, node.serves = None, False
        node.down.set()

    def _crash_databases(self, node: SimulatedNode) -> None:
        """Keep or lose the states of the diskless coordinators, or replace them by older copies."""
        if self._diskless:
            chance = random.Random(f"{self.world.seed} {node.number} {node.start_count}")
            outcomes = node.disk.databases.crash(chance)
            found = ", ".join(f"{path} is {outcome.value}" for path, outcome in outcomes.items())
            self.trace.add(f"{host(node.number)} has crashed: {found or 'it has no states'}")

    def _record_start_time(self) -> None:
        if not self.starts_cpu_s and len(self.running()) == len(self.nodes):
            self.starts_cpu_s = time.process_time() - self._began_cpu_s

    async def kill(self, number: int) -> None:
        """End the process; its disk keeps all writes."""
        node = self.nodes[number]
        if node.virtual_node is None or not node.is_up:
            return
        node.virtual_node.power.cut()
        node.scope.cancel()
        await node.down.wait()

    async def lose_power(self, number: int, seed: int, *, silent: bool = False) -> None:
        """Cut the power; the seed decides which unsynced changes remain.

        To the peers, the process has ended, or with `silent` the machine: then it does not respond
        until it starts again.
        """
        node = self.nodes[number]
        if node.is_up:
            node.power_loss_seed = seed
            if silent:
                self.world.wires.silence(host(number))
            await self.kill(number)
        else:
            node.disk = node.disk.crash(seed)

    async def replace_disk(self, number: int) -> None:
        """Replace the disk by an empty one, as an operator does after a storage failure."""
        await self.kill(number)
        node = self.nodes[number]
        node.disk, node.is_formatted = self._new_disk(), False
        self.trace.add(f"{host(number)} has a new disk")

    async def crash_at_operation(
        self,
        number: int,
        crash_point: CrashPoint,
        within_s: float,
        seed: int | None,
        *,
        silent: bool = False,
    ) -> None:
        """Kill the node at the crash point, or with a seed cut its power, if it occurs in
        time."""
        node = self.nodes[number]
        virtual_node, scope, down = node.virtual_node, node.scope, node.down
        if virtual_node is None or not node.is_up:
            return
        may_occur = crash_point.may_occur

        def happens() -> bool:
            if not may_occur():
                return False
            node.power_loss_seed = seed
            if silent:
                self.world.wires.silence(host(number))
            return True

        crash_point.may_occur = happens
        virtual_node.files.crash_point = crash_point
        cut = trio.Event()
        virtual_node.power.on_cut(cut.set)
        with trio.move_on_after(within_s):
            await cut.wait()
        virtual_node.files.crash_point = None
        if crash_point.has_occurred:
            scope.cancel()
            await down.wait()

    def slow_down(self, number: int, seconds: float) -> None:
        """Delay disk calls by up to `seconds` before they begin and return; no page is in memory."""
        node = self.nodes[number]
        node.slow_faults_s.append(seconds)
        self._update_disk_delay(node)

    def speed_up(self, number: int, seconds: float) -> None:
        """End a `slow_down` of the same duration."""
        node = self.nodes[number]
        if seconds in node.slow_faults_s:
            node.slow_faults_s.remove(seconds)
        self._update_disk_delay(node)

    def _update_disk_delay(self, node: SimulatedNode) -> None:
        node.disk.is_slow = bool(node.slow_faults_s)
        if node.virtual_node is not None:
            node.virtual_node.offload.delay_seconds = max([self._offloaded_s, *node.slow_faults_s])

    async def stop(self, number: int) -> None:
        """Stop the node as SIGTERM does."""
        node = self.nodes[number]
        if node.broker is not None and node.node_run is not None:
            node.node_run.is_stopping = True
            node.broker.stop()
        await node.down.wait()

    async def stop_all(self) -> None:
        for number in self.nodes:
            await self.kill(number)


def _format(virtual_node: VirtualNode, config: ServerConfig, voters: tuple[Voter, ...]) -> None:
    """Format the storage, as `odradek storage format` does before a node's first start."""
    wanted = NodeFormat(
        node_id=config.node_id,
        cluster_id=CLUSTER_ID,
        directories=config.log_dirs,
        metadata=config.metadata_log_dir,
        levels=initial_levels(None, {}, is_dynamic=not config.quorum_voters),
        voters=voters,
    )
    format_node(
        virtual_node.files,
        virtual_node.seams.entropy,
        wanted,
        now_ms=virtual_node.seams.clock.wall_ms(),
        report=lambda _: None,
    )
