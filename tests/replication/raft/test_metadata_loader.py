"""Loading of the metadata log: the batches that a start reads, the size of deltas, and transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.protocol.records.control import ControlType
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.schemas.cluster_records import BeginTransactionRecord, EndTransactionRecord
from odradek.protocol.schemas.serde import encode_metadata_record
from odradek.protocol.schemas.topic_records import TopicRecord
from odradek.replication.controller.image import InvalidMetadata, MetadataDelta
from odradek.replication.raft import metadata_batch_loader
from odradek.replication.raft.actions import AppendFetchedRecords
from odradek.replication.raft.metadata_batch_loader import RECORDS_A_STEP
from odradek.replication.raft.metadata_loader import RECORDS_A_CHANGE, catch_up
from odradek.replication.raft.metadata_log import (
    READ_ON_LOOP_BYTES,
    MetadataLog,
    MetadataLogSettings,
)
from odradek.replication.raft.metadata_log_writer import MetadataLogWriter
from odradek.replication.raft.metadata_state import MetadataState
from odradek.replication.raft.quorum_recovery import QuorumMember, recover_quorum
from tests.support.metadata_nodes import (
    DIRECTORY_ID,
    ROOT,
    new_node,
    new_topic,
    raw_log,
    set_config,
)

TOPICS = 4 * RECORDS_A_CHANGE


def a_log() -> MetadataLog:
    return raw_log(new_node().disk, formatted=False)


def append(log: MetadataLog, *records: Any) -> None:
    log.append([encode_metadata_record(each, 0) for each in records], 1)


async def blocking(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


@pytest.mark.parametrize(("voters", "records"), [((1,), TOPICS), ((1, 2), 0)])
async def test_start_decodes_only_required_batches(
    monkeypatch: pytest.MonkeyPatch, voters: tuple[int, ...], records: int
) -> None:
    """At its start, one of several voters does not know which records are committed, and decodes none."""
    node = new_node()
    written = raw_log(node.disk, formatted=False)
    append(written, *(new_topic(number) for number in range(TOPICS)))
    written.close()
    decoded = 0
    honest = metadata_batch_loader.decode_metadata_record

    def counted(value: bytes) -> Any:
        nonlocal decoded
        decoded += 1
        return honest(value)

    monkeypatch.setattr(metadata_batch_loader, "decode_metadata_record", counted)
    static = {each: (f"host-{each}", 9093) for each in voters}
    member = QuorumMember(1, "cluster", DIRECTORY_ID, static_voters=static)
    log = MetadataLog(node.files, ROOT, node.seams.clock, MetadataLogSettings())
    opened = await recover_quorum(node.seams, ROOT, log, member, blocking)
    assert decoded == len(opened.image.topics_by_id) == records


async def test_many_committed_records_are_published_in_small_deltas() -> None:
    log, state = a_log(), MetadataState()
    for number in range(TOPICS):
        append(log, new_topic(number))
    received: list[MetadataDelta] = []
    state.subscribe(received.append)
    await catch_up(state, log, log.end_offset, blocking)
    assert [len(each.created_topics) for each in received] == [RECORDS_A_CHANGE] * 4
    assert len(state.image.topics_by_id) == TOPICS
    assert state.image.offset == log.end_offset - 1


async def test_batches_in_memory_are_read_on_the_event_loop() -> None:
    disk = new_node().disk
    log, state = raw_log(disk, formatted=False), MetadataState()
    waited_for: list[Any] = []

    async def waiting(call: Callable[..., Any], *args: Any) -> Any:
        waited_for.append(call)
        return call(*args)

    append(log, new_topic(0))
    await catch_up(state, log, log.end_offset, waiting)
    assert waited_for == []
    append(log, new_topic(1))
    disk.chill()
    await catch_up(state, log, log.end_offset, waiting)
    assert waited_for == [log.batches_at]
    assert len(state.image.topics_by_id) == 2


def test_read_on_the_event_loop_is_limited() -> None:
    log = a_log()
    value = "x" * (READ_ON_LOOP_BYTES // 2 - 1000)
    append(log, *(set_config(name, value) for name in "abc"))
    for name in "defg":
        append(log, set_config(name, value))

    def found(offset: int, *, nowait: bool) -> list[int]:
        return [each.base_offset for each in log.batches_at(offset, 7, nowait=nowait)]

    assert found(0, nowait=False) == [0, 3, 4, 5, 6]
    assert found(0, nowait=True) == [0], "at least one, however large"
    assert found(3, nowait=True) == [3, 4]


async def test_transaction_is_open_until_its_records_are_in_the_image() -> None:
    """Otherwise a snapshot could contain a part of the transaction."""
    log, state = a_log(), MetadataState()
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


async def test_unexpected_error_of_a_record_is_a_fault_of_the_metadata_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, state = a_log(), MetadataState()
    append(log, new_topic(1))
    await catch_up(state, log, log.end_offset, blocking)
    before = state.image
    append(log, new_topic(2))

    def planted(value: bytes) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(metadata_batch_loader, "decode_metadata_record", planted)
    with pytest.raises(InvalidMetadata, match="planted"):
        await catch_up(state, log, log.end_offset, blocking)
    assert state.image is before


async def test_invalid_control_record_of_a_leader_is_not_appended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = new_node()
    log = raw_log(node.disk, formatted=False)
    writer = MetadataLogWriter(node.seams, log, blocking)
    key = ControlType.KRAFT_VOTERS.to_bytes(4, "big")
    batch = build_batch([Record(-1, 1, key, b"\xff")], leader_epoch=1, control=True)
    before = log.end_offset
    with trio.move_on_after(1):
        await writer.append_fetched(AppendFetchedRecords(batch, 1, durable=False))
    assert log.end_offset == before
    assert "fetched records cannot be appended" in caplog.text


async def test_error_of_a_listener_does_not_affect_the_image_and_other_listeners(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, state = a_log(), MetadataState()
    received: list[MetadataDelta] = []

    def planted(delta: MetadataDelta) -> None:
        raise RuntimeError("planted")

    state.subscribe(planted)
    state.subscribe(received.append)
    append(log, new_topic(1))
    await catch_up(state, log, log.end_offset, blocking)
    assert [len(each.created_topics) for each in received] == [1]
    assert "RuntimeError: planted" in caplog.text


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "", "\0", "a" * 250])
async def test_topic_name_that_is_no_directory_name_is_a_fault(name: str) -> None:
    log, state = a_log(), MetadataState()
    append(log, TopicRecord(name=name, topic_id=UUID(int=5)))
    with pytest.raises(InvalidMetadata):
        await catch_up(state, log, log.end_offset, blocking)
    assert state.image.topics_by_id == {}
