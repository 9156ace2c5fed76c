"""The transaction coordinator in virtual time: requests, markers, timeouts, commits and loads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from odradek.broker.coordination.coordinator_runtime import LoadInProgress, NotCoordinator
from odradek.broker.transactions import record_serde as records
from odradek.broker.transactions.config import TransactionConfig
from odradek.broker.transactions.coordinator import TransactionCoordinator
from odradek.broker.transactions.coordinator_shard import TransactionFilter
from odradek.broker.transactions.markers import TransactionMarker
from odradek.broker.transactions.messages import (
    PRODUCER_EPOCH_MAX,
    MarkerResult,
    ProducerIdAndEpoch,
    ProducerResponse,
)
from odradek.broker.transactions.transaction_states import TransactionState
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.topics import TopicPartition
from odradek.testing.virtual_clock import VirtualClock
from tests.support.coordinator_log import MemoryLog

NONE = ErrorCode.none
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeMarkerChannel:
    """A fake `MarkerChannel`. `results` has the results other than WRITTEN."""

    def __init__(self) -> None:
        self.markers: list[TransactionMarker] = []
        self.results: dict[TopicPartition, MarkerResult] = {}
        self.may_respond = trio.Event()
        self.may_respond.set()

    async def send(self, marker: TransactionMarker) -> Mapping[TopicPartition, MarkerResult]:
        self.markers.append(marker)
        await self.may_respond.wait()
        return {each: self.results.get(each, MarkerResult.WRITTEN) for each in marker.partitions}


class Ids:
    """Allocates producer ids from 1000 on, as soon as the test allows it."""

    def __init__(self) -> None:
        self.last = 999
        self.may_give = trio.Event()
        self.may_give.set()
        self.fail_with: KafkaError | None = None

    async def next(self) -> int:
        await self.may_give.wait()
        if self.fail_with is not None:
            raise self.fail_with
        self.last += 1
        return self.last


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@asynccontextmanager
async def running(
    clock: VirtualClock,
    log: MemoryLog,
    marker_channel: FakeMarkerChannel | None = None,
    ids: Ids | None = None,
    *,
    leader_epoch: int = 3,
    **config: int,
) -> AsyncIterator[TransactionCoordinator]:
    coordinator = TransactionCoordinator(
        log,
        TransactionConfig(**config),
        clock=clock,
        markers=marker_channel or FakeMarkerChannel(),
        producer_id=(ids or Ids()).next,
        transaction_version=lambda: 2,
    )
    for partition in range(log.partition_count()):
        coordinator.runtime.schedule_load(partition, leader_epoch)
    async with trio.open_nursery() as nursery:
        await nursery.start(coordinator.run)
        yield coordinator
        nursery.cancel_scope.cancel()


async def begun(
    coordinator: TransactionCoordinator, name: str = "a", timeout_ms: int = 60_000
) -> ProducerIdAndEpoch:
    response = await coordinator.init_producer_id(name, timeout_ms)
    assert response.error is NONE
    return ProducerIdAndEpoch(response.producer_id, response.epoch)


async def added(
    coordinator: TransactionCoordinator, producer: ProducerIdAndEpoch, *partitions: TopicPartition
) -> Mapping[TopicPartition, ErrorCode]:
    return await coordinator.add_partitions("a", *producer, partitions or (T0,))


async def ended(
    coordinator: TransactionCoordinator, producer: ProducerIdAndEpoch, *, is_commit: bool = True
) -> ProducerResponse:
    return await coordinator.end("a", producer, is_commit=is_commit, client_version=2)


def state_of(coordinator: TransactionCoordinator, name: str = "a") -> TransactionState:
    return coordinator.describe(name).state


class PendingRequest:
    """A request that runs in its own task."""

    def __init__(self, nursery: trio.Nursery, ask: Callable[[], Awaitable[object]]) -> None:
        self.response: object = None
        self.is_responded = False
        nursery.start_soon(self._run, ask)

    async def _run(self, ask: Callable[[], Awaitable[object]]) -> None:
        try:
            self.response = await ask()
        except KafkaError as error:
            self.response = error.code
        self.is_responded = True


async def test_oversized_transactional_id_fails_only_its_request(clock: VirtualClock) -> None:
    async with running(clock, MemoryLog()) as coordinator:
        response = await coordinator.init_producer_id("a" * 32_768, 60_000)
        assert response.error is ErrorCode.unknown_server_error
        await begun(coordinator)


async def test_transaction_lifecycle(clock: VirtualClock) -> None:
    marker_channel = FakeMarkerChannel()
    async with running(clock, MemoryLog(), marker_channel) as coordinator:
        producer = await begun(coordinator)
        assert producer == (1000, 0)
        assert await added(coordinator, producer, T0, T1) == {T0: NONE, T1: NONE}
        response = await ended(coordinator, producer)
        assert (response.error, response.producer_id, response.epoch) == (NONE, 1000, 1)
        await clock.settle()
        assert state_of(coordinator) is TransactionState.COMPLETE_COMMIT
        assert marker_channel.markers == [TransactionMarker(1000, 1, 3, True, (T0, T1), 2)]
        assert clock.monotonic() == 0, "the responses took time"
        assert coordinator.count_by_state() == {"CompleteCommit": 1}


async def test_request_right_after_start_is_served(clock: VirtualClock) -> None:
    """The first request creates the coordinator; it may arrive before the coordinator's tasks run."""
    log = MemoryLog()
    coordinator = TransactionCoordinator(
        log,
        TransactionConfig(),
        clock=clock,
        markers=FakeMarkerChannel(),
        producer_id=Ids().next,
        transaction_version=lambda: 2,
    )
    coordinator.runtime.schedule_load(0, 3)
    async with trio.open_nursery() as nursery:
        coordinator.start(nursery)
        assert (await begun(coordinator)).producer_id == 1000
        nursery.cancel_scope.cancel()


async def test_end_txn_completes_before_markers_are_written(clock: VirtualClock) -> None:
    marker_channel = FakeMarkerChannel()
    async with running(clock, MemoryLog(), marker_channel) as coordinator:
        producer = await begun(coordinator)
        await added(coordinator, producer)
        marker_channel.may_respond = trio.Event()
        response = await ended(coordinator, producer, is_commit=False)
        next_one = ProducerIdAndEpoch(response.producer_id, response.epoch)
        concurrent = ErrorCode.concurrent_transactions
        assert await added(coordinator, next_one) == {T0: concurrent}
        assert state_of(coordinator) is TransactionState.PREPARE_ABORT
        marker_channel.may_respond.set()
        await clock.settle()
        assert await added(coordinator, next_one) == {T0: NONE}


async def test_failed_markers_are_retried(clock: VirtualClock) -> None:
    marker_channel = FakeMarkerChannel()
    async with running(clock, MemoryLog(), marker_channel, marker_retry_ms=100) as coordinator:
        producer = await begun(coordinator)
        await added(coordinator, producer, T0, T1)
        marker_channel.results[T1] = MarkerResult.RETRY
        await ended(coordinator, producer)
        await clock.run_for(0.65)
        assert [each.partitions for each in marker_channel.markers] == [(T0, T1), *[(T1,)] * 3]
        assert coordinator.describe("a").partitions == (T1,)
        marker_channel.results.clear()
        await clock.run_for(0.4)
        assert state_of(coordinator) is TransactionState.COMPLETE_COMMIT


async def test_failed_completion_append_is_retried(clock: VirtualClock) -> None:
    log, marker_channel = MemoryLog(), FakeMarkerChannel()
    async with running(clock, log, marker_channel) as coordinator:
        producer = await begun(coordinator)
        await added(coordinator, producer)
        marker_channel.may_respond = trio.Event()
        await ended(coordinator, producer)
        log.fail_with = KafkaError(ErrorCode.not_enough_replicas)
        marker_channel.may_respond.set()
        await clock.run_for(1)
        assert state_of(coordinator) is TransactionState.PREPARE_COMMIT
        log.fail_with = None
        await clock.run_for(0.5)
        assert state_of(coordinator) is TransactionState.COMPLETE_COMMIT
        assert len(marker_channel.markers) == 1, "the markers are written"


async def test_timed_out_transactions_are_aborted(clock: VirtualClock) -> None:
    marker_channel = FakeMarkerChannel()
    async with running(clock, MemoryLog(), marker_channel, abort_interval_ms=1000) as coordinator:
        short, long = await begun(coordinator, "a", 5000), await begun(coordinator, "b", 50_000)
        await added(coordinator, short)
        await coordinator.add_partitions("b", *long, [T0])
        await clock.run_for(4.5)
        assert coordinator.count_by_state() == {"Ongoing": 2}
        await clock.run_for(2)
        assert (state_of(coordinator, "a"), state_of(coordinator, "b")) == (
            TransactionState.COMPLETE_ABORT,
            TransactionState.ONGOING,
        )
        assert [each.is_commit for each in marker_channel.markers] == [False]
        refused = await ended(coordinator, ProducerIdAndEpoch(1000, 7))
        assert refused.error is ErrorCode.producer_fenced


async def test_unused_transactional_ids_expire(clock: VirtualClock) -> None:
    log = MemoryLog()
    config = {"expiry_interval_ms": 10_000, "id_expiration_ms": 60_000}
    async with running(clock, log, **config) as coordinator:
        await begun(coordinator, "idle")
        producer = await begun(coordinator, "a", 900_000)
        await added(coordinator, producer)
        await clock.run_for(75)
        with pytest.raises(KafkaError, match="transactional_id_not_found"):
            coordinator.describe("idle")
        assert state_of(coordinator) is TransactionState.ONGOING
    async with running(clock, log) as coordinator:
        await clock.settle()
        assert [
            each.transactional_id for each in coordinator.list_transactions(TransactionFilter())
        ] == ["a"]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_transaction_timeout_out_of_bounds_is_rejected(
    clock: VirtualClock, timeout_ms: int
) -> None:
    async with running(clock, MemoryLog()) as coordinator:
        response = await coordinator.init_producer_id("a", timeout_ms)
        assert response.error is ErrorCode.invalid_transaction_timeout


async def test_empty_transactional_id_is_rejected(clock: VirtualClock) -> None:
    invalid = ErrorCode.invalid_request
    async with running(clock, MemoryLog()) as coordinator:
        assert (await coordinator.init_producer_id("", 1000)).error is invalid
        assert await coordinator.add_partitions("", 1, 1, [T0]) == {T0: invalid}
        end = await coordinator.end("", ProducerIdAndEpoch(1, 1), is_commit=True, client_version=2)
        assert end.error is invalid


async def test_responses_wait_for_high_watermark(clock: VirtualClock) -> None:
    log, marker_channel = MemoryLog(), FakeMarkerChannel()
    async with running(clock, log, marker_channel) as coordinator, trio.open_nursery() as nursery:
        producer = await begun(coordinator)
        await added(coordinator, producer)
        log.hold()
        end = PendingRequest(nursery, lambda: ended(coordinator, producer))
        await clock.settle()
        assert not end.is_responded
        assert not marker_channel.markers, (
            "a marker was sent before the prepare record was committed"
        )
        log.move_on()
        await clock.settle()
        assert isinstance(end.response, ProducerResponse)
        assert end.response.error is NONE
        assert state_of(coordinator) is TransactionState.COMPLETE_COMMIT


async def test_append_without_replication_times_out(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log, append_timeout_ms=5000) as coordinator:
        producer = await begun(coordinator)
        async with trio.open_nursery() as nursery:
            log.hold()
            adding = PendingRequest(nursery, lambda: added(coordinator, producer))
            await clock.run_for(5)
            assert adding.response == {T0: ErrorCode.coordinator_not_available}
        assert state_of(coordinator) is TransactionState.EMPTY
        log.move_on()
        assert await added(coordinator, producer) == {T0: NONE}


@pytest.mark.parametrize(
    ("code", "received"),
    [
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.kafka_storage_error, ErrorCode.not_coordinator),
        (ErrorCode.message_too_large, ErrorCode.unknown_server_error),
    ],
)
async def test_failed_append_leaves_state_unchanged(
    clock: VirtualClock, code: ErrorCode, received: ErrorCode
) -> None:
    log = MemoryLog()
    async with running(clock, log) as coordinator:
        log.fail_with = KafkaError(code)
        assert (await coordinator.init_producer_id("a", 1000)).error is received
        assert coordinator.list_transactions(TransactionFilter()) == []
        log.fail_with = None
        producer = await begun(coordinator)
        log.fail_with = KafkaError(code)
        assert await added(coordinator, producer) == {T0: received}
        assert state_of(coordinator) is TransactionState.EMPTY


async def test_slow_and_failed_producer_id_allocation(clock: VirtualClock) -> None:
    ids = Ids()
    ids.may_give = trio.Event()
    async with (
        running(clock, MemoryLog(2), ids=ids) as coordinator,
        trio.open_nursery() as nursery,
    ):
        first = PendingRequest(nursery, lambda: coordinator.init_producer_id("a", 1000))
        moved = PendingRequest(nursery, lambda: coordinator.init_producer_id("b", 1000))
        await clock.settle()
        assert not first.is_responded
        coordinator.runtime.unload(coordinator.runtime.partition_for("b"))
        ids.may_give.set()
        await clock.settle()
        assert isinstance(first.response, ProducerResponse)
        assert (first.response.error, first.response.epoch) == (NONE, 0)
        assert moved.response == ProducerResponse(ErrorCode.not_coordinator)
        ids.fail_with = KafkaError(ErrorCode.coordinator_load_in_progress)
        response = await coordinator.init_producer_id("c", 1000)
        assert response.error is ErrorCode.coordinator_load_in_progress


async def test_existing_transactional_id_keeps_producer_id(clock: VirtualClock) -> None:
    ids = Ids()
    async with running(clock, MemoryLog(), ids=ids) as coordinator:
        assert await begun(coordinator) == (1000, 0)
        assert await begun(coordinator) == (1000, 1)
        assert ids.last == 1000


async def test_prepared_transaction_is_completed_after_crash(clock: VirtualClock) -> None:
    log, marker_channel = MemoryLog(), FakeMarkerChannel()
    marker_channel.may_respond = trio.Event()
    async with running(clock, log, marker_channel) as coordinator:
        producer = await begun(coordinator)
        await added(coordinator, producer, T0, T1)
        await ended(coordinator, producer)
    marker_channel = FakeMarkerChannel()
    async with running(clock, log, marker_channel, leader_epoch=4) as coordinator:
        await clock.settle()
        assert marker_channel.markers == [TransactionMarker(1000, 1, 4, True, (T0, T1), 2)]
        assert state_of(coordinator) is TransactionState.COMPLETE_COMMIT
        again = await ended(coordinator, producer)
        assert (again.error, again.epoch) == (NONE, 1)


async def test_ongoing_transaction_survives_crash(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as coordinator:
        producer = await begun(coordinator)
        await added(coordinator, producer)
    async with running(clock, log, load_buffer_bytes=100) as coordinator:
        await clock.settle()
        known = await coordinator.add_partitions("a", *producer, [T0, T1], verify_only=True)
        assert known == {T0: NONE, T1: ErrorCode.transaction_abortable}
        assert coordinator.runtime.loads == 1


async def test_requests_while_loading(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as coordinator:
        producer = await begun(coordinator)
    log.reading_may_go_on = trio.Event()
    async with running(clock, log) as coordinator:
        loading = ErrorCode.coordinator_load_in_progress
        with pytest.raises(LoadInProgress):
            await coordinator.init_producer_id("a", 1000)
        with pytest.raises(LoadInProgress):
            coordinator.list_transactions(TransactionFilter())
        with pytest.raises(LoadInProgress):
            coordinator.describe("a")
        assert await added(coordinator, producer) == {T0: loading}
        log.reading_may_go_on.set()
        await clock.settle()
        assert await added(coordinator, producer) == {T0: NONE}


async def test_appends_during_load_are_completed(clock: VirtualClock) -> None:
    """A prepared transaction without partitions is completed, even if replication is slow."""
    log = MemoryLog()
    async with running(clock, log) as coordinator:
        await begun(coordinator)
        decided = replace(
            coordinator.describe("a"), state=TransactionState.PREPARE_ABORT, partitions=()
        )
    key, value = records.encode("a", decided, 2)
    log.append(0, build_batch([Record(0, 0, key, value)]), 0)
    log.hold()
    async with running(clock, log) as coordinator:
        await clock.settle()
        assert state_of(coordinator) is TransactionState.PREPARE_ABORT
        log.move_on()
        await clock.settle()
        assert state_of(coordinator) is TransactionState.COMPLETE_ABORT


async def test_exception_while_sending_markers_fails_only_its_partition(
    clock: VirtualClock,
) -> None:
    class Broken(FakeMarkerChannel):
        async def send(self, marker: TransactionMarker) -> Mapping[TopicPartition, MarkerResult]:
            raise RuntimeError("a bug")

    async with running(clock, MemoryLog(), Broken()) as coordinator:
        producer = await begun(coordinator)
        await added(coordinator, producer)
        await ended(coordinator, producer)
        await clock.settle()
        with pytest.raises(NotCoordinator):
            await begun(coordinator)


async def test_waiting_requests_fail_when_coordinator_moves(clock: VirtualClock) -> None:
    log, marker_channel = MemoryLog(), FakeMarkerChannel()
    async with running(clock, log, marker_channel) as coordinator, trio.open_nursery() as nursery:
        producer = await begun(coordinator)
        log.hold()
        adding = PendingRequest(nursery, lambda: added(coordinator, producer))
        await clock.settle()
        coordinator.runtime.unload(0)
        await clock.settle()
        assert adding.response == {T0: ErrorCode.not_coordinator}
        with pytest.raises(NotCoordinator):
            await ended(coordinator, producer)
        log.move_on()
        coordinator.runtime.schedule_load(0, 4)
        await clock.settle()
        # The record stays in the log: the partition is in the transaction.
        assert state_of(coordinator) is TransactionState.ONGOING
        marker_channel.may_respond = trio.Event()
        await ended(coordinator, producer)
        coordinator.runtime.unload(0)
        marker_channel.may_respond.set()
        await clock.run_for(1)
        assert log.end_offset(0) == 3, "an unloaded coordinator appended a record"


async def test_timeout_of_moved_coordinator_has_no_response(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """With an exhausted epoch the timeout waits for a producer id; its failure is not logged as a bug."""
    ids = Ids()
    async with running(clock, MemoryLog(), None, ids) as coordinator:
        producer = await begun(coordinator, timeout_ms=1000)
        transaction = coordinator.runtime.context_for("a").shard.transactions["a"]
        transaction.metadata = replace(transaction.metadata, epoch=PRODUCER_EPOCH_MAX - 1)
        await added(coordinator, producer._replace(epoch=PRODUCER_EPOCH_MAX - 1))
        ids.may_give = trio.Event()
        await clock.run_for(11)
        coordinator.runtime.unload(0)
        ids.may_give.set()
        await clock.settle()
        assert ids.last == 1001, "it waits for a producer id"
    assert "Unexpected error" not in caplog.text


async def test_unloaded_coordinator_sends_no_markers(clock: VirtualClock) -> None:
    marker_channel = FakeMarkerChannel()
    marker_channel.results[T0] = MarkerResult.RETRY
    async with running(clock, MemoryLog(), marker_channel) as coordinator:
        producer = await begun(coordinator)
        await added(coordinator, producer)
        await ended(coordinator, producer)
        await clock.settle()
        assert len(marker_channel.markers) == 1
        coordinator.runtime.unload(0)
        await clock.run_for(10)
        assert len(marker_channel.markers) == 1


async def test_markers_have_leader_epoch_of_coordinator(clock: VirtualClock) -> None:
    marker_channel = FakeMarkerChannel()
    async with running(clock, MemoryLog(), marker_channel, leader_epoch=3) as coordinator:
        producer = await begun(coordinator)
        await added(coordinator, producer)
        coordinator.runtime.schedule_load(0, 4)
        coordinator.runtime.schedule_load(0, 3)
        await ended(coordinator, producer)
        await clock.settle()
        assert [each.coordinator_epoch for each in marker_channel.markers] == [4]


async def test_gap_in_leader_epochs_reloads_partition(clock: VirtualClock) -> None:
    async with running(clock, MemoryLog(), leader_epoch=3) as coordinator:
        await begun(coordinator)
        coordinator.runtime.schedule_load(0, 4)
        assert coordinator.runtime.loads == 0
        coordinator.runtime.schedule_load(0, 6)
        with pytest.raises(LoadInProgress):
            coordinator.runtime.context_for("a")
        await clock.settle()
        assert coordinator.runtime.loads == 1
        assert state_of(coordinator) is TransactionState.EMPTY


async def test_no_coordinator_before_topic_exists(clock: VirtualClock) -> None:
    async with running(clock, MemoryLog(0)) as coordinator:
        with pytest.raises(NotCoordinator):
            await coordinator.init_producer_id("a", 1000)


async def test_list_transactions_filters(clock: VirtualClock) -> None:
    async with running(clock, MemoryLog(3)) as coordinator:
        for name in ("idle", "old", "young"):
            await begun(coordinator, name)
        await coordinator.add_partitions("old", 1001, 0, [T0])
        await clock.run_for(5)
        await coordinator.add_partitions("young", 1002, 0, [T0])

        def listed(**wanted: object) -> set[str]:
            found = coordinator.list_transactions(TransactionFilter(**wanted))  # type: ignore[arg-type]
            return {each.transactional_id for each in found}

        assert listed() == {"idle", "old", "young"}
        assert listed(states=[TransactionState.ONGOING]) == {"old", "young"}
        assert listed(states=[]) == set(), "unknown states match no transaction"
        assert listed(producer_ids=[1000, 1002]) == {"idle", "young"}
        assert listed(duration_ms=4999, states=[TransactionState.ONGOING]) == {"old"}
        assert listed(duration_ms=5000, states=[TransactionState.ONGOING]) == set()
        assert listed(duration_ms=0) == {"idle", "old"}


async def test_delete_all_removes_all_state(clock: VirtualClock) -> None:
    log = MemoryLog(2)
    async with running(clock, log) as coordinator:
        producer = await begun(coordinator)
        await added(coordinator, producer)
        await begun(coordinator, "b")
        await coordinator.delete_all()
        assert coordinator.list_transactions(TransactionFilter()) == []
    async with running(clock, log) as coordinator:
        await clock.settle()
        assert coordinator.list_transactions(TransactionFilter()) == []


async def test_exception_fails_only_its_partition(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(clock, MemoryLog(2)) as coordinator:
        here, there = ("a", "b")
        producer = await begun(coordinator, here)
        shard = coordinator.runtime.context_for(here).shard
        shard.transactions[here].metadata = None  # type: ignore[assignment]  # which can't be
        with pytest.raises(KafkaError, match="unknown_server_error"):
            await coordinator.init_producer_id(here, 1000)
        assert "Unexpected error in the coordinator (" in caplog.text
        assert await added(coordinator, producer) == {T0: ErrorCode.not_coordinator}
        assert await begun(coordinator, there) == (1001, 0)
