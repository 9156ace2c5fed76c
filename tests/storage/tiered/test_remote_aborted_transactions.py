"""Aborted transactions of records in the remote tier are those that the local log returned."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log.append import AppendOrigin
from odradek.storage.tiered.errors import RemoteNotReady, RemoteSegmentNotFound
from odradek.storage.tiered.remote_log_reader import ReadLimits
from odradek.storage.tiered.segment_metadata import SegmentState
from tests.support.partition_logs import NOW_MS, LogWorld, batch, idempotent, marker
from tests.support.remote_log_reads import TIERED, Tiers


def append_transactions(world: LogWorld) -> None:
    """Producer 7 aborts every other transaction of three batches; producer 8 has a long open one."""
    world.append(idempotent(8, 0, transactional=True))
    for number in range(8):
        for each in range(3):
            world.append(idempotent(7, 3 * number + each, transactional=True))
        world.append(marker(7, commit=number % 2 == 0), origin=AppendOrigin.COORDINATOR)
    world.append(marker(8, commit=False), origin=AppendOrigin.COORDINATOR)
    for _ in range(6):
        world.append(batch(2))


def with_transactions() -> Tiers:
    tiers = Tiers()
    append_transactions(tiers.log_world)
    tiers.copy_and_expire()
    return tiers


async def test_remote_aborted_transactions_equal_local_ones() -> None:
    """T-35, E10."""
    tiers = with_transactions()
    local = LogWorld(dataclasses.replace(TIERED, remote_storage_enable=False))
    append_transactions(local)
    async with tiers.readers() as readers:
        for offset in range(tiers.log.local_log_start_offset):
            found = await readers.read(offset, committed=True)
            right = local.log.aborted_transactions(offset, found.next_offset)
            assert set(found.aborted) == set(right)
            assert len(found.aborted) == len(set(found.aborted))
            found.unpin()


async def test_search_without_cache_fetches_few_indexes() -> None:
    """E10: the cache has one byte."""
    tiers = with_transactions()
    tiers.limit_bytes = 1
    async with tiers.readers() as readers:
        offset = reads = 0
        while offset < tiers.log.local_log_start_offset:
            found = await readers.read(offset, committed=True)
            offset = found.next_offset
            reads += 1
            found.unpin()
        assert readers.indexes.total_bytes == 0
        assert {what for what, _, _ in tiers.store.fetched} == {".log", ".index", ".txnindex"}
        assert readers.indexes.fetches <= 3 * reads + len(tiers.metadata.known)  # for the markers


Step = tuple[int, str]
"""A producer, and what it does next: "send", "commit" or "abort"."""
steps = st.lists(
    st.tuples(st.integers(7, 8), st.sampled_from(("send", "send", "commit", "abort"))),
    min_size=1,
    max_size=8,
)


def play(world: LogWorld, *parts: list[Step]) -> LogWorld:
    """Each part is in the next epoch; open transactions are committed at the end, and more
    records follow."""
    sequences = {7: 0, 8: 0}
    open_: dict[int, None] = {}
    for epoch, part in enumerate(parts):
        for producer, step in part:
            if step == "send":
                world.append(
                    idempotent(producer, sequences[producer], transactional=True), epoch=epoch
                )
                sequences[producer] += 1
                open_[producer] = None
            elif producer in open_:
                world.coordinate(marker(producer, commit=step == "commit"), epoch=epoch)
                del open_[producer]
    last = len(parts) - 1
    for producer in open_:
        world.coordinate(marker(producer, commit=True), epoch=last)
    for _ in range(8):
        world.append(batch(2), epoch=last)
    return world


def of_two_leaders(before: list[Step], theirs: list[Step], ours: list[Step]) -> Tiers:
    """Both leaders have the records `before` and copied all their segments; the log has the
    second lineage."""
    large = dataclasses.replace(TIERED, internal_segment_bytes=1000)
    deposed = Tiers(play(LogWorld(large), before + theirs))
    deposed.copy_and_expire()
    tiers = Tiers(play(LogWorld(TIERED), before, ours), store=deposed.store, copies=deposed.copies)
    tiers.copy_and_expire()
    tiers.metadata.known[:0] = deposed.metadata.known
    return tiers


async def check_aborted(tiers: Tiers, local: LogWorld) -> None:
    async with tiers.readers() as readers:
        for offset in range(tiers.log.local_log_start_offset):
            found = await readers.read(offset, committed=True)
            right = local.log.aborted_transactions(offset, found.next_offset)
            assert {(each.producer_id, each.first_offset) for each in found.aborted} == {
                (each.producer_id, each.first_offset) for each in right
            }
            found.unpin()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ([(7, "abort")], [(7, "commit")]),
        ([(7, "commit")], [(7, "abort")]),
        ([(8, "send"), (8, "abort")], [(7, "send"), (7, "abort")]),
    ],
    ids=str,
)
async def test_markers_of_diverging_segment_are_ignored(
    theirs: list[Step], ours: list[Step]
) -> None:
    """T-60, T-35: markers of a deposed leader hide committed records, or its segment ends the
    search too early, and aborted records are returned."""
    before: list[Step] = [(7, "send"), (7, "send")]
    without_tiers = dataclasses.replace(TIERED, remote_storage_enable=False)
    local = play(LogWorld(without_tiers), before, ours)
    await check_aborted(of_two_leaders(before, theirs, ours), local)


@settings(max_examples=50)
@given(before=steps, theirs=steps, ours=steps)
def test_aborted_transactions_follow_lineage_of_log(
    before: list[Step], theirs: list[Step], ours: list[Step]
) -> None:
    """T-60."""
    without_tiers = dataclasses.replace(TIERED, remote_storage_enable=False)
    local = play(LogWorld(without_tiers), before, ours)
    trio.run(check_aborted, of_two_leaders(before, theirs, ours), local)


def keep_on_disk(tiers: Tiers, size_bytes: int) -> None:
    """Set local retention, and delete the copied segments."""
    log = tiers.log
    log.update_config(dataclasses.replace(log.config, local_retention_bytes=size_bytes))
    log.delete_expired(NOW_MS)
    log.remove_deleted(NOW_MS)


async def test_marker_deleted_locally_during_search_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T-35: the segment with the marker is copied. It is still local while the remote tier is
    searched, and deleted while the local log is searched."""
    tiers = Tiers()
    keep_on_disk(tiers, 1 << 20)
    for number in range(6):
        tiers.append(idempotent(7, number, transactional=True))
    tiers.log_world.append(marker(7, commit=False), origin=AppendOrigin.COORDINATOR)
    for _ in range(8):
        tiers.append(batch(2))
    tiers.copy_and_expire()
    log, run = tiers.log, tiers.offload.run
    keep_on_disk(tiers, log.size_bytes - log.segments[0].size)
    assert 0 < log.local_log_start_offset < 6

    async def late(fn: Any, *args: Any, lane: str) -> Any:
        if fn == log.aborted_transactions:
            keep_on_disk(tiers, 1)
        return await run(fn, *args, lane=lane)

    monkeypatch.setattr(tiers.offload, "run", late)
    async with tiers.readers() as readers:
        found = await readers.read(0, committed=True)
        assert [each.producer_id for each in found.aborted] == [7]
        found.unpin()
    assert log.local_log_start_offset > 6


def after_each(tiers: Tiers, monkeypatch: pytest.MonkeyPatch, during: Any, then: Any) -> None:
    """`then` runs after each call of `during` has its result, before the caller continues."""
    run = tiers.offload.run

    async def late(fn: Any, *args: Any, lane: str) -> Any:
        found = await run(fn, *args, lane=lane)
        if fn == during:
            then()
        return found

    monkeypatch.setattr(tiers.offload, "run", late)


def with_one_aborted() -> Tiers:
    """A transaction of three batches whose marker is in the next segment."""
    tiers = Tiers()
    for number in range(3):
        tiers.append(idempotent(7, number, transactional=True))
    tiers.log_world.append(marker(7, commit=False), origin=AppendOrigin.COORDINATOR)
    for _ in range(12):
        tiers.append(batch(2))
    tiers.copy_and_expire()
    first, second = tiers.metadata.known[:2]
    assert first.txn_index_empty
    assert not second.txn_index_empty
    return tiers


@pytest.mark.parametrize("start", [1, 2, 8])
async def test_log_start_advance_during_read_returns_no_aborted_records(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T-35: within the segment or past it. The log removes the epochs by which markers are found."""
    tiers = with_one_aborted()
    move = partial(tiers.log.advance_log_start, start, "DeleteRecords")
    after_each(tiers, monkeypatch, tiers.store.fetch_segment, move)
    async with tiers.readers() as readers:
        with pytest.raises(OffsetOutOfRange):
            await readers.read(0, committed=True)
        found = await readers.read(start, committed=True)
        assert [each.producer_id for each in found.aborted] == [7] * (start < 3)
        found.unpin()


async def test_segment_deleted_during_read_is_no_empty_transaction_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T-35: the leader deleted the segment, and this node, which serves reads too, has not read
    the event."""
    tiers = with_one_aborted()

    def delete() -> None:
        for each in tiers.metadata.known:
            tiers.store.delete_segment(each)

    after_each(tiers, monkeypatch, tiers.store.fetch_segment, delete)
    async with tiers.readers() as readers:
        with pytest.raises(RemoteSegmentNotFound):
            await readers.read(0, committed=True)
        second = tiers.metadata.known[1].id.id
        assert not readers.indexes.has(second), "it was kept as one without any"


async def test_segment_with_started_deletion_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T-35: otherwise the segment with the marker would be skipped."""
    tiers = with_one_aborted()
    known = list(tiers.metadata.known)

    def begin_to_delete() -> None:
        deleting = SegmentState.DELETE_SEGMENT_STARTED
        tiers.metadata.known[:] = [dataclasses.replace(each, state=deleting) for each in known]

    after_each(tiers, monkeypatch, tiers.store.fetch_segment, begin_to_delete)
    async with tiers.readers() as readers:
        with pytest.raises(RemoteNotReady):
            await readers.read(0, committed=True)
        tiers.metadata.known[:] = known
        found = await readers.read(0, committed=True)
        assert [each.producer_id for each in found.aborted] == [7]
        found.unpin()


async def test_reader_continues_in_readable_copy() -> None:
    """T-35: a reader that stopped in another copy must not get a retriable error forever."""
    tiers = Tiers()
    for _ in range(12):
        tiers.append(batch(2))
    tiers.copy_and_expire()
    async with tiers.readers() as readers:
        found = await readers.read(0, ReadLimits(1, 1 << 40), committed=True)
        found.unpin()
        first = tiers.metadata.known[0]
        assert found.next_offset <= first.end_offset
        again = dataclasses.replace(first, id=dataclasses.replace(first.id, id=UUID(int=99)))
        for (id_, kind), data in list(tiers.store.objects.items()):
            if id_ == first.id.id:
                tiers.store.objects[UUID(int=99), kind] = data
        tiers.metadata.known[0] = again
        with pytest.raises(RemoteNotReady):
            await readers.read(found.next_offset, committed=True)
        found = await readers.read(found.next_offset, committed=True)
        assert found.records
        found.unpin()
