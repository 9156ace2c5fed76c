"""Metadata records of brokers, controllers, features and the metadata log itself.

Version 4 of a registration and 3 of its change add cordoned log directories (4.3-IV0).
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import record, structs, wire


@record
class BrokerEndpoint:
    """Where a broker is reached; `security_protocol` is 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: str = wire("string")
    host: str = wire("string")
    port: int = wire("uint16")
    security_protocol: int = wire("int16")


@record
class BrokerFeature:
    """The levels of a feature that a broker supports, both ends included."""

    name: str = wire("string")
    min_supported_version: int = wire("int16")
    max_supported_version: int = wire("int16")


@record
class RegisterBrokerRecord:
    """A broker of this incarnation is part of the cluster; `broker_epoch` is this record's offset.

    `log_dirs` are its directory ids (version 3), `cordoned_log_dirs` those that take no replicas.
    """

    __api_key__: ClassVar[int] = 0
    __versions__: ClassVar[range] = range(5)
    __flexible_from__: ClassVar[int] = 0
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
class UnregisterBrokerRecord:
    """A broker is no longer part of the cluster."""

    __api_key__: ClassVar[int] = 1
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")


@record
class BrokerRegistrationChangeRecord:
    """What changed of a registration.

    `fenced` and `in_controlled_shutdown` are 1 for yes, -1 for no, 0 for unchanged.
    """

    __api_key__: ClassVar[int] = 17
    __versions__: ClassVar[range] = range(4)
    __flexible_from__: ClassVar[int] = 0
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    fenced: int = wire("int8", tag=0)
    in_controlled_shutdown: int = wire("int8", since=1, tag=1)
    log_dirs: tuple[UUID, ...] = wire("[]uuid", since=2, tag=2)
    cordoned_log_dirs: tuple[UUID, ...] | None = wire("[]uuid", None, since=3, tag=3, nullable=True)


@record
class FenceBrokerRecord:
    """A broker may lead nothing (superseded by BrokerRegistrationChangeRecord)."""

    __api_key__: ClassVar[int] = 7
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    id: int = wire("int32")
    epoch: int = wire("int64")


@record
class UnfenceBrokerRecord:
    """A broker may lead again (superseded by BrokerRegistrationChangeRecord)."""

    __api_key__: ClassVar[int] = 8
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    id: int = wire("int32")
    epoch: int = wire("int64")


@record
class ControllerEndpoint:
    """Where a controller is reached."""

    name: str = wire("string")
    host: str = wire("string")
    port: int = wire("uint16")
    security_protocol: int = wire("int16")


@record
class ControllerFeature:
    """The levels of a feature that a controller supports, both ends included."""

    name: str = wire("string")
    min_supported_version: int = wire("int16")
    max_supported_version: int = wire("int16")


@record
class RegisterControllerRecord:
    """A controller of this incarnation is part of the cluster."""

    __api_key__: ClassVar[int] = 27
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    controller_id: int = wire("int32")
    incarnation_id: UUID = wire("uuid")
    zk_migration_ready: bool = wire("bool")
    end_points: tuple[ControllerEndpoint, ...] = structs(ControllerEndpoint)
    features: tuple[ControllerFeature, ...] = structs(ControllerFeature)


@record
class FeatureLevelRecord:
    """A feature, `metadata.version` among them, is at this level; 0 disables it."""

    __api_key__: ClassVar[int] = 12
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    name: str = wire("string")
    feature_level: int = wire("int16")


@record
class ProducerIdsRecord:
    """Producer ids below `next_producer_id` are handed out."""

    __api_key__: ClassVar[int] = 15
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64", -1)
    next_producer_id: int = wire("int64")


@record
class NoOpRecord:
    """Nothing: keeps the log's end moving, so that followers can tell a live leader."""

    __api_key__: ClassVar[int] = 20
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0


@record
class BeginTransactionRecord:
    """The records up to the end (or abort) of this transaction apply together (KIP-868)."""

    __api_key__: ClassVar[int] = 23
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    name: str | None = wire("string", None, tag=0, nullable=True)


@record
class EndTransactionRecord:
    """The open metadata transaction applies."""

    __api_key__: ClassVar[int] = 24
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0


@record
class AbortTransactionRecord:
    """The open metadata transaction never was."""

    __api_key__: ClassVar[int] = 25
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    reason: str | None = wire("string", None, tag=0, nullable=True)


@record
class ZkMigrationStateRecord:
    """How far a migration from ZooKeeper is; 0 is none, and all that Kafka 4 writes."""

    __api_key__: ClassVar[int] = 21
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    zk_migration_state: int = wire("int8")
