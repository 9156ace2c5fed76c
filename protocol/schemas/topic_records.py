"""Metadata records of topics, their partitions and configs.

The active controller writes them to `__cluster_metadata`, and every node applies them to its metadata image.
Version 1 of a partition's records adds log directories (KIP-858), and version 2 adds the ELR (KIP-966).
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import StoredRecord, record, wire


@record
class TopicRecord(StoredRecord):
    """Creation of a topic with a name and an id."""

    __api_key__: ClassVar[int] = 2
    name: str = wire("string")
    topic_id: UUID = wire("uuid")


@record
class RemoveTopicRecord(StoredRecord):
    """Removal of a topic with its partitions and configs."""

    __api_key__: ClassVar[int] = 9
    topic_id: UUID = wire("uuid")


@record
class PartitionRecord(StoredRecord):
    """Complete state of a partition.

    `directories` are the log directory ids of the replicas, in the order of `replicas`. `diskless_coordinator` is
    private, and Kafka skips it: the partition of `__diskless_metadata` that coordinates a partition of a diskless
    topic, -1 for other topics (KIP-1164, D-14).
    """

    __api_key__: ClassVar[int] = 3
    __versions__: ClassVar[range] = range(3)
    partition_id: int = wire("int32", -1)
    topic_id: UUID = wire("uuid")
    replicas: tuple[int, ...] = wire("[]int32")
    isr: tuple[int, ...] = wire("[]int32")
    removing_replicas: tuple[int, ...] = wire("[]int32")
    adding_replicas: tuple[int, ...] = wire("[]int32")
    leader: int = wire("int32", -1)
    leader_recovery_state: int = wire("int8", tag=0)
    leader_epoch: int = wire("int32", -1)
    partition_epoch: int = wire("int32", -1)
    directories: tuple[UUID, ...] = wire("[]uuid", since=1)
    eligible_leader_replicas: tuple[int, ...] | None = wire(
        "[]int32", None, since=2, tag=1, nullable=True
    )
    last_known_elr: tuple[int, ...] | None = wire("[]int32", None, since=2, tag=2, nullable=True)
    diskless_coordinator: int = wire("int32", -1, tag=21_640)


@record
class PartitionChangeRecord(StoredRecord):
    """Change of a partition. None, -2 for `leader` or -1 for the recovery state means unchanged.

    A leader of -1 means no leader. The record increases the partition epoch. It increases the leader epoch if it sets
    `leader`, or if it removes replicas from the ISR under an old metadata version.
    """

    __api_key__: ClassVar[int] = 5
    __versions__: ClassVar[range] = range(3)
    partition_id: int = wire("int32", -1)
    topic_id: UUID = wire("uuid")
    isr: tuple[int, ...] | None = wire("[]int32", None, tag=0, nullable=True)
    leader: int = wire("int32", -2, tag=1)
    replicas: tuple[int, ...] | None = wire("[]int32", None, tag=2, nullable=True)
    removing_replicas: tuple[int, ...] | None = wire("[]int32", None, tag=3, nullable=True)
    adding_replicas: tuple[int, ...] | None = wire("[]int32", None, tag=4, nullable=True)
    leader_recovery_state: int = wire("int8", -1, tag=5)
    directories: tuple[UUID, ...] | None = wire("[]uuid", None, since=1, tag=8, nullable=True)
    eligible_leader_replicas: tuple[int, ...] | None = wire(
        "[]int32", None, since=2, tag=6, nullable=True
    )
    last_known_elr: tuple[int, ...] | None = wire("[]int32", None, since=2, tag=7, nullable=True)


@record
class ConfigRecord(StoredRecord):
    """Config of a resource (2 topic, 4 broker, 16 client metrics, 32 group). A value of None removes it."""

    __api_key__: ClassVar[int] = 4
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    name: str = wire("string")
    value: str | None = wire("string", nullable=True)


@record
class ClearElrRecord(StoredRecord):
    """Clears the eligible leader replicas of a topic, or of all topics if the name is empty."""

    __api_key__: ClassVar[int] = 28
    topic_name: str = wire("string")
