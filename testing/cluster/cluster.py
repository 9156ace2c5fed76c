"""`odradek.testing.Cluster`: a cluster of real processes, and the faults that a test injects.

    with Cluster(brokers=3) as cluster:
        client = MyClient(cluster.bootstrap)
        cluster.kill(1)

Under plain `with`, a thread with a trio loop runs the operations, and each call returns when its
operation is done. `async with Cluster(…)` returns a `RunningCluster` with the same methods; those
that wait are async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from odradek.broker.config.tiered_option import absolute_target
from odradek.broker.local_cluster.nodes import NodeState, Software
from odradek.broker.local_cluster.odradek_nodes import OdradekNodes
from odradek.seams.loop_thread import LoopThread
from odradek.seams.real import real_seams
from odradek.testing.cluster.links import LinkEnd
from odradek.testing.cluster.running_cluster import (
    ClusterOptions,
    NodeIds,
    RunningCluster,
    run_cluster,
)
from odradek.testing.trio_checks import check_trio
from odradek.testing.unpatched_clock import UnpatchedTrioClock

T = TypeVar("T")

START_SECONDS = 120.0


class Cluster:
    """A cluster of `brokers` nodes on free ports of 127.0.0.1, with broker ids from 1.

    With `controllers=0`, the first three brokers are also controllers; otherwise `controllers`
    nodes have only that role. `configs` are Kafka config names and values, and apply to every node.
    `data` is a directory to use and keep; without it the data is temporary, and the nodes are
    killed at the end. `software` is the program that the nodes run (default: Odradek). With
    `proxied=False` no proxy forwards the connections: throughput is higher, and network faults are
    not available. Each broker has `log_directories` log directories; the metadata log is in the
    first one. `tiered` is the remote tier of tiered storage: a directory or a URL, or True for a
    directory next to the data. `diskless` is the store of diskless topics, likewise.
    """

    def __init__(
        self,
        *,
        brokers: int = 3,
        controllers: int = 0,
        configs: Mapping[str, str] | None = None,
        data: str | Path | None = None,
        software: Software | None = None,
        proxied: bool = True,
        log_directories: int = 1,
        tiered: bool | str | Path = False,
        diskless: bool | str | Path = False,
    ) -> None:
        place = None if data is None else str(data)
        self._wanted = ClusterOptions(
            brokers,
            controllers,
            configs,
            place,
            proxied,
            log_directories,
            tiered if isinstance(tiered, bool) else absolute_target(str(tiered)),
            diskless
            if isinstance(diskless, bool)
            else absolute_target(str(diskless), "diskless topics"),
        )
        self._software = OdradekNodes(real_seams()) if software is None else software
        self._context: AbstractAsyncContextManager[RunningCluster] | None = None
        self._thread: LoopThread[RunningCluster] | None = None

    @property
    def running(self) -> RunningCluster:
        """The cluster that runs in the thread, for calls that need no thread: addresses, state,
        logs."""
        if self._thread is None:
            raise RuntimeError("the cluster is not running: enter it by `with`")
        return self._thread.value

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for a client's bootstrap.servers."""
        return self.running.bootstrap

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids of the brokers."""
        return self.running.brokers

    @property
    def controllers(self) -> tuple[int, ...]:
        """The ids of the nodes that are controllers."""
        return self.running.controllers

    def address(self, broker: int) -> str:
        """`HOST:PORT` of the broker's client listener."""
        return self.running.address(broker)

    def log_directories(self, broker: int) -> tuple[str, ...]:
        """The broker's log directories, in the order of `log.dirs`."""
        return self.running.log_directories(broker)

    def pid(self, node: int) -> int | None:
        """The process id of a node; None if it is not running."""
        return self.running.pid(node)

    def state(self, node: int) -> NodeState:
        return self.running.state(node)

    def log(self, node: int) -> str:
        """The end of the node's stdout and stderr."""
        return self.running.log(node)

    def kill(self, nodes: NodeIds) -> None:
        """Send SIGKILL; returns when the processes have ended."""
        self._await(self.running.kill, nodes)

    def stop(self, nodes: NodeIds) -> None:
        """Send SIGTERM; returns after the clean shutdown. Raises NodeFailed on a timeout."""
        self._await(self.running.stop, nodes)

    def restart(self, nodes: NodeIds, *, wait: bool = True) -> None:
        """Stop the nodes that run, and start all of them; returns once they are ready if `wait`."""
        self._await(partial(self.running.restart, wait=wait), nodes)

    def wait_ready(self, nodes: NodeIds) -> None:
        """Wait until these nodes are ready and list each other in their metadata."""
        self._await(self.running.wait_ready, nodes)

    def pause(self, nodes: NodeIds) -> None:
        """Send SIGSTOP: the nodes stop, with their connections open, until `resume`."""
        self._call(self.running.pause, nodes)

    def resume(self, nodes: NodeIds) -> None:
        """Send SIGCONT to paused nodes."""
        self._call(self.running.resume, nodes)

    def partition(
        self, nodes: NodeIds, others: Iterable[LinkEnd] | None = None, *, one_way: bool = False
    ) -> None:
        """Block all traffic between `nodes` and `others` (default: all other nodes, but not
        CLIENTS).

        Connections stay open without traffic; bytes that were sent arrive after `heal`. With
        `one_way`, only traffic from `nodes` is blocked.
        """
        self._call(partial(self.running.partition, one_way=one_way), nodes, others)

    def degrade(
        self,
        *,
        latency_ms: float = 0,
        bytes_per_s: float | None = None,
        among: Iterable[LinkEnd] | None = None,
    ) -> None:
        """Add latency, and limit the rate, in each direction between two of `among` (default:
        nodes)."""
        degraded = partial(
            self.running.degrade, latency_ms=latency_ms, bytes_per_s=bytes_per_s, among=among
        )
        self._call(degraded)

    def heal(self) -> None:
        """Remove all partitions, latencies and rate limits."""
        self._call(self.running.heal)

    async def __aenter__(self) -> RunningCluster:
        check_trio()
        self._check_not_running()
        self._context = run_cluster(self._wanted, self._software)
        try:
            return await self._context.__aenter__()
        except BaseException:
            self._context = None
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._context is not None
        context, self._context = self._context, None
        return await context.__aexit__(kind, error, trace)

    def __enter__(self) -> Cluster:
        self._check_not_running()
        self._thread = LoopThread(
            partial(run_cluster, self._wanted, self._software),
            name="odradek-cluster",
            start_s=START_SECONDS,
            clock=UnpatchedTrioClock(),
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def _check_not_running(self) -> None:
        if self._thread is not None or self._context is not None:
            raise RuntimeError("the cluster runs already: make another one, or use it as it is")

    def _await(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        assert self._thread is not None
        return self._thread.call(function, *args)

    def _call(self, function: Callable[..., T], *args: object) -> T:
        assert self._thread is not None
        return self._thread.call_sync(partial(function, *args))
