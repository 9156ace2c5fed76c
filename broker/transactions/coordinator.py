"""The driver of the transaction coordinator: shards and their log, clients that wait, markers, time.

It decides nothing about transactions. An event is handed to the shard of its transactional id's
partition; what comes back is done at once and in order: records are appended, which is synchronous,
and what depends on them goes on when all in-sync replicas have them.

Tasks: one that aborts transactions which are out of time, one that forgets ids nobody uses, those of
`coordination.leadership`, and one for each transaction that ends (its markers) or that needs a
producer id.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import trio

from odradek.broker.coordination.leadership import AS_COORDINATOR, Leadership, LedPartition
from odradek.broker.coordination.log import CoordinatorLog, build_batches
from odradek.broker.coordination.topics import TRANSACTIONS_TOPIC
from odradek.broker.coordination.waiter import ClientWaiter
from odradek.broker.timers import Turn
from odradek.broker.transactions import records
from odradek.broker.transactions.actions import (
    EPOCH_BUMP,
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
    Reply,
    Response,
    SendMarkers,
    Stored,
    Then,
    VerifyPartitions,
    failed,
)
from odradek.broker.transactions.config import TransactionConfig
from odradek.broker.transactions.loading import Loader
from odradek.broker.transactions.marker_sender import Markers
from odradek.broker.transactions.markers import TransactionMarker
from odradek.broker.transactions.shard import Filter, Shard
from odradek.broker.transactions.transaction import Transaction
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.clock import Clock
from odradek.storage.directories.names import TopicPartition

log = logging.getLogger("odradek.transactions")

Led: TypeAlias = LedPartition[Shard, Then]
NO_COMPRESSION = 0
RETRY_GROWTH_MAX = 10
"""How many times as long as the first one the pause before a marker is handed in again gets."""


class TransactionCoordinator:
    """See the module. Requests raise KafkaError where there is nobody to ask."""

    def __init__(
        self,
        log: CoordinatorLog,
        config: TransactionConfig,
        *,
        clock: Clock,
        markers: Markers,
        producer_id: Callable[[], Awaitable[int]],
        transaction_version: Callable[[], int],
    ) -> None:
        """`producer_id` gives one that nobody had before, `transaction_version` the feature's level."""
        self._log = log
        self._config = config
        self._clock = clock
        self._markers = markers
        self._producer_id = producer_id
        self._transaction_version = transaction_version
        self._nursery: trio.Nursery | None = None
        self.leadership: Leadership[Shard, Then] = Leadership(
            TRANSACTIONS_TOPIC,
            self,
            log,
            clock,
            load_buffer_bytes=config.load_buffer_bytes,
            commit_timeout_ms=config.append_timeout_ms,
            serves_committed=True,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own everything that waits until cancelled; started() at once."""
        async with trio.open_nursery() as nursery:
            self.start(nursery)
            task_status.started()

    def start(self, nursery: trio.Nursery) -> None:
        """Have `nursery` own everything that waits, from now on: the next request may need it."""
        self._nursery = nursery
        self.leadership.start(nursery)
        nursery.start_soon(self._run_time_outs)
        nursery.start_soon(self._run_expiry)

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), self._transaction_version())

    # Requests

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None = None
    ) -> ProducerResponse:
        """Who the producer is from now on; whoever was it before is fenced (KIP-98, KIP-360)."""
        if not transactional_id:
            return ProducerResponse(ErrorCode.invalid_request)
        if not 0 < timeout_ms <= self._config.max_timeout_ms:
            return ProducerResponse(ErrorCode.invalid_transaction_timeout)
        respond = await self._ask(InitProducerId(transactional_id, timeout_ms, expected))
        assert isinstance(respond, ProducerResponse)
        return respond

    async def end(
        self, transactional_id: str, producer: Producer, *, is_commit: bool, client_version: int
    ) -> ProducerResponse:
        """Commit or abort. Answered when it is decided: the partitions' markers follow."""
        if not transactional_id:
            return ProducerResponse(ErrorCode.invalid_request)
        event = EndTransaction(transactional_id, producer, is_commit, client_version)
        respond = await self._ask(event)
        assert isinstance(respond, ProducerResponse)
        return respond

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool = False,
        client_version: int = EPOCH_BUMP,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """See `verification.TransactionPartitions`. Raises nothing."""
        producer, wanted = Producer(producer_id, producer_epoch), tuple(partitions)
        event: Event
        if verify_only:
            event = VerifyPartitions(transactional_id, producer, wanted)
        else:
            event = AddPartitions(transactional_id, producer, wanted, client_version)
        if not transactional_id:
            return dict.fromkeys(wanted, ErrorCode.invalid_request)
        try:
            respond = await self._ask(event)
        except KafkaError as error:
            return dict.fromkeys(wanted, error.code)
        assert isinstance(respond, PartitionsResponse)
        return respond.errors

    def list_transactions(self, wanted: Filter) -> list[Transaction]:
        """Transactions of the partitions led here.

        Raises COORDINATOR_LOAD_IN_PROGRESS while any of them is being loaded.
        """
        self.leadership.check_loaded()
        now = self._now()
        return [
            transaction
            for led in self.leadership
            if led.serves
            for transaction in led.shard.list_transactions(wanted, now)
        ]

    def describe(self, transactional_id: str) -> Stored:
        """What stands of a transactional id. Raises TRANSACTIONAL_ID_NOT_FOUND."""
        shard = self.leadership.active(transactional_id).shard
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.transactional_id_not_found)
        return transaction.stored

    async def delete_all(self) -> None:
        """Forget every transactional id of the partitions led here, transactions and all.

        Not for clients: between two tests that share a broker.
        """
        for led in self.leadership:
            if self.leadership.serving(led.partition) is led:
                self._drive(led, partial(_forget_all, led.shard))

    async def _ask(self, event: Event) -> Response:
        led = self.leadership.active(event.transactional_id)
        waiter = ClientWaiter[Response]()
        if not self._drive(led, lambda now: led.shard.handle(event, waiter, now)):
            raise KafkaError(ErrorCode.unknown_server_error, "a transaction broke an invariant")
        return await waiter.wait()

    # What `leadership` asks for

    def new_shard(self) -> Shard:
        return Shard()

    def new_loader(self, shard: Shard) -> Loader:
        return Loader(shard)

    def take_up(self, led: Led) -> Iterator[None]:
        """Nothing is to be done about most of them; to end one it has to be served."""
        yield from led.shard.find_unfinished()

    def loaded(self, led: Led) -> str:
        self._start(self._finish, led)
        return f"{len(led.shard.transactions)} transactional ids"

    async def _finish(self, led: Led) -> None:
        """Go on with transactions whose end was decided; until then they wait, and so do clients."""
        turn = Turn(self._clock)
        for transactional_id in led.shard.take_unfinished():
            if not self.leadership.holds(led):
                return
            self._drive(led, partial(led.shard.resume, transactional_id))
            await turn.pass_on()

    def unloaded(self, led: Led) -> None:
        while led.uncommitted:
            then = led.uncommitted.popleft().then
            self._respond(led.shard.append_failed(then, ErrorCode.not_coordinator).replies)

    def settled(self, led: Led, then: Then, code: ErrorCode) -> None:
        self._drive(led, partial(_settled, led.shard, then, code))

    # Doing what a shard says

    def _drive(self, led: Led, act: Callable[[Now], Actions]) -> bool:
        """Let something happen to a shard, and do what it says. False if that showed a bug."""
        try:
            self._perform(led, act(self._now()))
        except Exception:
            self.leadership.broken(led)
            return False
        return True

    def _perform(self, led: Led, actions: Actions) -> None:
        """Append, answer, and go on with what follows from that, until nothing does."""
        todo = deque([actions])
        while todo:
            actions = todo.popleft()
            for note in actions.notes:
                log.info("%s", note)
            self._respond(actions.replies)
            for sending in actions.markers:
                self._start(self._send, led, sending)
            for allocate in actions.allocations:
                self._start(self._allocate, led, allocate)
            todo.extend(self._append(led, append) for append in actions.appends)

    def _start(self, task: Callable[..., Awaitable[None]], led: Led, *args: object) -> None:
        assert self._nursery is not None, "the coordinator does not run"
        self._nursery.start_soon(self._guarded, task, led, *args)

    async def _guarded(self, task: Callable[..., Awaitable[None]], led: Led, *args: object) -> None:
        """A bug takes its partition out of service, not the node."""
        try:
            await task(led, *args)
        except Exception:
            self.leadership.broken(led)

    @staticmethod
    def _respond(replies: Iterable[Reply]) -> None:
        for waiter, respond in replies:
            waiter.set(respond)

    def _append(self, led: Led, append: Append) -> Actions:
        then, now = append.then, self._now()
        try:
            record = records.encode(then.transactional_id, then.stored, now.transaction_version)
            ((batch, _),) = build_batches(
                [record],
                now_ms=now.wall_ms,
                compression=NO_COMPRESSION,
                batch_bytes_max=self._log.batch_bytes_max(led.partition),
                atomic=True,
            )
            led.last_offset = self._log.append(led.partition, batch, now.wall_ms)
        except KafkaError as error:
            log.warning("%s could not be written: %s", then.transactional_id, error)
            code = AS_COORDINATOR.get(error.code, error.code)
            return led.shard.append_failed(then, code)
        if self.leadership.is_committed(led):
            return led.shard.appended(then, now)
        self.leadership.wait_for(led, then)
        return Actions()

    async def _allocate(self, led: Led, allocate: Allocate) -> None:
        event, waiter = allocate.event, allocate.waiter
        try:
            fresh_id = await self._producer_id()
        except KafkaError as error:
            self._respond(Actions().reply(waiter, failed(event, error.code)).replies)
            return
        code = ErrorCode.not_coordinator
        if self.leadership.holds(led):
            if self._drive(led, lambda now: led.shard.handle(event, waiter, now, fresh_id)):
                return
            code = ErrorCode.unknown_server_error
        if waiter is not None and not waiter.is_responded:  # nobody waits for a time-out
            waiter.set(failed(event, code))

    async def _send(self, led: Led, sending: SendMarkers) -> None:
        if sending.attempt:
            pause_ms = self._config.marker_retry_ms * min(sending.attempt, RETRY_GROWTH_MAX)
            await self._clock.sleep(pause_ms / 1000)
        if not self.leadership.holds(led):
            return
        outcomes: Mapping[TopicPartition, Outcome] = {}
        if sending.partitions:
            outcomes = await self._markers.send(
                TransactionMarker(
                    sending.producer.producer_id,
                    sending.producer.epoch,
                    led.leader_epoch,
                    sending.is_commit,
                    sending.partitions,
                    sending.transaction_version,
                )
            )
        if self.leadership.holds(led):
            self._drive(led, partial(led.shard.marked, sending, outcomes))

    # Time

    async def _run_time_outs(self) -> None:
        while True:
            await self._clock.sleep(self._config.abort_interval_ms / 1000)
            await self._each(lambda shard, each, now: shard.time_out(each, now))

    async def _run_expiry(self) -> None:
        while True:
            await self._clock.sleep(self._config.expiry_interval_ms / 1000)
            await self._each(
                lambda shard, each, now: shard.expire(each, now, self._config.id_expiration_ms)
            )

    async def _each(self, act: Callable[[Shard, str, Now], Actions]) -> None:
        """Let it happen to every transactional id led here, in turns with others."""
        turn = Turn(self._clock)
        for led in self.leadership:
            for transactional_id in list(led.shard.transactions):
                if not self.leadership.holds(led):
                    break
                self._drive(led, partial(act, led.shard, transactional_id))
                await turn.pass_on()

    # What is going on

    def count_by_state(self) -> Counter[str]:
        """How many transactional ids there are in each state."""
        return Counter(
            transaction.stored.state.value
            for led in self.leadership
            for transaction in led.shard.transactions.values()
        )


def _forget_all(shard: Shard, now: Now) -> Actions:
    return shard.forget_all()


def _settled(shard: Shard, then: Then, code: ErrorCode, now: Now) -> Actions:
    if code is ErrorCode.none:
        return shard.appended(then, now)
    return shard.append_failed(then, code)
