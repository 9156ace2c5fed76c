"""Encoded requests of a follower, decoded as by a broker."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from odradek.protocol import messages
from odradek.protocol.apis import FETCH, LIST_OFFSETS
from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch_request_reader import read_fetch_request
from odradek.protocol.fetch_response_reader import OLDEST_VERSION
from odradek.replication.fetching.fetch_session_handler import FetchRequestData
from odradek.replication.fetching.leader_requests import (
    FetchLimits,
    offsets_request,
    read_offsets,
    write_fetch,
)
from odradek.replication.partition.follower_state import (
    EARLIEST_LOCAL,
    Fetch,
    OffsetResult,
    QueryOffset,
)

TOPIC, OTHER = UUID(int=5), UUID(int=6)
LIMITS = FetchLimits(max_bytes=1000, partition_max_bytes=100, min_bytes=1, max_wait_ms=500)


@pytest.mark.parametrize("version", range(OLDEST_VERSION, FETCH.max_version + 1))
def test_write_fetch_encodes_request_data(version: int) -> None:
    plan = FetchRequestData(
        7,
        3,
        [
            ((TOPIC, 0), Fetch(4, 10, 2, 1)),
            ((OTHER, 1), Fetch(5, 0, -1, 0)),
            ((TOPIC, 2), Fetch(6, 30, 6, 9)),
        ],
        [(OTHER, 8), (OTHER, 9)],
        True,
    )
    body = write_fetch(version, plan, LIMITS, node_id=2, broker_epoch=99)
    request = read_fetch_request(memoryview(body), version)
    assert (request.replica_id, request.session_id, request.session_epoch) == (2, 7, 3)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 1000)
    assert [(each.topic_id, list(map(tuple, each.partitions))) for each in request.topics] == [
        (TOPIC, [(0, 4, 10, 2, 1, 100), (2, 6, 30, 6, 9, 100)]),
        (OTHER, [(1, 5, 0, -1, 0, 100)]),
    ]
    assert [(each.topic_id, each.partitions) for each in request.forgotten] == [(OTHER, [8, 9])]
    if version >= 15:
        state = messages.read_request(FETCH.key, version, memoryview(body)).replica_state
        assert (state.replica_id, state.replica_epoch) == (2, 99)


def test_offset_requests_use_topic_names() -> None:
    asked = [("t", 0, QueryOffset(3, -1)), ("t", 1, QueryOffset(4, EARLIEST_LOCAL))]
    values = offsets_request(asked, node_id=2, timeout_ms=1000)
    version = LIST_OFFSETS.max_version
    body = memoryview(messages.write_request(LIST_OFFSETS.key, version, values))
    request = messages.read_request(LIST_OFFSETS.key, version, body)
    assert request.replica_id == 2
    (topic,) = request.topics
    assert topic.name == "t"
    assert [
        (each.partition_index, each.current_leader_epoch, each.timestamp)
        for each in topic.partitions
    ] == [(0, 3, -1), (1, 4, -4)]


def test_offset_responses_have_results_or_errors() -> None:
    rows = [
        SimpleNamespace(partition_index=0, error_code=0, offset=30, leader_epoch=2),
        SimpleNamespace(partition_index=1, error_code=6, offset=-1, leader_epoch=-1),
    ]
    response = SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=rows)])
    assert read_offsets(response) == {
        ("t", 0): OffsetResult(30, 2),
        ("t", 1): ErrorCode.not_leader_or_follower,
    }
