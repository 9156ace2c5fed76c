"""Requests with long arrays are read, handled and written in steps, between which other clients are served.

The steps are made as short as possible, so that their number does not depend on the speed of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from odradek.broker import timers
from odradek.broker.requests.steps import ITEMS_PER_STEP as HANDLED_PER_STEP
from odradek.broker.timers import LARGE_BYTES, BusyConnectionQueue
from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.codec.reading import ELEMENTS_PER_STEP
from odradek.protocol.codec.writing import ITEMS_PER_STEP
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.raw_requests import connect, read_correlation_ids, request_frame

ITEMS = 6000
NAMES = [f"{number:020}" for number in range(ITEMS)]

broker = broker_fixture(topics={"t": 4})

Values = Mapping[str, Any]


def in_topic(partition: Callable[[int], Any], name: str = "name") -> list[Values]:
    """Two topics with half of the partitions each."""
    halves = (range(ITEMS // 2), range(ITEMS // 2, ITEMS))
    return [{name: "t", "partitions": [partition(index) for index in half]} for half in halves]


def resources(names: Sequence[str]) -> list[Values]:
    return [{"resource_type": 2, "resource_name": name} for name in names]


def committed(index: int) -> Values:
    return {"partition_index": index, "committed_offset": 1, "committed_metadata": "x" * 8}


REQUESTS: Mapping[str, tuple[Api, int, Values]] = {
    "Metadata": (apis.METADATA, 9, {"topics": [{"name": name} for name in NAMES]}),
    "Metadata of ids": (
        apis.METADATA,
        12,
        {"topics": [{"name": None, "topic_id": UUID(int=1 + number)} for number in range(ITEMS)]},
    ),
    "DescribeConfigs": (apis.DESCRIBE_CONFIGS, 4, {"resources": resources(NAMES)}),
    "ListOffsets": (
        apis.LIST_OFFSETS,
        6,
        {"topics": in_topic(lambda index: {"partition_index": index, "timestamp": -1})},
    ),
    "OffsetForLeaderEpoch": (
        apis.OFFSET_FOR_LEADER_EPOCH,
        4,
        {"topics": in_topic(lambda index: {"partition": index, "leader_epoch": 0}, "topic")},
    ),
    "OffsetCommit": (apis.OFFSET_COMMIT, 8, {"group_id": "g", "topics": in_topic(committed)}),
    "OffsetFetch": (
        apis.OFFSET_FETCH,
        8,
        {"groups": [{"group_id": name, "topics": []} for name in NAMES]},
    ),
    "DescribeGroups": (apis.DESCRIBE_GROUPS, 5, {"groups": NAMES}),
    "ConsumerGroupDescribe": (apis.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": NAMES}),
    "FindCoordinator": (apis.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": NAMES}),
    "DeleteRecords": (
        apis.DELETE_RECORDS,
        2,
        {"timeout": 1000, "topics": in_topic(lambda index: {"partition_index": index + 4})},
    ),
    "DescribeTopicPartitions": (
        apis.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [{"name": name} for name in NAMES], "cursor": None},
    ),
    "DescribeTransactions": (apis.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": NAMES}),
    "TxnOffsetCommit": (
        apis.TXN_OFFSET_COMMIT,
        3,
        {"transactional_id": "x", "group_id": "g", "topics": in_topic(committed)},
    ),
    "DescribeUserScramCredentials": (
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        {"users": [{"name": name} for name in NAMES]},
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_other_clients_are_served_between_steps_of_long_request(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, version, values = REQUESTS[name]
    turns = 0
    wait_turn = BusyConnectionQueue.wait_turn

    async def counted(queue: BusyConnectionQueue) -> None:
        nonlocal turns
        turns += 1
        await wait_turn(queue)

    monkeypatch.setattr(timers, "REQUEST_STEP_SECONDS", 0.0)
    monkeypatch.setattr(BusyConnectionQueue, "wait_turn", counted)
    request = request_frame(api, version, 1, values)
    assert len(request) >= LARGE_BYTES, "it is not read in steps"
    with connect(broker) as sock:
        sock.sendall(request)
        assert read_correlation_ids(sock, 1) == [1]
    read, handled, written = ELEMENTS_PER_STEP, HANDLED_PER_STEP + 1, ITEMS_PER_STEP
    assert turns >= ITEMS // read + ITEMS // handled + ITEMS // written - 8
