"""Tests of the transactional producer with an Odradek broker: atomicity and fencing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from odradek.client.connection import BrokerConnection
from odradek.client.consumer import IsolationLevel, Reader, ReaderOptions
from odradek.client.errors import Unreachable
from odradek.client.group_admin import CommittedOffset, committed_offsets
from odradek.client.metadata import Cluster, open_cluster
from odradek.client.transactions import FENCED, EncodedRecords, TransactionalProducer
from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.batch import HEADER_SIZE
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.topics import TopicPartition
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Broker
from tests.support.scripted_broker import ReceivedRequest, scripted_broker

WHERE = TopicPartition("t", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with (
        Broker(topics={"t": 2}, configs={"message.max.bytes": "2000"}) as broker,
        open_cluster(TcpNetwork(), broker.bootstrap, timeout_s=10) as found,
    ):
        yield found


def encoded(*values: bytes) -> EncodedRecords:
    batch = build_batch([Record(-1, 1000 + n, None, value) for n, value in enumerate(values)])
    return EncodedRecords(bytes(batch[HEADER_SIZE:]), len(values), 1000, 999 + len(values))


async def values(
    cluster: Cluster, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> list[bytes]:
    reader = Reader(cluster, ReaderOptions(isolation=isolation))
    reader.assign({TopicPartition("t", index): 0 for index in range(2)})
    found = [(record.partition, record.offset, record.value) for record in await reader.poll()]
    while not await reader.at_end():
        found += [(each.partition, each.offset, each.value) for each in await reader.poll()]
    return [value or b"" for _, _, value in sorted(found, key=lambda each: each[:2])]


async def test_records_and_offsets_commit_atomically(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "id", compression=4)
    await producer.begin()
    assert await producer.send("t", {0: encoded(b"a", b"b"), 1: encoded(b"x")}) == set()
    assert await producer.send("t", {0: encoded(b"c")}) == set()
    await producer.send_offsets("group", {WHERE: CommittedOffset(7, metadata="so far")})
    assert await values(cluster) == []
    await producer.commit()
    assert await values(cluster) == [b"a", b"b", b"c", b"x"]
    assert await committed_offsets(cluster, "group", [WHERE]) == {
        WHERE: CommittedOffset(7, -1, "so far")
    }
    await producer.send("t", {0: encoded(b"d")})  # at once: the markers may not all be written
    await producer.abort()
    await producer.send("t", {0: encoded(b"e")})
    await producer.commit()
    assert await values(cluster) == [b"a", b"b", b"c", b"e", b"x"]


async def test_new_transactional_producer_fences_old_one(cluster: Cluster) -> None:
    old, new = (TransactionalProducer(cluster, "id") for _ in range(2))
    await old.begin()
    await old.send("t", {0: encoded(b"of the old one")})
    await new.begin()
    await new.send("t", {0: encoded(b"of the new one")})
    for act in (
        lambda: old.send("t", {0: encoded(b"late")}),
        lambda: old.send("t", {1: encoded(b"late")}),
        lambda: old.send_offsets("group", {WHERE: CommittedOffset(7)}),
        old.commit,
    ):
        with pytest.raises(KafkaError) as caught:
            await act()
        assert caught.value.code in FENCED
    await new.commit()
    assert await values(cluster) == [b"of the new one"]


async def test_transaction_reports_too_large_batch(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "id")
    await producer.begin()
    large = encoded(b"x" * 1500, b"y" * 1500)
    assert await producer.send("t", {0: large, 1: encoded(b"small")}) == {0}
    assert await producer.send("t", {0: encoded(b"x" * 1500)}) == set()
    assert await producer.send("t", {0: encoded(b"y" * 1500)}) == set()
    await producer.commit()
    assert await values(cluster) == [b"x" * 1500, b"y" * 1500, b"small"]


class Losing(TransactionalProducer):
    """The connection is lost before the response to the first request of each API."""

    lost: set[str]

    async def _request(self, connection: BrokerConnection, api: Api, **values: Any) -> Any:
        response = await super()._request(connection, api, **values)
        if api.name not in self.lost:
            self.lost.add(api.name)
            raise Unreachable("lost")
        return response


async def test_lost_requests_are_retried_exactly_once(cluster: Cluster) -> None:
    producer = Losing(cluster, "id")
    producer.lost = set()
    await producer.begin()
    await producer.send("t", {0: encoded(b"a")})
    await producer.send("t", {0: encoded(b"b")})
    await producer.send_offsets("group", {WHERE: CommittedOffset(7)})
    await producer.commit()
    assert len(producer.lost) == 6
    assert await values(cluster, IsolationLevel.READ_UNCOMMITTED) == [b"a", b"b"]


class Delayed(TransactionalProducer):
    """The first request of an API is delayed while it is retried, until `arrive`."""

    delayed: Api
    arrive: Callable[[], Awaitable[Any]] | None = None

    async def _request(self, connection: BrokerConnection, api: Api, **values: Any) -> Any:
        request = partial(super()._request, connection, api, **values)
        if api is self.delayed and self.arrive is None:
            self.arrive = request
            raise Unreachable("it is not known")
        return await request()


async def test_late_end_txn_does_not_end_next_transaction(cluster: Cluster) -> None:
    producer = Delayed(cluster, "id")
    producer.delayed = apis.END_TXN
    await producer.begin()
    await producer.send("t", {0: encoded(b"a")})
    await producer.commit()
    await producer.send("t", {0: encoded(b"b")})
    assert producer.arrive is not None
    await producer.arrive()
    await producer.send("t", {0: encoded(b"c")})
    await producer.abort()
    assert await values(cluster) == [b"a"]


async def test_late_offset_commit_is_not_in_next_transaction(cluster: Cluster) -> None:
    producer = Delayed(cluster, "id")
    producer.delayed = apis.TXN_OFFSET_COMMIT
    await producer.begin()
    await producer.send_offsets("group", {WHERE: CommittedOffset(7)})
    await producer.commit()
    await producer.send_offsets("group", {WHERE: CommittedOffset(9)})
    assert producer.arrive is not None
    await producer.arrive()
    await producer.commit()
    assert await committed_offsets(cluster, "group", [WHERE]) == {WHERE: CommittedOffset(9)}


async def test_lost_init_producer_id_does_not_fence_later_producer(cluster: Cluster) -> None:
    old, new = Delayed(cluster, "id"), TransactionalProducer(cluster, "id")
    old.delayed = apis.END_TXN
    await old.begin()
    await old.send("t", {0: encoded(b"a")})
    await old.commit()
    await new.begin()
    await new.send("t", {0: encoded(b"b")})
    with pytest.raises(KafkaError) as caught:
        await old.send("t", {0: encoded(b"late")})
    assert caught.value.code in FENCED
    await new.commit()
    assert await values(cluster) == [b"a", b"b"]


async def test_moved_coordinator_is_looked_up_again() -> None:
    """An AddPartitionsToTxn response has one error code per partition."""
    refusals = 2

    def script(asked: ReceivedRequest) -> dict[str, Any] | None:
        nonlocal refusals
        if asked.api is apis.FIND_COORDINATOR:
            me = {"node_id": 1, "host": broker.address.host, "port": broker.address.port}
            row = {"key": "id", **me, "error_code": 0, "error_message": None}
            return {"coordinators": [row]}
        if asked.api is apis.INIT_PRODUCER_ID:
            return {"error_code": 0, "producer_id": 7, "producer_epoch": 0}
        if asked.api is apis.ADD_PARTITIONS_TO_TXN:
            code = ErrorCode.not_coordinator if refusals else 0
            refusals -= refusals > 0
            rows = [{"partition_index": 0, "partition_error_code": code}]
            return {"results_by_topic_v3_and_below": [{"name": "t", "results_by_partition": rows}]}
        if asked.api is apis.PRODUCE:
            row = {"index": 0, "error_code": 0, "base_offset": 0}
            return {"responses": [{"name": "t", "partition_responses": [row]}]}
        return None

    async with (
        scripted_broker(script, topics={"t": 1}) as broker,
        open_cluster(TcpNetwork(), str(broker.address), timeout_s=10) as cluster,
    ):
        producer = TransactionalProducer(cluster, "id", retry_timeout_s=3)
        await producer.begin()
        assert await producer.send("t", {0: encoded(b"a")}) == set()
        assert len(broker.requests_of(apis.ADD_PARTITIONS_TO_TXN)) == 3
        assert len(broker.requests_of(apis.FIND_COORDINATOR)) == 3, (
            "kept while it responds, else not"
        )
