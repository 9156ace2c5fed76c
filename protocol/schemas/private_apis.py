"""Requests and responses of APIs between nodes of Odradek, which Kafka does not have."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.definition import StoredRecord, record, wire


@record
class DisableRemoteTopicRequest(StoredRecord):
    """Request of the active controller to a broker to finish the disablement of tiered storage (KIP-950, X-07).

    A `partition_id` of -1 is all partitions. The broker first waits for `metadata_offset`, which is not in the KIP.
    """

    __api_key__: ClassVar[int] = 20_950
    partition_id: int = wire("int32", -1)
    topic_id: UUID = wire("uuid")
    metadata_offset: int = wire("int64", -1, tag=0)


@record
class DisableRemoteTopicResponse(StoredRecord):
    """NONE if the broker's part is done, or a retriable error with the reason."""

    __api_key__: ClassVar[int] = 20_950
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)
