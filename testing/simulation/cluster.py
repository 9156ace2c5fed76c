"""The nodes of a simulation: complete brokers on virtual seams that are killed and restarted.

A kill first cuts the node's power, so that nothing it does afterwards has an effect, and only then
cancels its tasks (`testing/power.py`). Its disk remains: with all writes after a kill, and with
what was durable after a power loss.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.lifecycle.errors import CannotStart, Stopped, StorageLost
from odradek.broker.node import Node
from odradek.replication.controller.release_versions import initial_levels
from odradek.replication.raft.formatting import NodeFormat, format_node
from odradek.replication.raft.voters import NO_DIRECTORY, ReplicaKey, Voter, VoterEndpoint
from odradek.seams.network import Address
from odradek.storage.directories import meta_properties
from odradek.testing.power import NodeCrashed
from odradek.testing.simulation.log_watch import LIFE, Cause
from odradek.testing.simulation.plan import DATA, OTHER_DATA
from odradek.testing.simulation.trace import Trace
from odradek.testing.virtual_clock import SkewedClock
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import Strike
from odradek.testing.virtual_objects import VirtualBucket
from odradek.testing.virtual_world import VirtualNode, VirtualWorld

PORT = 9092
CONTROLLER_PORT = 9093
CLIENTS = "clients"
CLUSTER_ID = "simulated-cluster-0001"

COMMON: Mapping[str, str] = {
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
OF_MANY: Mapping[str, str] = {
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
TIERED: Mapping[str, str] = {
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


def host(number: int) -> str:
    """The host name of a node; 0 is the host of the clients."""
    return f"node-{number}" if number else CLIENTS


def config_of(
    number: int,
    nodes: int,
    *,
    tiered: bool = False,
    dynamic_quorum: bool = False,
    more: Mapping[str, str] = MappingProxyType({}),
) -> ServerConfig:
    listeners = f"PLAINTEXT://{host(number)}:{PORT}"
    configs = {**COMMON, "node.id": str(number), "listeners": listeners}
    if nodes > 1:
        controllers = {each: f"{host(each)}:{CONTROLLER_PORT}" for each in range(1, nodes + 1)}
        configs |= OF_MANY
        configs["listeners"] += f",CONTROLLER://{host(number)}:{CONTROLLER_PORT}"
        if dynamic_quorum:
            configs["controller.quorum.bootstrap.servers"] = ",".join(controllers.values())
            configs["controller.quorum.auto.join.enable"] = "true"
        else:
            voters = (f"{each}@{address}" for each, address in controllers.items())
            configs["controller.quorum.voters"] = ",".join(voters)
    if tiered:
        prefix = "rlmm.config.remote.log.metadata.topic."
        configs |= TIERED
        configs[prefix + "replication.factor"] = str(min(3, nodes))
        configs[prefix + "min.isr"] = str(min(2, nodes))
    return ServerConfig.from_properties({**configs, **more}, test_node=True)


@dataclass
class SimulatedNode:
    number: int
    clock: SkewedClock
    disk: VirtualDisk
    doors: VirtualNode | None = None
    broker: Node | None = None
    """The running broker, also during its start."""
    serves: bool = False
    lives: int = 0
    is_formatted: bool = False
    directory_id: UUID = NO_DIRECTORY
    """The id of the node's metadata directory, or of the one on its previous disk.

    NO_DIRECTORY before the first format.
    """
    lost: str = ""
    """The storage failure that ended the node, if one did."""
    slowed_s: list[float] = field(default_factory=list)
    """The slow disk faults that are active, by their delay; they outlive a restart."""
    torn_by: int | None = None
    """The seed of a power loss, which is applied to the disk once the node is down."""
    life: NodeLife | None = None
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
class NodeLife:
    """One run of a node, from start to end, with its seams."""

    name: str
    doors: VirtualNode
    bucket: VirtualBucket
    refused_before: int
    """Disk calls that had failed before this run."""
    is_to_stop: bool = False

    @property
    def is_dead(self) -> bool:
        return not self.doors.power.on

    def has_met(self, cause: Cause) -> bool:
        if cause is Cause.STORE:
            return self.bucket.struck > 0
        return self.doors.disk.refused > self.refused_before or self.doors.disk.has_rotted

    def has_reason(self, error: BaseException) -> bool:
        """Whether a correct node may end with this error."""
        if isinstance(error, Stopped):
            return self.is_to_stop
        return self.has_met(Cause.DISK)


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
        self._tiered = tiered
        self.has_dynamic_quorum = dynamic_quorum
        self._offloaded_s = offloaded_s
        self._configs = configs
        self.nodes = {
            number: SimulatedNode(number, SkewedClock(world.clock), VirtualDisk())
            for number in range(1, nodes + 1)
        }
        for node in self.nodes.values():
            node.down.set()

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
        if node.is_up and node.doors is not None and not node.doors.power.on:
            await node.down.wait()
        if node.is_up:
            return
        node.lives += 1
        self.world.wires.speak(host(number))
        node.doors = self.world.node(host(number), node.disk, clock=node.clock)
        self._keep_pace(node)
        config = config_of(
            number,
            len(self.nodes),
            tiered=self._tiered,
            dynamic_quorum=self.has_dynamic_quorum,
            more=self._configs,
        )
        if len(self.nodes) > 1 and not node.is_formatted:
            is_first = node.directory_id == NO_DIRECTORY
            voters = self._first_voters() if self.has_dynamic_quorum and is_first else ()
            _format(node.doors, config, voters)
            properties = node.doors.files.read(config.metadata_log_dir / meta_properties.FILE_NAME)
            node.directory_id = meta_properties.parse(properties).directory_id or NO_DIRECTORY
        node.is_formatted, node.lost = True, ""
        node.life = NodeLife(host(number), node.doors, self.world.bucket, node.disk.refused)
        node.broker = Node(node.doors.seams, config)
        node.scope = trio.CancelScope()
        node.down = trio.Event()
        self.trace.add(f"{host(number)} starts")
        self._nursery.start_soon(self._live, node, node.broker, node.life)

    def _first_voters(self) -> tuple[Voter, ...]:
        return tuple(
            Voter(
                number,
                UUID(int=(1 << 127) + number),
                (VoterEndpoint("CONTROLLER", host(number), CONTROLLER_PORT),),
            )
            for number in self.nodes
        )

    async def _live(self, node: SimulatedNode, broker: Node, life: NodeLife) -> None:
        LIFE.set(life)
        name, end = life.name, "is gone"
        try:
            with node.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(broker.run)
                    node.serves = True
                    self._look_whether_all_serve()
                    self.trace.add(f"{name} serves")
                end = "has stopped"
        except* NodeCrashed:
            pass
        except* (CannotStart, StorageLost) as group:
            end = f"ended: {group.exceptions[0]}"
            if not isinstance(group.exceptions[0], Stopped):
                node.lost = end
            if not all(map(life.has_reason, group.exceptions)):
                self.failures.append(f"{name} {end}, for no reason that it was given")
        except* Exception as group:
            end = f"ended by {group.exceptions!r}"
            self.failures.append(f"{name} {end}")
        self.trace.add(f"{name} {end}")
        if node.torn_by is not None:
            node.disk, node.torn_by = node.disk.crash(node.torn_by), None
        node.broker, node.serves = None, False
        node.down.set()

    def _look_whether_all_serve(self) -> None:
        if not self.starts_cpu_s and len(self.running()) == len(self.nodes):
            self.starts_cpu_s = time.process_time() - self._began_cpu_s

    async def kill(self, number: int) -> None:
        """End the process; its disk keeps all writes."""
        node = self.nodes[number]
        if node.doors is None or not node.is_up:
            return
        node.doors.power.cut()
        node.scope.cancel()
        await node.down.wait()

    async def lose_power(self, number: int, seed: int, *, silent: bool = False) -> None:
        """Cut the power; the seed decides which unsynced changes remain.

        To the peers, the process has ended, or with `silent` the machine: then it does not respond
        until it starts again.
        """
        node = self.nodes[number]
        if node.is_up:
            node.torn_by = seed
            if silent:
                self.world.wires.silence(host(number))
            await self.kill(number)
        else:
            node.disk = node.disk.crash(seed)

    async def replace_disk(self, number: int) -> None:
        """Replace the disk by an empty one, as an operator does after a storage failure."""
        await self.kill(number)
        node = self.nodes[number]
        node.disk, node.is_formatted = VirtualDisk(), False
        self.trace.add(f"{host(number)} has a new disk")

    async def struck(
        self,
        number: int,
        strike: Strike,
        within_s: float,
        seed: int | None,
        *,
        silent: bool = False,
    ) -> None:
        """Kill the node when the strike happens, or with a seed cut its power, if it happens in
        time."""
        node = self.nodes[number]
        doors, scope, down = node.doors, node.scope, node.down
        if doors is None or not node.is_up:
            return
        may_happen = strike.may_happen

        def happens() -> bool:
            if not may_happen():
                return False
            node.torn_by = seed
            if silent:
                self.world.wires.silence(host(number))
            return True

        strike.may_happen = happens
        doors.files.strike = strike
        cut = trio.Event()
        doors.power.when_cut(cut.set)
        with trio.move_on_after(within_s):
            await cut.wait()
        doors.files.strike = None
        if strike.has_happened:
            scope.cancel()
            await down.wait()

    def slow_down(self, number: int, seconds: float) -> None:
        """Delay disk calls by up to `seconds` before they begin and return; no page is in memory."""
        node = self.nodes[number]
        node.slowed_s.append(seconds)
        self._keep_pace(node)

    def speed_up(self, number: int, seconds: float) -> None:
        """End a `slow_down` of the same duration."""
        node = self.nodes[number]
        if seconds in node.slowed_s:
            node.slowed_s.remove(seconds)
        self._keep_pace(node)

    def _keep_pace(self, node: SimulatedNode) -> None:
        node.disk.is_slow = bool(node.slowed_s)
        if node.doors is not None:
            node.doors.offload.delay_seconds = max([self._offloaded_s, *node.slowed_s])

    async def stop(self, number: int) -> None:
        """Stop the node as SIGTERM does."""
        node = self.nodes[number]
        if node.broker is not None and node.life is not None:
            node.life.is_to_stop = True
            node.broker.stop()
        await node.down.wait()

    async def stop_all(self) -> None:
        for number in self.nodes:
            await self.kill(number)


def _format(doors: VirtualNode, config: ServerConfig, voters: tuple[Voter, ...]) -> None:
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
        doors.files,
        doors.seams.entropy,
        wanted,
        now_ms=doors.seams.clock.wall_ms(),
        report=lambda _: None,
    )
