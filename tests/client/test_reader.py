"""Tests of Reader: positions, aborted transactions, transient and lasting errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from odradek.client.batch_reader import BatchReader
from odradek.client.consumer import (
    EARLIEST,
    LATEST,
    CorruptBatchAt,
    IsolationLevel,
    Reader,
    ReaderOptions,
    list_offsets,
)
from odradek.client.metadata import Cluster, open_cluster, parse_bootstrap
from odradek.protocol.apis import FETCH, LIST_OFFSETS, METADATA
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.control import end_marker
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.topics import TopicPartition
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from tests.support.scripted_broker import (
    HANG_UP,
    SILENCE,
    ReceivedRequest,
    Script,
    ScriptedBroker,
    scripted_broker,
)

T0 = TopicPartition("t", 0)


def batch(first: int, *values: bytes, producer: int = -1, codec: int = 0) -> bytes:
    """A batch of these values from offset `first` on; of a transaction if it has a producer."""
    records = [Record(first + n, 1000 + n, None, value) for n, value in enumerate(values)]
    return bytes(
        build_batch(
            records,
            base_offset=first,
            compression=codec,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=0 if producer >= 0 else -1,
            transactional=producer >= 0,
        )
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    return bytes(
        end_marker(
            commit=commit,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=0,
            base_offset=offset,
        )
    )


def fetched(
    records: bytes,
    *,
    end: int,
    code: int = 0,
    aborted: Sequence[tuple[int, int]] = (),
    index: int = 0,
) -> dict[str, Any]:
    row = {
        "partition_index": index,
        "error_code": code,
        "high_watermark": end,
        "last_stable_offset": end,
        "log_start_offset": 0,
        "aborted_transactions": [
            {"producer_id": producer, "first_offset": first} for producer, first in aborted
        ],
        "records": records,
    }
    return {"error_code": 0, "responses": [{"topic": "t", "partitions": [row]}]}


def listed(offset: int, code: ErrorCode = ErrorCode.none) -> dict[str, Any]:
    row = {"partition_index": 0, "error_code": code, "timestamp": -1, "offset": offset}
    return {"topics": [{"name": "t", "partitions": [row]}]}


@asynccontextmanager
async def cluster_of(
    script: Script, topics: dict[str, int] | None = None
) -> AsyncIterator[tuple[ScriptedBroker, Cluster]]:
    async with (
        scripted_broker(script, topics=topics or {"t": 1}) as broker,
        open_cluster(TcpNetwork(), [broker.address], timeout_s=1) as cluster,
    ):
        yield broker, cluster


def responding(*responses: Any) -> Script:
    """Returns its fetch responses in order, and then always the last one."""
    left = list(responses)

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not FETCH:
            return None
        return left.pop(0) if len(left) > 1 else left[0]

    return script


async def test_poll_starts_at_the_position() -> None:
    """The batch starts before the position: its earlier records are not returned."""
    script = responding(fetched(batch(0, b"0", b"1", b"2") + batch(3, b"3"), end=4))
    async with cluster_of(script) as (broker, cluster):
        reader = Reader(cluster)
        reader.assign({T0: 1})
        records = await reader.poll()
        assert [(r.offset, r.value, r.timestamp) for r in records] == [
            (1, b"1", 1001),
            (2, b"2", 1002),
            (3, b"3", 1000),
        ]
        assert reader.positions == {T0: 4}
        assert reader.remaining(T0) == 0
        asked = broker.requests_of(FETCH)[0].body.topics[0].partitions[0]
        assert asked.fetch_offset == 1


Fetching = Callable[[], Awaitable[bool]]


def by_reader(cluster: Cluster) -> Fetching:
    reader = Reader(cluster)
    reader.assign({T0: 0})

    async def fetch() -> bool:
        return bool(await reader.poll())

    return fetch


def by_batch_reader(cluster: Cluster) -> Fetching:
    reader = BatchReader(cluster, T0)

    async def fetch() -> bool:
        return bool((await reader.fetch(0)).records)

    return fetch


@pytest.mark.parametrize("reader_of", [by_reader, by_batch_reader])
async def test_former_leader_rejects_fetch_with_epoch(
    reader_of: Callable[[Cluster], Fetching],
) -> None:
    """It is a follower without the records: without the epoch it would respond OFFSET_OUT_OF_RANGE."""

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not FETCH:
            return None
        is_known = asked.body.topics[0].partitions[0].current_leader_epoch == 4
        broker.leader_epoch = 4
        code = ErrorCode.none if is_known else ErrorCode.fenced_leader_epoch
        return fetched(batch(0, b"0") if is_known else b"", end=1, code=code)

    async with cluster_of(script) as (broker, cluster):
        fetch = reader_of(cluster)
        with trio.fail_after(5):
            while not await fetch():
                pass
        epochs = [
            asked.body.topics[0].partitions[0].current_leader_epoch
            for asked in broker.requests_of(FETCH)
        ]
        assert epochs == [0, 4]


async def test_at_end_waits_for_high_watermark_of_new_leader() -> None:
    """It has records up to 2, but only the high watermark from before its election (KIP-207)."""
    first, rest = fetched(batch(0, b"0"), end=1), fetched(batch(1, b"1"), end=2)
    fetches = responding(first, rest)
    behind = listed(-1, ErrorCode.offset_not_available)
    ends = [behind, listed(2), listed(2)]

    def script(asked: ReceivedRequest) -> Any:
        return ends.pop(0) if asked.api is LIST_OFFSETS else fetches(asked)

    async with cluster_of(script) as (_, cluster):
        reader = Reader(cluster)
        reader.assign({T0: 0})
        assert [r.value for r in await reader.poll()] == [b"0"]
        assert reader.remaining(T0) == 0
        assert not await reader.at_end()
        assert [r.value for r in await reader.poll()] == [b"1"]
        assert await reader.at_end()
        assert not ends


async def test_truncated_batch_is_fetched_again() -> None:
    cut = batch(0, b"0") + batch(1, b"1")[:-1]
    script = responding(fetched(cut, end=2), fetched(batch(1, b"1"), end=2))
    async with cluster_of(script) as (_, cluster):
        reader = Reader(cluster)
        reader.assign({T0: 0})
        assert [r.value for r in await reader.poll()] == [b"0"]
        assert reader.remaining(T0) == 1
        assert [r.value for r in await reader.poll()] == [b"1"]


async def test_compacted_offsets_are_skipped() -> None:
    hole = build_batch([Record(2, 0, None, b"2"), Record(7, 0, None, b"7")], base_offset=0)
    script = responding(fetched(bytes(hole), end=8))
    async with cluster_of(script) as (_, cluster):
        reader = Reader(cluster)
        reader.assign({T0: 0})
        assert [r.offset for r in await reader.poll()] == [2, 7]
        assert reader.positions == {T0: 8}


async def test_wrong_crc_raises_corrupt_batch() -> None:
    """Otherwise it would fill the response, and partitions after it would never be returned."""
    whole, damaged = batch(0, b"whole"), bytearray(batch(1, b"x" * 50))
    damaged[-5] ^= 1
    order: list[list[int]] = []

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not FETCH:
            return None
        parts = {part.partition: part.fetch_offset for part in asked.body.topics[0].partitions}
        order.append(list(parts))
        return fetched((b"" if parts[0] else whole) + bytes(damaged), end=2)

    async with cluster_of(script, {"t": 2}) as (_, cluster):
        reader = Reader(cluster)
        reader.assign({T0: 0, TopicPartition("t", 1): 0})
        assert [record.value for record in await reader.poll()] == [b"whole"]
        for _ in range(2):
            with pytest.raises(
                CorruptBatchAt, match="t-0 at offset 1: Record is corrupt"
            ) as caught:
                await reader.poll()
            assert (caught.value.where, caught.value.offset) == (T0, 1)
        assert order == [[0, 1], [1, 0], [1, 0]]


async def test_corrupt_batch_is_reported_with_records_of_others() -> None:
    """It is reported although other partitions have records, whether the client or the broker finds it."""
    damaged = fetched(b"", end=-1, code=ErrorCode.corrupt_message, index=1)
    both = fetched(batch(0, b"0"), end=1)
    both["responses"] += damaged["responses"]
    async with cluster_of(responding(both, damaged), {"t": 2}) as (_, cluster):
        reader = Reader(cluster)
        reader.assign({T0: 0, TopicPartition("t", 1): 5})
        assert [record.value for record in await reader.poll()] == [b"0"]
        assert [(each.where.partition, each.offset) for each in reader.corrupt_batches] == [(1, 5)]
        with pytest.raises(CorruptBatchAt, match="t-1 at offset 5: corrupt message"):
            await reader.poll()


TRANSACTIONS = (
    batch(0, b"a0", producer=1)
    + batch(1, b"b1", producer=2)
    + batch(2, b"plain")
    + marker(3, 1, commit=False)
    + batch(4, b"a4", producer=1)
    + marker(5, 2, commit=True)
    + marker(6, 1, commit=True)
)


@pytest.mark.parametrize(
    ("isolation", "values"),
    [
        (IsolationLevel.READ_COMMITTED, [b"b1", b"plain", b"a4"]),
        (IsolationLevel.READ_UNCOMMITTED, [b"a0", b"b1", b"plain", b"a4"]),
    ],
)
async def test_aborted_transactions(isolation: IsolationLevel, values: list[bytes]) -> None:
    script = responding(fetched(TRANSACTIONS, end=7, aborted=[(1, 0)]))
    async with cluster_of(script) as (broker, cluster):
        reader = Reader(cluster, ReaderOptions(isolation=isolation))
        reader.assign({T0: 0})
        assert [r.value for r in await reader.poll()] == values
        assert reader.positions == {T0: 7}  # the position is after the control batches
        assert broker.requests_of(FETCH)[0].body.isolation_level == isolation


async def test_poll_retries_transient_error() -> None:
    moved = fetched(b"", end=-1, code=ErrorCode.not_leader_or_follower)
    script = responding(moved, HANG_UP, fetched(batch(0, b"x"), end=1))
    async with cluster_of(script) as (broker, cluster):
        reader = Reader(cluster)
        reader.assign({T0: 0})
        records = []
        while not records:
            records = await reader.poll(0)
        assert [r.value for r in records] == [b"x"]
        assert len(broker.requests_of(METADATA)) == 3  # asked again after each failure


async def test_poll_raises_lasting_error() -> None:
    script = responding(fetched(b"", end=-1, code=ErrorCode.kafka_storage_error))
    async with cluster_of(script) as (_, cluster):
        reader = Reader(cluster, ReaderOptions(unavailable_s=0.1))
        reader.assign({T0: 0})

        async def read_on() -> None:
            while True:
                await reader.poll(0.01)

        with pytest.raises(KafkaError, match="t-0 at offset 0: kafka storage error"):
            await read_on()


async def test_poll_after_lasting_error_finds_new_leader() -> None:
    fenced = fetched(b"", end=-1, code=ErrorCode.fenced_leader_epoch)
    async with cluster_of(responding(fenced)) as (broker, cluster):
        reader = Reader(cluster, ReaderOptions(unavailable_s=0.0))
        reader.assign({T0: 0})
        assert await reader.poll(0) == []
        for _ in range(2):
            with pytest.raises(KafkaError, match="fenced leader epoch"):
                await reader.poll(0)
        assert len(broker.requests_of(METADATA)) == 3


async def test_fetch_out_of_range_is_raised_at_once() -> None:
    script = responding(fetched(b"", end=-1, code=ErrorCode.offset_out_of_range))
    async with cluster_of(script) as (_, cluster):
        reader = Reader(cluster)
        reader.assign({T0: 9})
        with pytest.raises(KafkaError, match="t-0 at offset 9: offset out of range"):
            await reader.poll()


async def test_partition_with_records_is_fetched_last() -> None:
    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not FETCH:
            return None
        parts = asked.body.topics[0].partitions
        return fetched(batch(parts[0].fetch_offset, b"x"), end=99, index=parts[0].partition)

    async with cluster_of(script, {"t": 3}) as (_, cluster):
        reader = Reader(cluster)
        reader.assign({TopicPartition("t", index): 0 for index in range(3)})
        order = [record.partition for _ in range(6) for record in await reader.poll()]
        assert order == [0, 1, 2, 0, 1, 2]
        assert not await reader.at_end()


async def test_list_offsets_retries() -> None:
    codes = [ErrorCode.not_leader_or_follower, ErrorCode.none]

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not LIST_OFFSETS:
            return None
        rows = [
            {
                "partition_index": part.partition_index,
                "error_code": codes[0],
                "timestamp": -1,
                "offset": 7 if part.timestamp == LATEST else 3,
                "leader_epoch": 5,
            }
            for part in asked.body.topics[0].partitions
        ]
        if len(codes) > 1:
            codes.pop(0)
        return {"topics": [{"name": "t", "partitions": rows}]}

    async with cluster_of(script, {"t": 2}) as (_, cluster):
        found = await list_offsets(cluster, {T0: LATEST, TopicPartition("t", 1): EARLIEST})
        assert [response.offset for response in found.values()] == [7, 3]
        assert found[T0].leader_epoch == 5
        with pytest.raises(KafkaError, match="no partition 2"):
            await list_offsets(cluster, {TopicPartition("t", 2): LATEST})
        assert await list_offsets(cluster, {}) == {}


# The cluster


async def test_bootstrap_tries_next_address() -> None:
    async with scripted_broker(lambda asked: None, topics={"t": 1}) as broker:
        addresses = [Address("127.0.0.1", 1), broker.address]
        async with open_cluster(TcpNetwork(), addresses) as cluster:
            await cluster.refresh(None)
            assert list(cluster.topics) == ["t"]
            assert cluster.cluster_id == "scripted"
            assert cluster.nodes[1].address == broker.address
            await cluster.node(1)
        assert broker.connections == 1  # the bootstrap's connection serves the node too


async def test_open_connection_is_reused_without_checkpoint() -> None:
    async with (
        scripted_broker(lambda asked: None) as broker,
        open_cluster(TcpNetwork(), [broker.address]) as cluster,
    ):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(cluster.connect, broker.address)
        with trio.testing.assert_no_checkpoints():
            await cluster.connect(broker.address)
        assert broker.connections == 1


async def test_producer_failure_is_not_an_exception_group() -> None:
    async with scripted_broker(lambda asked: None) as broker:
        with pytest.raises(KafkaError, match="topic missing does not exist"):
            async with open_cluster(TcpNetwork(), [broker.address]) as cluster:
                await cluster.topic("missing")


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [Address("localhost", 9092)]),
        ("a:1, b:2", [Address("a", 1), Address("b", 2)]),
        ("[::1]:9092", [Address("::1", 9092)]),
    ],
)
def test_addresses(text: str, addresses: list[Address]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "::1:9", "h:x"]
)
def test_invalid_bootstrap_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parse_bootstrap(text)


async def test_partition_error_keeps_records_of_others() -> None:
    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not FETCH:
            return None
        good = fetched(batch(0, b"x"), end=1)["responses"][0]["partitions"]
        bad = fetched(b"", end=-1, code=ErrorCode.offset_out_of_range, index=1)
        asked_for = [part.partition for part in asked.body.topics[0].partitions]
        rows = [*(good if 0 in asked_for else []), *bad["responses"][0]["partitions"]]
        return {"error_code": 0, "responses": [{"topic": "t", "partitions": rows}]}

    async with cluster_of(script, {"t": 2}) as (_, cluster):
        reader = Reader(cluster)
        reader.assign({T0: 0, TopicPartition("t", 1): 9})
        assert [record.value for record in await reader.poll()] == [b"x"]
        reader.assign({TopicPartition("t", 1): 9})
        with pytest.raises(KafkaError, match="t-1 at offset 9"):
            await reader.poll()


async def test_cancelled_poll_loses_no_records() -> None:
    """One leader has responded, and the other one has not."""
    is_silent = [True]

    def near(asked: ReceivedRequest) -> Any:
        if asked.api is METADATA:
            response = first.metadata(asked)
            there = {"node_id": 2, "host": second.address.host, "port": second.address.port}
            response["brokers"].append({**there, "rack": None})
            for topic in response["topics"]:
                topic["partitions"][1] |= {"leader_id": 2}
            return response
        return fetched(batch(0, b"near"), end=1) if asked.api is FETCH else None

    def far(asked: ReceivedRequest) -> Any:
        if asked.api is not FETCH:
            return None
        return SILENCE if is_silent[0] else fetched(b"", end=0, index=1)

    async with (
        scripted_broker(near, topics={"t": 2}) as first,
        scripted_broker(far) as second,
        open_cluster(TcpNetwork(), [first.address], timeout_s=30) as cluster,
    ):
        reader = Reader(cluster)
        reader.assign({T0: 0, TopicPartition("t", 1): 0})
        with trio.move_on_after(60) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.poll)
                while not (first.requests_of(FETCH) and second.requests_of(FETCH)):
                    await trio.sleep(0.01)
                scope.cancel()
        assert reader.positions[T0] == 0
        is_silent[0] = False
        assert [record.value for record in await reader.poll()] == [b"near"]
        assert reader.positions[T0] == 1


async def test_records_move_from_unresponsive_leader_to_new_leader() -> None:
    moved = [False]

    def near(asked: ReceivedRequest) -> Any:
        if asked.api is METADATA:
            response = first.metadata(asked)
            there = {"node_id": 2, "host": second.address.host, "port": second.address.port}
            response["brokers"].append({**there, "rack": None})
            for topic in response["topics"]:
                topic["partitions"][1] |= {"leader_id": 1 if moved[0] else 2}
            return response
        if asked.api is not FETCH:
            return None
        rows = [
            fetched(batch(row.fetch_offset, b"x"), end=99, index=row.partition)
            for row in asked.body.topics[0].partitions
        ]
        return {"error_code": 0, "responses": [each["responses"][0] for each in rows]}

    def silent(asked: ReceivedRequest) -> Any:
        return SILENCE if asked.api is FETCH else None

    async with (
        scripted_broker(near, topics={"t": 2}) as first,
        scripted_broker(silent) as second,
        open_cluster(TcpNetwork(), [first.address], timeout_s=2) as cluster,
    ):
        reader, there = Reader(cluster), TopicPartition("t", 1)
        reader.assign({T0: 0, there: 0})
        for _ in range(5):
            assert [record.partition for record in await reader.poll(10)] == [0]
        assert len(second.requests_of(FETCH)) == 1
        moved[0] = True
        while not reader.positions[there]:
            await reader.poll(0)
