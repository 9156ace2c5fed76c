"""Tests of waiting fetches that are completed by the connection that appended, before their tasks run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from odradek.broker.apis.fetch import FetchResponse, fetch
from odradek.broker.fetch import purgatory
from odradek.broker.fetch.log_reading import PARTITIONS_PER_STEP
from odradek.broker.fetch.purgatory import COMPLETED_AT_ONCE, CompletableFetches
from odradek.broker.network.connection import ClientConnection
from odradek.broker.requests.context import RequestContext
from odradek.protocol import apis, messages
from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch_request_reader import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.framing import read_response_header, request_header
from odradek.replication.controller.image import PartitionImage
from odradek.replication.errors import NotLeader
from odradek.replication.partition.partition import Partition
from odradek.seams.files import Buffer, FileSlice
from odradek.seams.network import Address, ConnectionLost
from odradek.seams.selector import EachAlone
from odradek.storage.log.partition_log import PartitionLog
from odradek.testing import Broker
from tests.support.records import batch_of_size

VERSION = 12
OTHER, EPOCH = 2, 3
"""A follower, and the leader epoch."""
TIMEOUT_SECONDS = 20


def append(partition: Partition, records: bytes) -> None:
    partition.append(memoryview(bytearray(records)), acks=1, now_ms=1_700_000_000_000)


class Fetches:
    """Fetches of `t` from its start, and their responses, immediate or from their tasks."""

    def __init__(self, broker: Broker, isolation_level: int = 0) -> None:
        self.node = broker.node
        self.isolation_level = isolation_level
        self.at_once: list[FetchResponse] = []
        self.by_tasks: list[FetchResponse | None] = []
        self.failure: Exception | None = None
        self.asks_on = trio.Event()

    def respond_nowait(self, ctx: RequestContext, response: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.at_once.append(response)

    async def wait_for_next_request(self) -> None:
        await self.asks_on.wait()

    def wake(self) -> None:
        self.asks_on.set()

    async def fetch(
        self, min_bytes: int = 1, indexes: Sequence[int] = (0,), max_bytes: int = 2**20
    ) -> None:
        request = FetchRequest()
        request.max_wait_ms = TIMEOUT_SECONDS * 2000
        request.min_bytes, request.max_bytes = min_bytes, max_bytes
        request.isolation_level = self.isolation_level
        partitions = [FetchPartition(index, -1, 0, -1, -1, 2**20) for index in indexes]
        request.topics = [FetchTopic("t", None, partitions)]
        self.by_tasks.append(await fetch(request, self._context()))

    async def ask_as_follower(
        self, session_id: int, session_epoch: int, topics: list[FetchTopic]
    ) -> FetchResponse | None:
        request = FetchRequest()
        request.replica_id = OTHER
        request.session_id, request.session_epoch = session_id, session_epoch
        request.max_wait_ms = TIMEOUT_SECONDS * 2000 if session_id else 0
        request.min_bytes, request.max_bytes, request.topics = 1, 2**20, topics
        return await fetch(request, self._context())

    def _context(self) -> RequestContext:
        endpoint = self.node.endpoints[0]
        return RequestContext(
            self.node.services,
            apis.FETCH,
            VERSION,
            1,
            "test",
            endpoint,
            endpoint.address,
            trio.lowlevel.checkpoint,
            connection=self,
        )

    async def partition(self) -> Partition:
        return await self.node.partitions.get("t", None, 0)


def records_of(response: FetchResponse) -> bytes:
    ((_, partition),) = response.chosen
    return b"".join(bytes(part) for part in partition.records if not isinstance(part, FileSlice))


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_fetch_completes_before_any_task_runs(isolation_level: int) -> None:
    async with Broker(topics={"t": 1}) as broker, trio.open_nursery() as nursery:
        fetches = Fetches(broker, isolation_level)
        partition = await fetches.partition()
        nursery.start_soon(fetches.fetch)
        await trio.testing.wait_all_tasks_blocked()
        append(partition, batch_of_size(100))
        assert fetches.node.services.completable_fetches.waits
        fetches.node.services.completable_fetches.respond()
        (response,) = fetches.at_once
        assert len(records_of(response)) == len(batch_of_size(100))
        assert partition.log.log_end.segment.file.pins == 0
        with trio.fail_after(TIMEOUT_SECONDS):
            while not fetches.by_tasks:
                await trio.lowlevel.checkpoint()
        assert fetches.by_tasks == [None], "two responses"


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_newest_batch_is_returned_without_log_read(
    isolation_level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(topics={"t": 1}) as broker, trio.open_nursery() as nursery:
        fetches = Fetches(broker, isolation_level)
        partition = await fetches.partition()
        nursery.start_soon(fetches.fetch)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.delattr(PartitionLog, "read")
        append(partition, batch_of_size(100))
        fetches.node.services.completable_fetches.respond()
        ((_, results),) = fetches.at_once[0].chosen
        assert results.aborted_transactions == ([] if isolation_level else None)
        assert len(records_of(fetches.at_once[0])) == len(batch_of_size(100))
        fetches.asks_on.set()


@pytest.mark.parametrize("space", [0, 1])
async def test_newest_batch_counts_against_max_bytes(space: int) -> None:
    """The first batch is returned whole, the next one if it fits (KIP-74)."""
    size = len(batch_of_size(100))
    async with Broker(topics={"t": 2}) as broker, trio.open_nursery() as nursery:
        fetches = Fetches(broker)
        both = [await fetches.node.partitions.get("t", None, index) for index in (0, 1)]
        nursery.start_soon(fetches.fetch, 1, (0, 1), 2 * size - 1 + space)
        await trio.testing.wait_all_tasks_blocked()
        for partition in both:
            append(partition, batch_of_size(100))
        fetches.node.services.completable_fetches.respond()
        (response,) = fetches.at_once
        found = [sum(map(len, results.records)) for _, results in response.chosen]  # type: ignore[arg-type]
        assert found == [size, size if space else 0]
        fetches.asks_on.set()


@pytest.mark.parametrize("asks_on", ["after", "before"])
async def test_task_of_completed_fetch_sleeps_until_next_request(asks_on: str) -> None:
    """Appends and the timeout do not wake it. With a next request that arrived before the response, it
    continues immediately."""
    async with Broker(topics={"t": 1}) as broker, trio.open_nursery() as nursery:
        fetches = Fetches(broker)
        due = fetches.node.services.completable_fetches
        partition = await fetches.partition()
        nursery.start_soon(fetches.fetch)
        await trio.testing.wait_all_tasks_blocked()
        if asks_on == "before":
            fetches.asks_on.set()
            await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            due.has_active_connection = True
            append(partition, batch_of_size(100))
            due.respond()
        await trio.testing.wait_all_tasks_blocked()
        assert len(fetches.at_once) == 1
        assert not len(fetches.node.services.fetch_timers)
        if asks_on == "after":
            assert not fetches.by_tasks
            fetches.asks_on.set()
        with trio.fail_after(TIMEOUT_SECONDS):
            while not fetches.by_tasks:
                await trio.lowlevel.checkpoint()
        assert fetches.by_tasks == [None]


async def test_two_appends_in_one_pass_complete_fetch_once() -> None:
    """The task of the fetch has not run when the second producer appends."""
    async with Broker(topics={"t": 1}) as broker, trio.open_nursery() as nursery:
        fetches = Fetches(broker)
        partition = await fetches.partition()
        nursery.start_soon(fetches.fetch)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            append(partition, batch_of_size(100))
            fetches.node.services.completable_fetches.respond()
        with trio.fail_after(TIMEOUT_SECONDS):
            while not fetches.by_tasks:
                await trio.lowlevel.checkpoint()
        assert (len(fetches.at_once), fetches.by_tasks) == (1, [None])


async def test_follower_fetch_completes_once_for_two_partitions() -> None:
    """The fetch session watches unchanged partitions in both cases."""
    async with Broker(topics={"t": 2}) as broker, trio.open_nursery() as nursery:
        fetches = Fetches(broker)
        node = fetches.node
        both = [await node.partitions.get("t", None, index) for index in (0, 1)]
        for partition in both:
            partition.update(two_replicas(partition))
        wanted = [FetchPartition(index, EPOCH, 0, -1, 0, 2**20) for index in (0, 1)]
        first = await fetches.ask_as_follower(0, 0, [FetchTopic("t", None, wanted)])
        assert first is not None
        nursery.start_soon(fetches.ask_as_follower, first.session_id, 1, [])
        await trio.testing.wait_all_tasks_blocked()
        for partition in both:
            node.services.completable_fetches.has_active_connection = True
            append(partition, batch_of_size(100))
            node.services.completable_fetches.respond()
        assert len(fetches.at_once) == 1
        fetches.asks_on.set()


@pytest.mark.parametrize("has_active_connection", [False, True])
async def test_fetches_beyond_the_limit_complete_in_their_tasks(
    has_active_connection: bool,
) -> None:
    count = COMPLETED_AT_ONCE + 3
    async with Broker(topics={"t": 1}) as broker:
        fetches = Fetches(broker)
        partition = await fetches.partition()
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(fetches.fetch)
            await trio.testing.wait_all_tasks_blocked()
            fetches.node.services.completable_fetches.has_active_connection = has_active_connection
            append(partition, batch_of_size(100))
            fetches.node.services.completable_fetches.respond()
            assert len(fetches.at_once) == COMPLETED_AT_ONCE
            assert not fetches.node.services.completable_fetches.waits
        assert fetches.by_tasks.count(None) == COMPLETED_AT_ONCE
        assert len(fetches.by_tasks) == count


async def test_completable_fetches_are_empty_after_tasks_ran() -> None:
    """After an append by a coordinator no connection completes the fetches."""
    async with Broker(topics={"t": 1}) as broker:
        fetches = Fetches(broker)
        partition = await fetches.partition()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetches.fetch)
            await trio.testing.wait_all_tasks_blocked()
            append(partition, batch_of_size(100))
        assert not fetches.at_once
        (response,) = fetches.by_tasks
        assert response is not None
        assert not fetches.node.services.completable_fetches.waits


async def test_completion_error_is_raised_in_waiting_task() -> None:
    async with Broker(topics={"t": 1}) as broker:
        fetches = Fetches(broker)
        fetches.failure = ZeroDivisionError()
        partition = await fetches.partition()

        async def fail() -> None:
            with pytest.raises(ZeroDivisionError):
                await fetches.fetch()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.testing.wait_all_tasks_blocked()
            append(partition, batch_of_size(100))
            fetches.node.services.completable_fetches.respond()


@pytest.mark.parametrize("has_active_connection", [False, True])
@pytest.mark.parametrize("what", ["too much", "changed hands", "too little after all"])
async def test_slow_completion_is_left_to_task(what: str, has_active_connection: bool) -> None:
    async with Broker(topics={"t": 1}) as broker:
        fetches = Fetches(broker)
        partition = await fetches.partition()
        small = batch_of_size(100)
        min_bytes = 2 * len(small) if what == "too little after all" else 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetches.fetch, min_bytes)
            await trio.testing.wait_all_tasks_blocked()
            fetches.node.services.completable_fetches.has_active_connection = has_active_connection
            append(partition, batch_of_size(200_000) if what == "too much" else small)
            if what == "changed hands":
                partition.retire(NotLeader("it went to another node"))
            elif what == "too little after all":
                append(partition, small)
                partition.log.advance_log_start(1, "a test")
            fetches.node.services.completable_fetches.respond()
            assert not fetches.at_once
        (response,) = fetches.by_tasks
        assert response is not None
        ((_, results),) = response.chosen
        for part in results.records:
            if isinstance(part, FileSlice):
                part.file.unpin()
        assert (
            results.error_code
            == {
                "too much": ErrorCode.none,
                "changed hands": ErrorCode.not_leader_or_follower,
                "too little after all": ErrorCode.offset_out_of_range,
            }[what]
        )
        assert partition.log.log_end.segment.file.pins == 0


async def test_role_change_during_read_is_returned() -> None:
    """Without a watcher yet, the fetch must detect that its results are outdated."""
    async with Broker(topics={"t": 2}) as broker:
        fetches = Fetches(broker)
        partition = await fetches.partition()
        await fetches.node.partitions.get("t", None, 1)
        # This takes three passes of the event loop
        indexes = [0] * (PARTITIONS_PER_STEP - 1) + [1] * (PARTITIONS_PER_STEP + 1)
        with trio.fail_after(TIMEOUT_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetches.fetch, 1, indexes)
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                partition.retire(NotLeader("it went to another node"))
        (response,) = fetches.by_tasks
        assert response is not None
        results = {fetched.error_code for wanted, fetched in response.chosen if wanted.index == 0}
        assert results == {ErrorCode.not_leader_or_follower}


def two_replicas(partition: Partition) -> PartitionImage:
    """This node leads, and another has the partition as well."""
    here, there = UUID(int=1001), UUID(int=1002)
    nodes = (partition.leader, OTHER)
    return PartitionImage(nodes, (here, there), nodes, partition.leader, EPOCH, 5)


class SlowReader:
    """Connection with pipelined requests whose socket accepts `space` bytes at once."""

    local = peer = Address("127.0.0.1", 1)
    is_hung_up = False

    def __init__(self, space: int, *requests: bytes) -> None:
        self._request = b"".join(len(each).to_bytes(4, "big") + each for each in requests)
        self._space = space
        self.sent = b""
        self.sent_bytes = 0
        self._wait = trio.Event()

    async def receive_into(self, view: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        size, self._request, request = len(self._request), b"", self._request
        view[:size] = request
        return size

    def send_nowait(self, data: Buffer) -> int:
        if not self._space:
            raise ConnectionLost("the peer is gone")
        piece = bytes(data[: self._space])
        self.sent += piece
        return len(piece)

    async def wait_readable(self) -> None:
        self._wait = trio.Event()
        await self._wait.wait()

    def interrupt(self) -> None:
        self._wait.set()

    async def send(self, parts: Sequence[Buffer | FileSlice]) -> None:
        await trio.lowlevel.checkpoint()
        if not self._space:
            raise ConnectionLost("the peer is gone")
        for part in parts:
            assert not isinstance(part, FileSlice)
            self.sent += part

    def abort(self) -> None:
        pass

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class FullSocket(SlowReader):
    """Connection whose peer reads nothing until `drained` is set."""

    def __init__(self, *requests: bytes) -> None:
        super().__init__(100_000, *requests)
        self.drained = trio.Event()
        self._is_sending = False

    def send_nowait(self, data: Buffer) -> int:
        if self._is_sending:
            raise trio.BusyResourceError("another task is sending on this connection")
        return super().send_nowait(data) if self.drained.is_set() else 0

    async def send(self, parts: Sequence[Buffer | FileSlice]) -> None:
        self._is_sending = True
        await self.drained.wait()
        await super().send(parts)
        self._is_sending = False


async def test_fetch_completed_during_send_is_sent_afterwards() -> None:
    produced = messages.write_request(
        apis.PRODUCE.key,
        9,
        {
            "transactional_id": None,
            "acks": 1,
            "timeout": 1000,
            "topic_data": [
                {
                    "name": "t",
                    "partition_data": [{"index": 0, "records": bytes(batch_of_size(100))}],
                }
            ],
        },
    )
    first = request_header(apis.PRODUCE, 9, 6, "slow") + produced
    second = request_header(apis.FETCH, VERSION, 7, "slow") + fetch_of_t(offset=1)
    connection = FullSocket(first, second)
    async with Broker(topics={"t": 1}) as broker:
        node = broker.node
        partition = await node.partitions.get("t", None, 0)
        with trio.fail_after(TIMEOUT_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    ClientConnection(connection, node.endpoints[0], node.services, EachAlone()).talk
                )
                await trio.testing.wait_all_tasks_blocked()
                append(partition, batch_of_size(100))
                node.services.completable_fetches.respond()
                connection.drained.set()
    size = int.from_bytes(connection.sent[:4], "big")
    assert connection.sent[4:8] == (6).to_bytes(4, "big")
    view = memoryview(connection.sent)[4 + size + 4 :]
    correlation_id, start = read_response_header(apis.FETCH, VERSION, view)
    response = messages.read_response(apis.FETCH.key, VERSION, view, start)
    assert correlation_id == 7
    assert len(response.responses[0].partitions[0].records) == len(batch_of_size(100))


def fetch_of_t(offset: int = 0) -> bytes:
    """Body of a Fetch request that waits for a record."""
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
    return messages.write_request(
        apis.FETCH.key,
        VERSION,
        {
            "max_wait": TIMEOUT_SECONDS * 2000,
            "min_bytes": 1,
            "max_bytes": 2**20,
            "topics": [{"topic": "t", "partitions": [partition]}],
        },
    )


async def test_connection_after_completed_fetch_is_idle() -> None:
    connection = SlowReader(100_000, request_header(apis.FETCH, VERSION, 7, "slow") + fetch_of_t())
    async with Broker(topics={"t": 1}) as broker, trio.open_nursery() as nursery:
        node = broker.node
        partition = await node.partitions.get("t", None, 0)
        client = ClientConnection(connection, node.endpoints[0], node.services, EachAlone())
        nursery.start_soon(client.talk)
        await trio.testing.wait_all_tasks_blocked()
        now = node.seams.clock.monotonic()
        assert client.idle_seconds(now + 60) == 0, (
            "the connection is not idle while its fetch waits"
        )
        node.services.completable_fetches.has_active_connection = True
        append(partition, batch_of_size(100))
        node.services.completable_fetches.respond()
        assert connection.sent
        assert client.idle_seconds(now + 60) > 50
        connection.interrupt()


@pytest.mark.parametrize("has_active_connection", [False, True])
@pytest.mark.parametrize("space", [0, 1, 50, 100_000])
async def test_partial_send_is_continued(space: int, has_active_connection: bool) -> None:
    connection = SlowReader(space, request_header(apis.FETCH, VERSION, 7, "slow") + fetch_of_t())
    async with Broker(topics={"t": 1}) as broker:
        node = broker.node
        partition = await node.partitions.get("t", None, 0)
        with trio.fail_after(TIMEOUT_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    ClientConnection(connection, node.endpoints[0], node.services, EachAlone()).talk
                )
                await trio.testing.wait_all_tasks_blocked()
                node.services.completable_fetches.has_active_connection = has_active_connection
                append(partition, batch_of_size(100))
                node.services.completable_fetches.respond()
                assert bool(connection.sent) == bool(space)
                connection.interrupt()
    if not space:
        assert connection.sent == b"", "the connection ended, and no other task was notified"
        return
    view = memoryview(connection.sent)[4:]
    assert len(view) == int.from_bytes(connection.sent[:4], "big")
    correlation_id, start = read_response_header(apis.FETCH, VERSION, view)
    response = messages.read_response(apis.FETCH.key, VERSION, view, start)
    assert correlation_id == 7
    assert len(response.responses[0].partitions[0].records) == len(batch_of_size(100))


class FakeDelayedFetch:
    """Waiting fetch that is completable or not."""

    def __init__(self, can_be: bool = True) -> None:
        self.is_responded = False
        self._can_be = can_be

    def respond(self) -> None:
        self.is_responded = self._can_be


class Processor:
    """Occupies the processor for `seconds` at each yield."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.seconds = 0.0
        self.offers = 0
        monkeypatch.setattr(purgatory, "let_others_run", self._run)

    def monotonic(self) -> float:
        return self.now

    def _run(self) -> None:
        self.offers += 1
        self.now += self.seconds


def test_processor_is_yielded_after_completions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor = Processor(monkeypatch)
    due = CompletableFetches(processor)  # type: ignore[arg-type]
    due.respond()
    due.add(FakeDelayedFetch(can_be=False))  # type: ignore[arg-type]
    due.respond()
    assert processor.offers == 0
    for _ in range(3):
        due.add(FakeDelayedFetch())  # type: ignore[arg-type]
        due.add(FakeDelayedFetch())  # type: ignore[arg-type]
        due.respond()
    assert processor.offers == 3


def test_long_yields_reduce_further_yields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most one hundredth of the time is spent in yields."""
    processor = Processor(monkeypatch)
    due = CompletableFetches(processor)  # type: ignore[arg-type]
    processor.seconds = 0.003
    began = processor.now
    for _ in range(10_000):
        due.add(FakeDelayedFetch())  # type: ignore[arg-type]
        due.respond()
        processor.now += 0.001
    assert processor.offers > 10
    assert processor.offers * processor.seconds < 0.01 * (processor.now - began)
