"""State of one `__transaction_state` partition: its transactional ids. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from odradek.broker.coordination import coordinator_loader
from odradek.broker.transactions import record_serde as records
from odradek.broker.transactions.messages import (
    AllocateProducerId,
    EventContext,
    Future,
    InitProducerId,
    MarkerResult,
    PendingTransition,
    SendMarkers,
    TransactionMetadata,
    TransactionRequest,
    TransactionResult,
    TransactionTimeout,
    TransitionAppend,
    failed,
)
from odradek.broker.transactions.transaction import Transaction
from odradek.broker.transactions.transaction_states import PREPARE_STATES, TransactionState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.serde import UnknownRecord
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class

IDS_PER_STEP = 1000


@value_class
class TransactionFilter:
    """Filter of ListTransactions; an empty field matches all.

    A negative `duration_ms` matches all. A transaction that has not started has start time -1 and
    so matches any duration, as in Kafka.
    """

    producer_ids: Collection[int] = ()
    states: Collection[TransactionState] | None = None
    duration_ms: int = -1


class TransactionCoordinatorShard:
    """Dispatches requests and append results to the transactions of one partition."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._prepared: list[str] = []

    # Replaying

    def replay(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        if metadata is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = Transaction(transactional_id, metadata)

    def find_prepared_transactions(self) -> Iterator[None]:
        """Find the prepared transactions after replay; yields between steps."""
        for count, (transactional_id, each) in enumerate(list(self.transactions.items())):
            if each.metadata.state in PREPARE_STATES:
                self._prepared.append(transactional_id)
            if count % IDS_PER_STEP == IDS_PER_STEP - 1:
                yield

    def take_prepared_transactions(self) -> list[str]:
        prepared, self._prepared = self._prepared, []
        return prepared

    def resume(self, transactional_id: str, now: EventContext) -> TransactionResult:
        """Send the markers of a transaction that was prepared when it was loaded."""
        transaction = self.transactions.get(transactional_id)
        return TransactionResult() if transaction is None else transaction.resume(now)

    # Events

    def handle(
        self,
        event: TransactionRequest,
        future: Future,
        now: EventContext,
        new_producer_id: int | None = None,
    ) -> TransactionResult:
        """Pass a request to its transaction; see `Transaction.handle`."""
        transaction = self.transactions.get(event.transactional_id)
        if transaction is not None:
            return transaction.handle(event, future, now, new_producer_id)
        if not isinstance(event, InitProducerId):
            response = failed(event, ErrorCode.invalid_producer_id_mapping)
            return TransactionResult().reply(future, response)
        if new_producer_id is None:
            result = TransactionResult()
            result.allocations.append(AllocateProducerId(event, future))
            return result
        transaction = Transaction.new(
            event.transactional_id, new_producer_id, event.timeout_ms, now
        )
        self.transactions[event.transactional_id] = transaction
        return transaction.handle(event, future, now)

    def on_markers_sent(
        self, sent: SendMarkers, results: Mapping[TopicPartition, MarkerResult], now: EventContext
    ) -> TransactionResult:
        """Apply the results of markers; see `Transaction.on_markers_sent`."""
        transaction = self.transactions.get(sent.transactional_id)
        return (
            TransactionResult()
            if transaction is None
            else transaction.on_markers_sent(sent, results, now)
        )

    def abort_if_timed_out(self, transactional_id: str, now: EventContext) -> TransactionResult:
        """Abort the transaction if it exceeded its timeout."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None or not transaction.is_timed_out(now):
            return TransactionResult()
        return transaction.handle(TransactionTimeout(transactional_id), None, now)

    def expire(
        self, transactional_id: str, now: EventContext, expiration_ms: int
    ) -> TransactionResult:
        transaction = self.transactions.get(transactional_id)
        return (
            TransactionResult() if transaction is None else transaction.expire(now, expiration_ms)
        )

    def remove_all_transactional_ids(self) -> TransactionResult:
        """Append tombstones for all transactional ids, in any state."""
        result = TransactionResult()
        for transactional_id in self.transactions:
            result.appends.append(TransitionAppend(PendingTransition(transactional_id, None)))
        return result

    # Append results

    def appended(self, completion: PendingTransition, now: EventContext) -> TransactionResult:
        transaction = self.transactions.get(completion.transactional_id)
        if transaction is None:
            return _fail_removed(completion, ErrorCode.not_coordinator)
        if completion.metadata is None:
            del self.transactions[completion.transactional_id]
            return TransactionResult()
        return transaction.appended(completion, now)

    def append_failed(self, completion: PendingTransition, code: ErrorCode) -> TransactionResult:
        transaction = self.transactions.get(completion.transactional_id)
        if transaction is None:
            return _fail_removed(completion, code)
        if transaction.is_new:
            del self.transactions[completion.transactional_id]
        return transaction.append_failed(completion, code)

    # Queries

    def list_transactions(
        self, wanted: TransactionFilter, now: EventContext
    ) -> Iterable[Transaction]:
        for transaction in self.transactions.values():
            metadata = transaction.metadata
            if wanted.producer_ids and metadata.producer_id not in wanted.producer_ids:
                continue
            if wanted.states is not None and metadata.state not in wanted.states:
                continue
            if wanted.duration_ms >= 0 and now.wall_ms - metadata.started_ms <= wanted.duration_ms:
                continue
            yield transaction


def _fail_removed(completion: PendingTransition, code: ErrorCode) -> TransactionResult:
    if completion.event is None:
        return TransactionResult()
    return TransactionResult().reply(completion.future, failed(completion.event, code))


class TransactionLoader(coordinator_loader.CoordinatorLoader):
    """Loader of a transaction coordinator shard. The partition has no transactional records."""

    def __init__(self, shard: TransactionCoordinatorShard) -> None:
        super().__init__()
        self._shard = shard

    def replay(self, key: bytes, value: bytes | None, offset: int, producer_id: int) -> None:
        try:
            transactional_id = records.decode_key(key)
            metadata = None if value is None else records.decode_value(value)
        except UnknownRecord as error:
            self.skip(str(error))
            return
        self._shard.replay(transactional_id, metadata)

    def complete_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.skip("transaction marker")
