"""The transaction coordinator: runs requests against shards, appends their records, sends markers
and checks timeouts.

Decisions are made by `TransactionCoordinatorShard` and `Transaction`. Records are appended
synchronously and in order; what depends on them continues when they are committed.

Tasks: `_abort_timed_out_transactions`, `_run_expiration` for transactional ids, those of the
coordinator runtime, and one for each set of markers and each producer id allocation.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import trio

from odradek.broker.coordination.coordinator_log import CoordinatorLog, build_batches
from odradek.broker.coordination.coordinator_runtime import (
    COORDINATOR_ERROR_BY_LOG_ERROR,
    CoordinatorContext,
    CoordinatorRuntime,
)
from odradek.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from odradek.broker.coordination.response_future import ResponseFuture
from odradek.broker.timers import EventLoopYield
from odradek.broker.transactions import record_serde as records
from odradek.broker.transactions.config import TransactionConfig
from odradek.broker.transactions.coordinator_shard import (
    TransactionCoordinatorShard,
    TransactionFilter,
    TransactionLoader,
)
from odradek.broker.transactions.marker_channel_manager import MarkerChannel
from odradek.broker.transactions.markers import TransactionMarker
from odradek.broker.transactions.messages import (
    TRANSACTION_VERSION_2,
    AddPartitions,
    AllocateProducerId,
    EndTransaction,
    EventContext,
    InitProducerId,
    MarkerResult,
    PartitionsResponse,
    PendingTransition,
    ProducerIdAndEpoch,
    ProducerResponse,
    Reply,
    Response,
    SendMarkers,
    TransactionMetadata,
    TransactionRequest,
    TransactionResult,
    TransitionAppend,
    VerifyPartitions,
    failed,
)
from odradek.broker.transactions.transaction import Transaction
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import Clock

log = logging.getLogger("odradek.transactions")

TransactionContext: TypeAlias = CoordinatorContext[TransactionCoordinatorShard, PendingTransition]
NO_COMPRESSION = 0
RETRY_GROWTH_MAX = 10
"""Maximum factor by which the delay between marker attempts grows."""


class TransactionCoordinator:
    """Coordinates the transactions of the partitions that this node leads.

    Requests raise KafkaError if this node can't coordinate the transactional id.
    """

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        config: TransactionConfig,
        *,
        clock: Clock,
        markers: MarkerChannel,
        producer_id: Callable[[], Awaitable[int]],
        transaction_version: Callable[[], int],
    ) -> None:
        """`producer_id` allocates a producer id; `transaction_version` returns the feature
        level."""
        self._log = coordinator_log
        self._config = config
        self._clock = clock
        self._markers = markers
        self._producer_id = producer_id
        self._transaction_version = transaction_version
        self._nursery: trio.Nursery | None = None
        self.runtime: CoordinatorRuntime[TransactionCoordinatorShard, PendingTransition] = (
            CoordinatorRuntime(
                TRANSACTIONS_TOPIC,
                self,
                coordinator_log,
                clock,
                load_buffer_bytes=config.load_buffer_bytes,
                commit_timeout_ms=config.append_timeout_ms,
                serves_committed=True,
            )
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the coordinator's tasks until cancelled."""
        async with trio.open_nursery() as nursery:
            self.start(nursery)
            task_status.started()

    def start(self, nursery: trio.Nursery) -> None:
        """Start the coordinator's tasks in `nursery`."""
        self._nursery = nursery
        self.runtime.start(nursery)
        nursery.start_soon(self._abort_timed_out_transactions)
        nursery.start_soon(self._run_expiration)

    def _now(self) -> EventContext:
        return EventContext(self._clock.wall_ms(), self._transaction_version())

    # Requests

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None = None
    ) -> ProducerResponse:
        """Initialize a producer and fence the previous one (KIP-98, KIP-360)."""
        if not transactional_id:
            return ProducerResponse(ErrorCode.invalid_request)
        if not 0 < timeout_ms <= self._config.max_timeout_ms:
            return ProducerResponse(ErrorCode.invalid_transaction_timeout)
        response = await self._run_request(InitProducerId(transactional_id, timeout_ms, expected))
        assert isinstance(response, ProducerResponse)
        return response

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        is_commit: bool,
        client_version: int,
    ) -> ProducerResponse:
        """Commit or abort. Returns when the decision is committed; markers follow."""
        if not transactional_id:
            return ProducerResponse(ErrorCode.invalid_request)
        event = EndTransaction(transactional_id, producer, is_commit, client_version)
        response = await self._run_request(event)
        assert isinstance(response, ProducerResponse)
        return response

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool = False,
        client_version: int = TRANSACTION_VERSION_2,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Add partitions to a transaction or verify them; returns an error code for each. Raises
        nothing."""
        producer, wanted = ProducerIdAndEpoch(producer_id, producer_epoch), tuple(partitions)
        event: TransactionRequest
        if verify_only:
            event = VerifyPartitions(transactional_id, producer, wanted)
        else:
            event = AddPartitions(transactional_id, producer, wanted, client_version)
        if not transactional_id:
            return dict.fromkeys(wanted, ErrorCode.invalid_request)
        try:
            response = await self._run_request(event)
        except KafkaError as error:
            return dict.fromkeys(wanted, error.code)
        assert isinstance(response, PartitionsResponse)
        return response.errors

    def list_transactions(self, wanted: TransactionFilter) -> list[Transaction]:
        """Transactions of the partitions led here that match the filter.

        Raises COORDINATOR_LOAD_IN_PROGRESS while any partition is loading.
        """
        self.runtime.check_loaded()
        now = self._now()
        return [
            transaction
            for context in self.runtime
            if context.serves
            for transaction in context.shard.list_transactions(wanted, now)
        ]

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Current metadata of a transactional id. Raises TRANSACTIONAL_ID_NOT_FOUND."""
        shard = self.runtime.context_for(transactional_id).shard
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.transactional_id_not_found)
        return transaction.metadata

    async def delete_all(self) -> None:
        """Remove every transactional id of the partitions led here.

        Only for tests that share a broker.
        """
        for context in self.runtime:
            if self.runtime.active_context(context.partition) is context:
                self._run_operation(context, partial(_remove_all, context.shard))

    async def _run_request(self, event: TransactionRequest) -> Response:
        context = self.runtime.context_for(event.transactional_id)
        future = ResponseFuture[Response]()
        if not self._run_operation(context, lambda now: context.shard.handle(event, future, now)):
            raise KafkaError(
                ErrorCode.unknown_server_error, "the coordinator of the partition failed"
            )
        return await future.wait()

    # Callbacks of the runtime

    def new_shard(self) -> TransactionCoordinatorShard:
        return TransactionCoordinatorShard()

    def new_loader(self, shard: TransactionCoordinatorShard) -> TransactionLoader:
        return TransactionLoader(shard)

    def on_replayed(self, context: TransactionContext) -> Iterator[None]:
        """Find the prepared transactions; they are completed once the shard is active."""
        yield from context.shard.find_prepared_transactions()

    def on_loaded(self, context: TransactionContext) -> str:
        self._start(self._complete_prepared_transactions, context)
        return f"{len(context.shard.transactions)} transactional ids"

    async def _complete_prepared_transactions(self, context: TransactionContext) -> None:
        """Complete the transactions that were prepared when the partition was loaded."""
        event_loop = EventLoopYield(self._clock)
        for transactional_id in context.shard.take_prepared_transactions():
            if not self.runtime.is_current(context):
                return
            self._run_operation(context, partial(context.shard.resume, transactional_id))
            await event_loop.yield_if_due()

    def on_unloaded(self, context: TransactionContext) -> None:
        while context.uncommitted:
            completion = context.uncommitted.popleft().completion
            self._respond(
                context.shard.append_failed(completion, ErrorCode.not_coordinator).replies
            )

    def on_append_completed(
        self, context: TransactionContext, completion: PendingTransition, code: ErrorCode
    ) -> None:
        self._run_operation(context, partial(_complete_append, context.shard, completion, code))

    # Applying results

    def _run_operation(
        self, context: TransactionContext, act: Callable[[EventContext], TransactionResult]
    ) -> bool:
        """Run an operation on a shard and apply its result. Returns False if it raised, which fails
        the partition."""
        try:
            self._apply_result(context, act(self._now()))
        except Exception as error:
            self.runtime.fail(context, error)
            return False
        return True

    def _apply_result(self, context: TransactionContext, result: TransactionResult) -> None:
        """Append records and send responses until no follow-up result is left."""
        todo = deque([result])
        while todo:
            result = todo.popleft()
            for note in result.notes:
                log.info("%s", note)
            self._respond(result.replies)
            for markers_to_send in result.markers:
                self._start(self._send_markers, context, markers_to_send)
            for allocate in result.allocations:
                self._start(self._allocate, context, allocate)
            todo.extend(self._append(context, append) for append in result.appends)

    def _start(
        self, task: Callable[..., Awaitable[None]], context: TransactionContext, *args: object
    ) -> None:
        assert self._nursery is not None, "the coordinator does not run"
        self._nursery.start_soon(self._guarded, task, context, *args)

    async def _guarded(
        self, task: Callable[..., Awaitable[None]], context: TransactionContext, *args: object
    ) -> None:
        """Run a task; an exception fails the partition, not the node."""
        try:
            await task(context, *args)
        except Exception as error:
            self.runtime.fail(context, error)

    @staticmethod
    def _respond(replies: Iterable[Reply]) -> None:
        for future, response in replies:
            future.set(response)

    def _append(self, context: TransactionContext, append: TransitionAppend) -> TransactionResult:
        completion, now = append.completion, self._now()
        try:
            record = records.encode(
                completion.transactional_id, completion.metadata, now.transaction_version
            )
            ((batch, _),) = build_batches(
                [record],
                now_ms=now.wall_ms,
                compression=NO_COMPRESSION,
                batch_bytes_max=self._log.batch_bytes_max(context.partition),
                atomic=True,
            )
            context.last_offset = self._log.append(context.partition, batch, now.wall_ms)
        except KafkaError as error:
            log.warning(
                "appending the state of transactional id %s failed: %s",
                completion.transactional_id,
                error,
            )
            code = COORDINATOR_ERROR_BY_LOG_ERROR.get(error.code, error.code)
            return context.shard.append_failed(completion, code)
        if self.runtime.is_committed(context):
            return context.shard.appended(completion, now)
        self.runtime.complete_when_committed(context, completion)
        return TransactionResult()

    async def _allocate(self, context: TransactionContext, allocate: AllocateProducerId) -> None:
        event, future = allocate.event, allocate.future
        try:
            new_producer_id = await self._producer_id()
        except KafkaError as error:
            self._respond(TransactionResult().reply(future, failed(event, error.code)).replies)
            return
        code = ErrorCode.not_coordinator
        if self.runtime.is_current(context):
            if self._run_operation(
                context, lambda now: context.shard.handle(event, future, now, new_producer_id)
            ):
                return
            code = ErrorCode.unknown_server_error
        if future is not None and not future.is_responded:  # a timeout has no future
            future.set(failed(event, code))

    async def _send_markers(
        self, context: TransactionContext, markers_to_send: SendMarkers
    ) -> None:
        if markers_to_send.attempt:
            pause_ms = self._config.marker_retry_ms * min(markers_to_send.attempt, RETRY_GROWTH_MAX)
            await self._clock.sleep(pause_ms / 1000)
        if not self.runtime.is_current(context):
            return
        results: Mapping[TopicPartition, MarkerResult] = {}
        if markers_to_send.partitions:
            results = await self._markers.send(
                TransactionMarker(
                    markers_to_send.producer.producer_id,
                    markers_to_send.producer.epoch,
                    context.leader_epoch,
                    markers_to_send.is_commit,
                    markers_to_send.partitions,
                    markers_to_send.transaction_version,
                )
            )
        if self.runtime.is_current(context):
            self._run_operation(
                context, partial(context.shard.on_markers_sent, markers_to_send, results)
            )

    # Timeouts and expiration

    async def _abort_timed_out_transactions(self) -> None:
        while True:
            await self._clock.sleep(self._config.abort_interval_ms / 1000)
            await self._for_each_transaction(
                lambda shard, txn_id, now: shard.abort_if_timed_out(txn_id, now)
            )

    async def _run_expiration(self) -> None:
        while True:
            await self._clock.sleep(self._config.expiry_interval_ms / 1000)
            await self._for_each_transaction(
                lambda shard, txn_id, now: shard.expire(txn_id, now, self._config.id_expiration_ms)
            )

    async def _for_each_transaction(
        self, act: Callable[[TransactionCoordinatorShard, str, EventContext], TransactionResult]
    ) -> None:
        """Run an operation on every transactional id led here, yielding between them."""
        event_loop = EventLoopYield(self._clock)
        for context in self.runtime:
            for transactional_id in list(context.shard.transactions):
                if not self.runtime.is_current(context):
                    break
                self._run_operation(context, partial(act, context.shard, transactional_id))
                await event_loop.yield_if_due()

    # Metrics

    def count_by_state(self) -> Counter[str]:
        """Number of transactional ids by state."""
        return Counter(
            transaction.metadata.state.value
            for context in self.runtime
            for transaction in context.shard.transactions.values()
        )


def _remove_all(shard: TransactionCoordinatorShard, now: EventContext) -> TransactionResult:
    return shard.remove_all_transactional_ids()


def _complete_append(
    shard: TransactionCoordinatorShard,
    completion: PendingTransition,
    code: ErrorCode,
    now: EventContext,
) -> TransactionResult:
    if code is ErrorCode.none:
        return shard.appended(completion, now)
    return shard.append_failed(completion, code)
