"""Where leader epochs ended: asked for at once, however many there were."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.client.consumer import TopicPartition
from odradek.client.epochs import CONCURRENT_REQUESTS, EpochEnd, epoch_ends
from odradek.client.metadata import open_cluster
from odradek.protocol.apis import OFFSET_FOR_LEADER_EPOCH
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.tcp import TcpNetwork
from tests.client.scripted_broker import SILENCE, Asked, ScriptedBroker, scripted_broker

T0 = TopicPartition("t", 0)


def respond(asked: Asked, error: ErrorCode = ErrorCode.none) -> dict[str, Any]:
    (topic,) = asked.body.topics
    (row,) = topic.partitions
    epoch = row.leader_epoch
    found = {"error_code": error, "partition": 0, "leader_epoch": epoch, "end_offset": 10 * epoch}
    return {"topics": [{"topic": "t", "partitions": [found]}]}


async def test_many_epochs_take_no_longer_than_one() -> None:
    """The first is not answered before all that may be asked for at once were."""
    held: list[Asked] = []

    def script(asked: Asked) -> Any:
        if asked.api is not OFFSET_FOR_LEADER_EPOCH:
            return None
        held.append(asked)
        return SILENCE if len(held) < CONCURRENT_REQUESTS else HELD

    class Holding(ScriptedBroker):
        async def respond(self, connection: Any, asked: Asked, given: Any) -> None:  # type: ignore[override]
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


async def test_an_epoch_that_a_leader_does_not_tell_is_an_error_as_it_is() -> None:
    def script(asked: Asked) -> Any:
        if asked.api is not OFFSET_FOR_LEADER_EPOCH:
            return None
        is_third = asked.body.topics[0].partitions[0].leader_epoch == 2
        refused = ErrorCode.topic_authorization_failed
        return respond(asked, refused if is_third else ErrorCode.none)

    async with scripted_broker(script, topics={"t": 1}) as broker:
        async with open_cluster(TcpNetwork(), [broker.address], timeout_s=10.0) as cluster:
            with pytest.raises(KafkaError, match="authorization"):
                await epoch_ends(cluster, T0, range(5))
