"""Markers on their way to their partitions' leaders."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from uuid import UUID

import pytest

from odradek.broker.transactions.actions import Outcome
from odradek.broker.transactions.marker_sender import MarkerSender
from odradek.broker.transactions.markers import MarkerErrors, TransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import MetadataImage, PartitionImage, TopicImage
from odradek.storage.directories.names import TopicPartition

MINE, OTHERS, NOBODYS = (TopicPartition("t", index) for index in range(3))
GONE, NEVER = TopicPartition("u", 0), TopicPartition("t", 9)


class Writer:
    """Answers what it is told to."""

    def __init__(self, code: ErrorCode = ErrorCode.none) -> None:
        self.code = code
        self.written: list[TransactionMarker] = []

    async def write(self, markers: Sequence[TransactionMarker]) -> list[MarkerErrors]:
        self.written += markers
        return [dict.fromkeys(each.partitions, self.code) for each in markers]


def image() -> MetadataImage:
    leaders = {0: 1, 1: 2, 2: -1}
    partitions = {
        index: PartitionImage((1, 2), (UUID(int=1), UUID(int=2)), (1, 2), leader, 0, 0)
        for index, leader in leaders.items()
    }
    topic = TopicImage("t", UUID(int=7), partitions)
    return MetadataImage(topics_by_name=MappingProxyType({"t": topic}))


def marker(*partitions: TopicPartition) -> TransactionMarker:
    return TransactionMarker(1000, 1, 3, True, partitions, 2)


async def test_only_this_nodes_partitions_are_written_now() -> None:
    writer = Writer()
    outcomes = await MarkerSender(image, 1, writer).send(marker(MINE, OTHERS, NOBODYS, GONE, NEVER))
    assert outcomes == {
        MINE: Outcome.WRITTEN,
        OTHERS: Outcome.LATER,
        NOBODYS: Outcome.LATER,
        GONE: Outcome.GONE,
        NEVER: Outcome.GONE,
    }
    assert writer.written == [marker(MINE)]


async def test_nothing_is_written_where_nothing_is_to_be() -> None:
    writer = Writer()
    await MarkerSender(image, 1, writer).send(marker(GONE, OTHERS))
    assert writer.written == []


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (ErrorCode.none, Outcome.WRITTEN),
        (ErrorCode.invalid_producer_epoch, Outcome.FENCED),
        (ErrorCode.transaction_coordinator_fenced, Outcome.FENCED),
        (ErrorCode.unsupported_for_message_format, Outcome.GONE),
        (ErrorCode.not_leader_or_follower, Outcome.LATER),
        (ErrorCode.not_enough_replicas, Outcome.LATER),
        (ErrorCode.kafka_storage_error, Outcome.LATER),
        (ErrorCode.unknown_topic_or_partition, Outcome.LATER),
        (ErrorCode.unknown_server_error, Outcome.LATER),
    ],
)
async def test_what_an_error_means(code: ErrorCode, outcome: Outcome) -> None:
    assert await MarkerSender(image, 1, Writer(code)).send(marker(MINE)) == {MINE: outcome}
