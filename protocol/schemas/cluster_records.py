"""Metadata records of brokers, controllers, features and the metadata log.

BrokerRegistration 4 and BrokerRegistrationChange 3 add cordoned log directories (4.3-IV0).
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import StoredRecord, record, structs, wire


@record
class BrokerEndpoint:
    """Endpoint of a broker. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: str = wire("string")
    host: str = wire("string")
    port: int = wire("uint16")
    security_protocol: int = wire("int16")


@record
class BrokerFeature:
    """Range of levels of a feature that a broker supports, both inclusive."""

    name: str = wire("string")
    min_supported_version: int = wire("int16")
    max_supported_version: int = wire("int16")


@record
class RegisterBrokerRecord(StoredRecord):
    """Registration of a broker incarnation. `broker_epoch` is the offset of this record.

    `log_dirs` are the directory ids (version 3); those in `cordoned_log_dirs` get no new replicas (version 4).
    """

    __api_key__: ClassVar[int] = 0
    __versions__: ClassVar[range] = range(5)
    broker_id: int = wire("int32")
    is_migrating_zk_broker: bool = wire("bool", since=2)
    incarnation_id: UUID = wire("uuid")
    broker_epoch: int = wire("int64")
    end_points: tuple[BrokerEndpoint, ...] = structs(BrokerEndpoint)
    features: tuple[BrokerFeature, ...] = structs(BrokerFeature)
    rack: str | None = wire("string", nullable=True)
    fenced: bool = wire("bool", True)
    in_controlled_shutdown: bool = wire("bool", since=1)
    log_dirs: tuple[UUID, ...] = wire("[]uuid", since=3, tag=0)
    cordoned_log_dirs: tuple[UUID, ...] | None = wire("[]uuid", None, since=4, tag=1, nullable=True)


@record
class UnregisterBrokerRecord(StoredRecord):
    """Removal of a broker from the cluster."""

    __api_key__: ClassVar[int] = 1
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")


@record
class BrokerRegistrationChangeRecord(StoredRecord):
    """Change of a broker registration.

    `fenced` and `in_controlled_shutdown`: 1 is true, -1 is false, 0 is unchanged.
    """

    __api_key__: ClassVar[int] = 17
    __versions__: ClassVar[range] = range(4)
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    fenced: int = wire("int8", tag=0)
    in_controlled_shutdown: int = wire("int8", since=1, tag=1)
    log_dirs: tuple[UUID, ...] = wire("[]uuid", since=2, tag=2)
    cordoned_log_dirs: tuple[UUID, ...] | None = wire("[]uuid", None, since=3, tag=3, nullable=True)


@record
class FenceBrokerRecord(StoredRecord):
    """Fencing of a broker, superseded by BrokerRegistrationChangeRecord."""

    __api_key__: ClassVar[int] = 7
    id: int = wire("int32")
    epoch: int = wire("int64")


@record
class UnfenceBrokerRecord(StoredRecord):
    """Unfencing of a broker, superseded by BrokerRegistrationChangeRecord."""

    __api_key__: ClassVar[int] = 8
    id: int = wire("int32")
    epoch: int = wire("int64")


@record
class ControllerEndpoint(BrokerEndpoint):
    """Endpoint of a controller."""


@record
class ControllerFeature(BrokerFeature):
    """Range of levels of a feature that a controller supports, both inclusive."""


@record
class RegisterControllerRecord(StoredRecord):
    """Registration of a controller incarnation."""

    __api_key__: ClassVar[int] = 27
    controller_id: int = wire("int32")
    incarnation_id: UUID = wire("uuid")
    zk_migration_ready: bool = wire("bool")
    end_points: tuple[ControllerEndpoint, ...] = structs(ControllerEndpoint)
    features: tuple[ControllerFeature, ...] = structs(ControllerFeature)


@record
class FeatureLevelRecord(StoredRecord):
    """Finalized level of a feature, including `metadata.version`. Level 0 disables the feature."""

    __api_key__: ClassVar[int] = 12
    name: str = wire("string")
    feature_level: int = wire("int16")


@record
class ProducerIdsRecord(StoredRecord):
    """Allocation of producer ids: all ids below `next_producer_id` have been allocated."""

    __api_key__: ClassVar[int] = 15
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64", -1)
    next_producer_id: int = wire("int64")


@record
class NoOpRecord(StoredRecord):
    """Record without content, which advances the log end offset so that followers can detect a live leader.

    The tagged fields are Odradek's own: the tiering of a topic (KIP-950). Kafka skips tagged fields that it does not
    know. `tiered_policy` is "retain", "delete" or empty.
    """

    __api_key__: ClassVar[int] = 20
    tiered_topic_id: UUID = wire("uuid", tag=10_950)
    tiered_epoch: int = wire("int32", tag=10_951)
    tiered_state: int = wire("int8", tag=10_952)
    tiered_policy: str = wire("string", tag=10_953)
    tiered_first_epoch: int = wire("int32", tag=10_954)


@record
class BeginTransactionRecord(StoredRecord):
    """Start of a metadata transaction, whose records are applied together at its end (KIP-868)."""

    __api_key__: ClassVar[int] = 23
    name: str | None = wire("string", None, tag=0, nullable=True)


@record
class EndTransactionRecord(StoredRecord):
    """End of a metadata transaction, which applies its records."""

    __api_key__: ClassVar[int] = 24


@record
class AbortTransactionRecord(StoredRecord):
    """Abort of a metadata transaction, which discards its records."""

    __api_key__: ClassVar[int] = 25
    reason: str | None = wire("string", None, tag=0, nullable=True)


@record
class ZkMigrationStateRecord(StoredRecord):
    """State of a migration from ZooKeeper. Kafka 4 writes only 0, which means none."""

    __api_key__: ClassVar[int] = 21
    zk_migration_state: int = wire("int8")
