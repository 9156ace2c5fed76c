"""Requests and responses of the APIs of Odradek that Kafka does not have."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.definition import StoredRecord, record, structs, wire


@record
class DisableRemoteTopicRequest(StoredRecord):
    """Request of the active controller to a broker to finish the disablement of tiered storage (KIP-950, X-07).

    A `partition_id` of -1 is all partitions. The broker first waits for `metadata_offset`. The tagged fields are not
    in the KIP.
    """

    __api_key__: ClassVar[int] = 20_950
    partition_id: int = wire("int32", -1)
    topic_id: UUID = wire("uuid")
    metadata_offset: int = wire("int64", -1, tag=0)
    tiered_epoch: int = wire("int32", -1, tag=1)
    copying_brokers: tuple[int, ...] = wire("[]int32", tag=2)
    """Brokers that may still copy segments in an earlier tiered epoch; valid with `tiered_epoch`."""


@record
class DisableRemoteTopicResponse(StoredRecord):
    """NONE if the broker's part is done, or a retriable error with the reason."""

    __api_key__: ClassVar[int] = 20_950
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)
    has_ended_copies: bool = wire("bool", tag=0)
    """Whether the broker copies no segment of the topic any more, even if its part is not done."""


@record
class DescribeTopicTieringRequest(StoredRecord):
    """Request for the tiered state of topics (KIP-950).

    `topics` of None are all topics whose tiered storage was disabled at least once.
    """

    __api_key__: ClassVar[int] = 20_951
    topics: tuple[str, ...] | None = wire("[]string", None, nullable=True)


@record
class DisablementResponse:
    """Whether a broker has finished its part of a disablement."""

    broker_id: int = wire("int32")
    is_done: bool = wire("bool")
    reason: str | None = wire("string", None, nullable=True)
    """Why it has not finished, as of its last response; None if it has not responded."""


@record
class RemoteSegmentCount:
    """Remote log segments of a partition that the broker which responds leads."""

    partition_index: int = wire("int32")
    segments: int = wire("int64")


@record
class DescribedTopicTiering:
    """Tiered state of one topic. `brokers` is empty unless the state is DISABLING."""

    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)
    name: str = wire("string")
    is_tiered: bool = wire("bool")
    """Value of remote.storage.enable."""
    state: int = wire("int8")
    epoch: int = wire("int32")
    policy: str | None = wire("string", None, nullable=True)
    brokers: tuple[DisablementResponse, ...] = structs(DisablementResponse)
    partitions: tuple[RemoteSegmentCount, ...] = structs(RemoteSegmentCount)


@record
class DescribeTopicTieringResponse(StoredRecord):
    """Tiered states as the active controller has them, and the remote segments that the broker knows."""

    __api_key__: ClassVar[int] = 20_951
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)
    topics: tuple[DescribedTopicTiering, ...] = structs(DescribedTopicTiering)
