"""Requests, responses, results and records of the transaction coordinator's state machine.

A state change is returned as a `TransitionAppend`. The caller appends its record and calls
`TransactionCoordinatorShard.appended` or `append_failed`. The state changes, and the response is sent, only after the record is
committed. `SendMarkers` is completed by `on_markers_sent`, `AllocateProducerId` by passing the
same request again with a producer id.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from odradek.broker.transactions.transaction_states import TransactionState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class

Future: TypeAlias = Any
"""Identifies the response's receiver; None for events without a client."""

NO_ERROR = ErrorCode.none
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
PRODUCER_EPOCH_MAX = 2**15 - 1
TRANSACTION_VERSION_2 = 2
"""The transaction.version from which EndTxn increments the producer epoch (KIP-890)."""


class EventContext(NamedTuple):
    """Time of an event and the finalized level of `transaction.version`."""

    wall_ms: int
    transaction_version: int


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


@value_class
class TransactionMetadata:
    """State of a transactional id as in its last record; times in ms.

    `last_epoch` is kept in memory only, as in Kafka.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    partitions: tuple[TopicPartition, ...] = ()
    started_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    """The client's transaction.version at its last state change."""
    last_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last bump, with which a producer may retry InitProducerId."""


# Events


@value_class
class InitProducerId:
    """InitProducerId; `expected` is the producer id and epoch that the client sent (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None


@value_class
class AddPartitions:
    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]
    client_version: int = TRANSACTION_VERSION_2


@value_class
class VerifyPartitions:
    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]


@value_class
class EndTransaction:
    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    client_version: int = TRANSACTION_VERSION_2


@value_class
class TransactionTimeout:
    """The transaction exceeded its timeout."""

    transactional_id: str


TransactionRequest: TypeAlias = (
    InitProducerId | AddPartitions | VerifyPartitions | EndTransaction | TransactionTimeout
)

# Responses


@value_class
class ProducerResponse:
    """Response to InitProducerId and EndTxn, with the producer id and epoch from now on."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH


@value_class
class PartitionsResponse:
    """Response to AddPartitionsToTxn: an error code per partition."""

    errors: Mapping[TopicPartition, ErrorCode]


Response: TypeAlias = ProducerResponse | PartitionsResponse

# Actions


class MarkerResult(enum.Enum):
    """Result of writing a marker to a partition."""

    WRITTEN = "written"
    GONE = "the partition was deleted"
    RETRY = "not written yet; retry"
    FENCED = "fenced by a newer coordinator or producer epoch"


class Reply(NamedTuple):
    future: Future
    response: Response


@value_class
class PendingTransition:
    """The state change to complete when its record is committed, and the response to send. If the
    append fails, the state stays and the response is the error."""

    transactional_id: str
    metadata: TransactionMetadata | None
    event: TransactionRequest | None = None
    future: Future = None
    response: Response | None = None


@value_class
class TransitionAppend:
    """Append the new state of a transactional id; None is a tombstone."""

    completion: PendingTransition


@value_class
class SendMarkers:
    """Write the transaction's markers. Attempts after the first are delayed."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int
    attempt: int = 0


@value_class
class AllocateProducerId:
    """Allocate a producer id, then handle the request again with it."""

    event: TransactionRequest
    future: Future


@dataclass(slots=True)
class TransactionResult:
    """Result of an event. `notes` are lines for the broker's log."""

    replies: list[Reply] = field(default_factory=list)
    appends: list[TransitionAppend] = field(default_factory=list)
    markers: list[SendMarkers] = field(default_factory=list)
    allocations: list[AllocateProducerId] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def reply(self, future: Future, response: Response) -> TransactionResult:
        if future is not None:
            self.replies.append(Reply(future, response))
        return self


def failed(event: TransactionRequest, code: ErrorCode) -> Response:
    """The response to a request that fails with this error."""
    if isinstance(event, AddPartitions | VerifyPartitions):
        return PartitionsResponse(dict.fromkeys(event.partitions, code))
    return ProducerResponse(code)
