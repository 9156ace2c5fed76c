"""The state of the cluster: what the metadata records up to `offset` add up to.

SKELETON of signatures, being filled in.

Images are values: applying records makes a new image that shares what did not change, so whoever
holds one (a handler across an await, a snapshot being written) keeps a consistent view for free.
Reads are plain dict lookups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

TOPIC = 2  # resource types of configs, as in ConfigRecord and the configs APIs
BROKER = 4
CLIENT_METRICS = 16
GROUP = 32


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition; `directories` goes with `replicas` (KIP-858), leader -1 is none."""

    replicas: tuple[int, ...]
    directories: tuple[UUID, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int = 0
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    id: UUID
    partitions: Mapping[int, PartitionImage]


@dataclass(frozen=True, slots=True)
class Endpoint:
    name: str
    host: str
    port: int
    security_protocol: int  # 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker (KIP-631). `features`: name to (min, max) supported level."""

    id: int
    epoch: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, tuple[int, int]]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[UUID, ...]
    cordoned_directories: tuple[UUID, ...] | None = None


@dataclass(frozen=True, slots=True)
class MetadataImage:
    offset: int  # of the last record applied; -1 before the first
    epoch: int  # of its batch
    topics_by_name: Mapping[str, TopicImage]
    topics_by_id: Mapping[UUID, TopicImage]
    brokers: Mapping[int, BrokerImage]
    configs: Mapping[tuple[int, str], Mapping[str, str]]  # (resource type, name) to its configs
    features: Mapping[str, int]
    next_producer_id: int

    def topic(self, name: str) -> TopicImage | None:
        return self.topics_by_name.get(name)

    def partition(self, topic: str, index: int) -> PartitionImage | None: ...

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """What is set on the topic itself; empty if nothing is."""
        return self.configs.get((TOPIC, name), {})

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """What is set on a resource ("" is the default of all brokers); empty if nothing is."""
        return self.configs.get((resource_type, name), {})

    def records(self) -> Iterator[Any]:
        """The records of a snapshot: applied to nothing, they give this image."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """What one step (a commit, or a load) changed. `before` and `image` are whole images.

    A topic deleted and created again under one name is in `deleted_topics` (the old one) and in
    `created_topics` (the new one).
    """

    before: MetadataImage
    image: MetadataImage
    records: Sequence[Any]
    created_topics: Mapping[UUID, TopicImage]
    deleted_topics: Mapping[UUID, TopicImage]
    changed_partitions: Mapping[tuple[UUID, int], PartitionImage]  # new ones included
    changed_configs: frozenset[tuple[int, str]]
    changed_brokers: frozenset[int]
    changed_features: frozenset[str]
