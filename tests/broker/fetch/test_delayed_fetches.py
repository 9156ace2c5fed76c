"""Tests of waiting fetches: what completes them, their responses, and which partitions are read again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from odradek.broker.apis.fetch import FetchResponse, fetch
from odradek.broker.fetch.log_reading import READ_AT_ONCE_BYTES
from odradek.broker.network.connection import release_files
from odradek.broker.requests.context import RequestContext
from odradek.broker.security.authorizer import Authorizer
from odradek.protocol import apis, messages
from odradek.protocol.acls import AclOperation, AclResource, PatternType, Permission
from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch_request_reader import read_fetch_request
from odradek.replication.controller.acls import Acl
from odradek.replication.controller.topics import delete_topics
from odradek.replication.errors import NotLeader
from odradek.replication.partition.partition import Partition
from odradek.seams.files import Buffer, FileSlice
from odradek.testing import Broker
from tests.support.records import batch_of_size

VERSION = 12
TIMEOUT_SECONDS = 20
ALL_OF_T: Mapping[str, Iterable[int]] = {"t": range(3)}


def request(min_bytes: int, wanted: Mapping[str, Iterable[int]]) -> dict[str, Any]:
    return {
        "max_wait": TIMEOUT_SECONDS * 2000,
        "min_bytes": min_bytes,
        "max_bytes": 2**20,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {"partition": index, "fetch_offset": 0, "partition_max_bytes": 2**20}
                    for index in indexes
                ],
            }
            for topic, indexes in wanted.items()
        ],
    }


def sizes(parts: Iterable[Buffer | FileSlice]) -> int:
    return sum(part.size if isinstance(part, FileSlice) else len(part) for part in parts)


class FetchStage:
    """Broker with a topic `t`, and waiting fetches of it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.authorizer: Authorizer | None = None
        self.response: FetchResponse | None = None

    async def partition(self, index: int) -> Partition:
        return await self.broker.node.partitions.get("t", None, index)

    async def append(self, index: int, batch: bytes) -> None:
        partition = await self.partition(index)
        partition.append(memoryview(bytearray(batch)), acks=1, now_ms=1_700_000_000_000)

    @asynccontextmanager
    async def fetching(
        self, min_bytes: int = 1, wanted: Mapping[str, Iterable[int]] = ALL_OF_T
    ) -> AsyncIterator[None]:
        """Start a fetch of partitions from their start that waits; its response is available at the end."""
        waiting = trio.Event()

        async def flush() -> None:  # the last step of a fetch before it waits
            waiting.set()

        with trio.fail_after(TIMEOUT_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.fetch, min_bytes, wanted, flush)
                await waiting.wait()
                yield

    async def fetch(
        self,
        min_bytes: int,
        wanted: Mapping[str, Iterable[int]],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        node = self.broker.node
        body = messages.write_request(apis.FETCH.key, VERSION, request(min_bytes, wanted))
        context = RequestContext(
            node.services,
            apis.FETCH,
            VERSION,
            1,
            "test",
            node.endpoints[0],
            node.endpoints[0].address,
            flush,
            self.authorizer,
        )
        self.response = await fetch(read_fetch_request(memoryview(body), VERSION, 0), context)

    def results(self) -> dict[int, tuple[int, int, int]]:
        """Partition to (error code, bytes of records, high watermark)."""
        assert self.response is not None
        return {
            response.index: (response.error_code, sizes(response.records), response.high_watermark)
            for _, response in self.response.chosen
        }


@asynccontextmanager
async def stage() -> AsyncIterator[FetchStage]:
    async with Broker(topics={"t": 3}) as broker:
        yield FetchStage(broker)


async def test_append_completes_fetch_with_earlier_results() -> None:
    async with stage() as on:
        batch = batch_of_size()
        async with on.fetching():
            await on.append(1, batch)
        assert on.results() == {0: (0, 0, 0), 1: (0, len(batch), 1), 2: (0, 0, 0)}


async def test_appends_complete_fetch_at_min_bytes() -> None:
    """The response has the records from before the wait and from the first append once."""
    async with stage() as on:
        batch = batch_of_size()
        await on.append(2, batch)
        async with on.fetching(min_bytes=3 * len(batch)):
            await on.append(0, batch)
            await trio.testing.wait_all_tasks_blocked()
            assert on.response is None
            await on.append(2, batch)
        assert on.results() == {0: (0, len(batch), 1), 1: (0, 0, 0), 2: (0, 2 * len(batch), 2)}


async def test_log_start_change_during_wait_is_returned() -> None:
    async with stage() as on:
        batch = batch_of_size()
        async with on.fetching(min_bytes=2 * len(batch)):
            await on.append(0, batch)
            (await on.partition(0)).log.advance_log_start(1, "a test")
            await on.append(1, batch)
        # The same result as an immediate read: fetch offset 0 is below the new start.
        assert on.results()[0][0] == ErrorCode.offset_out_of_range
        assert on.results()[1] == (0, len(batch), 1)


async def test_removed_partition_completes_fetch() -> None:
    async with stage() as on:
        async with on.fetching():
            (await on.partition(2)).retire(NotLeader("it went to another node"))
        assert {index: results[0] for index, results in on.results().items()} == {
            0: ErrorCode.none,
            1: ErrorCode.none,
            2: ErrorCode.not_leader_or_follower,
        }


def may_read(*topics: str) -> Authorizer:
    authorizer = Authorizer()
    authorizer.load(
        Acl(
            AclResource.TOPIC,
            topic,
            PatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            AclOperation.READ,
            Permission.ALLOW,
        )
        for topic in topics
    )
    return authorizer


async def test_error_of_one_partition_does_not_complete_wait() -> None:
    async with stage() as on:
        on.authorizer = may_read("t", "gone")
        batch = batch_of_size()
        async with on.fetching(wanted={"secret": [0], "gone": [0], "t": [0, 7]}):
            await trio.testing.wait_all_tasks_blocked()
            assert on.response is None
            await on.append(0, batch)
        assert on.response is not None
        results = [
            (wanted.topic, response.index, response.error_code, sizes(response.records))
            for wanted, response in on.response.chosen
        ]
        assert results == [
            ("t", 0, ErrorCode.none, len(batch)),
            ("secret", 0, ErrorCode.topic_authorization_failed, 0),
            ("gone", 0, ErrorCode.unknown_topic_or_partition, 0),
            ("t", 7, ErrorCode.unknown_topic_or_partition, 0),
        ]


async def test_errors_of_all_partitions_are_returned_immediately() -> None:
    async with stage() as on:
        on.authorizer = may_read("t")
        with trio.fail_after(TIMEOUT_SECONDS):
            await on.fetch(1, {"secret": [0], "t": [7]}, trio.lowlevel.checkpoint)
        assert on.response is not None
        assert len(on.response.chosen) == 2


async def test_deleted_topic_completes_fetch() -> None:
    async with stage() as on:
        async with on.fetching():
            await on.broker.node.metadata.perform(lambda image: delete_topics(image, ["t"]))
        assert {results[0] for results in on.results().values()} == {
            ErrorCode.unknown_topic_or_partition
        }


async def test_small_slices_are_read_and_large_ones_stay() -> None:
    async with stage() as on:
        few, many = batch_of_size(), batch_of_size(READ_AT_ONCE_BYTES)
        await on.append(0, many)
        await on.append(1, few)
        async with on.fetching(min_bytes=len(many) + 2 * len(few)):
            await on.append(2, few)
        assert on.response is not None
        kinds = {
            response.index: [type(part) for part in response.records]
            for _, response in on.response.chosen
        }
        assert kinds == {0: [FileSlice], 1: [bytes], 2: [bytes]}
        pins = [(await on.partition(index)).log.log_end.segment.file.pins for index in range(3)]
        assert pins == [1, 0, 0], "what was read holds no file"
        for _, response in on.response.chosen:
            release_files(response.records)
