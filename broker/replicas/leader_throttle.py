"""Leader side of the replication quota (KIP-73): throttles followers outside the ISR.

A throttled follower gets no records, only the log offsets. In-sync followers are never throttled,
because they would fall behind and leave the ISR. A throttled fetch still counts for the follower's
progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from odradek.broker.config.server_config import ServerConfig
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.replication.partition.partition import Partition
from odradek.replication.replication_quota import ReplicationQuota, is_throttled
from odradek.seams.clock import Clock
from odradek.seams.files import FileSlice

REPLICAS = "leader.replication.throttled.replicas"
RATE = "leader.replication.throttled.rate"


class LeaderThrottle:
    """Replication quota of the partitions that this node leads."""

    def __init__(
        self,
        config: ServerConfig,
        topic_configs: Callable[[str], Mapping[str, str]],
        clock: Clock,
    ) -> None:
        """`topic_configs` returns the config overrides of a topic."""
        self._node_id = config.node_id
        self._topic_configs = topic_configs
        self._clock = clock
        self._quota = ReplicationQuota(
            lambda: config.get_int(RATE),
            samples=config.get_int("replication.quota.window.num"),
            sample_seconds=config.get_int("replication.quota.window.size.seconds"),
        )

    def is_held_back(self, partition: Partition, follower: int) -> bool:
        """Whether `follower` currently gets no records of `partition`."""
        leader_role = partition.leader_role
        return (
            leader_role is not None
            and self._quota.is_exceeded(self._clock.monotonic())
            and follower not in leader_role.state.isr.committed
            and self._is_throttled(partition)
        )

    def sent(self, responses: Iterable[tuple[Partition, FetchedPartition]]) -> None:
        """Count the bytes of these responses to a follower."""
        size_bytes = sum(
            part.size if isinstance(part, FileSlice) else len(part)
            for partition, response in responses
            if response.records and self._is_throttled(partition)
            for part in response.records
        )
        if size_bytes:
            self._quota.record(size_bytes, self._clock.monotonic())

    def _is_throttled(self, partition: Partition) -> bool:
        replicas = self._topic_configs(partition.topic).get(REPLICAS)
        return bool(replicas) and is_throttled(
            [each.strip() for each in (replicas or "").split(",")], partition.index, self._node_id
        )
