"""The metadata image: the cluster's state at an offset of the metadata log (Kafka's
`MetadataImage`).

Images are immutable, the dicts included. A new image shares unchanged tables with the previous one
(`image_builder.py`), so that a handler or a snapshot keeps a consistent view. `image_records.py`
writes the records of a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from odradek.replication.controller.features import (
    DEFAULT_FEATURES as DEFAULT_FEATURES,
)
from odradek.replication.controller.features import (
    SUPPORTED_FEATURES as SUPPORTED_FEATURES,
)
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.protocol.schemas.security_records import (
        AccessControlEntryRecord,
        DelegationTokenRecord,
        UserScramCredentialRecord,
    )

K = TypeVar("K")
V = TypeVar("V")

# Types of resources that have configs, as in ConfigRecord and the configs APIs
TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32

NO_LEADER: Final = -1
NO_COORDINATOR: Final = -1

# Reserved directory ids (KIP-858)
MIGRATING: Final = UUID(int=0)  # assigned before KIP-858
UNASSIGNED: Final = UUID(int=1)  # the broker has not chosen a directory yet
LOST: Final = UUID(int=2)  # in an offline directory with an unknown id
RESERVED_DIRECTORIES: Final = 100  # ids below this are reserved

Resource = tuple[int, str]
"""Owner of a config: (resource type, name); "" is the default of all brokers."""
QuotaEntity = tuple[tuple[str, str | None], ...]
"""Entity of a quota: sorted (entity type, name) pairs; None is the default."""


class InvalidMetadata(Exception):
    """Records that contradict the image, or a file without valid records.

    The node must stop: either the disk is damaged, or an operation has a bug.
    """


@value_class
class PartitionImage:
    """A partition; `directories` are parallel to `replicas` (KIP-858); leader -1 is none.

    `elr` are replicas outside the ISR with all committed records; `last_known_elr` is the fallback
    (KIP-966). `leader_recovery_state` is 1 after an unclean election until the leader has recovered
    (KIP-704). A partition of a diskless topic has no replicas and no leader; `diskless_coordinator`
    is the partition of `__diskless_metadata` that coordinates it (D-14), -1 for other topics.
    """

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
    diskless_coordinator: int = NO_COORDINATOR

    def directory_of(self, replica: int) -> UUID:
        """Directory of a replica. ValueError if the broker has none."""
        return self.directories[self.replicas.index(replica)]

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def is_diskless(self) -> bool:
        """Whether the partition's data is only in the object store (KIP-1150)."""
        return self.diskless_coordinator != NO_COORDINATOR

    @property
    def is_offline(self) -> bool:
        """Whether the partition needs a leader and has none. Diskless partitions need none."""
        return self.leader == NO_LEADER and self.diskless_coordinator == NO_COORDINATOR


class TieredState(IntEnum):
    """Tiered state of a topic (X-03, X-08)."""

    ENABLED = 0
    """Tiered storage was not disabled, or was enabled again."""
    DISABLING = 1
    DISABLED = 2


class DisablePolicy(Enum):
    """Value of `remote.log.disable.policy`: what happens to the remote data (X-02)."""

    RETAIN = "retain"
    """Remote data remains readable and expires by retention."""
    DELETE = "delete"
    """Remote data is deleted, and the log starts with the local data."""


@value_class
class TopicTiering:
    """Tiering of a topic (KIP-950); topics whose tiered storage was never disabled have none."""

    epoch: int = 0
    state: TieredState = TieredState.ENABLED
    policy: DisablePolicy | None = None
    """Policy of the disablement; None if the state is ENABLED."""
    first_epoch: int = 0
    """Remote segments of earlier tiered epochs are to be deleted."""


NEVER_DISABLED: Final = TopicTiering()


@value_class
class TopicImage:
    name: str
    id: UUID
    partitions: Mapping[int, PartitionImage]

    @property
    def is_diskless(self) -> bool:
        """Whether the topic was created with `diskless.enable=true`; all its partitions are diskless."""
        first = self.partitions.get(0)
        return first is not None and first.diskless_coordinator != NO_COORDINATOR


@value_class
class Endpoint:
    name: str
    host: str
    port: int
    security_protocol: int  # 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL


@value_class
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

    @property
    def active(self) -> bool:
        """Whether the broker may lead and join ISRs."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> Endpoint | None:
        for endpoint in self.endpoints:
            if endpoint.name == listener:
                return endpoint
        return None

    def has_online(self, directory: UUID) -> bool:
        """Whether the directory is online, as far as it is known."""
        if directory in (UNASSIGNED, MIGRATING):
            return True
        if directory == LOST:
            return False
        return not self.directories or directory in self.directories

    @property
    def has_uncordoned_directory(self) -> bool:
        if not self.directories or self.cordoned_directories is None:
            return True
        return any(each not in self.cordoned_directories for each in self.directories)


@value_class
class ControllerImage:
    """A registered controller (KIP-919)."""

    id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, tuple[int, int]]
    zk_migration_ready: bool = False


@value_class
class MetadataImage:
    offset: int = -1  # of the last record applied, control records included; -1 before the first
    epoch: int = -1  # of its batch
    timestamp_ms: int = -1  # of its batch
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[UUID, TopicImage] = field(default_factory=dict)
    collisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`collision_key` of a name with '.' or '_' to the topics with this key."""
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    configs: Mapping[Resource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = -1  # -1 before the first block was allocated
    acls: Mapping[UUID, AccessControlEntryRecord] = field(default_factory=dict)
    scram: Mapping[tuple[int, str], UserScramCredentialRecord] = field(default_factory=dict)
    """(mechanism, user) to credential; mechanism 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""
    delegation_tokens: Mapping[str, DelegationTokenRecord] = field(default_factory=dict)
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    tiering: Mapping[UUID, TopicTiering] = field(default_factory=dict)
    """By topic id."""
    diskless_topics: Mapping[UUID, str] = field(default_factory=dict)
    """Names of the diskless topics by topic id (KIP-1150)."""

    def topic(self, name: str) -> TopicImage | None:
        return self.topics_by_name.get(name)

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        found = self.topics_by_name.get(topic)
        return None if found is None else found.partitions.get(index)

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """Configs set on the topic."""
        return self.configs.get((TOPIC, name), {})

    def tiering_of(self, topic_id: UUID) -> TopicTiering:
        """Tiering of a topic."""
        return self.tiering.get(topic_id, NEVER_DISABLED)

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """Configs set on a resource; "" is the default of all brokers."""
        return self.configs.get((resource_type, name), {})

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker may lead and join ISRs."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.active

    def is_online(self, broker_id: int, directory: UUID) -> bool:
        """Whether a replica in this directory is online."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced and broker.has_online(directory)

    def offline_replicas(self, partition: PartitionImage) -> tuple[int, ...]:
        """Replicas that are offline in Metadata responses."""
        pairs = zip(partition.replicas, partition.directories, strict=True)
        return tuple(broker for broker, where in pairs if not self.is_online(broker, where))


@value_class
class MetadataDelta:
    """Difference of two images: a commit, or a loaded snapshot.

    A recreated topic is in `deleted_topics` and `created_topics`, its name in `changed_configs`.
    `changed_partitions` includes created topics and excludes deleted ones. For other tables compare
    by identity: `delta.image.acls is not delta.before.acls`.
    """

    before: MetadataImage
    image: MetadataImage
    records: Sequence[Any]
    created_topics: Mapping[UUID, TopicImage]
    deleted_topics: Mapping[UUID, TopicImage]
    changed_partitions: Mapping[tuple[UUID, int], PartitionImage]  # new ones included
    changed_configs: frozenset[Resource]
    changed_brokers: frozenset[int]
    changed_features: frozenset[str]


def image_delta(before: MetadataImage, image: MetadataImage) -> MetadataDelta:
    """Delta between two images, without records."""
    created = {
        id: topic for id, topic in image.topics_by_id.items() if id not in before.topics_by_id
    }
    deleted = {
        id: topic for id, topic in before.topics_by_id.items() if id not in image.topics_by_id
    }
    partitions = {}
    for id, topic in image.topics_by_id.items():
        old = before.topics_by_id.get(id)
        known = {} if old is None else old.partitions
        for index, partition in topic.partitions.items():
            if known.get(index) != partition:
                partitions[id, index] = partition
    return MetadataDelta(
        before=before,
        image=image,
        records=(),
        created_topics=created,
        deleted_topics=deleted,
        changed_partitions=partitions,
        changed_configs=_changed(before.configs, image.configs),
        changed_brokers=_changed(before.brokers, image.brokers),
        changed_features=_changed(before.features, image.features),
    )


def _changed(before: Mapping[K, V], after: Mapping[K, V]) -> frozenset[K]:
    return frozenset(key for key in (*before, *after) if before.get(key) != after.get(key))
