"""Tests of epoch_ends: concurrent OffsetForLeaderEpoch requests and errors."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.client.epochs import CONCURRENT_REQUESTS, EpochEnd, epoch_ends
from odradek.client.metadata import open_cluster
from odradek.protocol.apis import OFFSET_FOR_LEADER_EPOCH
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.tcp import TcpNetwork
from tests.support.scripted_broker import SILENCE, ReceivedRequest, ScriptedBroker, scripted_broker

T0 = TopicPartition("t", 0)


def respond(asked: ReceivedRequest, error: ErrorCode = ErrorCode.none) -> dict[str, Any]:
    (topic,) = asked.body.topics
    (row,) = topic.partitions
    epoch = row.leader_epoch
    found = {"error_code": error, "partition": 0, "leader_epoch": epoch, "end_offset": 10 * epoch}
    return {"topics": [{"topic": "t", "partitions": [found]}]}


async def test_epoch_ends_are_requested_concurrently() -> None:
    """Hold the responses until the maximum number of concurrent requests is pending."""
    held: list[ReceivedRequest] = []

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not OFFSET_FOR_LEADER_EPOCH:
            return None
        held.append(asked)
        return SILENCE if len(held) < CONCURRENT_REQUESTS else HELD

    class Holding(ScriptedBroker):
        async def respond(self, connection: Any, asked: ReceivedRequest, given: Any) -> None:  # type: ignore[override]
            if given is not HELD:
                await ScriptedBroker.respond(connection, asked, given)
                return
            waiting, held[:] = [*held], []
            for each in waiting:
                await ScriptedBroker.respond(connection, each, respond(each))

    async with scripted_broker(script, kind=Holding, topics={"t": 1}) as broker:
        async with open_cluster(TcpNetwork(), [broker.address], timeout_s=10.0) as cluster:
            found = await epoch_ends(cluster, T0, range(2 * CONCURRENT_REQUESTS))
    assert found == {each: EpochEnd(each, 10 * each) for each in range(2 * CONCURRENT_REQUESTS)}


HELD = object()


async def test_epoch_end_error_is_raised() -> None:
    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not OFFSET_FOR_LEADER_EPOCH:
            return None
        is_third = asked.body.topics[0].partitions[0].leader_epoch == 2
        refused = ErrorCode.topic_authorization_failed
        return respond(asked, refused if is_third else ErrorCode.none)

    async with scripted_broker(script, topics={"t": 1}) as broker:
        async with open_cluster(TcpNetwork(), [broker.address], timeout_s=10.0) as cluster:
            with pytest.raises(KafkaError, match="authorization"):
                await epoch_ends(cluster, T0, range(5))
