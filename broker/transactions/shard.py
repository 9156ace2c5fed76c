"""One partition of `__transaction_state`: the transactional ids that belong to it, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from odradek.broker.transactions.actions import (
    Actions,
    Allocate,
    Append,
    Event,
    InitProducerId,
    Now,
    Outcome,
    SendMarkers,
    Stored,
    Then,
    TimeOut,
    Waiter,
    failed,
)
from odradek.broker.transactions.states import PREPARED, State
from odradek.broker.transactions.transaction import Transaction
from odradek.protocol.errors import ErrorCode
from odradek.seams.values import value_class
from odradek.storage.directories.names import TopicPartition

FOUND_PER_STEP = 1000


@value_class
class Filter:
    """Which transactions are listed: those that meet all of it. Empty is any.

    `duration_ms` below 0 is any; a transaction that has not started counts as started at -1 ms, so
    that it meets any duration, as in Kafka.
    """

    producer_ids: Collection[int] = ()
    states: Collection[State] | None = None
    duration_ms: int = -1


class Shard:
    """See the module."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._unfinished: list[str] = []

    # Replaying

    def replay(self, transactional_id: str, stored: Stored | None) -> None:
        if stored is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = Transaction(transactional_id, stored)

    def find_unfinished(self) -> Iterator[None]:
        """All is replayed: find the transactions whose end is decided; yields now and then."""
        for count, (transactional_id, each) in enumerate(list(self.transactions.items())):
            if each.stored.state in PREPARED:
                self._unfinished.append(transactional_id)
            if count % FOUND_PER_STEP == FOUND_PER_STEP - 1:
                yield

    def take_unfinished(self) -> list[str]:
        found, self._unfinished = self._unfinished, []
        return found

    def resume(self, transactional_id: str, now: Now) -> Actions:
        """Go on with one of those. Nothing but this ends it: until then it is as it was found."""
        transaction = self.transactions.get(transactional_id)
        return Actions() if transaction is None else transaction.resume(now)

    # Events

    def handle(
        self, event: Event, waiter: Waiter, now: Now, fresh_id: int | None = None
    ) -> Actions:
        """See `Transaction.handle`."""
        transaction = self.transactions.get(event.transactional_id)
        if transaction is not None:
            return transaction.handle(event, waiter, now, fresh_id)
        if not isinstance(event, InitProducerId):
            refused = failed(event, ErrorCode.invalid_producer_id_mapping)
            return Actions().reply(waiter, refused)
        if fresh_id is None:
            actions = Actions()
            actions.allocations.append(Allocate(event, waiter))
            return actions
        transaction = Transaction.new(event.transactional_id, fresh_id, event.timeout_ms, now)
        self.transactions[event.transactional_id] = transaction
        return transaction.handle(event, waiter, now)

    def marked(
        self, sent: SendMarkers, outcomes: Mapping[TopicPartition, Outcome], now: Now
    ) -> Actions:
        """See `Transaction.marked`."""
        transaction = self.transactions.get(sent.transactional_id)
        return Actions() if transaction is None else transaction.marked(sent, outcomes, now)

    def time_out(self, transactional_id: str, now: Now) -> Actions:
        """Abort the transaction that goes on if it does so for too long."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None or not transaction.is_out_of_time(now):
            return Actions()
        return transaction.handle(TimeOut(transactional_id), None, now)

    def expire(self, transactional_id: str, now: Now, expiration_ms: int) -> Actions:
        transaction = self.transactions.get(transactional_id)
        return Actions() if transaction is None else transaction.expire(now, expiration_ms)

    def forget_all(self) -> Actions:
        """Tombstones for every id, whatever goes on there."""
        actions = Actions()
        for transactional_id in self.transactions:
            actions.appends.append(Append(Then(transactional_id, None)))
        return actions

    # What became of an append

    def appended(self, then: Then, now: Now) -> Actions:
        transaction = self.transactions.get(then.transactional_id)
        if transaction is None:
            return _forgotten(then, ErrorCode.not_coordinator)
        if then.stored is None:
            del self.transactions[then.transactional_id]
            return Actions()
        return transaction.appended(then, now)

    def append_failed(self, then: Then, code: ErrorCode) -> Actions:
        transaction = self.transactions.get(then.transactional_id)
        if transaction is None:
            return _forgotten(then, code)
        if transaction.is_new:
            del self.transactions[then.transactional_id]
        return transaction.append_failed(then, code)

    # Asking

    def list_transactions(self, wanted: Filter, now: Now) -> Iterable[Transaction]:
        for transaction in self.transactions.values():
            stored = transaction.stored
            if wanted.producer_ids and stored.producer_id not in wanted.producer_ids:
                continue
            if wanted.states is not None and stored.state not in wanted.states:
                continue
            if wanted.duration_ms >= 0 and now.wall_ms - stored.started_ms <= wanted.duration_ms:
                continue
            yield transaction


def _forgotten(then: Then, code: ErrorCode) -> Actions:
    if then.event is None:
        return Actions()
    return Actions().reply(then.waiter, failed(then.event, code))
