"""Throttle configs of reassignments: set when a reassignment starts, and removed when it is complete.

`--throttle` limits replication between brokers, `--replica-alter-log-dirs-throttle` limits moves between
the log directories of a broker; neither affects the other (J-23). The rates are dynamic broker configs;
the throttled replicas of `--throttle` are topic configs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from odradek.client.admin import ConfigChange, ConfigOperation, ResourceType, alter_configs
from odradek.client.metadata import Cluster
from odradek.client.reassignment_admin import Reassignment
from odradek.protocol.topics import TopicPartition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

BROKER_CONFIGS = (LEADER_RATE, FOLLOWER_RATE, MOVE_RATE)
TOPIC_CONFIGS = (LEADER_REPLICAS, FOLLOWER_REPLICAS)


async def throttle_moves(cluster: Cluster, brokers: Iterable[int], rate: int) -> None:
    """Limit moves between log directories to `rate` bytes/s per broker."""
    await _alter_brokers(cluster, brokers, {MOVE_RATE: rate})


async def throttle_replication(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, Collection[int]],
    current: Mapping[TopicPartition, Collection[int]],
    active: Mapping[TopicPartition, Reassignment],
    rate: int,
) -> None:
    """Limit replication between brokers to `rate` bytes/s per broker."""
    moves = _moves(wanted, current, active)
    for topic in dict.fromkeys(where.topic for where in moves):
        leaders, followers = (
            ",".join(
                f"{where.partition}:{broker}"
                for where in sorted(moves)
                if where.topic == topic
                for broker in sorted(moves[where][end])
            )
            for end in (0, 1)
        )
        changes = [_set(LEADER_REPLICAS, leaders), _set(FOLLOWER_REPLICAS, followers)]
        await alter_configs(cluster, ResourceType.TOPIC, topic, changes)
    brokers = {broker for ends in moves.values() for end in ends for broker in end}
    await _alter_brokers(cluster, brokers, {LEADER_RATE: rate, FOLLOWER_RATE: rate})


def _moves(
    wanted: Mapping[TopicPartition, Collection[int]],
    current: Mapping[TopicPartition, Collection[int]],
    active: Mapping[TopicPartition, Reassignment],
) -> dict[TopicPartition, tuple[set[int], set[int]]]:
    """Source and target brokers of the replicas of each partition."""
    moves = {
        where: (set(each.replicas) - set(each.adding), set(each.adding))
        for where, each in active.items()
    }
    for where, replicas in wanted.items():
        sources = moves[where][0] if where in moves else set(current[where])
        moves[where] = (sources, set(replicas) - sources)
    return moves


async def clear_throttles(cluster: Cluster, brokers: Iterable[int], topics: Iterable[str]) -> None:
    """Remove all throttle configs of the brokers and topics, whatever command set them."""
    unset = [ConfigChange(ConfigOperation.DELETE, name) for name in BROKER_CONFIGS]
    for broker in sorted(brokers):
        await alter_configs(cluster, ResourceType.BROKER, str(broker), unset)
    unset = [ConfigChange(ConfigOperation.DELETE, name) for name in TOPIC_CONFIGS]
    for topic in topics:
        await alter_configs(cluster, ResourceType.TOPIC, topic, unset)


async def _alter_brokers(
    cluster: Cluster, brokers: Iterable[int], rates: Mapping[str, int]
) -> None:
    changes = [_set(name, str(rate)) for name, rate in rates.items()]
    for broker in sorted(brokers):
        await alter_configs(cluster, ResourceType.BROKER, str(broker), changes)


def _set(name: str, value: str) -> ConfigChange:
    return ConfigChange(ConfigOperation.SET, name, value)
