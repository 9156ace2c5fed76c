"""Starts a cluster of three brokers as a target: each node is a process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from odradek.bench import machine
from odradek.bench.model import DISKLESS_OBJECTS, TIER, PeerFailed, Target
from odradek.bench.peers.topics import AdminTopics
from odradek.broker.config.diskless_option import diskless_storage_settings
from odradek.broker.local_cluster.nodes import NodeFailed, Software
from odradek.broker.local_cluster.plan import ClusterPlan, NodePlan
from odradek.testing.cluster.cluster import Cluster

BROKERS = 3
TIERED: Mapping[str, str] = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "rsm.config.delete.on.close": "false",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
    "rlmm.config.remote.log.metadata.topic.replication.factor": str(BROKERS),
    "remote.log.manager.task.interval.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
}
"""Remote storage in a directory, with intervals of 1 s instead of 30 s and 5 minutes."""
OF_A_NODE = frozenset(
    (
        "node.id",
        "controller.quorum.bootstrap.servers",
        "listeners",
        "advertised.listeners",
        "log.dirs",
        "rsm.config.dir",
        "diskless.storage.url",
    )
)
"""Settings with addresses, ids and paths, which differ by node or run."""


class TimedSoftware:
    """`Software` that notes when its first node is executed, so that formatting is not measured."""

    def __init__(self, software: Software) -> None:
        self._software = software
        self.exec_started_at: float | None = None

    async def format(self, plan: ClusterPlan) -> None:
        await self._software.format(plan)

    def command(self, node: NodePlan) -> Sequence[str]:
        """Return the command of a node. It is called right before the execution."""
        command = self._software.command(node)
        if self.exec_started_at is None:
            self.exec_started_at = time.monotonic()
        return command


class ClusterProcess:
    """`model.ServerProcess` for all nodes of a cluster together."""

    def __init__(self, cluster: Cluster, exec_started_at: float) -> None:
        self._cluster = cluster
        self.exec_started_at = exec_started_at
        self.responded_at = time.monotonic()

    @property
    def pid(self) -> int:
        """Return the process id of the first node."""
        return self._pids[0]

    @property
    def _pids(self) -> list[int]:
        found = [self._cluster.pid(broker) for broker in self._cluster.brokers]
        return [pid for pid in found if pid is not None]

    def cpu_seconds(self) -> float:
        return sum(map(machine.tree_cpu_s, self._pids))

    def resident_bytes(self) -> int:
        return sum(map(machine.tree_resident_bytes, self._pids))

    def kill(self) -> None:
        self._cluster.kill(self._cluster.brokers)

    def stop(self) -> None:
        self._cluster.stop(self._cluster.brokers)

    def restart(self) -> None:
        self._cluster.restart(self._cluster.brokers)

    def log(self) -> str:
        return "\n".join(self._cluster.log(broker) for broker in self._cluster.brokers)


@contextmanager
def three_brokers(
    peer: str,
    software: Software,
    directory: Path,
    *,
    configs: Mapping[str, str] | None = None,
    controllers: int = 0,
    further: Mapping[str, str] | None = None,
) -> Iterator[Target]:
    """Run a new cluster in `directory`, and kill it at the end.

    The brokers are also controllers unless `controllers` is positive. `further` are settings outside the nodes'
    configs, for the results. Raises PeerFailed.
    """
    timed = TimedSoftware(software)
    try:
        with Cluster(
            brokers=BROKERS,
            controllers=controllers,
            configs=configs,
            data=directory / "cluster",
            software=timed,
            proxied=False,
        ) as cluster:
            topics = AdminTopics(cluster.bootstrap, replicas=BROKERS)
            assert timed.exec_started_at is not None, "its nodes respond"
            process = ClusterProcess(cluster, timed.exec_started_at)
            settings = {**_settings(cluster.running.plan), **(further or {})}
            try:
                yield Target(peer, cluster.bootstrap, topics, process, cluster, settings)
            finally:
                cluster.kill([*cluster.brokers, *cluster.controllers])
    except NodeFailed as failed:
        raise PeerFailed(str(failed)) from failed


def _settings(plan: ClusterPlan) -> dict[str, str]:
    """Return the settings of a broker without addresses, ids and paths."""
    found = plan.properties(plan.brokers[0])
    return {key: text for key, text in found.items() if key not in OF_A_NODE}


@contextmanager
def three_tiered_brokers(
    peer: str, software: Software, directory: Path, *, further: Mapping[str, str] | None = None
) -> Iterator[Target]:
    """Run three brokers and a separate controller, with remote storage in `TIER`."""
    tier = directory / TIER
    tier.mkdir()
    configs = {**TIERED, "rsm.config.dir": str(tier)}
    with three_brokers(
        peer, software, directory, configs=configs, controllers=1, further=further
    ) as target:
        yield target


@contextmanager
def three_diskless_brokers(peer: str, software: Software, directory: Path) -> Iterator[Target]:
    """Run three brokers and a separate controller, with the store of diskless topics in a directory."""
    objects = directory / "objects"
    objects.mkdir()
    configs = diskless_storage_settings(str(objects))
    where = {DISKLESS_OBJECTS: str(objects)}
    with three_brokers(
        peer, software, directory, configs=configs, controllers=1, further=where
    ) as target:
        yield target
