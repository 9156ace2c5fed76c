"""A running cluster and its fault injection, for trio. `Cluster` is the same for any thread.

Every listener of every node has its own proxy, whose address the node advertises: clients and other
nodes connect through it, and `links` apply to the traffic. The owner of the connecting socket
identifies the sender (`connection_owner.py`), so that nodes can be partitioned from each other and still
serve their clients.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import trio

from odradek.broker.local_cluster.nodes import NodeFailed, Nodes, NodeState, Software
from odradek.broker.local_cluster.plan import (
    HOST,
    ClusterPlan,
    ListenerAddress,
    NodePlan,
    make_plan,
)
from odradek.broker.local_cluster.ports import free_ports
from odradek.protocol.uuids import uuid_to_text
from odradek.seams.entropy import RealEntropy
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from odradek.testing.cluster.connection_owner import find_connection_owner
from odradek.testing.cluster.links import CLIENTS, LinkEnd, Links, LinkShape
from odradek.testing.cluster.proxy import Proxy

LOG_CHARACTERS = 4000
STOP_S = 30.0

NodeIds = int | Iterable[int]


@dataclass(frozen=True)
class ClusterOptions:
    """The configuration of a cluster; `data` is a directory to use and keep (None: a temporary
    one).

    Without proxies, throughput is higher, and network faults are not available.
    """

    brokers: int = 3
    controllers: int = 0
    configs: Mapping[str, str] | None = None
    data: str | None = None
    proxied: bool = True
    log_directories: int = 1
    tiered: str | bool = False
    """The directory or URL of the remote tier; True: a directory next to the nodes' data."""
    diskless: str | bool = False
    """The directory or URL of the store of diskless topics; True: a directory next to the nodes' data."""


class RunningCluster:
    """The processes of the nodes, and the network between them. All brokers are ready on entry."""

    def __init__(self, nodes: Nodes, links: Links) -> None:
        self.plan = nodes.plan
        self._nodes = nodes
        self._links = links

    def _ids(self, nodes: NodeIds) -> list[int]:
        """Return the ids as a list; raises ValueError for an unknown node."""
        wanted = [nodes] if isinstance(nodes, int) else list(nodes)
        known = [node.node_id for node in self.plan.nodes]
        for each in wanted:
            if each not in known:
                raise ValueError(f"there is no node {each}, only {', '.join(map(str, known))}")
        return wanted

    def _ends(self, ends: Iterable[LinkEnd] | None) -> list[LinkEnd] | None:
        """Return the ends as a list; raises as `_ids` does."""
        if ends is None:
            return None
        wanted = list(ends)
        self._ids(end for end in wanted if isinstance(end, int))
        return wanted

    def _plan_of(self, node: int) -> NodePlan:
        return self.plan.node(*self._ids(node))

    # Addresses and state

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for a client's bootstrap.servers."""
        return ",".join(self.address(node.node_id) for node in self.plan.brokers)

    @property
    def brokers(self) -> tuple[int, ...]:
        return tuple(node.node_id for node in self.plan.brokers)

    @property
    def controllers(self) -> tuple[int, ...]:
        return tuple(node.node_id for node in self.plan.controllers)

    def address(self, broker: int) -> str:
        """`HOST:PORT` of the broker's client listener."""
        clients = self._plan_of(broker).clients
        if clients is None:
            raise ValueError(f"node {broker} is no broker")
        return str(clients.advertised)

    def log_directories(self, broker: int) -> tuple[str, ...]:
        """The broker's log directories, in the order of `log.dirs`."""
        return self._plan_of(broker).log_directories

    @property
    def alive(self) -> tuple[int, ...]:
        """The nodes whose process runs."""
        return tuple(node.node_id for node in self.plan.nodes if self.pid(node.node_id) is not None)

    def pid(self, node: int) -> int | None:
        """The process id of a node; None if it is not running."""
        return self._nodes.pid(*self._ids(node))

    def state(self, node: int) -> NodeState:
        return self._nodes.state(*self._ids(node))

    def log(self, node: int) -> str:
        """The end of the node's stdout and stderr."""
        path = log_file(self._plan_of(node))
        return path.read_text(errors="replace")[-LOG_CHARACTERS:] if path.exists() else ""

    # Process faults

    async def kill(self, nodes: NodeIds) -> None:
        """Send SIGKILL; returns when the processes have ended."""
        await self._nodes.every(self._nodes.kill, self._ids(nodes))

    async def stop(self, nodes: NodeIds) -> None:
        """Send SIGTERM; returns after the clean shutdown. Raises NodeFailed after 30 s."""
        await self._nodes.every(self._stop, self._ids(nodes))

    async def _stop(self, node: int) -> None:
        if not await self._nodes.stop(node, timeout_s=STOP_S):
            raise NodeFailed(
                f"node {node}: not stopped {STOP_S:g} s after SIGTERM\n{self.log(node)}"
            )

    async def restart(self, nodes: NodeIds, *, wait: bool = True) -> None:
        """Stop the nodes that run, and start all of them; returns once they are ready if `wait`."""
        which = self._ids(nodes)
        await self.stop([each for each in which if self.pid(each) is not None])
        await self._nodes.every(self._nodes.start, which)
        if wait:
            await self.wait_ready(which)

    async def wait_ready(self, nodes: NodeIds) -> None:
        """Wait until these nodes are ready and list each other; raises NodeFailed with their logs."""
        which = self._ids(nodes)
        try:
            await self._nodes.wait_ready(which)
        except NodeFailed as failure:
            logs = "\n".join(f"--- node {each}\n{self.log(each)}" for each in which)
            raise NodeFailed(f"{failure}\n{logs}") from None

    def pause(self, nodes: NodeIds) -> None:
        """Send SIGSTOP: the nodes stop, with their connections open, until `resume`."""
        for each in self._ids(nodes):
            self._nodes.pause(each)

    def resume(self, nodes: NodeIds) -> None:
        """Send SIGCONT to paused nodes."""
        for each in self._ids(nodes):
            self._nodes.resume(each)

    # Network faults

    def partition(
        self, nodes: NodeIds, others: Iterable[LinkEnd] | None = None, *, one_way: bool = False
    ) -> None:
        """Block all traffic between `nodes` and `others` (default: all other nodes, but not
        CLIENTS).

        Connections stay open without traffic; bytes that were sent arrive after `heal`, as TCP
        would retransmit them. With `one_way`, only traffic from `nodes` is blocked.
        """
        self._faulty_links.partition(self._ids(nodes), self._ends(others), one_way=one_way)

    def degrade(
        self,
        *,
        latency_ms: float = 0,
        bytes_per_s: float | None = None,
        among: Iterable[LinkEnd] | None = None,
    ) -> None:
        """Add latency, and limit the rate, in each direction between two of `among` (default:
        nodes)."""
        self._faulty_links.shape(LinkShape(latency_ms / 1000, bytes_per_s), self._ends(among))

    def heal(self) -> None:
        """Remove all partitions, latencies and rate limits."""
        self._links.heal()

    @property
    def _faulty_links(self) -> Links:
        if any(
            listener.listen == listener.advertised
            for node in self.plan.nodes
            for _, listener in node.listeners
        ):
            raise RuntimeError("a cluster without proxies has no faults of the network")
        return self._links


def log_file(node: NodePlan) -> Path:
    """The file with the node's stdout and stderr."""
    return Path(node.directory) / "output.log"


@asynccontextmanager
async def run_cluster(wanted: ClusterOptions, software: Software) -> AsyncIterator[RunningCluster]:
    """Run a new cluster while the block is active.

    At its end the nodes are stopped if `wanted.data` is set; otherwise they are killed and the data
    removed.
    """
    failure: Exception | None = None
    with _directory(wanted.data) as directory:
        async with trio.open_nursery() as nursery:
            try:
                cluster = await _start(await _plan(wanted, directory), software, nursery)
                yield cluster
                if wanted.data is not None:
                    cluster.heal()
                    await cluster.stop(cluster.alive)
            except Exception as error:  # raised without the nursery's exception group
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _start(plan: ClusterPlan, software: Software, nursery: trio.Nursery) -> RunningCluster:
    links = Links(node.node_id for node in plan.nodes)
    nodes = Nodes(plan, software, TcpNetwork(), nursery, output=_open_log)
    await _open_proxies(nodes, links, nursery)
    await software.format(plan)
    cluster = RunningCluster(nodes, links)
    await cluster.restart([node.node_id for node in plan.nodes])
    return cluster


async def _plan(wanted: ClusterOptions, directory: str) -> ClusterPlan:
    entropy = RealEntropy()
    # Two addresses a listener, and at most two listeners a node.
    count = 4 * (wanted.brokers + wanted.controllers)
    ports = iter(await free_ports(TcpNetwork(), entropy, HOST, count))
    listeners = (
        ListenerAddress(Address(HOST, next(ports)), Address(HOST, next(ports)))
        for _ in range(count // 2)
    )
    return make_plan(
        brokers=wanted.brokers,
        controllers=wanted.controllers,
        directory=directory,
        new_id=lambda: uuid_to_text(entropy.uuid()),
        addresses=listeners if wanted.proxied else _without_proxies(listeners),
        settings=wanted.configs,
        log_directories=wanted.log_directories,
        tiered=f"{directory}/tier" if wanted.tiered is True else wanted.tiered or None,
        diskless=f"{directory}/diskless" if wanted.diskless is True else wanted.diskless or None,
    )


def _without_proxies(listeners: Iterable[ListenerAddress]) -> Iterator[ListenerAddress]:
    return (ListenerAddress(listener.listen, listener.listen) for listener in listeners)


async def _open_proxies(nodes: Nodes, links: Links, nursery: trio.Nursery) -> None:
    def who(proxy_port: int, port: int) -> LinkEnd:
        pids = {
            node.node_id: pid
            for node in nodes.plan.nodes
            if (pid := nodes.pid(node.node_id)) is not None
        }
        found = find_connection_owner(port, proxy_port, pids)
        return CLIENTS if found is None else found

    for node in nodes.plan.nodes:
        for _, listener in node.listeners:
            if listener.listen == listener.advertised:
                continue
            target = (listener.listen.host, listener.listen.port)
            port = listener.advertised.port
            proxy = Proxy(node.node_id, target, links, partial(who, port))
            await nursery.start(proxy.serve, listener.advertised.host, port)


def _open_log(node: NodePlan) -> IO[bytes]:
    return log_file(node).open("ab")


@contextmanager
def _directory(data: str | None) -> Iterator[str]:
    if data is not None:
        yield str(Path(data).absolute())
        return
    temporary = tempfile.mkdtemp(prefix="odradek-cluster-")
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
