"""Tests of the size of Fetch responses and the order of their partitions (KIP-74)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from odradek.protocol import apis
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.produce_requests import produce_batch
from tests.support.raw_requests import ask
from tests.support.records import batch_of_size

VERSION = 12
LARGE, SMALL = 1000, 10
WAIT_SECONDS = 10


broker = broker_fixture()


def fill(broker: Broker, topic: str, batches: Sequence[bytes]) -> None:
    """Create a topic with one of the batches in each partition."""
    broker.create_topic(topic, partitions=len(batches))
    for index, records in enumerate(batches):
        assert produce_batch(broker, topic, records, partition=index, acks=1).error_code == 0


def fetch(
    broker: Broker,
    topic: str,
    wanted: Sequence[tuple[int, int]],
    *,
    max_bytes: int = 2**20,
    partition_max_bytes: int = 2**20,
    session: tuple[int, int] = (0, -1),
    min_bytes: int = 0,
) -> Any:
    """Fetch the `wanted` partitions and offsets; `session` is the session id and epoch."""
    partitions = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes}
        for index, offset in wanted
    ]
    values = {
        "max_wait": WAIT_SECONDS * 1000 if min_bytes else 0,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [{"topic": topic, "partitions": partitions}] if partitions else [],
    }
    return ask(broker, apis.FETCH, VERSION, values)


def sizes(response: Any) -> dict[int, int]:
    return {
        each.partition_index: len(each.records or b"")
        for topic in response.responses
        for each in topic.partitions
    }


def test_oversized_batch_leaves_space_for_later_partitions(broker: Broker) -> None:
    small, large = batch_of_size(SMALL), batch_of_size(LARGE)
    fill(broker, "room", [small, large, small])
    wanted = [(index, 0) for index in range(3)]
    found = sizes(fetch(broker, "room", wanted, max_bytes=2 * len(small) + 5))
    assert found == {0: len(small), 1: 0, 2: len(small)}
    found = sizes(fetch(broker, "room", wanted, partition_max_bytes=len(large) - 1))
    assert found == {0: len(small), 1: 0, 2: len(small)}
    found = sizes(fetch(broker, "room", wanted[1:], max_bytes=1))
    assert found == {1: len(large), 2: 0}, "the first is not cut"


def test_oversized_batch_is_not_starved_by_busy_partition(
    broker: Broker,
) -> None:
    small, large = batch_of_size(SMALL), batch_of_size(LARGE)
    fill(broker, "turns", [small, large])
    limit = len(large) - 1
    first = fetch(broker, "turns", [(0, 0), (1, 0)], partition_max_bytes=limit, session=(0, 0))
    assert sizes(first) == {0: len(small), 1: 0}
    assert produce_batch(broker, "turns", small, partition=0, acks=1).error_code == 0
    session = (first.session_id, 1)
    next_one = fetch(broker, "turns", [(0, 1)], partition_max_bytes=limit, session=session)
    assert sizes(next_one)[1] == len(large)


def test_left_out_batch_does_not_delay_response(broker: Broker) -> None:
    small, large = batch_of_size(SMALL), batch_of_size(LARGE)
    fill(broker, "there", [small, large])
    began = time.monotonic()
    found = fetch(
        broker,
        "there",
        [(0, 0), (1, 0)],
        partition_max_bytes=len(large) - 1,
        min_bytes=2 * len(small),
    )
    assert sizes(found) == {0: len(small), 1: 0}
    assert time.monotonic() - began < WAIT_SECONDS / 2
