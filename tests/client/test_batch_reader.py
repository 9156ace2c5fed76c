"""Tests of BatchReader: fetch by topic id, quotas and recreated topics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.client.batch_reader import BatchReader
from odradek.client.metadata import Cluster, open_cluster
from odradek.protocol.apis import FETCH, METADATA, Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.tcp import TcpNetwork
from tests.support.scripted_broker import ReceivedRequest, ScriptedBroker, scripted_broker

T0 = TopicPartition("t", 0)
OLD, NEW = UUID(int=1), UUID(int=2)


@asynccontextmanager
async def broker(
    ids: list[UUID],
    versions: Mapping[Api, tuple[int, int]] | None = None,
    *,
    throttled: Sequence[int] = (),
) -> AsyncIterator[tuple[ScriptedBroker, Cluster]]:
    """A broker whose topic "t" has the first of `ids`, and the next id after each fetch.

    The first fetches have the throttle times `throttled`, in ms.
    """
    waits = [*throttled]

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is METADATA:
            response = found.metadata(asked)
            for topic in response["topics"]:
                topic["topic_id"] = ids[0]
            return response
        if asked.api is not FETCH:
            return None
        if waits:
            return {"throttle_time": timedelta(milliseconds=waits.pop(0)), "responses": []}
        (topic,) = asked.body.topics
        is_known = asked.version <= 12 or topic.topic_id == ids[0]
        if len(ids) > 1:
            ids.pop(0)
        row = {
            "partition_index": 0,
            "error_code": ErrorCode.none if is_known else ErrorCode.unknown_topic_id,
            "high_watermark": 7,
            "last_stable_offset": 7,
            "log_start_offset": 0,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": b"",
        }
        place = {"topic": "t", "topic_id": getattr(topic, "topic_id", None)}
        return {"responses": [{**place, "partitions": [row]}]}

    async with scripted_broker(script, topics={"t": 1}, versions=versions or {}) as found:
        async with open_cluster(TcpNetwork(), [found.address], timeout_s=5.0) as cluster:
            yield found, cluster


OLDER = {FETCH: (4, 12)}


@pytest.mark.parametrize("versions", [{}, OLDER], ids=["now", "before Kafka 3.1"])
async def test_fetch_by_topic_id(versions: Mapping[Api, tuple[int, int]]) -> None:
    async with broker([OLD], versions) as (found, cluster):
        reader = BatchReader(cluster, T0, topic_id=OLD)
        for _ in range(2):
            assert (await reader.fetch(3, max_wait_s=0.0)).end_offset == 7
        (asked, _) = found.requests_of(FETCH)
    if versions:
        assert (asked.version, asked.body.topics[0].topic) == (12, "t")
    else:
        assert (asked.version, asked.body.topics[0].topic_id) == (18, OLD)


@pytest.mark.parametrize("versions", [{}, OLDER], ids=["now", "before Kafka 3.1"])
async def test_recreated_topic_is_never_read(
    versions: Mapping[Api, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is recreated during the first fetch, or before the second."""
    monkeypatch.setattr("odradek.client.batch_reader.STALE_TOPIC_ID_S", 0.1)
    for ids, fetches in (([OLD, NEW], 1), ([OLD, OLD, NEW], 2)):
        async with broker(ids, versions) as (_, cluster):
            reader = BatchReader(cluster, T0, topic_id=OLD)
            for _ in range(fetches - 1 if versions else fetches):
                assert (await reader.fetch(3, max_wait_s=0.0)).end_offset == 7
            with pytest.raises(KafkaError, match="t was deleted and recreated") as raised:
                await reader.fetch(3, max_wait_s=0.0)
            assert raised.value.code is ErrorCode.inconsistent_topic_id


async def test_cached_topic_id_is_refreshed_after_mismatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cached id of another topic is not an error, even without a retry time."""
    monkeypatch.setattr("odradek.client.batch_reader.STALE_TOPIC_ID_S", 0.0)
    async with broker([OLD, NEW]) as (_, cluster):
        await cluster.topic("t")
        reader = BatchReader(cluster, T0)
        await reader.fetch(3, max_wait_s=0.0)
        named = BatchReader(cluster, T0, topic_id=NEW)
        assert (await named.fetch(3, max_wait_s=0.0)).end_offset == 7


@pytest.mark.parametrize("topic_id", [OLD, None], ids=["by its id", "by name"])
async def test_throttled_fetch_is_retried(topic_id: UUID | None) -> None:
    """The response has no topics and a throttle time (KIP-219)."""
    async with broker([OLD], throttled=(40, 0, 60)) as (found, cluster):
        reader = BatchReader(cluster, T0, topic_id=topic_id, unavailable_s=0.0)
        begun = trio.current_time()
        assert (await reader.fetch(3, max_wait_s=0.0)).end_offset == 7
        assert trio.current_time() - begun >= 0.1
        assert len(found.requests_of(FETCH)) == 4
