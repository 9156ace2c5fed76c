"""How a node's state follows its log: in small changes, and in step with what transactions hold back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from odradek.protocol.schemas.cluster_records import BeginTransactionRecord, EndTransactionRecord
from odradek.protocol.schemas.serde import encode_metadata_record
from odradek.replication.controller.image import MetadataDelta
from odradek.replication.raft.catching_up import RECORDS_A_CHANGE, catch_up
from odradek.replication.raft.cluster_state import ClusterState
from odradek.replication.raft.metadata_log import MetadataLog
from odradek.replication.raft.replay import RECORDS_A_STEP
from tests.replication.raft.nodes import new_node, new_topic
from tests.replication.raft.test_metadata_restarts import raw_log

TOPICS = 4 * RECORDS_A_CHANGE


def a_log() -> MetadataLog:
    return raw_log(new_node().disk, formatted=False)


def append(log: MetadataLog, *records: Any) -> None:
    log.append([encode_metadata_record(each, 0) for each in records], 1)


async def blocking(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


async def test_much_that_is_committed_is_heard_of_a_little_at_a_time() -> None:
    log, state = a_log(), ClusterState()
    for number in range(TOPICS):
        append(log, new_topic(number))
    heard: list[MetadataDelta] = []
    state.subscribe(heard.append)
    await catch_up(state, log, log.end_offset, blocking)
    assert [len(each.created_topics) for each in heard] == [RECORDS_A_CHANGE] * 4
    assert len(state.image.topics_by_id) == TOPICS
    assert state.image.offset == log.end_offset - 1


async def test_a_transaction_is_open_as_long_as_the_image_lacks_what_it_holds_back() -> None:
    """Else a snapshot could be taken in the middle of it."""
    log, state = a_log(), ClusterState()
    append(log, BeginTransactionRecord(name="a"), new_topic(0))
    await catch_up(state, log, log.end_offset, blocking)
    assert state.transactions.open
    begun = log.end_offset
    more = [new_topic(number) for number in range(1, 20 * RECORDS_A_STEP)]
    append(log, EndTransactionRecord(), *more)
    seen: set[tuple[bool, bool]] = set()

    async def look() -> None:
        while True:
            seen.add((state.transactions.open, state.image.offset < begun))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await trio.lowlevel.checkpoint()
        await catch_up(state, log, log.end_offset, blocking)
        nursery.cancel_scope.cancel()
    assert (True, True) in seen
    assert (False, True) not in seen
