"""`odradek.testing.Cluster`: a cluster of real processes, to be used, and broken, by a test.

    with Cluster(brokers=3) as cluster:
        client = MyClient(cluster.bootstrap)
        cluster.kill(1)

Under plain `with` a thread with a trio loop in it does what is asked, and each call returns when it is
done. `async with Cluster(…)` gives a `RunningCluster`: the same verbs, to be awaited where they wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from odradek.broker.config.tiered import absolute_target
from odradek.broker.local_cluster.nodes import NodeState, Software
from odradek.broker.local_cluster.odradek_nodes import OdradekNodes
from odradek.seams.loop_thread import LoopThread
from odradek.seams.real import real_seams
from odradek.testing.cluster.links import End
from odradek.testing.cluster.running import NodeIds, RunningCluster, Wanted, run_cluster
from odradek.testing.loops import check_trio

T = TypeVar("T")

START_SECONDS = 120.0


class Cluster:
    """`brokers` nodes on free ports of 127.0.0.1; the first three are the controllers, too, unless
    `controllers` asks for nodes that are nothing else. Brokers have the ids from 1 on.

    `configs` are every node's, by Kafka's names. `data` is a directory to use and keep; without one the
    data is temporary, and the nodes are killed at the end. `software` is what the nodes run, Odradek
    unless it is given. Without proxies (`proxied`) bytes travel faster, and the network has no faults.
    Each broker has so many `log_directories`; the metadata log is in the first. `tiered` is the remote
    tier of tiered storage: a directory or a URL, or True for a directory beside the data.
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
    ) -> None:
        place = None if data is None else str(data)
        self._wanted = Wanted(
            brokers,
            controllers,
            configs,
            place,
            proxied,
            log_directories,
            tiered if isinstance(tiered, bool) else absolute_target(str(tiered)),
        )
        self._software = OdradekNodes(real_seams()) if software is None else software
        self._context: AbstractAsyncContextManager[RunningCluster] | None = None
        self._thread: LoopThread[RunningCluster] | None = None

    @property
    def running(self) -> RunningCluster:
        """What the thread has, for what needs no thread: addresses, the plan, logs."""
        if self._thread is None:
            raise RuntimeError("the cluster is not running: enter it by `with`")
        return self._thread.value

    @property
    def bootstrap(self) -> str:
        """All brokers, for any client's bootstrap.servers."""
        return self.running.bootstrap

    @property
    def brokers(self) -> tuple[int, ...]:
        """The brokers' ids."""
        return self.running.brokers

    @property
    def controllers(self) -> tuple[int, ...]:
        """The ids of the nodes that are controllers."""
        return self.running.controllers

    def address(self, broker: int) -> str:
        """`HOST:PORT` of a broker, for its clients."""
        return self.running.address(broker)

    def log_directories(self, broker: int) -> tuple[str, ...]:
        """The broker's, in the order of `log.dirs`."""
        return self.running.log_directories(broker)

    def pid(self, node: int) -> int | None:
        """Its process; None if it has none now."""
        return self.running.pid(node)

    def state(self, node: int) -> NodeState:
        return self.running.state(node)

    def log(self, node: int) -> str:
        """The end of what a node wrote on stdout and stderr."""
        return self.running.log(node)

    def kill(self, nodes: NodeIds) -> None:
        """SIGKILL; returns when they are gone."""
        self._await(self.running.kill, nodes)

    def stop(self, nodes: NodeIds) -> None:
        """SIGTERM; returns after the clean end. NodeFailed if that takes too long."""
        self._await(self.running.stop, nodes)

    def restart(self, nodes: NodeIds, *, wait: bool = True) -> None:
        """Start them again, stopping first whichever is running; returns once they answer."""
        self._await(partial(self.running.restart, wait=wait), nodes)

    def wait_ready(self, nodes: NodeIds) -> None:
        """Wait until these answer and show each other."""
        self._await(self.running.wait_ready, nodes)

    def pause(self, nodes: NodeIds) -> None:
        """SIGSTOP: they stand still, with their connections open, until `resume`."""
        self._call(self.running.pause, nodes)

    def resume(self, nodes: NodeIds) -> None:
        """SIGCONT."""
        self._call(self.running.resume, nodes)

    def partition(
        self, nodes: NodeIds, others: Iterable[End] | None = None, *, one_way: bool = False
    ) -> None:
        """Nothing passes between `nodes` and `others`: by default all other nodes, but not CLIENTS.

        Connections stay open and are silent; what was sent arrives after `heal`. `one_way` holds back
        only what `nodes` send.
        """
        self._call(partial(self.running.partition, one_way=one_way), nodes, others)

    def degrade(
        self,
        *,
        latency_ms: float = 0,
        bytes_per_s: float | None = None,
        among: Iterable[End] | None = None,
    ) -> None:
        """Delay and narrow each way between two of `among` (by default the nodes)."""
        degraded = partial(
            self.running.degrade, latency_ms=latency_ms, bytes_per_s=bytes_per_s, among=among
        )
        self._call(degraded)

    def heal(self) -> None:
        """End all partitions and degradations."""
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
