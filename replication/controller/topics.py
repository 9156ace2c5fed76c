"""Creates and deletes topics (Kafka's `ReplicationControlManager`).

Rules, limits and messages are those of Kafka 4.3. A topic has a TopicRecord, ConfigRecords and
PartitionRecords. All topics of a request are in one batch, so that a crash leaves no partial topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any
from uuid import UUID

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import (
    CLUSTER_METADATA,
    DISKLESS_METADATA,
    collision_key,
    name_error,
)
from odradek.replication.controller.configs import config_records
from odradek.replication.controller.controller_result import (
    MAX_RECORDS,
    ConfigValidator,
    ControllerResult,
    ItemRefused,
    MutationCharge,
    check_size,
    no_mutation_quota,
)
from odradek.replication.controller.diskless_topics import (
    DisklessMetadataTopic,
    coordinator_count,
    diskless_partitions,
    invalid_replication_factor,
    is_diskless,
    no_replicas,
)
from odradek.replication.controller.image import (
    TOPIC,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.replication.controller.partition_registration import partition_record
from odradek.replication.controller.replica_assignment import (
    ALL_FENCED,
    InvalidReplicationFactor,
    StripedReplicaPlacer,
    cannot_replicate,
    check_manual_assignment,
    initial_partition,
    no_active_replica,
)
from odradek.seams.entropy import Entropy
from odradek.seams.values import value_class


@value_class
class TopicDefaults:
    """The controller's `num.partitions` and `default.replication.factor`, and `__diskless_metadata`."""

    partitions: int = 1
    replication_factor: int = 1
    diskless_metadata: DisklessMetadataTopic | None = None
    """None if diskless topics are disabled."""


@value_class
class NewTopic:
    """A topic of a CreateTopics request; -1 is the default.

    `assignments` maps partitions to replicas, or is a sequence of (partition, replicas) pairs, which
    may contain duplicates. If it is empty, the controller places the replicas.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] | Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def assignment_pairs(self) -> Sequence[tuple[int, Sequence[int]]]:
        given = self.assignments
        return list(given.items()) if isinstance(given, Mapping) else given


@value_class
class CreatedTopic:
    """Result of one topic; after an error, ids and counts have their defaults."""

    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)  # those set on the topic


@value_class
class DeletedTopic:
    name: str | None
    topic_id: UUID | None
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


def create_topics(
    image: MetadataImage,
    wanted: Sequence[NewTopic],
    *,
    entropy: Entropy,
    defaults: TopicDefaults,
    validate_config: ConfigValidator,
    validate_only: bool = False,
    charge: MutationCharge = no_mutation_quota,
) -> ControllerResult[list[CreatedTopic]]:
    """Create topics; one result per name, in request order (KIP-4, KIP-464, KIP-525).

    `charge` is called for validated topics as well, as in Kafka.
    """
    counts: dict[str, int] = {}
    for topic in wanted:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    creation = _Creation(image, entropy, defaults, validate_config, charge)
    single = [each for each in wanted if counts[each.name] == 1 and each.name != CLUSTER_METADATA]
    responses: dict[str, CreatedTopic] = {}
    try:
        _check_total(single, defaults)
        for topic in single:
            responses[topic.name] = creation.create(topic)
        check_size(creation.records)
    except KafkaError as error:  # the request exceeds a limit
        responses = {each.name: _refused(each.name, error) for each in single}
        creation.records.clear()
    for name, count in counts.items():
        if count > 1:
            responses[name] = _refused(name, _invalid_request("Duplicate topic name."))
        elif name == CLUSTER_METADATA:
            reason = f"Creation of internal topic {CLUSTER_METADATA} is prohibited."
            responses[name] = _refused(name, _invalid_request(reason))
    records = [] if validate_only else creation.records
    return ControllerResult(records, [responses[name] for name in counts])


class _Creation:
    """Collects the records of one request."""

    def __init__(
        self,
        image: MetadataImage,
        entropy: Entropy,
        defaults: TopicDefaults,
        validate_config: ConfigValidator,
        charge: MutationCharge,
    ) -> None:
        self._charge = charge
        self.records: list[Any] = []
        self._image = image
        self._entropy = entropy
        self._defaults = defaults
        self._validate_config = validate_config
        self._coordinators = coordinator_count(image)

    def create(self, topic: NewTopic) -> CreatedTopic:
        coordinators = self._coordinators
        try:
            self._check_name(topic.name)
            configs = _checked_configs(topic)
            if topic.name == DISKLESS_METADATA:
                configs = {**self._diskless_metadata_settings().configs, **configs}
            config_changes = config_records(
                self._image, (TOPIC, topic.name), configs, self._validate_config
            )
            metadata_topic = None
            if is_diskless(configs):
                if not coordinators:
                    metadata_topic = self._diskless_metadata()
                    coordinators = len(metadata_topic)
                partitions = self._diskless(topic, coordinators)
            else:
                partitions = self._partitions(topic)
            self._charge(len(partitions))
        except KafkaError as error:
            return _refused(topic.name, error)
        if metadata_topic is not None:
            self._append_diskless_metadata(metadata_topic)
        topic_id = self._entropy.uuid()
        self._append(topic.name, topic_id, config_changes, partitions)
        return CreatedTopic(
            topic.name,
            topic_id=topic_id,
            partitions=len(partitions),
            replication_factor=len(partitions[0].replicas) or 1,
            configs=configs,
        )

    def _diskless(self, topic: NewTopic, coordinators: int) -> list[PartitionImage]:
        if topic.assignments:
            raise no_replicas()
        if topic.replication_factor not in (-1, 1):
            raise invalid_replication_factor()
        _check_count(topic)
        count = self._defaults.partitions if topic.partitions == -1 else topic.partitions
        return diskless_partitions(count, coordinators, self._entropy)

    def _diskless_metadata(self) -> list[PartitionImage]:
        """Partitions of `__diskless_metadata`, which does not exist yet."""
        wanted = self._diskless_metadata_settings()
        try:
            self._check_name(DISKLESS_METADATA)
            return self._placed(wanted.partitions, wanted.replication_factor)
        except KafkaError as error:
            raise ItemRefused(
                error.code, f"{DISKLESS_METADATA} cannot be created: {error.message}"
            ) from None

    def _diskless_metadata_settings(self) -> DisklessMetadataTopic:
        settings = self._defaults.diskless_metadata
        if settings is None:
            raise ItemRefused(
                ErrorCode.invalid_config,
                f"{DISKLESS_METADATA} cannot be created, because diskless topics are disabled in the broker"
                " (diskless.storage.system.enable).",
            )
        return settings

    def _append_diskless_metadata(self, partitions: Sequence[PartitionImage]) -> None:
        changes = config_records(
            self._image,
            (TOPIC, DISKLESS_METADATA),
            self._diskless_metadata_settings().configs,
            self._validate_config,
        )
        self._append(DISKLESS_METADATA, self._entropy.uuid(), changes, partitions)

    def _append(
        self,
        name: str,
        topic_id: UUID,
        config_changes: Sequence[Any],
        partitions: Sequence[PartitionImage],
    ) -> None:
        from odradek.protocol.schemas.topic_records import TopicRecord

        if name == DISKLESS_METADATA:
            self._coordinators = len(partitions)
        self.records.append(TopicRecord(name=name, topic_id=topic_id))
        self.records += config_changes
        self.records += (
            partition_record(topic_id, index, partition)
            for index, partition in enumerate(partitions)
        )

    def _check_name(self, name: str) -> None:
        if (reason := name_error(name)) is not None:
            raise ItemRefused(ErrorCode.invalid_topic_exception, reason)
        if name in self._image.topics_by_name or (name == DISKLESS_METADATA and self._coordinators):
            raise ItemRefused(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        key = collision_key(name)
        if key is not None and (others := self._image.collisions.get(key)):
            raise ItemRefused(
                ErrorCode.invalid_topic_exception,
                f"Topic '{name}' collides with existing topic: {others[0]}",
            )

    def _partitions(self, topic: NewTopic) -> list[PartitionImage]:
        if topic.assignments:
            return self._assigned(topic)
        if topic.replication_factor < -1 or topic.replication_factor == 0:
            raise ItemRefused(
                ErrorCode.invalid_replication_factor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        _check_count(topic)
        return self._placed(topic.partitions, topic.replication_factor)

    def _placed(self, count: int, factor: int) -> list[PartitionImage]:
        count = self._defaults.partitions if count == -1 else count
        factor = self._defaults.replication_factor if factor == -1 else factor
        placer = StripedReplicaPlacer(self._image, self._entropy)
        try:
            placer.check(factor)
        except InvalidReplicationFactor as error:
            raise cannot_replicate(factor, error.message) from None
        partitions = []
        for _ in range(count):
            partition = initial_partition(self._image, placer.place(factor))
            if partition is None:
                raise cannot_replicate(factor, ALL_FENCED)
            partitions.append(partition)
        return partitions

    def _assigned(self, topic: NewTopic) -> list[PartitionImage]:
        assigned = "A manual partition assignment was specified, but "
        if topic.replication_factor != -1:
            raise _invalid_request(assigned + "replication factor was not set to -1.")
        if topic.partitions != -1:
            raise _invalid_request(assigned + "numPartitions was not set to -1.")
        factor: int | None = None
        found: dict[int, PartitionImage] = {}
        for index, replicas in topic.assignment_pairs:
            if index in found:
                raise _invalid_assignment(
                    f"Found multiple manual partition assignments for partition {index}"
                )
            check_manual_assignment(self._image, replicas, factor)
            factor = len(replicas)
            partition = initial_partition(self._image, replicas)
            if partition is None:
                raise no_active_replica(index)
            found[index] = partition
        if sorted(found) != list(range(len(found))):
            raise _invalid_assignment("partitions should be a consecutive 0-based integer sequence")
        return [found[index] for index in range(len(found))]


def _check_count(topic: NewTopic) -> None:
    if topic.partitions < -1 or topic.partitions == 0:
        raise ItemRefused(
            ErrorCode.invalid_partitions,
            "Number of partitions was set to an invalid non-positive value.",
        )


def _check_total(wanted: Sequence[NewTopic], defaults: TopicDefaults) -> None:
    total = 0
    for topic in wanted:
        if topic.assignments:
            total += len(topic.assignments)
        elif topic.partitions == -1:
            total += defaults.partitions
        elif topic.partitions > 0:
            total += topic.partitions
    if total > MAX_RECORDS:
        raise KafkaError(
            ErrorCode.policy_violation, "Excessively large number of partitions per request."
        )


def _checked_configs(topic: NewTopic) -> dict[str, str]:
    missing = [name for name, value in topic.configs.items() if value is None]
    if missing:
        raise ItemRefused(
            ErrorCode.invalid_config,
            f"Null value not supported for topic configs: {','.join(missing)}",
        )
    return {name: value for name, value in topic.configs.items() if value is not None}


def _refused(name: str, error: KafkaError) -> CreatedTopic:
    return CreatedTopic(name, error.code, error.message or None)


def _invalid_request(reason: str) -> ItemRefused:
    return ItemRefused(ErrorCode.invalid_request, reason)


def _invalid_assignment(reason: str) -> ItemRefused:
    return ItemRefused(ErrorCode.invalid_replica_assignment, reason)


UNKNOWN_TOPIC = "This server does not host this topic-partition."
UNKNOWN_TOPIC_ID = "This server does not host this topic ID."


def delete_topics(
    image: MetadataImage,
    names: Sequence[str] = (),
    ids: Sequence[UUID] = (),
    *,
    charge: MutationCharge = no_mutation_quota,
) -> ControllerResult[list[DeletedTopic]]:
    """Delete topics by name and id (KIP-516); one result per name and id, in request order.

    `__diskless_metadata` has the metadata of all diskless topics: it cannot be deleted before them.
    """
    from odradek.protocol.schemas.topic_records import RemoveTopicRecord

    to_delete, responses = _find_topics_to_delete(image, names, ids)
    coordinators = image.topics_by_name.get(DISKLESS_METADATA)
    if coordinators is not None and coordinators.id in to_delete:
        kept = image.diskless_topics.keys() - to_delete.keys()
        if kept:
            del to_delete[coordinators.id]
            responses.append(_in_use(coordinators, image.diskless_topics[min(kept)], len(kept)))
    records = []
    check_size(list(to_delete))
    for topic_id, name in to_delete.items():
        try:
            charge(len(image.topics_by_id[topic_id].partitions))
        except ItemRefused as refused:
            responses.append(DeletedTopic(name, topic_id, refused.code, refused.message))
        else:
            records.append(RemoveTopicRecord(topic_id=topic_id))
            responses.append(DeletedTopic(name, topic_id))
    return ControllerResult(records, responses)


def _find_topics_to_delete(
    image: MetadataImage, names: Sequence[str], ids: Sequence[UUID]
) -> tuple[dict[UUID, str], list[DeletedTopic]]:
    """Return the names of the topics by id, and the responses for names and ids that are refused."""
    responses: list[DeletedTopic] = []
    to_delete: dict[UUID, str] = {}
    ids_named, names_named = Counter(ids), Counter(names)
    for topic_id, times in ids_named.items():
        topic = image.topics_by_id.get(topic_id)
        if times > 1:
            responses.append(_kept(None, topic_id, "Duplicate topic id."))
        elif topic is None:
            responses.append(
                DeletedTopic(None, topic_id, ErrorCode.unknown_topic_id, UNKNOWN_TOPIC_ID)
            )
        else:
            to_delete[topic_id] = topic.name
    for name, times in names_named.items():
        topic = image.topics_by_name.get(name)
        if times > 1:
            responses.append(_kept(name, None, "Duplicate topic name."))
        elif topic is None:
            responses.append(
                DeletedTopic(name, None, ErrorCode.unknown_topic_or_partition, UNKNOWN_TOPIC)
            )
        elif topic.id in ids_named:
            to_delete.pop(topic.id, None)
            reason = "The provided topic name maps to an ID that was already supplied."
            responses.append(_kept(name, topic.id, reason))
        else:
            to_delete[topic.id] = name
    return to_delete, responses


def _in_use(coordinators: TopicImage, example: str, count: int) -> DeletedTopic:
    return DeletedTopic(
        coordinators.name,
        coordinators.id,
        ErrorCode.topic_deletion_disabled,
        f"{coordinators.name} has the metadata of {count} diskless topic(s), such as {example}. They have to be"
        " deleted first.",
    )


def _kept(name: str | None, topic_id: UUID | None, reason: str) -> DeletedTopic:
    return DeletedTopic(name, topic_id, ErrorCode.invalid_request, reason)
