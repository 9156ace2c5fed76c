"""Tests of the summaries that a leader writes to the remote storage: before its first copy, and after every few
copies."""

from __future__ import annotations

from typing import Any

from odradek.broker.tiered.copy_task import COPIES_BEHIND_MIN
from odradek.replication.controller.image import DisablePolicy, TieredState, TopicTiering
from odradek.storage.tiered.errors import RemoteMetadataUnavailable, RemoteStorageUnavailable
from odradek.storage.tiered.partition_summary import decode
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.tiered.tiered_world import FINISHED, ID, OTHER, TieredWorld, tiered_world

MANY = COPIES_BEHIND_MIN + 1


def summary_starts(world: TieredWorld) -> dict[int, list[int]]:
    """Start offsets of the segments in each summary, by leader epoch."""
    return {
        epoch: [each.start_offset for each in decode(data).segments(ID)]
        for epoch, data in world.storage.summaries.items()
    }


async def test_summary_lags_copies_by_few_segments(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.fill(MANY - 1)
        await world.pass_time()
        assert summary_starts(world) == {}
        world.fill(1)
        await world.pass_time()
        starts = [start for start, _ in world.states()]
        assert summary_starts(world) == {0: starts}
        (data,) = world.storage.summaries.values()
        assert list(decode(data).segments(ID)) == list(world.metadata.segments(ID))
        world.fill(MANY - 2)
        await world.pass_time()
        assert summary_starts(world) == {0: starts}
        world.fill(1)
        await world.pass_time()
        assert summary_starts(world) == {0: [start for start, _ in world.states()]}
        assert len(world.states()) >= 2 * MANY


async def test_summary_includes_late_publications(clock: VirtualClock) -> None:
    """Otherwise the summary would lag more with each of them."""
    async with tiered_world(clock) as world:

        def away() -> None:
            world.storage.before_copy = lambda: None
            world.metadata.failing = RemoteMetadataUnavailable("no leader")

        world.storage.before_copy = away
        world.fill(MANY)
        await world.pass_time(10)
        assert world.storage.calls == ["copy 0"]
        world.metadata.failing = None
        await world.pass_time(60)
        assert [state for _, state in world.states()] == [FINISHED] * MANY
        assert len(world.storage.calls) == MANY
        assert summary_starts(world) == {0: [start for start, _ in world.states()]}


async def test_new_leader_writes_summary_before_first_copy(clock: VirtualClock) -> None:
    """It does not include later segments of the previous leader, which may belong to another lineage."""
    async with tiered_world(clock) as world:
        world.fill(MANY)
        await world.pass_time()
        before = [start for start, _ in world.states()]
        world.follow(3)
        await world.publish_copy(1000, 1009, (1, 1000), broker=OTHER)
        world.lead(5)
        await world.pass_time()
        assert summary_starts(world) == {0: before}, "there is nothing to copy"
        seen = []
        world.storage.before_copy = lambda: seen.append(summary_starts(world))
        world.fill(1)
        await world.pass_time()
        assert seen[0] == {5: before}
        world.fill(MANY)
        await world.pass_time()
        copied = [start for start, state in world.states() if state is FINISHED and start < 1000]
        assert summary_starts(world)[5] == copied[: len(summary_starts(world)[5])]
        assert len(copied) > len(summary_starts(world)[5]) - COPIES_BEHIND_MIN > len(before)


async def test_summary_of_previous_leader_is_removed_before_first_copy(clock: VirtualClock) -> None:
    """The new leader was elected uncleanly. Readers list only segments after the last one of a summary, so a
    summary of another lineage would hide the new copies."""
    async with tiered_world(clock) as world:
        await world.publish_copy(1000, 1009, (0, 1000), broker=OTHER)
        world.storage.summaries = {0: b"of 1000 to 1009"}
        world.lead(5)
        seen = []
        world.storage.before_copy = lambda: seen.append(dict(world.storage.summaries))
        world.fill(1)
        await world.pass_time()
        assert seen == [{}]


async def test_new_leader_does_not_copy_before_its_summary(clock: VirtualClock) -> None:
    """Readers that use the summary of a previous leader might not see the copies."""
    async with tiered_world(clock) as world:
        world.fill(2)
        await world.pass_time()
        world.follow(3)
        world.lead(5)
        world.storage.failing["summary"] = RemoteStorageUnavailable("503")
        world.fill(1)
        await world.pass_time(60)
        assert len(world.states()) == 2
        world.storage.failing.clear()
        await world.pass_time(60)
        assert len(world.states()) == 3
        assert summary_starts(world) == {5: [0, 3]}


async def test_failed_summary_does_not_block_later_copies(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.storage.failing["summary"] = RemoteStorageUnavailable("503")
        world.fill(2 * MANY)
        await world.pass_time()
        assert len(world.states()) == 2 * MANY
        world.storage.failing.clear()
        world.fill(1)
        await world.pass_time()
        assert summary_starts(world) == {0: [start for start, _ in world.states()]}


async def test_summary_is_removed_when_tiered_storage_is_disabled(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.fill(MANY)
        await world.pass_time()
        assert summary_starts(world) != {}
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time(120)
        assert world.states() == []
        assert summary_starts(world) == {}


async def test_summary_in_progress_is_removed_after_the_remote_data_was_deleted(
    clock: VirtualClock,
) -> None:
    """X-05: the broker has not finished while it stores a summary."""
    async with tiered_world(clock) as world:
        work = world.manager.work
        busy: list[bool] = []
        world.fill(MANY - 1)
        await world.pass_time()
        honest = world.storage.put_summary

        def put_summary(*summary: Any) -> None:
            honest(*summary)
            busy.append(work.is_busy(ID))
            world.tiering = TopicTiering(1, TieredState.DISABLING, DisablePolicy.DELETE, 1)

        world.storage.put_summary = put_summary  # type: ignore[method-assign]
        world.fill(1)
        await world.pass_time()
        assert busy == [True]
        assert not work.is_busy(ID)
        assert summary_starts(world) == {}


async def test_deleted_topic_gets_no_summary(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        exists = True
        world.manager.work._topic_exists = lambda topic_id: exists
        world.fill(MANY - 1)
        await world.pass_time()
        exists = False
        world.fill(1)
        await world.pass_time()
        assert len(world.states()) == MANY
        assert summary_starts(world) == {}
