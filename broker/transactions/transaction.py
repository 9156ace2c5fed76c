"""State machine of one transactional id. No I/O.

The current state is that of the last committed record. A state change is returned as an append and
is pending until its result is known; other requests get CONCURRENT_TRANSACTIONS meanwhile. A failed
append leaves the state unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from odradek.broker.transactions.messages import (
    NO_ERROR,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    TRANSACTION_VERSION_2,
    AddPartitions,
    AllocateProducerId,
    EndTransaction,
    EventContext,
    Future,
    InitProducerId,
    MarkerResult,
    PartitionsResponse,
    PendingTransition,
    ProducerIdAndEpoch,
    ProducerResponse,
    SendMarkers,
    TransactionMetadata,
    TransactionRequest,
    TransactionResult,
    TransactionTimeout,
    TransitionAppend,
    VerifyPartitions,
    failed,
)
from odradek.broker.transactions.transaction_states import (
    IDLE_STATES,
    PREPARE_STATES,
    TRANSACTION_ACTIONS,
    VALID_TRANSITIONS,
    TransactionAction,
    TransactionEvent,
    TransactionState,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition

ERROR_BY_ACTION: Mapping[TransactionAction, ErrorCode] = {
    TransactionAction.DONE: NO_ERROR,
    TransactionAction.WAIT: ErrorCode.concurrent_transactions,
    TransactionAction.REFUSE: ErrorCode.invalid_txn_state,
    TransactionAction.FENCED: ErrorCode.producer_fenced,
}
"""Actions that only return an error code."""


def is_exhausted(epoch: int) -> bool:
    """Whether the epoch is the last one that producers may have; the maximum is reserved for
    fencing."""
    return epoch >= PRODUCER_EPOCH_MAX - 1


class Transaction:
    """A transactional id and its current transaction."""

    def __init__(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        self.transactional_id = transactional_id
        self.metadata = metadata
        self.pending: TransactionState | None = None
        """The state of the pending append."""

    @classmethod
    def new(
        cls, transactional_id: str, producer_id: int, timeout_ms: int, now: EventContext
    ) -> Transaction:
        """A transactional id that has no record yet."""
        metadata = TransactionMetadata(
            producer_id, NO_PRODUCER_EPOCH, timeout_ms, TransactionState.EMPTY, now.wall_ms
        )
        return cls(transactional_id, metadata)

    @property
    def is_new(self) -> bool:
        return self.metadata.epoch == NO_PRODUCER_EPOCH

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.metadata.producer_id, self.metadata.epoch)

    # Events

    def handle(
        self,
        event: TransactionRequest,
        future: Future,
        now: EventContext,
        new_producer_id: int | None = None,
    ) -> TransactionResult:
        """Handle a request. `new_producer_id` is the producer id that `AllocateProducerId` requested."""
        if isinstance(event, TransactionTimeout) and not self.is_timed_out(now):
            return TransactionResult()  # ended while the timeout waited for a producer id
        event_kind = self._classify(event)
        if isinstance(event_kind, ErrorCode):
            return self._respond(event, future, event_kind)
        action = TRANSACTION_ACTIONS[event_kind][self.metadata.state]
        if action in ERROR_BY_ACTION:
            return self._respond(event, future, ERROR_BY_ACTION[action])
        if action is TransactionAction.NOTHING:
            return TransactionResult()
        if self._needs_new_producer_id(event, action, now) and new_producer_id is None:
            result = TransactionResult()
            result.allocations.append(AllocateProducerId(event, future))
            return result
        return _HANDLERS[action](self, event, future, now, new_producer_id)

    def _classify(self, event: TransactionRequest) -> TransactionEvent | ErrorCode:
        """Classify a request for the action table, or return the error that rejects it."""
        if isinstance(event, InitProducerId):
            return (
                self._check_wait()
                or self._check_expected(event)
                or TransactionEvent.INIT_PRODUCER_ID
            )
        if isinstance(event, AddPartitions):
            known = set(event.partitions) <= set(self.metadata.partitions)
            event_kind = (
                TransactionEvent.ADD_EXISTING_PARTITIONS
                if known
                else TransactionEvent.ADD_NEW_PARTITIONS
            )
            return self._check_wait() or self._check_producer(event.producer) or event_kind
        if isinstance(event, VerifyPartitions):
            return self._check_producer(event.producer) or TransactionEvent.VERIFY_PARTITIONS
        if isinstance(event, EndTransaction):
            if event.client_version >= TRANSACTION_VERSION_2:
                return self._check_wait() or self._classify_end(event)
            event_kind = (
                TransactionEvent.COMMIT_V1 if event.is_commit else TransactionEvent.ABORT_V1
            )
            return self._check_producer(event.producer) or self._check_wait() or event_kind
        return self._check_wait() or TransactionEvent.TIMEOUT

    def _check_wait(self) -> ErrorCode | None:
        """CONCURRENT_TRANSACTIONS while an append is pending or the transaction is prepared.
        Checked first, so that a producer with its next epoch retries."""
        if self.pending is None and self.metadata.state not in PREPARE_STATES:
            return None
        return ErrorCode.concurrent_transactions

    def _check_producer(self, producer: ProducerIdAndEpoch) -> ErrorCode | None:
        if producer.producer_id != self.metadata.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if producer.epoch > self.metadata.epoch and self.pending is not None:
            return ErrorCode.concurrent_transactions  # see _may_be_outdated
        if producer.epoch != self.metadata.epoch:
            return ErrorCode.producer_fenced
        return None

    def _check_expected(self, event: InitProducerId) -> ErrorCode | None:
        """PRODUCER_FENCED unless the expected producer id is the current one, or the previous one
        with an exhausted epoch. A transactional id without a record accepts any."""
        expected, metadata = event.expected, self.metadata
        if expected is None or self.is_new or expected.producer_id == metadata.producer_id:
            return None
        was_rotated = expected.producer_id == metadata.previous_producer_id
        if was_rotated and is_exhausted(expected.epoch):
            return None
        return ErrorCode.producer_fenced

    def _classify_end(self, event: EndTransaction) -> TransactionEvent | ErrorCode:
        producer, metadata = event.producer, self.metadata
        was_rotated = (
            producer == (metadata.previous_producer_id, PRODUCER_EPOCH_MAX - 1)
            and metadata.epoch == 0
        )
        if producer.producer_id != metadata.producer_id and not was_rotated:
            return ErrorCode.invalid_producer_id_mapping
        is_previous_epoch = (
            metadata.client_version >= TRANSACTION_VERSION_2
            and producer.epoch == metadata.epoch - 1
        )
        if was_rotated or is_previous_epoch:
            return (
                TransactionEvent.RETRY_COMMIT if event.is_commit else TransactionEvent.RETRY_ABORT
            )
        if producer.epoch == metadata.epoch:
            return (
                TransactionEvent.END_WITH_COMMIT
                if event.is_commit
                else TransactionEvent.END_WITH_ABORT
            )
        return ErrorCode.producer_fenced

    def _respond(
        self, event: TransactionRequest, future: Future, code: ErrorCode
    ) -> TransactionResult:
        """Respond without a state change."""
        response = failed(event, code)
        bumps = isinstance(event, EndTransaction) and event.client_version >= TRANSACTION_VERSION_2
        if code is NO_ERROR and bumps:
            response = ProducerResponse(NO_ERROR, *self.producer)
        if self._may_be_outdated(event):
            self.pending = self.metadata.state
            result = TransactionResult()
            completion = PendingTransition(
                self.transactional_id, self.metadata, event, future, response
            )
            result.appends.append(TransitionAppend(completion))
            return result
        return TransactionResult().reply(future, response)

    def _may_be_outdated(self, event: TransactionRequest) -> bool:
        """Whether a newer coordinator may have a later state.

        A coordinator that is partitioned from the cluster may not know that it lost leadership. Its
        error would be fatal to the producer. It therefore rewrites its state first, which fails if
        another broker leads the partition. For epochs older than its own it can respond at once.
        """
        if isinstance(event, TransactionTimeout):
            return False
        producer = event.expected if isinstance(event, InitProducerId) else event.producer
        if producer is None or producer.producer_id != self.metadata.producer_id:
            return False
        if self._check_wait() is not None:
            return False
        if isinstance(event, EndTransaction | AddPartitions):
            return producer.epoch >= self.metadata.epoch
        return producer.epoch > self.metadata.epoch

    def _needs_new_producer_id(
        self, event: TransactionRequest, action: TransactionAction, now: EventContext
    ) -> bool:
        """Whether the action needs a new producer id because the epoch is exhausted."""
        if not is_exhausted(self.metadata.epoch):
            return False
        if action is TransactionAction.BUMP_EPOCH:
            assert isinstance(event, InitProducerId)
            return event.expected is None or event.expected.epoch == self.metadata.epoch
        if action is TransactionAction.FENCE:
            return now.transaction_version >= TRANSACTION_VERSION_2
        ends = isinstance(event, EndTransaction) and event.client_version >= TRANSACTION_VERSION_2
        return ends and action in (
            TransactionAction.COMMIT,
            TransactionAction.ABORT,
            TransactionAction.ABORT_WITHOUT_PARTITIONS,
        )

    # Actions

    def _bump_epoch(
        self,
        event: TransactionRequest,
        future: Future,
        now: EventContext,
        new_producer_id: int | None,
    ) -> TransactionResult:
        assert isinstance(event, InitProducerId)
        metadata, expected = self.metadata, event.expected
        producer_id, epoch, last_epoch = metadata.producer_id, metadata.epoch + 1, NO_PRODUCER_EPOCH
        if expected is not None and not self.is_new:
            if expected.epoch == metadata.epoch:
                last_epoch = metadata.epoch
            elif expected.epoch == metadata.last_epoch:  # a retry whose response was lost
                epoch, last_epoch = metadata.epoch, metadata.last_epoch
            else:
                return self._respond(event, future, ErrorCode.producer_fenced)
        if new_producer_id is not None and is_exhausted(metadata.epoch):
            producer_id, epoch = new_producer_id, 0
        target = replace(
            metadata,
            state=TransactionState.EMPTY,
            producer_id=producer_id,
            epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=event.timeout_ms,
            partitions=(),
            started_ms=-1,
        )
        response = ProducerResponse(NO_ERROR, producer_id, epoch)
        return self._transition_to(target, now, event, future, response)

    def _fence(
        self,
        event: TransactionRequest,
        future: Future,
        now: EventContext,
        new_producer_id: int | None,
    ) -> TransactionResult:
        """Abort with the next epoch, which fences the producer."""
        bumps = now.transaction_version >= TRANSACTION_VERSION_2
        target = replace(
            self.metadata,
            state=TransactionState.PREPARE_ABORT,
            epoch=min(self.metadata.epoch + 1, PRODUCER_EPOCH_MAX),
            last_epoch=self.metadata.epoch if bumps else NO_PRODUCER_EPOCH,
            next_producer_id=NO_PRODUCER_ID if new_producer_id is None else new_producer_id,
            client_version=TRANSACTION_VERSION_2 if bumps else 0,
        )
        response = failed(event, ErrorCode.concurrent_transactions)
        result = self._transition_to(target, now, event, future, response)
        cause = (
            "due to timeout"
            if isinstance(event, TransactionTimeout)
            else "because a new producer fences the previous one"
        )
        result.notes.append(f"aborting transaction of {self.transactional_id} {cause}")
        return result

    def _add(
        self,
        event: TransactionRequest,
        future: Future,
        now: EventContext,
        new_producer_id: int | None,
    ) -> TransactionResult:
        assert isinstance(event, AddPartitions)
        metadata = self.metadata
        target = replace(
            metadata,
            state=TransactionState.ONGOING,
            partitions=tuple(dict.fromkeys((*metadata.partitions, *event.partitions))),
            started_ms=now.wall_ms if metadata.state in IDLE_STATES else metadata.started_ms,
            client_version=event.client_version,
        )
        return self._transition_to(target, now, event, future, failed(event, NO_ERROR))

    def _verify(
        self,
        event: TransactionRequest,
        future: Future,
        now: EventContext,
        new_producer_id: int | None,
    ) -> TransactionResult:
        assert isinstance(event, VerifyPartitions)
        known = set(self.metadata.partitions)
        errors = {
            each: NO_ERROR if each in known else ErrorCode.transaction_abortable
            for each in event.partitions
        }
        return TransactionResult().reply(future, PartitionsResponse(errors))

    def _end(
        self,
        event: TransactionRequest,
        future: Future,
        now: EventContext,
        new_producer_id: int | None,
    ) -> TransactionResult:
        assert isinstance(event, EndTransaction)
        metadata = self.metadata
        target = replace(
            metadata,
            state=TransactionState.PREPARE_COMMIT
            if event.is_commit
            else TransactionState.PREPARE_ABORT,
            started_ms=now.wall_ms if metadata.state in IDLE_STATES else metadata.started_ms,
            next_producer_id=NO_PRODUCER_ID,
            client_version=0,
        )
        if event.client_version < TRANSACTION_VERSION_2:
            return self._transition_to(target, now, event, future, ProducerResponse(NO_ERROR))
        target = replace(
            target,
            epoch=min(metadata.epoch + 1, PRODUCER_EPOCH_MAX),
            last_epoch=metadata.epoch,
            next_producer_id=NO_PRODUCER_ID if new_producer_id is None else new_producer_id,
            client_version=event.client_version,
        )
        after = completed(target)
        response = ProducerResponse(NO_ERROR, after.producer_id, after.epoch)
        return self._transition_to(target, now, event, future, response)

    def _transition_to(
        self,
        target: TransactionMetadata,
        now: EventContext,
        event: TransactionRequest | None = None,
        future: Future = None,
        response: ProducerResponse | PartitionsResponse | None = None,
    ) -> TransactionResult:
        """Return the append that changes the state when it is committed."""
        assert self.pending is None
        assert target.state in VALID_TRANSITIONS[self.metadata.state], (
            self.metadata.state,
            target.state,
        )
        self.pending = target.state
        target = replace(
            target, updated_ms=now.wall_ms, previous_producer_id=self.metadata.producer_id
        )
        result = TransactionResult()
        completion = PendingTransition(self.transactional_id, target, event, future, response)
        result.appends.append(TransitionAppend(completion))
        return result

    # Append results

    def appended(self, completion: PendingTransition, now: EventContext) -> TransactionResult:
        assert completion.metadata is not None
        assert self.pending is completion.metadata.state
        self.pending = None
        self.metadata = completion.metadata
        result = self.resume(now)
        if completion.response is not None:
            result.reply(completion.future, completion.response)
        return result

    def append_failed(self, completion: PendingTransition, code: ErrorCode) -> TransactionResult:
        """Keep the state after a failed append. A prepared transaction sends its markers again,
        because only the coordinator completes it."""
        self.pending = None
        if completion.event is None and self.metadata.state in PREPARE_STATES:
            return self._send((), attempt=1)
        result = TransactionResult()
        return (
            result
            if completion.event is None
            else result.reply(completion.future, failed(completion.event, code))
        )

    # Markers

    def resume(self, now: EventContext) -> TransactionResult:
        """Send the markers of a prepared transaction."""
        if self.metadata.state not in PREPARE_STATES:
            return TransactionResult()
        if not self.metadata.partitions:
            return self._complete(now)
        return self._send(self.metadata.partitions, attempt=0)

    def _send(self, partitions: tuple[TopicPartition, ...], attempt: int) -> TransactionResult:
        result = TransactionResult()
        is_commit = self.metadata.state is TransactionState.PREPARE_COMMIT
        result.markers.append(
            SendMarkers(
                self.transactional_id,
                self.producer,
                is_commit,
                partitions,
                self.metadata.client_version,
                attempt,
            )
        )
        return result

    def on_markers_sent(
        self, sent: SendMarkers, results: Mapping[TopicPartition, MarkerResult], now: EventContext
    ) -> TransactionResult:
        """Apply the results of the markers; complete the transaction when no partition is left.

        If a partition has a newer coordinator epoch, this coordinator stops: the current leader of
        the `__transaction_state` partition completes the transaction.
        """
        result = TransactionResult()
        has_ended = self.metadata.state not in PREPARE_STATES or sent.producer != self.producer
        if self.pending is not None or has_ended:
            return result
        if MarkerResult.FENCED in results.values():
            result.notes.append(
                f"stopped sending markers of {self.transactional_id}: fenced by a newer coordinator"
            )
            return result
        left = tuple(
            each
            for each in self.metadata.partitions
            if results.get(each, MarkerResult.RETRY) is MarkerResult.RETRY
        )
        self.metadata = replace(self.metadata, partitions=left)
        if left:
            return self._send(left, sent.attempt + 1)
        return self._complete(now)

    def _complete(self, now: EventContext) -> TransactionResult:
        assert (
            TRANSACTION_ACTIONS[TransactionEvent.MARKERS_WRITTEN][self.metadata.state]
            is not TransactionAction.NOTHING
        )
        return self._transition_to(completed(self.metadata), now)

    # Timeout and expiration

    def is_timed_out(self, now: EventContext) -> bool:
        metadata = self.metadata
        return (
            metadata.state is TransactionState.ONGOING
            and self.pending is None
            and metadata.started_ms + metadata.timeout_ms < now.wall_ms
        )

    def expire(self, now: EventContext, expiration_ms: int) -> TransactionResult:
        """Remove the transactional id if it was unused for `expiration_ms`."""
        metadata, result = self.metadata, TransactionResult()
        is_due = metadata.updated_ms <= now.wall_ms - expiration_ms
        can_expire = (
            TRANSACTION_ACTIONS[TransactionEvent.EXPIRATION][metadata.state]
            is TransactionAction.REMOVE
        )
        if self.pending is None and is_due and can_expire:
            assert TransactionState.DEAD in VALID_TRANSITIONS[metadata.state]
            self.pending = TransactionState.DEAD
            result.appends.append(TransitionAppend(PendingTransition(self.transactional_id, None)))
        return result


def completed(prepared: TransactionMetadata) -> TransactionMetadata:
    """The state after all markers are written. With an exhausted epoch the producer continues with
    its next producer id at epoch 0 (KIP-890)."""
    is_commit = prepared.state is TransactionState.PREPARE_COMMIT
    done = replace(
        prepared,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=(),
        next_producer_id=NO_PRODUCER_ID,
    )
    rotates = prepared.next_producer_id != NO_PRODUCER_ID
    if rotates and prepared.client_version >= TRANSACTION_VERSION_2:
        return replace(done, producer_id=prepared.next_producer_id, epoch=0)
    return done


_HANDLERS: Mapping[
    TransactionAction,
    Callable[
        [Transaction, TransactionRequest, Future, EventContext, int | None], TransactionResult
    ],
] = {
    TransactionAction.BUMP_EPOCH: Transaction._bump_epoch,
    TransactionAction.FENCE: Transaction._fence,
    TransactionAction.ADD: Transaction._add,
    TransactionAction.VERIFY: Transaction._verify,
    TransactionAction.COMMIT: Transaction._end,
    TransactionAction.ABORT: Transaction._end,
    TransactionAction.ABORT_WITHOUT_PARTITIONS: Transaction._end,
}
