"""Applies metadata records to an image, copying each table on the first write.

One builder applies any number of records; `finish` returns the new image and the delta. A record
that contradicts the current state raises InvalidMetadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, MutableSequence
from dataclasses import replace
from typing import Any, Generic, TypeVar
from uuid import UUID

from odradek.protocol.topics import collision_key, name_error
from odradek.replication.controller.features import KRAFT_VERSION, METADATA_VERSION
from odradek.replication.controller.features import SUPPORTED_FEATURES as SUPPORTED
from odradek.replication.controller.image import (
    TOPIC,
    BrokerImage,
    ControllerImage,
    DisablePolicy,
    Endpoint,
    InvalidMetadata,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    QuotaEntity,
    Resource,
    TieredState,
    TopicImage,
    TopicTiering,
)
from odradek.replication.controller.partition_registration import (
    merge_partition_change,
    partition_from_record,
)

K = TypeVar("K")
V = TypeVar("V")


class CopyOnWriteTable(Generic[K, V]):
    """A table of the image that is copied on the first write."""

    __slots__ = ("_copy", "_now")

    def __init__(self, base: Mapping[K, V]) -> None:
        self._now = base
        self._copy: dict[K, V] | None = None

    @property
    def now(self) -> Mapping[K, V]:
        return self._now

    def write(self) -> dict[K, V]:
        if self._copy is None:
            self._now = self._copy = dict(self._now)
        return self._copy


class ImageBuilder:
    """Builds an image from a base image and records; `finish` is called once."""

    def __init__(self, image: MetadataImage, *, keep_records: bool = True) -> None:
        """`keep_records`: include the records in the delta."""
        self._before = image
        self._keep_records = keep_records
        self._records: MutableSequence[Any] = []
        self._names = CopyOnWriteTable(image.topics_by_name)
        self._ids = CopyOnWriteTable(image.topics_by_id)
        self._collisions = CopyOnWriteTable(image.collisions)
        self._brokers = CopyOnWriteTable(image.brokers)
        self._controllers = CopyOnWriteTable(image.controllers)
        self._configs = CopyOnWriteTable(image.configs)
        self._features = CopyOnWriteTable(image.features)
        self._acls = CopyOnWriteTable(image.acls)
        self._scram = CopyOnWriteTable(image.scram)
        self._tokens = CopyOnWriteTable(image.delegation_tokens)
        self._quotas = CopyOnWriteTable(image.quotas)
        self._tiering = CopyOnWriteTable(image.tiering)
        self._diskless = CopyOnWriteTable(image.diskless_topics)
        self._next_producer_id = image.next_producer_id
        # Tables of a topic or resource that this draft has copied already, and may write to
        self._open_partitions: dict[UUID, dict[int, PartitionImage]] = {}
        self._open_configs: dict[Resource, dict[str, str]] = {}
        self._created: dict[UUID, TopicImage] = {}
        self._deleted: dict[UUID, TopicImage] = {}
        self._changed_partitions: dict[tuple[UUID, int], PartitionImage] = {}
        self._changed_configs: dict[Resource, None] = {}
        self._changed_brokers: dict[int, None] = {}
        self._changed_features: dict[str, None] = {}

    @property
    def features(self) -> Mapping[str, int]:
        """Feature levels including the applied records."""
        return self._features.now

    def apply(self, record: Any) -> None:
        """Apply a record. Raises InvalidMetadata."""
        handler = _HANDLERS.get(type(record).__name__)
        if handler is None:
            raise InvalidMetadata(f"{type(record).__name__} is not a metadata record")
        handler(self, record)
        if self._keep_records:
            self._records.append(record)

    def finish(self, offset: int, epoch: int, timestamp_ms: int) -> MetadataDelta:
        """Return the delta; `offset` is that of the last record."""
        before = self._before
        image = MetadataImage(
            offset=offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            topics_by_name=self._names.now,
            topics_by_id=self._ids.now,
            collisions=self._collisions.now,
            brokers=self._brokers.now,
            controllers=self._controllers.now,
            configs=self._configs.now,
            features=self._features.now,
            next_producer_id=self._next_producer_id,
            acls=self._acls.now,
            scram=self._scram.now,
            delegation_tokens=self._tokens.now,
            quotas=self._quotas.now,
            tiering=self._tiering.now,
            diskless_topics=self._diskless.now,
        )
        return MetadataDelta(
            before=before,
            image=image,
            records=self._records,
            created_topics=self._created,
            deleted_topics=self._deleted,
            changed_partitions=self._changed_partitions,
            changed_configs=frozenset(self._changed_configs),
            changed_brokers=frozenset(self._changed_brokers),
            changed_features=frozenset(self._changed_features),
        )

    # Topics and partitions

    def _topic(self, record: Any) -> None:
        if (error := name_error(record.name)) is not None:  # it becomes a directory name
            raise InvalidMetadata(f"topic with id {record.topic_id}: {error}")
        if record.topic_id in self._ids.now or record.name in self._names.now:
            raise InvalidMetadata(f"topic {record.name} with id {record.topic_id} is there already")
        partitions: dict[int, PartitionImage] = {}
        topic = TopicImage(record.name, record.topic_id, partitions)
        self._open_partitions[topic.id] = partitions
        self._names.write()[topic.name] = topic
        self._ids.write()[topic.id] = topic
        self._created[topic.id] = topic
        if (key := collision_key(topic.name)) is not None:
            others = self._collisions.now.get(key, ())
            self._collisions.write()[key] = (*others, topic.name)

    def _remove_topic(self, record: Any) -> None:
        topic = self._ids.now.get(record.topic_id)
        if topic is None:
            raise InvalidMetadata(f"no topic with id {record.topic_id} to remove")
        del self._ids.write()[topic.id]
        del self._names.write()[topic.name]
        self._open_partitions.pop(topic.id, None)
        if topic.id in self._tiering.now:
            del self._tiering.write()[topic.id]
        if topic.id in self._diskless.now:
            del self._diskless.write()[topic.id]
        for index in topic.partitions:
            self._changed_partitions.pop((topic.id, index), None)
        if self._created.pop(topic.id, None) is None:
            self._deleted[topic.id] = self._before.topics_by_id[topic.id]
        if (key := collision_key(topic.name)) is not None:
            left = tuple(name for name in self._collisions.now[key] if name != topic.name)
            collisions = self._collisions.write()
            if left:
                collisions[key] = left
            else:
                del collisions[key]
        resource = (TOPIC, topic.name)
        if resource in self._configs.now:
            del self._configs.write()[resource]
            self._open_configs.pop(resource, None)
            self._changed_configs[resource] = None

    def _partition(self, record: Any) -> None:
        if record.partition_id < 0:
            raise InvalidMetadata(f"partition {record.partition_id} of topic {record.topic_id}")
        partition = partition_from_record(record)
        self._put_partition(record.topic_id, record.partition_id, partition)
        if partition.is_diskless and record.topic_id not in self._diskless.now:
            self._diskless.write()[record.topic_id] = self._ids.now[record.topic_id].name

    def _partition_change(self, record: Any) -> None:
        topic = self._ids.now.get(record.topic_id)
        before = None if topic is None else topic.partitions.get(record.partition_id)
        if before is None:
            raise InvalidMetadata(
                f"no partition {record.partition_id} of topic {record.topic_id} to change"
            )
        changed = merge_partition_change(before, record)
        self._put_partition(record.topic_id, record.partition_id, changed)

    def _put_partition(self, topic_id: UUID, index: int, partition: PartitionImage) -> None:
        self._partitions_of(topic_id)[index] = partition
        self._changed_partitions[topic_id, index] = partition

    def _partitions_of(self, topic_id: UUID) -> MutableMapping[int, PartitionImage]:
        partitions = self._open_partitions.get(topic_id)
        if partitions is None:
            topic = self._ids.now.get(topic_id)
            if topic is None:
                raise InvalidMetadata(f"no topic with id {topic_id}")
            partitions = self._open_partitions[topic_id] = dict(topic.partitions)
            copy = TopicImage(topic.name, topic_id, partitions)
            self._ids.write()[topic_id] = self._names.write()[topic.name] = copy
        return partitions

    def _clear_elr(self, record: Any) -> None:
        """Change each partition with an ELR; its partition epoch increases, as in Kafka."""
        if record.topic_name:
            topic = self._names.now.get(record.topic_name)
            if topic is None:
                raise InvalidMetadata(f"no topic {record.topic_name} whose ELR could be cleared")
            topics = [topic]
        else:
            topics = list(self._ids.now.values())
        for each in topics:
            for index, partition in list(each.partitions.items()):
                if partition.elr or partition.last_known_elr:
                    epoch = partition.partition_epoch + 1
                    cleared = replace(partition, elr=(), last_known_elr=(), partition_epoch=epoch)
                    self._put_partition(each.id, index, cleared)

    # Brokers, controllers, features

    def _register_broker(self, record: Any) -> None:
        self._put_broker(
            BrokerImage(
                id=record.broker_id,
                epoch=record.broker_epoch,
                incarnation_id=record.incarnation_id,
                endpoints=_endpoints(record),
                features=_feature_ranges(record),
                rack=record.rack,
                fenced=record.fenced,
                in_controlled_shutdown=record.in_controlled_shutdown,
                directories=tuple(record.log_dirs),
                cordoned_directories=record.cordoned_log_dirs,
            )
        )

    def _unregister_broker(self, record: Any) -> None:
        self._registered(record.broker_id, record.broker_epoch)
        del self._brokers.write()[record.broker_id]
        self._changed_brokers[record.broker_id] = None

    def _change_broker(self, record: Any) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        cordoned = record.cordoned_log_dirs
        self._put_broker(
            replace(
                broker,
                fenced=broker.fenced if record.fenced == 0 else record.fenced > 0,
                in_controlled_shutdown=broker.in_controlled_shutdown
                or record.in_controlled_shutdown > 0,
                directories=tuple(record.log_dirs) or broker.directories,
                cordoned_directories=broker.cordoned_directories if cordoned is None else cordoned,
            )
        )

    def _fence_broker(self, record: Any) -> None:
        self._put_broker(replace(self._registered(record.id, record.epoch), fenced=True))

    def _unfence_broker(self, record: Any) -> None:
        self._put_broker(replace(self._registered(record.id, record.epoch), fenced=False))

    def _registered(self, broker_id: int, epoch: int) -> BrokerImage:
        broker = self._brokers.now.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise InvalidMetadata(f"broker {broker_id} is not registered with epoch {epoch}")
        return broker

    def _put_broker(self, broker: BrokerImage) -> None:
        if self._brokers.now.get(broker.id) != broker:
            self._brokers.write()[broker.id] = broker
            self._changed_brokers[broker.id] = None

    def _register_controller(self, record: Any) -> None:
        self._controllers.write()[record.controller_id] = ControllerImage(
            id=record.controller_id,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record),
            features=_feature_ranges(record),
            zk_migration_ready=record.zk_migration_ready,
        )

    def _feature_level(self, record: Any) -> None:
        name, level = record.name, record.feature_level
        if name == KRAFT_VERSION:
            return  # written by a bug; kraft.version is in control records (KAFKA-18979)
        if name == METADATA_VERSION and not SUPPORTED[name][0] <= level <= SUPPORTED[name][1]:
            raise InvalidMetadata(
                f"the cluster's metadata.version is at level {level}; this node reads levels "
                f"{SUPPORTED[name][0]} to {SUPPORTED[name][1]}"
            )
        features = self._features.write()
        if level == 0:
            features.pop(name, None)
        else:
            features[name] = level
        self._changed_features[name] = None

    # Configs, producer ids

    def _config(self, record: Any) -> None:
        resource = (record.resource_type, record.resource_name)
        values = self._open_configs.get(resource)
        if values is None:
            values = self._open_configs[resource] = dict(self._configs.now.get(resource, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self._configs.write()[resource] = values
        elif resource in self._configs.now:
            del self._configs.write()[resource]
        self._changed_configs[resource] = None

    def _producer_ids(self, record: Any) -> None:
        if record.next_producer_id <= self._next_producer_id:
            raise InvalidMetadata(
                f"producer ids up to {self._next_producer_id} are handed out already, "
                f"{record.next_producer_id} is below"
            )
        self._next_producer_id = record.next_producer_id

    # Tiering

    def _no_op(self, record: Any) -> None:
        """Apply the tiering of a topic in the tagged fields, if there is one (KIP-950)."""
        if not record.tiered_topic_id.int:
            return
        topic = self._ids.now.get(record.tiered_topic_id)
        if topic is None:
            raise InvalidMetadata(f"no topic with id {record.tiered_topic_id} to tier")
        try:
            tiering = TopicTiering(
                record.tiered_epoch,
                TieredState(record.tiered_state),
                DisablePolicy(record.tiered_policy) if record.tiered_policy else None,
                record.tiered_first_epoch,
            )
        except ValueError as error:
            raise InvalidMetadata(f"tiering of topic {topic.name}: {error}") from None
        self._tiering.write()[topic.id] = tiering
        self._changed_configs[TOPIC, topic.name] = None

    # Security, quotas

    def _acl(self, record: Any) -> None:
        self._acls.write()[record.id] = record

    def _remove_acl(self, record: Any) -> None:
        if self._acls.write().pop(record.id, None) is None:
            raise InvalidMetadata(f"no ACL with id {record.id} to remove")

    def _scram_credential(self, record: Any) -> None:
        self._scram.write()[record.mechanism, record.name] = record

    def _remove_scram_credential(self, record: Any) -> None:
        self._scram.write().pop((record.mechanism, record.name), None)

    def _delegation_token(self, record: Any) -> None:
        self._tokens.write()[record.token_id] = record

    def _remove_delegation_token(self, record: Any) -> None:
        self._tokens.write().pop(record.token_id, None)

    def _quota(self, record: Any) -> None:
        entity: QuotaEntity = tuple(
            sorted(
                ((each.entity_type, each.entity_name) for each in record.entity),
                key=lambda part: part[0],
            )
        )
        values = dict(self._quotas.now.get(entity, {}))
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        quotas = self._quotas.write()
        if values:
            quotas[entity] = values
        else:
            quotas.pop(entity, None)

    def _nothing(self, record: Any) -> None:
        """Ignore the record: it is part of a ZooKeeper migration."""


_HANDLERS: Mapping[str, Callable[[ImageBuilder, Any], None]] = {
    "TopicRecord": ImageBuilder._topic,
    "RemoveTopicRecord": ImageBuilder._remove_topic,
    "PartitionRecord": ImageBuilder._partition,
    "PartitionChangeRecord": ImageBuilder._partition_change,
    "ClearElrRecord": ImageBuilder._clear_elr,
    "RegisterBrokerRecord": ImageBuilder._register_broker,
    "UnregisterBrokerRecord": ImageBuilder._unregister_broker,
    "BrokerRegistrationChangeRecord": ImageBuilder._change_broker,
    "FenceBrokerRecord": ImageBuilder._fence_broker,
    "UnfenceBrokerRecord": ImageBuilder._unfence_broker,
    "RegisterControllerRecord": ImageBuilder._register_controller,
    "FeatureLevelRecord": ImageBuilder._feature_level,
    "ConfigRecord": ImageBuilder._config,
    "ProducerIdsRecord": ImageBuilder._producer_ids,
    "AccessControlEntryRecord": ImageBuilder._acl,
    "RemoveAccessControlEntryRecord": ImageBuilder._remove_acl,
    "UserScramCredentialRecord": ImageBuilder._scram_credential,
    "RemoveUserScramCredentialRecord": ImageBuilder._remove_scram_credential,
    "DelegationTokenRecord": ImageBuilder._delegation_token,
    "RemoveDelegationTokenRecord": ImageBuilder._remove_delegation_token,
    "ClientQuotaRecord": ImageBuilder._quota,
    "NoOpRecord": ImageBuilder._no_op,
    "ZkMigrationStateRecord": ImageBuilder._nothing,
}


def _endpoints(record: Any) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(each.name, each.host, each.port, each.security_protocol)
        for each in record.end_points
    )


def _feature_ranges(record: Any) -> Mapping[str, tuple[int, int]]:
    return {
        each.name: (each.min_supported_version, each.max_supported_version)
        for each in record.features
    }


def apply_records(
    image: MetadataImage, records: Any, *, offset: int, epoch: int = 0, timestamp_ms: int = -1
) -> MetadataDelta:
    """Apply records to an image; `offset` is the last one's."""
    draft = ImageBuilder(image)
    for record in records:
        draft.apply(record)
    return draft.finish(offset, epoch, timestamp_ms)
