"""Tests of follower fetch sessions that read changed partitions, and the unchanged ones periodically."""

from __future__ import annotations

from dataclasses import replace

import trio

from odradek.broker.fetch.session_cache import FetchSession
from odradek.broker.fetch.unchanged_partitions import ALL_SECONDS_MAX, UnchangedPartitions
from odradek.protocol.fetch_response_writer import FetchedPartition
from tests.support.two_replicas import EPOCH, OTHER, SIZE, Stage, records_size, stage, waits_for

UNCHANGED = -1
"""Stands for an unchanged offset."""
LONG_WAIT_MS = 60_000


class FollowerSession:
    """Session of a follower whose first fetch is at offset 0."""

    def __init__(self, on: Stage) -> None:
        self.on = on
        self.id = 0
        self.epoch = 0

    async def fetch(self, offset: int = UNCHANGED, **more: int) -> list[FetchedPartition]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        response = await self.on.whole_response(
            offset, replica_id=OTHER, session_id=self.id, session_epoch=epoch, **more
        )
        self.id = response.session_id
        return [each for _, each in response.chosen]

    @property
    def session(self) -> FetchSession:
        return self.on.node.services.fetch_sessions._sessions[self.id]

    @property
    def unchanged(self) -> UnchangedPartitions:
        assert self.session.unchanged is not None
        return self.session.unchanged


async def unchanged_session(on: Stage) -> FollowerSession:
    """Session whose partition is unchanged."""
    session = FollowerSession(on)
    await session.fetch(0)
    assert await session.fetch() == []
    assert len(session.unchanged) == 1
    return session


async def test_append_to_unchanged_partition_completes_fetch() -> None:
    async with stage() as on:
        session = await unchanged_session(on)
        (found,) = await waits_for(lambda: session.fetch(max_wait_ms=LONG_WAIT_MS), on.append)
        assert records_size(found) == SIZE
        assert len(session.unchanged) == 0
        (found,) = await session.fetch(1)
        assert (records_size(found), found.high_watermark) == (0, 1)
        assert len(session.unchanged) == 1
        on.append()
        (found,) = await session.fetch(max_wait_ms=LONG_WAIT_MS)
        assert records_size(found) == SIZE


async def test_high_watermark_is_in_next_response() -> None:
    async with stage() as on:
        session = await unchanged_session(on)

        def moves() -> None:
            log = on.partition.log
            log.high_watermark = -1  # so that it can advance without an append
            log.advance_high_watermark(0)
            on.partition._announce(0)
            on.append()

        (found,) = await waits_for(lambda: session.fetch(max_wait_ms=LONG_WAIT_MS), moves)
        assert records_size(found) == SIZE


async def test_out_of_sync_follower_reads_all_partitions() -> None:
    async with stage() as on:
        on.partition.update(replace(on.image, isr=(on.me,), partition_epoch=6))
        session = FollowerSession(on)
        await session.fetch(0)
        assert len(session.unchanged) == 0


async def test_leader_change_completes_fetch() -> None:
    async with stage() as on:
        session = await unchanged_session(on)
        other = replace(on.image, leader=OTHER, leader_epoch=EPOCH + 1, partition_epoch=6)
        (found,) = await waits_for(
            lambda: session.fetch(max_wait_ms=LONG_WAIT_MS), lambda: on.partition.update(other)
        )
        assert found.error_code != 0


async def test_log_start_offset_is_in_next_response() -> None:
    """DeleteRecords requests wait for it."""
    async with stage() as on:
        session = await unchanged_session(on)
        on.append()
        await session.fetch()
        await session.fetch(1)
        assert len(session.unchanged) == 1
        on.partition.delete_before(1, "a test")
        (found,) = await session.fetch(max_wait_ms=1)
        assert (records_size(found), found.log_start_offset) == (0, 1)


async def test_all_partitions_are_read_periodically() -> None:
    async with stage() as on:
        session = await unchanged_session(on)
        on.append()
        await session.fetch()
        await session.fetch(1)
        on.partition.log.advance_log_start(1, "a test")
        assert await session.fetch() == []
        partitions, unchanged = session.session.partitions, session.unchanged
        soon = on.node.seams.clock.monotonic()
        assert unchanged.take(partitions, (), broker_epoch=-1, now=soon) == []
        late = soon + ALL_SECONDS_MAX
        assert len(unchanged.take(partitions, (), broker_epoch=-1, now=late)) == 1
        assert len(unchanged) == 0


async def test_new_broker_epoch_reads_all_partitions() -> None:
    async with stage() as on:
        session = await unchanged_session(on)
        partitions = session.session.partitions
        now = on.node.seams.clock.monotonic()
        assert len(session.unchanged.take(partitions, (), broker_epoch=5, now=now)) == 1


async def test_ended_session_watches_nothing() -> None:
    async with stage() as on:
        session = await unchanged_session(on)
        assert on.partition._end_watchers
        unchanged = session.unchanged
        session.epoch = 0
        await session.fetch(0)
        assert unchanged not in on.partition._end_watchers
        await trio.lowlevel.checkpoint()
