"""Metadata records of ACLs, SCRAM credentials, delegation tokens and quotas."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import StoredRecord, record, structs, wire


@record
class AccessControlEntryRecord(StoredRecord):
    """Creation of an access control entry."""

    __api_key__: ClassVar[int] = 18
    id: UUID = wire("uuid")
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    pattern_type: int = wire("int8")
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


@record
class RemoveAccessControlEntryRecord(StoredRecord):
    """Removal of an access control entry."""

    __api_key__: ClassVar[int] = 19
    id: UUID = wire("uuid")


@record
class UserScramCredentialRecord(StoredRecord):
    """SCRAM credentials of a user. Mechanism 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512."""

    __api_key__: ClassVar[int] = 11
    name: str = wire("string")
    mechanism: int = wire("int8")
    salt: bytes = wire("bytes")
    stored_key: bytes = wire("bytes")
    server_key: bytes = wire("bytes")
    iterations: int = wire("int32")


@record
class RemoveUserScramCredentialRecord(StoredRecord):
    """Removal of the SCRAM credentials of a user."""

    __api_key__: ClassVar[int] = 22
    name: str = wire("string")
    mechanism: int = wire("int8")


@record
class DelegationTokenRecord(StoredRecord):
    """A delegation token, with timestamps in ms."""

    __api_key__: ClassVar[int] = 10
    owner: str = wire("string")
    requester: str = wire("string")
    renewers: tuple[str, ...] = wire("[]string")
    issue_timestamp: int = wire("int64")
    max_timestamp: int = wire("int64")
    expiration_timestamp: int = wire("int64")
    token_id: str = wire("string")


@record
class RemoveDelegationTokenRecord(StoredRecord):
    """Removal of a delegation token."""

    __api_key__: ClassVar[int] = 26
    token_id: str = wire("string")


@record
class ClientQuotaEntity:
    """Part of a quota entity: type and name. A name of None is the default entity."""

    entity_type: str = wire("string")
    entity_name: str | None = wire("string", nullable=True)


@record
class ClientQuotaRecord(StoredRecord):
    """A quota of an entity, such as `producer_byte_rate` for a user and client id."""

    __api_key__: ClassVar[int] = 14
    entity: tuple[ClientQuotaEntity, ...] = structs(ClientQuotaEntity)
    key: str = wire("string")
    value: float = wire("float64")
    remove: bool = wire("bool")
