"""View of topics and brokers for clients of one listener.

Metadata and DescribeTopicPartitions use it. A broker without the client's listener is treated as unavailable.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from odradek.broker.requests.context import RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition, name_error
from odradek.replication.controller.image import (
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.seams.values import value_class

NO_LEADER = -1
NO_CONTROLLER = -1


class InvalidTopic(KafkaError):
    code = ErrorCode.invalid_topic_exception


def check_topic_name(name: str) -> None:
    """Check the name. Raises InvalidTopic."""
    reason = name_error(name)
    if reason is not None:
        raise InvalidTopic(reason)


def missing_topic_error(name: str) -> ErrorCode:
    """Error of a topic that does not exist."""
    if name_error(name) is not None:
        return ErrorCode.invalid_topic_exception
    return ErrorCode.unknown_topic_or_partition


@value_class
class PartitionView:
    index: int
    leader: int
    """NO_LEADER if no leader is available on the listener."""
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]
    elr: Sequence[int]
    last_known_elr: Sequence[int]
    leader_known: bool
    """Whether the image has a leader, which may lack the listener."""


class TopicView:
    """One metadata image and one listener, for one request."""

    def __init__(self, ctx: RequestContext) -> None:
        services = ctx.services
        self._ctx = ctx
        self.image: MetadataImage = services.metadata.image
        self._listener = ctx.endpoint.name
        self._node_id = services.node_id
        self._offline_here: Collection[TopicPartition] = frozenset(services.logs.offline)
        self._reachable = {
            each.id: each
            for each in self.image.brokers.values()
            if not each.fenced and each.endpoint(self._listener) is not None
        }

    def brokers(self, *, fenced: bool = False) -> list[tuple[BrokerImage, Endpoint]]:
        """Brokers with the listener, by id."""
        return [
            (broker, endpoint)
            for _, broker in sorted(self.image.brokers.items())
            if (fenced or not broker.fenced)
            and (endpoint := broker.endpoint(self._listener)) is not None
        ]

    def controller_id(self) -> int:
        """Any live broker, as controller for clients: brokers forward changes."""
        alive = [broker.id for broker in self.image.brokers.values() if not broker.fenced]
        if self._node_id in alive:
            return self._node_id
        return min(alive, default=NO_CONTROLLER)

    def alive(self, replicas: Sequence[int]) -> list[int]:
        return [replica for replica in replicas if replica in self._reachable]

    def partitions(self, topic: str) -> list[PartitionView]:
        """Partitions of a topic by index; empty if the topic does not exist."""
        found = self.image.topics_by_name.get(topic)
        if found is None:
            return []
        if found.is_diskless:
            return self._diskless_partitions(found)
        return [
            self._partition(topic, index, partition)
            for index, partition in sorted(found.partitions.items())
        ]

    def _diskless_partitions(self, topic: TopicImage) -> list[PartitionView]:
        """Partitions with a produce gateway as their only replica, because clients need a leader."""
        from odradek.broker.diskless.client_view import leaders_of_topic

        leaders = leaders_of_topic(topic, self._ctx, self.image, self._reachable)
        return [
            PartitionView(
                index,
                leader,
                0,
                replicas := [] if leader == NO_LEADER else [leader],
                replicas,
                [],
                (),
                (),
                leader != NO_LEADER,
            )
            for index, leader in sorted(leaders.items())
        ]

    def _partition(self, topic: str, index: int, partition: PartitionImage) -> PartitionView:
        offline = [
            replica
            for replica, directory in zip(partition.replicas, partition.directories, strict=True)
            if (broker := self._reachable.get(replica)) is None
            or not broker.has_online(directory)
            or self._lost_here(topic, index, replica)
        ]
        leader = self.image.brokers.get(partition.leader)
        in_reach = partition.leader in self._reachable or (
            leader is not None and leader.endpoint(self._listener) is not None
        )
        lost = self._lost_here(topic, index, partition.leader)
        return PartitionView(
            index,
            partition.leader if in_reach and not lost else NO_LEADER,
            partition.leader_epoch,
            partition.replicas,
            partition.isr,
            offline,
            partition.elr,
            partition.last_known_elr,
            leader is not None and not lost,
        )

    def _lost_here(self, topic: str, index: int, replica: int) -> bool:
        """Whether the replica is in a failed log directory of this node that the image does not show yet."""
        return (
            bool(self._offline_here)
            and replica == self._node_id
            and TopicPartition(topic, index) in self._offline_here
        )
