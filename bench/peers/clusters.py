"""Three brokers as a target: one cluster, each broker a process, all of them controllers too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odradek.bench import machine
from odradek.bench.model import PeerFailed, Target
from odradek.bench.peers.topics import AdminTopics
from odradek.broker.local_cluster.nodes import NodeFailed, Software
from odradek.testing.cluster.blocking import Cluster

BROKERS = 3


class ClusterProcess:
    """`model.ServerProcess` for all nodes together; what would be done to all is nobody's wish."""

    def __init__(self, cluster: Cluster, exec_started_at: float) -> None:
        self._cluster = cluster
        self.exec_started_at = exec_started_at
        self.answered_at = time.monotonic()

    @property
    def pid(self) -> int:
        """The first node's."""
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
def three_brokers(peer: str, software: Software, directory: Path) -> Iterator[Target]:
    """A new cluster in `directory`, killed at the end. Raises PeerFailed."""
    began = time.monotonic()
    try:
        with Cluster(
            brokers=BROKERS, data=directory / "cluster", software=software, proxied=False
        ) as cluster:
            topics = AdminTopics(cluster.bootstrap, replicas=BROKERS)
            process = ClusterProcess(cluster, began)
            try:
                yield Target(peer, cluster.bootstrap, topics, process, cluster)
            finally:
                cluster.kill(cluster.brokers)
    except NodeFailed as failed:
        raise PeerFailed(str(failed)) from failed
