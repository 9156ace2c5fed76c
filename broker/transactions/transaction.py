"""One transactional id: who its producer is, and the transaction that goes on; without I/O.

What holds is what its last record says. An event that changes it comes out as an append; until the
caller says what became of that, the change is *pending* and everything else has to wait. So whatever
a client is told is backed by the log, and a change that could not be written has not happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from odradek.broker.transactions.actions import (
    EPOCH_BUMP,
    EPOCH_MAX,
    NO_EPOCH,
    NO_ERROR,
    NO_PRODUCER_ID,
    Actions,
    AddPartitions,
    Allocate,
    Append,
    EndTransaction,
    Event,
    InitProducerId,
    Now,
    Outcome,
    PartitionsResponse,
    Producer,
    ProducerResponse,
    SendMarkers,
    Stored,
    Then,
    TimeOut,
    VerifyPartitions,
    Waiter,
    failed,
)
from odradek.broker.transactions.states import AT_REST, FOLLOWS, PREPARED, TABLE, State, Step
from odradek.broker.transactions.states import Event as Row
from odradek.protocol.errors import ErrorCode
from odradek.storage.directories.names import TopicPartition

RESPONSES: Mapping[Step, ErrorCode] = {
    Step.DONE: NO_ERROR,
    Step.WAIT: ErrorCode.concurrent_transactions,
    Step.REFUSE: ErrorCode.invalid_txn_state,
    Step.FENCED: ErrorCode.producer_fenced,
}
"""The steps that are nothing but an answer."""


def is_exhausted(epoch: int) -> bool:
    """Whether no producer may be given a later epoch: the last one is kept to fence with."""
    return epoch >= EPOCH_MAX - 1


class Transaction:
    """See the module."""

    def __init__(self, transactional_id: str, stored: Stored) -> None:
        self.transactional_id = transactional_id
        self.stored = stored
        self.pending: State | None = None
        """What it is about to become; a record is on its way."""

    @classmethod
    def new(cls, transactional_id: str, producer_id: int, timeout_ms: int, now: Now) -> Transaction:
        """One that the log does not know yet."""
        stored = Stored(producer_id, NO_EPOCH, timeout_ms, State.EMPTY, now.wall_ms)
        return cls(transactional_id, stored)

    @property
    def is_new(self) -> bool:
        return self.stored.epoch == NO_EPOCH

    @property
    def producer(self) -> Producer:
        return Producer(self.stored.producer_id, self.stored.epoch)

    # Events

    def handle(
        self, event: Event, waiter: Waiter, now: Now, fresh_id: int | None = None
    ) -> Actions:
        """Let something happen. `fresh_id` is the producer id that was asked for by `Allocate`."""
        if isinstance(event, TimeOut) and not self.is_out_of_time(now):
            return (
                Actions()
            )  # it had to wait for a producer id, and another transaction goes on by now
        row = self._row(event)
        if isinstance(row, ErrorCode):
            return self._respond(event, waiter, row)
        step = TABLE[row][self.stored.state]
        if step in RESPONSES:
            return self._respond(event, waiter, RESPONSES[step])
        if step is Step.NOTHING:
            return Actions()
        if self._needs_fresh_id(event, step, now) and fresh_id is None:
            actions = Actions()
            actions.allocations.append(Allocate(event, waiter))
            return actions
        return _DO[step](self, event, waiter, now, fresh_id)

    def _row(self, event: Event) -> Row | ErrorCode:
        """What the event is to the table, or why it is turned away before it gets there."""
        if isinstance(event, InitProducerId):
            return self._check_wait() or self._check_expected(event) or Row.PRODUCER_BEGINS
        if isinstance(event, AddPartitions):
            known = set(event.partitions) <= set(self.stored.partitions)
            row = Row.ADDS_KNOWN if known else Row.ADDS_NEW
            return self._check_wait() or self._check_producer(event.producer) or row
        if isinstance(event, VerifyPartitions):
            return self._check_producer(event.producer) or Row.VERIFIES
        if isinstance(event, EndTransaction):
            if event.client_version >= EPOCH_BUMP:
                return self._check_wait() or self._end_row(event)
            row = Row.COMMITS_V1 if event.is_commit else Row.ABORTS_V1
            return self._check_producer(event.producer) or self._check_wait() or row
        return self._check_wait() or Row.TIMES_OUT

    def _check_wait(self) -> ErrorCode | None:
        """Whether a change is being written, or is bound to come: the end of what is decided. That
        comes before all else, so that a producer under its next epoch asks again."""
        if self.pending is None and self.stored.state not in PREPARED:
            return None
        return ErrorCode.concurrent_transactions

    def _check_producer(self, producer: Producer) -> ErrorCode | None:
        if producer.producer_id != self.stored.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if producer.epoch > self.stored.epoch and self.pending is not None:
            return ErrorCode.concurrent_transactions  # see _may_be_outdated
        if producer.epoch != self.stored.epoch:
            return ErrorCode.producer_fenced
        return None

    def _check_expected(self, event: InitProducerId) -> ErrorCode | None:
        """A producer that says who it is must be the one that is known, or was until its epochs
        were used up: then it may not have heard of its new id. One that is new to us may be anyone."""
        expected, stored = event.expected, self.stored
        if expected is None or self.is_new or expected.producer_id == stored.producer_id:
            return None
        was_rotated = expected.producer_id == stored.previous_producer_id
        if was_rotated and is_exhausted(expected.epoch):
            return None
        return ErrorCode.producer_fenced

    def _end_row(self, event: EndTransaction) -> Row | ErrorCode:
        producer, stored = event.producer, self.stored
        was_rotated = producer == (stored.previous_producer_id, EPOCH_MAX - 1) and stored.epoch == 0
        if producer.producer_id != stored.producer_id and not was_rotated:
            return ErrorCode.invalid_producer_id_mapping
        moved_on = stored.client_version >= EPOCH_BUMP and producer.epoch == stored.epoch - 1
        if was_rotated or moved_on:
            return Row.COMMITS_AGAIN if event.is_commit else Row.ABORTS_AGAIN
        if producer.epoch == stored.epoch:
            return Row.COMMITS if event.is_commit else Row.ABORTS
        return ErrorCode.producer_fenced

    def _respond(self, event: Event, waiter: Waiter, code: ErrorCode) -> Actions:
        """Say so, where nothing changes."""
        respond = failed(event, code)
        bumps = isinstance(event, EndTransaction) and event.client_version >= EPOCH_BUMP
        if code is NO_ERROR and bumps:
            respond = ProducerResponse(NO_ERROR, *self.producer)
        if self._may_be_outdated(event):
            self.pending = self.stored.state
            actions = Actions()
            then = Then(self.transactional_id, self.stored, event, waiter, respond)
            actions.appends.append(Append(then))
            return actions
        return Actions().reply(waiter, respond)

    def _may_be_outdated(self, event: Event) -> bool:
        """Whether another coordinator may know better. One that is cut off does not hear that it is no
        coordinator any more, and one that lags hears it late. To it, the transaction that is to be ended
        never began (partitions that its producers write to are added elsewhere, KIP-890), partitions are in
        one that is over, and an epoch that was given elsewhere is nobody's: its answer would be the producer's
        last. Before it says so it writes what it knows, once more; it can't while others lead the partition.
        Of epochs before its own it is right: none of them comes again."""
        if isinstance(event, TimeOut):
            return False
        producer = event.expected if isinstance(event, InitProducerId) else event.producer
        if producer is None or producer.producer_id != self.stored.producer_id:
            return False
        if self._check_wait() is not None:
            return False
        if isinstance(event, EndTransaction | AddPartitions):
            return producer.epoch >= self.stored.epoch
        return producer.epoch > self.stored.epoch

    def _needs_fresh_id(self, event: Event, step: Step, now: Now) -> bool:
        """Whether the epochs are used up that the step wants one more of."""
        if not is_exhausted(self.stored.epoch):
            return False
        if step is Step.BEGIN_EPOCH:
            assert isinstance(event, InitProducerId)
            return event.expected is None or event.expected.epoch == self.stored.epoch
        if step is Step.FENCE:
            return now.transaction_version >= EPOCH_BUMP
        ends = isinstance(event, EndTransaction) and event.client_version >= EPOCH_BUMP
        return ends and step in (Step.COMMIT, Step.ABORT, Step.ABORT_NOTHING)

    # Steps

    def _begin_epoch(self, event: Event, waiter: Waiter, now: Now, fresh_id: int | None) -> Actions:
        assert isinstance(event, InitProducerId)
        stored, expected = self.stored, event.expected
        producer_id, epoch, last_epoch = stored.producer_id, stored.epoch + 1, NO_EPOCH
        if expected is not None and not self.is_new:
            if expected.epoch == stored.epoch:
                last_epoch = stored.epoch
            elif expected.epoch == stored.last_epoch:  # it did not hear the answer
                epoch, last_epoch = stored.epoch, stored.last_epoch
            else:
                return self._respond(event, waiter, ErrorCode.producer_fenced)
        if fresh_id is not None and is_exhausted(stored.epoch):
            producer_id, epoch = fresh_id, 0
        became = replace(
            stored,
            state=State.EMPTY,
            producer_id=producer_id,
            epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=event.timeout_ms,
            partitions=(),
            started_ms=-1,
        )
        respond = ProducerResponse(NO_ERROR, producer_id, epoch)
        return self._become(became, now, event, waiter, respond)

    def _fence(self, event: Event, waiter: Waiter, now: Now, fresh_id: int | None) -> Actions:
        """Abort in the name of nobody: the epoch moves on, so that its producer can't go on."""
        bumps = now.transaction_version >= EPOCH_BUMP
        became = replace(
            self.stored,
            state=State.PREPARE_ABORT,
            epoch=min(self.stored.epoch + 1, EPOCH_MAX),
            last_epoch=self.stored.epoch if bumps else NO_EPOCH,
            next_producer_id=NO_PRODUCER_ID if fresh_id is None else fresh_id,
            client_version=EPOCH_BUMP if bumps else 0,
        )
        respond = failed(event, ErrorCode.concurrent_transactions)
        actions = self._become(became, now, event, waiter, respond)
        why = "out of time" if isinstance(event, TimeOut) else "its producer is fenced by another"
        actions.notes.append(f"{self.transactional_id} is aborted: {why}")
        return actions

    def _add(self, event: Event, waiter: Waiter, now: Now, fresh_id: int | None) -> Actions:
        assert isinstance(event, AddPartitions)
        stored = self.stored
        became = replace(
            stored,
            state=State.ONGOING,
            partitions=tuple(dict.fromkeys((*stored.partitions, *event.partitions))),
            started_ms=now.wall_ms if stored.state in AT_REST else stored.started_ms,
            client_version=event.client_version,
        )
        return self._become(became, now, event, waiter, failed(event, NO_ERROR))

    def _look(self, event: Event, waiter: Waiter, now: Now, fresh_id: int | None) -> Actions:
        assert isinstance(event, VerifyPartitions)
        known = set(self.stored.partitions)
        errors = {
            each: NO_ERROR if each in known else ErrorCode.transaction_abortable
            for each in event.partitions
        }
        return Actions().reply(waiter, PartitionsResponse(errors))

    def _end(self, event: Event, waiter: Waiter, now: Now, fresh_id: int | None) -> Actions:
        assert isinstance(event, EndTransaction)
        stored = self.stored
        became = replace(
            stored,
            state=State.PREPARE_COMMIT if event.is_commit else State.PREPARE_ABORT,
            started_ms=now.wall_ms if stored.state in AT_REST else stored.started_ms,
            next_producer_id=NO_PRODUCER_ID,
            client_version=0,
        )
        if event.client_version < EPOCH_BUMP:
            return self._become(became, now, event, waiter, ProducerResponse(NO_ERROR))
        became = replace(
            became,
            epoch=min(stored.epoch + 1, EPOCH_MAX),
            last_epoch=stored.epoch,
            next_producer_id=NO_PRODUCER_ID if fresh_id is None else fresh_id,
            client_version=event.client_version,
        )
        after = completed(became)
        respond = ProducerResponse(NO_ERROR, after.producer_id, after.epoch)
        return self._become(became, now, event, waiter, respond)

    def _become(
        self,
        became: Stored,
        now: Now,
        event: Event | None = None,
        waiter: Waiter = None,
        respond: ProducerResponse | PartitionsResponse | None = None,
    ) -> Actions:
        """Have it written; it holds when it is."""
        assert self.pending is None
        assert became.state in FOLLOWS[self.stored.state], (self.stored.state, became.state)
        self.pending = became.state
        became = replace(
            became, updated_ms=now.wall_ms, previous_producer_id=self.stored.producer_id
        )
        actions = Actions()
        then = Then(self.transactional_id, became, event, waiter, respond)
        actions.appends.append(Append(then))
        return actions

    # What became of an append

    def appended(self, then: Then, now: Now) -> Actions:
        assert then.stored is not None
        assert self.pending is then.stored.state
        self.pending = None
        self.stored = then.stored
        actions = self.resume(now)
        if then.respond is not None:
            actions.reply(then.waiter, then.respond)
        return actions

    def append_failed(self, then: Then, code: ErrorCode) -> Actions:
        """It is as it was. A transaction that could not be completed tries again: its markers are
        written, and nobody else would do it."""
        self.pending = None
        if then.event is None and self.stored.state in PREPARED:
            return self._send((), attempt=1)
        actions = Actions()
        return (
            actions if then.event is None else actions.reply(then.waiter, failed(then.event, code))
        )

    # Markers

    def resume(self, now: Now) -> Actions:
        """Go on with what stands in the log: a transaction whose end is decided is ended."""
        if self.stored.state not in PREPARED:
            return Actions()
        if not self.stored.partitions:
            return self._complete(now)
        return self._send(self.stored.partitions, attempt=0)

    def _send(self, partitions: tuple[TopicPartition, ...], attempt: int) -> Actions:
        actions = Actions()
        is_commit = self.stored.state is State.PREPARE_COMMIT
        actions.markers.append(
            SendMarkers(
                self.transactional_id,
                self.producer,
                is_commit,
                partitions,
                self.stored.client_version,
                attempt,
            )
        )
        return actions

    def marked(
        self, sent: SendMarkers, outcomes: Mapping[TopicPartition, Outcome], now: Now
    ) -> Actions:
        """What became of the markers that were sent; complete when no partition is left.

        Where a partition knows somebody newer this coordinator gives up: whoever leads its partition
        next finds the transaction as it stands.
        """
        actions = Actions()
        is_over = self.stored.state not in PREPARED or sent.producer != self.producer
        if self.pending is not None or is_over:
            return actions
        if Outcome.FENCED in outcomes.values():
            actions.notes.append(
                f"{self.transactional_id}: its markers are refused, somebody newer is in charge"
            )
            return actions
        left = tuple(
            each
            for each in self.stored.partitions
            if outcomes.get(each, Outcome.LATER) is Outcome.LATER
        )
        self.stored = replace(self.stored, partitions=left)
        if left:
            return self._send(left, sent.attempt + 1)
        return self._complete(now)

    def _complete(self, now: Now) -> Actions:
        assert TABLE[Row.MARKED][self.stored.state] is not Step.NOTHING
        return self._become(completed(self.stored), now)

    # Expiry

    def is_out_of_time(self, now: Now) -> bool:
        stored = self.stored
        return (
            stored.state is State.ONGOING
            and self.pending is None
            and stored.started_ms + stored.timeout_ms < now.wall_ms
        )

    def expire(self, now: Now, expiration_ms: int) -> Actions:
        """Forget the id if nobody has used it for so long."""
        stored, actions = self.stored, Actions()
        is_due = stored.updated_ms <= now.wall_ms - expiration_ms
        may = TABLE[Row.EXPIRES][stored.state] is Step.FORGET
        if self.pending is None and is_due and may:
            assert State.DEAD in FOLLOWS[stored.state]
            self.pending = State.DEAD
            actions.appends.append(Append(Then(self.transactional_id, None)))
        return actions


def completed(prepared: Stored) -> Stored:
    """What follows when all markers are written. Where the epochs are used up the producer goes on
    under its next id, from epoch 0 (KIP-890)."""
    is_commit = prepared.state is State.PREPARE_COMMIT
    done = replace(
        prepared,
        state=State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT,
        partitions=(),
        next_producer_id=NO_PRODUCER_ID,
    )
    rotates = prepared.next_producer_id != NO_PRODUCER_ID
    if rotates and prepared.client_version >= EPOCH_BUMP:
        return replace(done, producer_id=prepared.next_producer_id, epoch=0)
    return done


_DO: Mapping[Step, Callable[[Transaction, Event, Waiter, Now, int | None], Actions]] = {
    Step.BEGIN_EPOCH: Transaction._begin_epoch,
    Step.FENCE: Transaction._fence,
    Step.ADD: Transaction._add,
    Step.LOOK: Transaction._look,
    Step.COMMIT: Transaction._end,
    Step.ABORT: Transaction._end,
    Step.ABORT_NOTHING: Transaction._end,
}
