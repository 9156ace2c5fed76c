"""A leader's summaries: put before its first copy, and after every few; of what it has copied up to."""

from __future__ import annotations

from odradek.broker.tiered.copy_task import COPIES_BEHIND_MIN
from odradek.storage.tiered.errors import RemoteMetadataUnavailable, RemoteStorageUnavailable
from odradek.storage.tiered.partition_summary import decode
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.tiered.tiered_world import FINISHED, ID, OTHER, TieredWorld, tiered_world

MANY = COPIES_BEHIND_MIN + 1


def summarised(world: TieredWorld) -> dict[int, list[int]]:
    """By leader epoch: where the segments begin."""
    return {
        epoch: [each.start_offset for each in decode(data).segments(ID)]
        for epoch, data in world.storage.summaries.items()
    }


async def test_it_has_what_is_copied_and_lags_by_few(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.fill(MANY - 1)
        await world.pass_time()
        assert summarised(world) == {}
        world.fill(1)
        await world.pass_time()
        starts = [start for start, _ in world.states()]
        assert summarised(world) == {0: starts}
        (data,) = world.storage.summaries.values()
        assert list(decode(data).segments(ID)) == list(world.metadata.segments(ID))
        world.fill(MANY - 2)
        await world.pass_time()
        assert summarised(world) == {0: starts}
        world.fill(1)
        await world.pass_time()
        assert summarised(world) == {0: [start for start, _ in world.states()]}
        assert len(world.states()) >= 2 * MANY


async def test_a_copy_that_was_published_later_counts(clock: VirtualClock) -> None:
    """Or the summary would lag by more with each."""
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
        assert summarised(world) == {0: [start for start, _ in world.states()]}


async def test_a_new_leader_puts_its_own_before_it_copies(clock: VirtualClock) -> None:
    """Not of what lies behind: a leader before may have copied what is not its history."""
    async with tiered_world(clock) as world:
        world.fill(MANY)
        await world.pass_time()
        before = [start for start, _ in world.states()]
        world.follow(3)
        await world.publish_copy(1000, 1009, (1, 1000), broker=OTHER)
        world.lead(5)
        await world.pass_time()
        assert summarised(world) == {0: before}, "there is nothing to copy"
        seen = []
        world.storage.before_copy = lambda: seen.append(summarised(world))
        world.fill(1)
        await world.pass_time()
        assert seen[0] == {5: before}
        world.fill(MANY)
        await world.pass_time()
        copied = [start for start, state in world.states() if state is FINISHED and start < 1000]
        assert summarised(world)[5] == copied[: len(summarised(world)[5])]
        assert len(copied) > len(summarised(world)[5]) - COPIES_BEHIND_MIN > len(before)


async def test_an_earlier_leaders_goes_where_nothing_is_copied_yet(clock: VirtualClock) -> None:
    """It was elected uncleanly: what it copies, readers that go by a summary of another history would list
    from behind that one's last segment."""
    async with tiered_world(clock) as world:
        await world.publish_copy(1000, 1009, (0, 1000), broker=OTHER)
        world.storage.summaries = {0: b"of 1000 to 1009"}
        world.lead(5)
        seen = []
        world.storage.before_copy = lambda: seen.append(dict(world.storage.summaries))
        world.fill(1)
        await world.pass_time()
        assert seen == [{}]


async def test_a_new_leader_without_a_summary_copies_nothing(clock: VirtualClock) -> None:
    """What it would copy, readers that go by an earlier leader's might not see."""
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
        assert summarised(world) == {5: [0, 3]}


async def test_later_a_summary_that_fails_keeps_no_copy(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.storage.failing["summary"] = RemoteStorageUnavailable("503")
        world.fill(2 * MANY)
        await world.pass_time()
        assert len(world.states()) == 2 * MANY
        world.storage.failing.clear()
        world.fill(1)
        await world.pass_time()
        assert summarised(world) == {0: [start for start, _ in world.states()]}


async def test_it_goes_when_the_topic_is_tiered_no_more(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.fill(MANY)
        await world.pass_time()
        assert summarised(world) != {}
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time(120)
        assert world.states() == []
        assert summarised(world) == {}


async def test_a_topic_that_was_deleted_meanwhile_gets_none(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        exists = True
        world.manager.work._topic_exists = lambda topic_id: exists
        world.fill(MANY - 1)
        await world.pass_time()
        exists = False
        world.fill(1)
        await world.pass_time()
        assert len(world.states()) == MANY
        assert summarised(world) == {}
