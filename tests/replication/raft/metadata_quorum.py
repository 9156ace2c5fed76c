"""A quorum of MetadataManager nodes, each with its own disk, over a network in memory.

    quorum = Nodes(world, voters=3)
    async with quorum:
        leader = await quorum.leader()
        await quorum.commit("a")
        await quorum.crash(leader)

Time advances only in `pass_time`. A crash cuts the power of a node and then ends its tasks; pending requests to it
fail. A partitioned node neither sends nor receives messages.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import trio

from odradek.protocol.errors import KafkaError
from odradek.replication.controller.image import Endpoint, MetadataDelta
from odradek.replication.raft.bootstrap import write_first_snapshot
from odradek.replication.raft.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    Endpoints,
    RaftRequest,
    RaftResponse,
)
from odradek.replication.raft.metadata_log import MetadataLogSettings
from odradek.replication.raft.metadata_manager import MetadataManager, MetadataSettings
from odradek.replication.raft.network_channel import NodeNotRunning, RequestFailed
from odradek.replication.raft.quorum_recovery import QuorumMember
from odradek.replication.raft.quorum_state import QuorumSettings
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from odradek.replication.raft.voters import Voter, VoterEndpoint
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_world import VirtualNode, VirtualWorld
from tests.support.metadata_nodes import ROOT, configs, set_config

T = TypeVar("T")

DELAY_SECONDS = 0.002
DISK_SECONDS = 0.001


def directory_of(node_id: int) -> UUID:
    return UUID(int=(1 << 127) + node_id)


def voter_of(node_id: int) -> Voter:
    endpoint = VoterEndpoint("CONTROLLER", f"host-{node_id}", 9093)
    return Voter(node_id, directory_of(node_id), (endpoint,))


@dataclass(eq=False)
class NodeRun:
    """A node between a start and the next stop or crash."""

    id: int
    node: VirtualNode
    metadata: MetadataManager
    nursery: trio.Nursery | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    activity: list[bool] = field(default_factory=list)
    deltas: list[MetadataDelta] = field(default_factory=list)

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def is_up(self) -> bool:
        return self.nursery is not None and self.node.power.on

    def end(self) -> None:
        self.node.power.cut()
        self.scope.cancel()


class MetadataQuorum:
    """Quorum of nodes. Nodes 1 to `voters` are the first voters; `static` ones are in the configs only."""

    def __init__(
        self,
        world: VirtualWorld,
        voters: int = 3,
        *,
        static: bool = False,
        settings: MetadataLogSettings | None = None,
        quorum_settings: QuorumSettings | None = None,
        max_idle_ms: int = 0,
        disk_seconds: float = DISK_SECONDS,
    ) -> None:
        self.world = world
        self.disk_seconds = disk_seconds
        self.loss = 0.0
        """Fraction of requests or responses that are lost."""
        self.voters = tuple(range(1, voters + 1))
        self.static = static
        self.settings = settings
        self.quorum_settings = quorum_settings or QuorumSettings()
        self.max_idle_ms = max_idle_ms
        self.runs: dict[int, NodeRun] = {}
        self.partitioned: set[int] = set()
        self.lost_disks: set[int] = set()
        self.observers: set[int] = set()
        self.foreign_nodes: set[int] = set()
        """Nodes that were formatted for another cluster."""
        self.acknowledged: list[str] = []
        self.requests_sent = 0  # between nodes
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> MetadataQuorum:
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        for each in self.voters:
            self.start(each)
        return self

    async def __aexit__(self, *failure: Any) -> Any:
        for node_run in self.runs.values():
            node_run.end()
        await self.until(lambda: all(node_run.ended.is_set() for node_run in self.runs.values()))
        return await self._manager.__aexit__(*failure)

    # Start and stop

    def start(
        self, node_id: int, disk: VirtualDisk | None = None, *, may_vote: bool = True
    ) -> NodeRun:
        """Start a node on a disk, by default a new one."""
        assert self._nursery is not None
        fresh = disk is None
        if disk is None:
            disk = VirtualDisk()
            disk.mount(ROOT)
        node = self.world.node(f"node-{node_id}", disk)
        node.offload.delay_seconds = self.disk_seconds
        node.disk.is_slow = self.disk_seconds > 0
        if fresh and not self.static and node_id in self.voters and node_id not in self.lost_disks:
            members = [voter_of(each) for each in self.voters]
            write_first_snapshot(node.files, ROOT, members, now_ms=node.seams.clock.wall_ms())
        if not may_vote:
            self.observers.add(node_id)
        may_vote = node_id not in self.observers
        node_run = NodeRun(node_id, node, self._metadata(node, node_id, may_vote=may_vote))
        node_run.metadata.on_active(node_run.activity.append)
        node_run.metadata.subscribe(node_run.deltas.append)
        self.runs[node_id] = node_run
        self._nursery.start_soon(self._run_node, node_run)
        return node_run

    def _metadata(self, node: VirtualNode, node_id: int, *, may_vote: bool) -> MetadataManager:
        where = [Endpoint("CONTROLLER", f"host-{node_id}", 9093, 0)]
        static = {each: (f"host-{each}", 9093) for each in self.voters}
        member = QuorumMember(
            node_id,
            "another" if node_id in self.foreign_nodes else "cluster",
            directory_of(node_id + 100 * (node_id in self.lost_disks)),
            tuple(where) if may_vote else (),
            static_voters=static if self.static else {},
            bootstrap_servers=tuple(
                (f"host-{each}", 9093) for each in self.voters if each != node_id
            ),
            can_become_voter=may_vote,
        )
        settings = MetadataSettings(
            self.settings or MetadataLogSettings(),
            self.quorum_settings or QuorumSettings(),
            max_idle_ms=self.max_idle_ms,
        )
        return MetadataManager(
            node.seams, ROOT, member, channel=InMemoryChannel(self, node_id), settings=settings
        )

    async def _run_node(self, node_run: NodeRun) -> None:
        try:
            with node_run.scope:
                async with trio.open_nursery() as nursery:
                    await node_run.metadata.start()
                    node_run.nursery = nursery
                    await node_run.metadata.run()
        except BaseException as error:
            if not _crashed(error):
                raise
        finally:
            node_run.nursery = None
            node_run.ended.set()

    async def crash(self, node_id: int) -> VirtualDisk:
        """Crash a node, and return its disk with the data that survived."""
        node_run = self.runs.pop(node_id)
        node_run.end()
        while not node_run.ended.is_set():
            await self.pass_time(0.01)
        return node_run.node.disk.crash(self.world.seed)

    async def restart(self, node_id: int) -> NodeRun:
        return self.start(node_id, await self.crash(node_id))

    async def stop(self, node_id: int) -> VirtualDisk:
        """Shut a node down: it resigns, and flushes its log."""
        node_run = self.runs[node_id]
        await self.during(lambda: node_run.metadata.shut_down(5.0))
        node_run.scope.cancel()
        while not node_run.ended.is_set():
            await self.pass_time(0.01)
        await self.during(node_run.metadata.close)
        del self.runs[node_id]
        return node_run.node.disk

    # Time

    async def pass_time(self, seconds: float) -> None:
        await self.world.clock.run_for(seconds)

    async def until(self, reached: Callable[[], T], within: float = 20.0) -> T:
        """Advance time until the condition is true."""
        waited = 0.0
        while not (found := reached()):
            assert waited < within, [self.describe(each) for each in self.runs.values()]
            await self.pass_time(0.01)
            waited += 0.01
        return found

    async def during(self, call: Callable[[], Any], within: float = 20.0) -> Any:
        """Advance time until the call has returned."""
        results: list[Any] = []
        failures: list[BaseException] = []

        async def run() -> None:
            try:
                results.append(await call())
            except (KafkaError, NodeCrashed) as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await self.until(lambda: results or failures, within)
        if failures:
            raise failures[0]
        return results[0]

    # Operations

    def up(self) -> list[NodeRun]:
        return [each for each in self.runs.values() if each.is_up]

    def active(self) -> list[NodeRun]:
        return [each for each in self.up() if each.metadata.is_active]

    async def leader(self) -> NodeRun:
        """Wait for the active controller of the latest epoch that is not partitioned."""

        def found() -> NodeRun | None:
            active = [each for each in self.active() if each.id not in self.partitioned]
            return max(active, key=lambda each: each.metadata.leader_epoch, default=None)

        return await self.until(found)

    async def commit(self, name: str) -> None:
        """Commit through the leader; retried if it lost its epoch."""
        while True:
            leader = await self.leader()
            try:
                await self.during(partial(leader.metadata.commit, [set_config(name)]))
            except (KafkaError, NodeCrashed):
                continue
            self.acknowledged.append(name)
            return

    async def snapshots(self) -> None:
        """Take a snapshot on every node."""
        for node_run in self.up():
            with suppress(NodeCrashed):
                await self.during(node_run.metadata.take_snapshot)

    async def until_equal(self, within: float = 20.0) -> None:
        """Wait until all nodes have the same image with all acknowledged commits."""

        def same() -> bool:
            images = [each.metadata.image for each in self.up()]
            first = replace(images[0], timestamp_ms=0)
            return len(images) == len(self.runs) and all(
                replace(each, timestamp_ms=0) == first for each in images
            )

        await self.until(same, within)
        for each in self.up():
            missing = set(self.acknowledged) - set(configs(each.metadata.image))
            assert not missing, f"node {each.id} lacks {sorted(missing)}"

    def describe(self, node_run: NodeRun) -> str:
        quorum, cut = (
            node_run.metadata.quorum,
            ", partitioned" if node_run.id in self.partitioned else "",
        )
        return (
            f"{node_run.id}{'' if node_run.is_up else ' down'} of {quorum.leader_id} in "
            f"{quorum.leader_epoch}, {node_run.metadata.image.offset} of {quorum.high_watermark} of "
            f"{quorum.log_end_offset}{', active' if node_run.metadata.is_active else ''}{cut}"
        )


class InMemoryChannel:
    """Network channel of one node."""

    def __init__(self, nodes: MetadataQuorum, node_id: int) -> None:
        self._nodes = nodes
        self._me = node_id
        self._next_server = 0
        self._chance = random.Random(f"{nodes.world.seed} {node_id}")

    async def send_request(
        self, to: int, endpoints: Endpoints, request: RaftRequest
    ) -> RaftResponse:
        nodes = self._nodes
        if to == BOOTSTRAP_SERVER:
            others = [each for each in nodes.voters if each != self._me]
            self._next_server += 1
            to = others[self._next_server % len(others)]
        nodes.requests_sent += 1
        await trio.sleep(DELAY_SECONDS)
        self._lose_at_random()
        node_run = nodes.runs.get(to)
        if {self._me, to} & nodes.partitioned:
            await trio.sleep(1.5)
            raise RequestFailed(f"node {to} is partitioned")
        if node_run is None or node_run.nursery is None or not node_run.node.power.on:
            raise NodeNotRunning(f"node {to} is down")
        if isinstance(request, ApiVersionsRequest):
            return ApiVersionsResponse(kraft_versions=(0, 1))
        responses: list[RaftResponse] = []
        done = trio.Event()
        node_run.nursery.start_soon(_serve, node_run, replace(request), responses, done)
        await done.wait()
        await trio.sleep(DELAY_SECONDS)
        self._lose_at_random()
        if not responses or {self._me, to} & nodes.partitioned:
            raise RequestFailed(f"node {to} closed the connection")
        return responses[0]

    def _lose_at_random(self) -> None:
        if self._chance.random() < self._nodes.loss:
            raise RequestFailed("the message was lost")


async def _serve(
    node_run: NodeRun, request: RaftRequest, responses: list[RaftResponse], done: trio.Event
) -> None:
    try:
        responses.append(await node_run.metadata.handle_request(request))
    except (KafkaError, NodeCrashed):
        pass
    finally:
        done.set()


def _crashed(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_crashed(each) for each in error.exceptions)
    return isinstance(error, NodeCrashed | trio.Cancelled)


def values(runs: Sequence[NodeRun]) -> list[set[str]]:
    return [set(configs(each.metadata.image)) for each in runs]


def play(
    scenario: Callable[[MetadataQuorum], Awaitable[None]],
    *,
    seed: int = 1,
    voters: int = 3,
    **how: object,
) -> None:
    world = VirtualWorld(seed)

    async def main() -> None:
        async with MetadataQuorum(world, voters, **how) as quorum:  # type: ignore[arg-type]
            await scenario(quorum)

    world.run(main)
