"""A coordinator whose partition is replicated: responses, leader changes and loads."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest
import trio

from odradek.broker.coordination.coordinator_runtime import (
    LOAD_RETRY_SECONDS,
    LoadInProgress,
    NotCoordinator,
)
from odradek.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from odradek.broker.coordination.partition_coordinator_log import PartitionCoordinatorLog
from odradek.broker.transactions.config import TransactionConfig
from odradek.broker.transactions.coordinator import TransactionCoordinator
from odradek.broker.transactions.markers import TransactionMarker
from odradek.broker.transactions.messages import MarkerResult, ProducerIdAndEpoch, ProducerResponse
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.image import MetadataImage, TopicImage
from odradek.replication.partition.leader_role import ClusterContext
from odradek.replication.partition.partition import Partition
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_offload import VirtualOffload
from tests.support.controller_stub import Controller
from tests.support.partition_logs import FOREVER, TOPIC_ID, LogWorld

ME, FOLLOWER, OTHER = 1, 2, 3


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


class Markers:
    def __init__(self) -> None:
        self.sent: list[TransactionMarker] = []

    async def send(self, marker: TransactionMarker) -> Mapping[TopicPartition, MarkerResult]:
        self.sent.append(marker)
        return dict.fromkeys(marker.partitions, MarkerResult.WRITTEN)


async def _an_id() -> int:
    return 1000


class ReplicatedCoordinator:
    """Node 1 leads the one partition of `__transaction_state`, with node 2 in sync."""

    def __init__(self, clock: VirtualClock, *, min_isr: int = 1) -> None:
        controller = Controller()
        self.image = replace(
            controller.partition, leader=ME, isr=(ME, FOLLOWER), leader_epoch=5, partition_epoch=10
        )
        self.world = LogWorld(clock=clock, config=replace(FOREVER, min_insync_replicas=min_isr))
        cluster_context = ClusterContext(
            dict(controller.brokers).get,
            lag_max_ms=30_000,
            propose=lambda *proposal: None,
            disk_full=lambda *full: None,
            isr_changed=lambda grown: None,
        )
        self.partition = Partition(
            self.world.log,
            topic_id=TOPIC_ID,
            node_id=ME,
            image=self.image,
            cluster_context=lambda: cluster_context,
        )
        topic = TopicImage(TRANSACTIONS_TOPIC, TOPIC_ID, {0: self.image})
        image = MetadataImage(topics_by_name=MappingProxyType({TRANSACTIONS_TOPIC: topic}))
        self.markers = Markers()
        self.coordinator = TransactionCoordinator(
            PartitionCoordinatorLog(
                TRANSACTIONS_TOPIC, lambda *_: self.partition, lambda: image, VirtualOffload()
            ),
            TransactionConfig(append_timeout_ms=2000),
            clock=clock,
            markers=self.markers,
            producer_id=_an_id,
            transaction_version=lambda: 2,
        )
        self.coordinator.runtime.schedule_load(0, 5)
        self.responses: list[ProducerResponse | ErrorCode] = []

    async def init(self, name: str = "a") -> None:
        try:
            self.responses.append(await self.coordinator.init_producer_id(name, 60_000))
        except KafkaError as error:
            self.responses.append(error.code)

    async def ended(self, end: Callable[..., Awaitable[ProducerResponse]]) -> None:
        with suppress(KafkaError):
            self.responses.append(await end(client_version=2))

    def fetched(self, offset: int) -> None:
        """The follower fetches up to this offset."""
        assert self.partition.leader_role is not None
        self.partition.leader_role.fetched(FOLLOWER, offset=offset, start_offset=0, broker_epoch=1)

    def led_by(self, leader: int, leader_epoch: int, isr: tuple[int, ...] = (ME, FOLLOWER)) -> None:
        """Change the leader of the partition, and notify the coordinators as a node does."""
        self.image = replace(
            self.image,
            leader=leader,
            leader_epoch=leader_epoch,
            isr=isr,
            partition_epoch=self.image.partition_epoch + 1,
        )
        self.partition.update(self.image)
        if self.partition.is_leader:
            self.coordinator.runtime.schedule_load(0, leader_epoch)
        else:
            self.coordinator.runtime.unload(0)

    @property
    def errors(self) -> list[ErrorCode]:
        return [each if isinstance(each, ErrorCode) else each.error for each in self.responses]


@asynccontextmanager
async def running(stand: ReplicatedCoordinator) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        await nursery.start(stand.coordinator.run)
        yield nursery
        nursery.cancel_scope.cancel()


async def initialized(
    stand: ReplicatedCoordinator, nursery: trio.Nursery, clock: VirtualClock
) -> None:
    """Initialize a producer; the follower has its record."""
    nursery.start_soon(stand.init)
    await clock.settle()
    stand.fetched(1)
    await clock.settle()


async def test_responses_wait_for_followers(clock: VirtualClock) -> None:
    stand = ReplicatedCoordinator(clock)
    async with running(stand) as nursery:
        nursery.start_soon(stand.init)
        await clock.settle()
        assert stand.world.log.end_offset == 1
        assert stand.responses == []
        stand.fetched(0)
        await clock.settle()
        assert stand.responses == []
        stand.fetched(1)
        await clock.settle()
        assert stand.errors == [ErrorCode.none]


async def test_slow_followers_time_out_append(clock: VirtualClock) -> None:
    stand = ReplicatedCoordinator(clock)
    async with running(stand) as nursery:
        nursery.start_soon(stand.init)
        await clock.run_for(1.9)
        assert stand.responses == []
        await clock.run_for(0.2)
        assert stand.errors == [ErrorCode.coordinator_not_available]


async def test_partitioned_coordinator_does_not_return_invalid_txn_state(
    clock: VirtualClock,
) -> None:
    """Another coordinator may know a transaction; INVALID_TXN_STATE would be fatal to its producer."""
    stand = ReplicatedCoordinator(clock)
    async with running(stand) as nursery:
        await initialized(stand, nursery, clock)
        commit = partial(stand.coordinator.end, "a", ProducerIdAndEpoch(1000, 0), is_commit=True)
        nursery.start_soon(stand.ended, commit)
        await clock.run_for(2.1)
        nursery.start_soon(stand.ended, commit)
        await clock.settle()
        stand.fetched(stand.world.log.end_offset)
        await clock.settle()
        late, refused = ErrorCode.coordinator_not_available, ErrorCode.invalid_txn_state
        assert stand.errors == [ErrorCode.none, late, refused]


@pytest.mark.parametrize(
    ("epoch", "verify_only", "received"),
    [
        (0, False, ErrorCode.none),
        (1, False, ErrorCode.producer_fenced),
        (1, True, ErrorCode.producer_fenced),
    ],
)
async def test_partitioned_coordinator_does_not_confirm_partitions(
    clock: VirtualClock, epoch: int, verify_only: bool, received: ErrorCode
) -> None:
    """Another coordinator may have completed the transaction and started the next one."""
    stand, target = ReplicatedCoordinator(clock), TopicPartition("t", 0)
    found: list[ErrorCode] = []

    async def add(*, epoch: int = 0, verify_only: bool = False) -> None:
        errors = await stand.coordinator.add_partitions(
            "a", 1000, epoch, [target], verify_only=verify_only
        )
        found.append(errors[target])

    async with running(stand) as nursery:
        for ask in (stand.init, add):
            nursery.start_soon(ask)
            await clock.settle()
            stand.fetched(stand.world.log.end_offset)
            await clock.settle()
        again = partial(add, epoch=epoch, verify_only=verify_only)
        nursery.start_soon(again)
        await clock.run_for(2.1)
        assert found == [ErrorCode.none, ErrorCode.coordinator_not_available]
        nursery.start_soon(again)
        await clock.settle()
        stand.fetched(stand.world.log.end_offset)
        await clock.settle()
        assert found[2:] == [received]


async def test_partitioned_coordinator_does_not_fence_newer_epoch(clock: VirtualClock) -> None:
    stand = ReplicatedCoordinator(clock)

    async def next_epoch(*, client_version: int) -> ProducerResponse:
        return await stand.coordinator.init_producer_id("a", 60_000, ProducerIdAndEpoch(1000, 1))

    async with running(stand) as nursery:
        await initialized(stand, nursery, clock)
        nursery.start_soon(stand.ended, next_epoch)
        await clock.run_for(2.1)
        assert stand.errors == [ErrorCode.none, ErrorCode.coordinator_not_available]


async def test_append_below_min_insync_replicas_fails(clock: VirtualClock) -> None:
    stand = ReplicatedCoordinator(clock, min_isr=2)
    stand.led_by(ME, 6, isr=(ME,))
    async with running(stand):
        await stand.init()
        assert stand.errors == [ErrorCode.coordinator_not_available]
        assert stand.world.log.end_offset == 0


async def test_waiting_requests_fail_when_leader_changes(clock: VirtualClock) -> None:
    stand = ReplicatedCoordinator(clock)
    async with running(stand) as nursery:
        nursery.start_soon(stand.init)
        await clock.settle()
        stand.led_by(FOLLOWER, 6)
        await clock.settle()
        assert stand.errors == [ErrorCode.not_coordinator]
        with pytest.raises(NotCoordinator):
            stand.coordinator.describe("a")


@pytest.mark.parametrize("is_seen", [True, False], ids=["step by step", "in one step"])
async def test_reloaded_state_is_that_of_the_log(clock: VirtualClock, is_seen: bool) -> None:
    """Another broker was leader meanwhile without the last record, which is truncated."""
    stand = ReplicatedCoordinator(clock)
    async with running(stand) as nursery:
        nursery.start_soon(stand.init, "kept")
        await clock.settle()
        stand.fetched(1)
        await clock.settle()
        nursery.start_soon(stand.init, "lost")
        await clock.settle()
        if is_seen:
            stand.led_by(FOLLOWER, 6)
        stand.world.log.truncate_to(1)
        stand.led_by(ME, 7)
        with pytest.raises(LoadInProgress):
            stand.coordinator.describe("kept")
        await clock.settle()
        assert stand.errors == [ErrorCode.none, ErrorCode.not_coordinator]
        assert stand.coordinator.describe("kept").producer_id == 1000
        with pytest.raises(KafkaError) as unknown:
            stand.coordinator.describe("lost")
        assert unknown.value.code is ErrorCode.transactional_id_not_found


async def test_next_leader_epoch_of_same_leader_changes_nothing(clock: VirtualClock) -> None:
    stand = ReplicatedCoordinator(clock)
    async with running(stand) as nursery:
        nursery.start_soon(stand.init)
        await clock.settle()
        stand.led_by(ME, 6)
        await clock.settle()
        assert stand.responses == []
        stand.fetched(1)
        await clock.settle()
        assert stand.errors == [ErrorCode.none]
        assert stand.coordinator.runtime.loads == 0


async def test_leader_that_loses_partition_before_commit_does_not_serve_it(
    clock: VirtualClock,
) -> None:
    stand = ReplicatedCoordinator(clock)
    async with running(stand) as nursery:
        nursery.start_soon(stand.init)
        await clock.settle()
        for epoch in (7, 9):
            stand.led_by(ME, epoch)
            await clock.settle()
            stand.led_by(FOLLOWER, epoch + 1)
            await clock.settle()
            with pytest.raises(NotCoordinator):
                stand.coordinator.describe("a")
        stand.led_by(ME, 11)
        await clock.settle()
        stand.fetched(1)
        await clock.settle()
        assert stand.coordinator.describe("a").producer_id == 1000
        assert stand.coordinator.runtime.failed_loads == 0


async def test_load_with_disk_error_takes_log_offline(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    stand = ReplicatedCoordinator(clock)
    async with running(stand) as nursery:
        await initialized(stand, nursery, clock)
        stand.world.disk.fail("*.log", errno.EIO, {"read"})
        stand.led_by(ME, 7)
        await clock.settle()
        assert stand.coordinator.runtime.failed_loads == 1
        assert [error.errno for error in stand.world.failures] == [errno.EIO]
        assert stand.world.log.failure is not None
        with pytest.raises(NotCoordinator):
            stand.coordinator.describe("a")
    assert "Failed to load" in caplog.text
    assert "Traceback" not in caplog.text


async def test_load_without_file_descriptor_is_retried(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is temporary, and a failed load is not repeated before the leader changes."""
    stand = ReplicatedCoordinator(clock)
    async with running(stand) as nursery:
        await initialized(stand, nursery, clock)
        fault = stand.world.disk.fail("*.log", errno.EMFILE, {"open", "read"})
        stand.led_by(ME, 7)
        await clock.run_for(3 * LOAD_RETRY_SECONDS)
        with pytest.raises(LoadInProgress):
            stand.coordinator.describe("a")
        assert caplog.text.count("Unable to load the coordinator of") == 1
        stand.world.disk.heal(fault)
        await clock.run_for(LOAD_RETRY_SECONDS)
        stand.fetched(1)
        await clock.settle()
        assert stand.coordinator.describe("a").producer_id == 1000
        assert stand.coordinator.runtime.failed_loads == 0


async def test_markers_are_sent_when_prepare_record_is_committed(clock: VirtualClock) -> None:
    """The previous leader appended the record; the next leader may not have it."""
    stand = ReplicatedCoordinator(clock)
    target = TopicPartition("t", 0)
    async with running(stand) as nursery:
        await initialized(stand, nursery, clock)
        nursery.start_soon(partial(stand.coordinator.add_partitions, "a", 1000, 0, [target]))
        await clock.settle()
        stand.fetched(2)
        await clock.settle()
        producer = ProducerIdAndEpoch(1000, 0)
        nursery.start_soon(
            partial(stand.ended, partial(stand.coordinator.end, "a", producer, is_commit=True))
        )
        await clock.settle()
        assert stand.world.log.end_offset == 3
        stand.led_by(ME, 7)  # as a new leader that has the prepare record
        await clock.run_for(1)
        with pytest.raises(LoadInProgress):
            stand.coordinator.describe("a")
        assert stand.markers.sent == []
        stand.fetched(3)
        await clock.settle()
        assert [each.partitions for each in stand.markers.sent] == [(target,)]
