"""The writer of diskless topics on virtual seams: uploads, commits, their faults, and limits (D-05 to D-07)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest
import trio

from odradek.broker.diskless import wal_writer
from odradek.broker.diskless.append_buffer import AppendOutcome, AppendWaiter, BufferedBatch
from odradek.broker.diskless.wal_writer import WalWriter, WalWriterSettings
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatch,
    DisklessCommitBatchResult,
    DisklessCommitFileRequest,
)
from odradek.storage.diskless.object_key import parse_object_key
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_object_store import StoreFault, StoreFaultKind
from odradek.testing.virtual_world import VirtualNode, VirtualWorld
from tests.support.partition_logs import batch, idempotent

TOPIC = UUID(int=1)
INTERVAL = 0.25


@dataclass
class Coordinators:
    """Coordinators that commit at once, with the errors and delays that a test sets."""

    objects: dict[str, bytes]
    seconds: float = 0.01
    unreachable: set[int] = field(default_factory=set)
    lost_responses: int = 0
    hanging: int = 0
    refused_once: ErrorCode = ErrorCode.none
    """Error of the next request."""
    leaders: dict[int, int] = field(default_factory=dict)
    requests: list[DisklessCommitFileRequest] = field(default_factory=list)
    ends: dict[UUID | tuple[UUID, int], int] = field(default_factory=dict)
    sequences: dict[tuple[UUID, int, int], int] = field(default_factory=dict)
    committed: dict[tuple[str, int], DisklessCommitBatchResult] = field(default_factory=dict)
    log: list[tuple[UUID, int, bytes]] = field(default_factory=list)
    running: int = 0
    running_max: int = 0

    def leader_of(self, coordinator_id: int) -> int:
        return self.leaders.get(coordinator_id, -1)

    async def commit_file(
        self, request: DisklessCommitFileRequest
    ) -> Sequence[DisklessCommitBatchResult]:
        self.requests.append(request)
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            if self.hanging:
                self.hanging -= 1
                await trio.sleep_forever()
            await trio.sleep(self.seconds)
        finally:
            self.running -= 1
        if self.refused_once:
            code, self.refused_once = self.refused_once, ErrorCode.none
            return [_error(code) for _ in request.batches]
        if any(each.partition_index in self.unreachable for each in request.batches):
            return [_error(ErrorCode.not_coordinator) for _ in request.batches]
        results = [self._commit(request, each) for each in request.batches]
        if self.lost_responses:
            self.lost_responses -= 1
            return [_error(ErrorCode.network_exception) for _ in request.batches]
        return results

    def _commit(
        self, request: DisklessCommitFileRequest, added: DisklessCommitBatch
    ) -> DisklessCommitBatchResult:
        assert request.object_key in self.objects, "committed before it is uploaded"
        assert request.file_size == len(self.objects[request.object_key])
        known = self.committed.get((request.object_key, added.byte_offset))
        if known is not None:
            return known
        key = (added.topic_id, added.partition_index)
        if added.producer_id >= 0:
            last = self.sequences.get((*key, added.producer_id))
            if last is not None and added.base_sequence != last + 1:
                return _error(ErrorCode.out_of_order_sequence_number)
            self.sequences[*key, added.producer_id] = added.last_sequence
        first = self.ends.get(key, 0)
        self.ends[key] = first + added.last_offset + 1
        data = self.objects[request.object_key][added.byte_offset :][: added.size]
        self.log.append((*key, data))
        result = DisklessCommitBatchResult(
            assigned_base_offset=first, log_append_time=777, log_start_offset=0, is_duplicate=False
        )
        self.committed[request.object_key, added.byte_offset] = result
        return result


def _error(code: ErrorCode) -> DisklessCommitBatchResult:
    return DisklessCommitBatchResult(
        error_code=code,
        error_message="no",
        assigned_base_offset=-1,
        log_append_time=-1,
        log_start_offset=3 if code is ErrorCode.unknown_producer_id else -1,
        is_duplicate=False,
    )


@dataclass
class Broker:
    """A writer on virtual seams with fake coordinators. Partition n has the coordinator n."""

    world: VirtualWorld
    node: VirtualNode
    coordinators: Coordinators
    writer: WalWriter
    cache: dict[str, bytes]

    def put(self, key: str, data: bytes) -> None:
        self.cache[key] = data

    @property
    def objects(self) -> dict[str, bytes]:
        return self.world.bucket.objects

    async def add(self, data: memoryview, index: int = 0) -> BufferedBatch:
        await self.writer.wait_for_space(len(data))
        return self.writer.add(TOPIC, index, index, Batch(data), AppendWaiter())

    async def append(self, data: memoryview, index: int = 0) -> AppendOutcome:
        done = trio.Event()
        await self.writer.wait_for_space(len(data))
        added = self.writer.add(TOPIC, index, index, Batch(data), AppendWaiter(done.set))
        await done.wait()
        assert added.outcome is not None
        return added.outcome


def run(
    scenario: Callable[[Broker], Awaitable[None]], *, seed: int = 1, max_bytes: int = 1 << 20
) -> None:
    world = VirtualWorld(seed)
    world.clock.jumping = True
    node = world.node("broker-4")
    coordinators = Coordinators(world.bucket.objects)

    async def main() -> None:
        cache: dict[str, bytes] = {}
        broker = Broker(world, node, coordinators, None, cache)  # type: ignore[arg-type]
        broker.writer = WalWriter(
            4,
            node.seams,
            node.objects,
            coordinators,
            WalWriterSettings(INTERVAL, max_bytes),
            broker,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.writer.run)
            await scenario(broker)
            nursery.cancel_scope.cancel()

    world.run(main)


def test_batches_of_an_interval_are_one_object_and_one_commit() -> None:
    """D-05: one PUT with the batches of all partitions, then one request per broker that leads coordinators."""

    async def scenario(broker: Broker) -> None:
        broker.coordinators.leaders = {0: 1, 1: 1, 2: 1}
        started = trio.current_time()
        added = [await broker.add(batch(n + 1), n % 3) for n in range(6)]
        await trio.sleep(INTERVAL + 0.1)
        assert [each.outcome and each.outcome.base_offset for each in added] == [0, 0, 0, 1, 2, 3]
        assert trio.current_time() - started < INTERVAL + 0.2
        ((key, data),) = broker.objects.items()
        assert parse_object_key(key)[1] == 4
        (request,) = broker.coordinators.requests
        assert sorted(request.owner_ids) == [0, 1, 2]
        assert (request.object_format, request.file_size) == (1, len(data))
        assert [each.partition_index for each in request.batches] == [0, 0, 1, 1, 2, 2]
        assert broker.cache == {key: data}
        assert len(list(batches(memoryview(data), check=True))) == 6
        assert broker.writer.buffered_bytes == 0
        assert broker.writer.statistics.batches == 6

    run(scenario)


def test_owners_are_permuted() -> None:
    """D-21: the first owner differs between files."""

    async def scenario(broker: Broker) -> None:
        for _ in range(20):
            for index in range(3):
                await broker.add(batch(1), index)
            await trio.sleep(2 * INTERVAL)
        owners = {each.owner_ids for each in broker.coordinators.requests}
        assert {each[0] for each in owners} == {0, 1, 2}
        by_key: dict[str, set[tuple[int, ...]]] = {}
        for request in broker.coordinators.requests:
            by_key.setdefault(request.object_key, set()).add(request.owner_ids)
        assert all(len(each) == 1 for each in by_key.values())  # each coordinator gets the same

    run(scenario)


def test_only_log_append_time_is_returned_to_producers() -> None:
    async def scenario(broker: Broker) -> None:
        created, appended = batch(1), batch(1)
        Batch(appended).set_max_timestamp(1, 123)
        first = await broker.add(created)
        second = await broker.add(appended)
        await trio.sleep(2 * INTERVAL)
        assert [each.outcome and each.outcome.log_append_ms for each in (first, second)] == [
            -1,
            777,
        ]

    run(scenario)


def test_store_errors_are_retried_until_the_upload_succeeds() -> None:
    async def scenario(broker: Broker) -> None:
        broker.world.bucket.inject(
            StoreFault(StoreFaultKind.THROTTLED, operations=("put",), times=3)
        )
        assert (await broker.append(batch(1))).error_code is ErrorCode.none
        assert broker.writer.statistics.upload_retries == 3
        assert len(broker.objects) == 1

    run(scenario)


@pytest.mark.parametrize(
    "kind", [StoreFaultKind.FAILS, StoreFaultKind.HALF_DONE, StoreFaultKind.RESPONSE_LOST]
)
def test_failed_upload_fails_its_batches_and_removes_the_object(kind: StoreFaultKind) -> None:
    """The error is retriable, and no coordinator gets a commit."""

    async def scenario(broker: Broker) -> None:
        broker.world.bucket.inject(StoreFault(kind, operations=("put",)))
        started = trio.current_time()
        outcome = await broker.append(batch(1))
        assert outcome.error_code is ErrorCode.kafka_storage_error
        assert trio.current_time() - started < wal_writer.UPLOAD_SECONDS_MAX + 1
        await trio.sleep(1)
        assert not broker.objects
        assert not broker.coordinators.requests
        assert not broker.cache
        broker.world.bucket.heal()
        assert (await broker.append(batch(1))).base_offset == 0

    run(scenario)


def test_store_that_hangs_fails_batches_within_the_request_timeout_of_producers() -> None:
    async def scenario(broker: Broker) -> None:
        broker.world.bucket.inject(StoreFault(StoreFaultKind.HANGS, seconds=8, operations=("put",)))
        with trio.fail_after(30):
            outcome = await broker.append(batch(1))
        assert outcome.error_code is ErrorCode.kafka_storage_error

    run(scenario)


def test_commit_whose_response_is_lost_is_repeated_without_duplicates() -> None:
    """D-07: the coordinator recognises the file, also for batches without a producer id."""

    async def scenario(broker: Broker) -> None:
        broker.coordinators.lost_responses = 2
        outcome = await broker.append(batch(2))
        assert (outcome.error_code, outcome.base_offset) == (ErrorCode.none, 0)
        assert len(broker.coordinators.requests) == 3
        assert len(broker.coordinators.log) == 1
        assert (await broker.append(batch(1))).base_offset == 2

    run(scenario)


def test_commit_waits_for_a_coordinator_that_moves() -> None:
    async def scenario(broker: Broker) -> None:
        broker.coordinators.unreachable = {0}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect, broker, ErrorCode.none)
            await trio.sleep(6)
            broker.coordinators.unreachable = set()

    run(scenario)


async def _expect(broker: Broker, error: ErrorCode, index: int = 0) -> None:
    assert (await broker.append(batch(1), index)).error_code is error


def test_commit_without_response_fails_with_a_retriable_error_and_keeps_the_object() -> None:
    """The outcome of the commit is unknown, so that only the orphan scan may delete the object."""

    async def scenario(broker: Broker) -> None:
        broker.coordinators.hanging = 1
        with trio.fail_after(30):
            outcome = await broker.append(batch(1))
        assert outcome.error_code is ErrorCode.request_timed_out
        await trio.sleep(5)
        assert len(broker.objects) == 1

    run(scenario)


def test_unavailable_coordinator_does_not_delay_others() -> None:
    """Also with more files than are uploaded at the same time."""

    async def scenario(broker: Broker) -> None:
        broker.coordinators.unreachable = {0}
        stuck = []
        started = trio.current_time()
        for _ in range(3 * wal_writer.UPLOADS_MAX):
            stuck.append(await broker.add(batch(1), 0))
            assert (await broker.append(batch(1), 1)).error_code is ErrorCode.none
        files = len(broker.objects)
        assert files == 3 * wal_writer.UPLOADS_MAX
        assert trio.current_time() - started < files * (INTERVAL + 0.1)
        assert all(each.outcome is None for each in stuck)
        broker.coordinators.unreachable = set()
        await trio.sleep(5)
        assert [each.outcome and each.outcome.base_offset for each in stuck] == list(range(files))

    run(scenario)


def test_files_are_committed_in_upload_order_although_uploads_overlap() -> None:
    """The sequences of an idempotent producer arrive in order."""

    async def scenario(broker: Broker) -> None:
        broker.world.bucket.inject(
            StoreFault(StoreFaultKind.SLOW, operations=("put",), times=1, seconds=3)
        )
        started = trio.current_time()
        added = []
        for sequence in range(5):
            added.append(await broker.add(idempotent(7, sequence)))
            await trio.sleep(2 * INTERVAL)
        assert len(broker.objects) > 1  # the later ones are uploaded
        assert not broker.coordinators.requests
        await trio.sleep(started + 4 - trio.current_time())
        assert [each.outcome and each.outcome.base_offset for each in added] == [0, 1, 2, 3, 4]
        assert broker.coordinators.running_max == 1

    run(scenario)


@pytest.mark.parametrize("code", [ErrorCode.invalid_timestamp, ErrorCode.invalid_request])
def test_commit_that_can_never_succeed_is_not_repeated(code: ErrorCode) -> None:
    """The file is too old to be committed (D-23), or its batch may have been deleted: the producer sends the batch
    again, in another file, and later files do not wait."""

    async def scenario(broker: Broker) -> None:
        broker.coordinators.refused_once = code
        with trio.fail_after(4 * INTERVAL):
            await _expect(broker, ErrorCode.request_timed_out)
            await _expect(broker, ErrorCode.none)
        assert len(broker.coordinators.requests) == 2

    run(scenario)


def test_refused_batches_have_the_errors_of_the_coordinator() -> None:
    """D-07: a failure is per batch."""

    async def scenario(broker: Broker) -> None:
        broker.coordinators.sequences[TOPIC, 0, 7] = 5
        refused = await broker.add(idempotent(7, 9))
        accepted = await broker.add(batch(1))
        await trio.sleep(2 * INTERVAL)
        assert refused.outcome is not None
        assert refused.outcome.error_code is ErrorCode.out_of_order_sequence_number
        assert accepted.outcome is not None
        assert accepted.outcome.base_offset == 0

    run(scenario)


def test_unknown_producer_gets_the_log_start_offset() -> None:
    """Kafka's producer repeats UNKNOWN_PRODUCER_ID until it gets the log start offset, and then begins a new epoch."""

    async def scenario(broker: Broker) -> None:
        broker.coordinators.refused_once = ErrorCode.unknown_producer_id
        outcome = await broker.append(idempotent(7, 9))
        assert (outcome.error_code, outcome.log_start_offset) == (ErrorCode.unknown_producer_id, 3)

    run(scenario)


def test_producers_wait_while_the_memory_is_in_use() -> None:
    async def scenario(broker: Broker) -> None:
        broker.world.bucket.inject(StoreFault(StoreFaultKind.SLOW, operations=("put",), seconds=2))
        limit = wal_writer.BUFFERED_FILES_MAX * 1000
        seen = 0

        async def produce() -> None:
            nonlocal seen
            for _ in range(20):
                await broker.add(batch(1, size=500))
                seen = max(seen, broker.writer.buffered_bytes)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(produce)
        assert 0.9 * limit < seen <= limit
        await trio.sleep(60)
        assert broker.writer.buffered_bytes == 0
        assert len(broker.coordinators.log) == 100

    run(scenario, max_bytes=1000)


def test_waiting_batches_are_added_in_the_order_of_their_calls() -> None:
    """A large batch does not wait for ever while small ones are added."""

    async def scenario(broker: Broker) -> None:
        broker.world.bucket.inject(StoreFault(StoreFaultKind.SLOW, operations=("put",), seconds=2))
        order: list[int] = []

        async def produce(number: int, size: int) -> None:
            await broker.add(batch(1, size=size))
            order.append(number)

        while broker.writer.has_space(600):
            await broker.add(batch(1, size=500))
        async with trio.open_nursery() as nursery:
            for number, size in enumerate((1500, 50, 700, 50)):
                nursery.start_soon(produce, number, size)
                await trio.sleep(0.01)
        assert order == [0, 1, 2, 3]

    run(scenario, max_bytes=1000)


def test_close_commits_what_is_buffered_and_refuses_more() -> None:
    async def scenario(broker: Broker) -> None:
        added = await broker.add(batch(1))
        started = trio.current_time()
        await broker.writer.close()
        assert trio.current_time() - started < INTERVAL
        assert not broker.writer.has_space(1)
        assert added.outcome == AppendOutcome(base_offset=0, log_start_offset=0)
        with pytest.raises(KafkaError, match="shutting down"):
            await broker.add(batch(1))

    run(scenario)


def test_power_cut_after_the_upload_leaves_an_object_without_commit() -> None:
    async def scenario(broker: Broker) -> None:
        broker.world.bucket.inject(StoreFault(StoreFaultKind.POWER_CUT_AFTER, operations=("put",)))
        await broker.add(batch(1))
        await trio.sleep_forever()

    worlds: list[Broker] = []

    async def remember(broker: Broker) -> None:
        worlds.append(broker)
        await scenario(broker)

    with pytest.raises(BaseExceptionGroup) as raised:
        run(remember)
    assert raised.group_contains(NodeCrashed)
    (broker,) = worlds
    assert len(broker.objects) == 1
    assert not broker.coordinators.requests
