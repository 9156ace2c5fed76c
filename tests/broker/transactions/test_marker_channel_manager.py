"""Sending transaction markers to the leaders of their partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from odradek.broker.transactions.marker_channel_manager import TransactionMarkerChannelManager
from odradek.broker.transactions.markers import MarkerErrors, TransactionMarker
from odradek.broker.transactions.messages import MarkerResult
from odradek.protocol.apis import WRITE_TXN_MARKERS
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition
from tests.support.broker_connections import ConnectedBroker, a_broker, a_topic, asking
from tests.support.scripted_broker import (
    HANG_UP,
    SILENCE,
    ReceivedRequest,
    ScriptedBroker,
    scripted_broker,
)

MINE, OTHERS, NOBODYS, OTHERS_TOO = (TopicPartition("t", index) for index in range(4))
GONE, NEVER = TopicPartition("u", 0), TopicPartition("t", 9)


class Writer:
    """A fake `TransactionMarkerWriter` that returns given errors."""

    def __init__(self, code: ErrorCode = ErrorCode.none) -> None:
        self.code = code
        self.written: list[TransactionMarker] = []

    async def write(self, markers: Sequence[TransactionMarker]) -> list[MarkerErrors]:
        self.written += markers
        return [dict.fromkeys(each.partitions, self.code) for each in markers]


class Leader:
    """Another broker; the error code depends on the partition index."""

    def __init__(self, codes: Mapping[int, ErrorCode] | None = None) -> None:
        self.codes = codes or {}
        self.instead: Any = None

    def __call__(self, asked: ReceivedRequest) -> Any:
        if asked.api is not WRITE_TXN_MARKERS:
            return None
        if self.instead is not None:
            return self.instead
        return {
            "markers": [
                {
                    "producer_id": each.producer_id,
                    "topics": [
                        {
                            "name": topic.name,
                            "partitions": [
                                {
                                    "partition_index": index,
                                    "error_code": self.codes.get(index, ErrorCode.none),
                                }
                                for index in topic.partition_indexes
                            ],
                        }
                        for topic in each.topics
                    ],
                }
                for each in asked.body.markers
            ]
        }


def marker(*partitions: TopicPartition, producer_id: int = 1000) -> TransactionMarker:
    return TransactionMarker(producer_id, 1, 3, True, partitions, 2)


@asynccontextmanager
async def markers_to_send(
    writer: Writer | None = None, leader: Callable[[ReceivedRequest], Any] | None = None
) -> AsyncIterator[tuple[TransactionMarkerChannelManager, ScriptedBroker, ConnectedBroker]]:
    """Metadata of a cluster: node 1 sends the markers, node 2 leads the other partitions."""
    async with scripted_broker(leader or Leader()) as broker, asking() as world:
        world.knows(a_broker(2, broker.address))
        world.has(a_topic("t", {0: 1, 1: 2, 2: -1, 3: 2}))
        sender = TransactionMarkerChannelManager(
            lambda: world.image,
            1,
            writer or Writer(),
            world.peers.request,
            world.nursery,
            timeout_s=5,
        )
        yield sender, broker, world


async def test_markers_are_sent_to_each_leader() -> None:
    writer = Writer()
    async with markers_to_send(writer) as (sender, broker, _):
        results = await sender.send(marker(MINE, OTHERS, NOBODYS, OTHERS_TOO, GONE, NEVER))
        assert results == {
            MINE: MarkerResult.WRITTEN,
            OTHERS: MarkerResult.WRITTEN,
            NOBODYS: MarkerResult.RETRY,
            OTHERS_TOO: MarkerResult.WRITTEN,
            GONE: MarkerResult.GONE,
            NEVER: MarkerResult.GONE,
        }
        assert writer.written == [marker(MINE)]
        (asked,) = broker.requests_of(WRITE_TXN_MARKERS)
        (sent,) = asked.body.markers
        assert asked.version == 2
        assert (sent.producer_id, sent.producer_epoch, sent.coordinator_epoch) == (1000, 1, 3)
        assert (sent.transaction_result, sent.transaction_version) == (True, 2)
        assert [(each.name, list(each.partition_indexes)) for each in sent.topics] == [
            ("t", [1, 3])
        ]


async def test_leader_without_response_is_retried() -> None:
    leader = Leader()
    leader.instead = HANG_UP
    async with markers_to_send(leader=leader) as (sender, _, world):
        assert await sender.send(marker(MINE, OTHERS)) == {
            MINE: MarkerResult.WRITTEN,
            OTHERS: MarkerResult.RETRY,
        }
        leader.instead = None
        assert await sender.send(marker(OTHERS)) == {OTHERS: MarkerResult.WRITTEN}
        world.forgets(2)
        assert await sender.send(marker(OTHERS)) == {OTHERS: MarkerResult.RETRY}


async def test_request_to_hanging_leader_ends_when_it_is_fenced() -> None:
    leader = Leader()
    leader.instead = SILENCE
    async with markers_to_send(leader=leader) as (sender, broker, world):
        results: dict[TopicPartition, MarkerResult] = {}

        async def send() -> None:
            results.update(await sender.send(marker(OTHERS)))

        with trio.fail_after(4):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                while not broker.requests_of(WRITE_TXN_MARKERS):
                    await trio.lowlevel.checkpoint()
                world.knows(a_broker(2, broker.address, fenced=True))
        assert results == {OTHERS: MarkerResult.RETRY}


async def test_markers_during_a_request_are_batched() -> None:
    async with markers_to_send() as (sender, broker, _):
        async with trio.open_nursery() as nursery:
            for producer_id in range(20):
                nursery.start_soon(sender.send, marker(OTHERS, producer_id=producer_id))
        requests = [len(each.body.markers) for each in broker.requests_of(WRITE_TXN_MARKERS)]
        assert sum(requests) == 20
        assert len(requests) <= 2


MEANINGS = [
    (ErrorCode.none, MarkerResult.WRITTEN),
    (ErrorCode.invalid_producer_epoch, MarkerResult.FENCED),
    (ErrorCode.transaction_coordinator_fenced, MarkerResult.FENCED),
    (ErrorCode.unsupported_for_message_format, MarkerResult.GONE),
    (ErrorCode.not_leader_or_follower, MarkerResult.RETRY),
    (ErrorCode.not_enough_replicas, MarkerResult.RETRY),
    (ErrorCode.kafka_storage_error, MarkerResult.RETRY),
    (ErrorCode.unknown_topic_or_partition, MarkerResult.RETRY),
    (ErrorCode.unknown_server_error, MarkerResult.RETRY),
]


@pytest.mark.parametrize(("code", "outcome"), MEANINGS)
async def test_marker_result_by_error(code: ErrorCode, outcome: MarkerResult) -> None:
    async with markers_to_send(Writer(code), Leader({1: code})) as (sender, _, _world):
        assert await sender.send(marker(MINE)) == {MINE: outcome}
        assert await sender.send(marker(OTHERS, OTHERS_TOO)) == {
            OTHERS: outcome,
            OTHERS_TOO: MarkerResult.WRITTEN,
        }


async def test_partition_missing_in_response_is_retried() -> None:
    leader = Leader()
    leader.instead = {"markers": []}
    async with markers_to_send(leader=leader) as (sender, _, _world):
        assert await sender.send(marker(OTHERS)) == {OTHERS: MarkerResult.RETRY}
