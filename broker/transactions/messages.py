"""What goes into the coordinator's machine and what comes out of it, as values.

An event comes with a *waiter*: whatever its sender recognises the answer by. What must survive a
restart comes out as an `TransitionAppend`; the caller writes it and comes back with `appended(then)` or
`append_failed(then, …)`, and only then has anything changed and comes the answer. `SendMarkers` is
answered by `marked`, `AllocateProducerId` by handing in the same event with a fresh producer id.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from odradek.broker.transactions.transaction_states import TransactionState
from odradek.protocol.errors import ErrorCode
from odradek.seams.values import value_class
from odradek.storage.directories.names import TopicPartition

Future: TypeAlias = Any
"""Opaque; None where nobody asked."""

NO_ERROR = ErrorCode.none
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
PRODUCER_EPOCH_MAX = 2**15 - 1
TRANSACTION_VERSION_2 = 2
"""The transaction.version since which every end moves the epoch on (KIP-890)."""


class EventContext(NamedTuple):
    """When an event comes, and the level of `transaction.version` at that moment."""

    wall_ms: int
    transaction_version: int


class ProducerIdAndEpoch(NamedTuple):
    """Who asks: a producer id and its epoch."""

    producer_id: int
    epoch: int


@value_class
class TransactionMetadata:
    """What a record says of a transactional id; times in ms.

    `last_epoch` is the one exception, it is in memory alone, as in Kafka.
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
    """The transaction.version that the client knew when it last changed the state."""
    last_epoch: int = NO_PRODUCER_EPOCH
    """The epoch that a producer which asks for its next one again may still have."""


# Events


@value_class
class InitProducerId:
    """`expected` is who the producer thinks that it is (KIP-360)."""

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
    """The transaction goes on for longer than its producer wanted."""

    transactional_id: str


TransactionRequest: TypeAlias = (
    InitProducerId | AddPartitions | VerifyPartitions | EndTransaction | TransactionTimeout
)

# Answers


@value_class
class ProducerResponse:
    """To InitProducerId and EndTxn: who the producer is from now on."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH


@value_class
class PartitionsResponse:
    """To AddPartitionsToTxn: an error for each partition asked for."""

    errors: Mapping[TopicPartition, ErrorCode]


Response: TypeAlias = ProducerResponse | PartitionsResponse

# Actions


class MarkerResult(enum.Enum):
    """What became of a marker."""

    WRITTEN = "written"
    GONE = "the partition was deleted"
    LATER = "not now: hand it in again"
    FENCED = "somebody newer is in charge"


class Reply(NamedTuple):
    future: Future
    respond: Response


@value_class
class PendingTransition:
    """What follows when the record is there: `metadata` holds, and the waiter is told `respond`. When
    it can't be, nothing has changed, and the waiter is told the error."""

    transactional_id: str
    metadata: TransactionMetadata | None
    event: TransactionRequest | None = None
    future: Future = None
    respond: Response | None = None


@value_class
class TransitionAppend:
    """Write `completion.metadata` under the id; None is a tombstone."""

    completion: PendingTransition


@value_class
class SendMarkers:
    """Have the partitions write how the transaction ended. From the second `attempt` on, later."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int
    attempt: int = 0


@value_class
class AllocateProducerId:
    """Get a fresh producer id, and hand in the event again with it."""

    event: TransactionRequest
    future: Future


@dataclass(slots=True)
class TransactionResult:
    """What an event leads to. `notes` are for the broker's log, not for anyone's state."""

    replies: list[Reply] = field(default_factory=list)
    appends: list[TransitionAppend] = field(default_factory=list)
    markers: list[SendMarkers] = field(default_factory=list)
    allocations: list[AllocateProducerId] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def reply(self, future: Future, respond: Response) -> TransactionResult:
        if future is not None:
            self.replies.append(Reply(future, respond))
        return self


def failed(event: TransactionRequest, code: ErrorCode) -> Response:
    """The answer to an event that has this error."""
    if isinstance(event, AddPartitions | VerifyPartitions):
        return PartitionsResponse(dict.fromkeys(event.partitions, code))
    return ProducerResponse(code)
