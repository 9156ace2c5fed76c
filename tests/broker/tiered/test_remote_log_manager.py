"""Tests of the tasks of a partition by its role, of role changes (T-29, T-31, T-38, T-51, T-53), and of log
messages and metrics. The log is on a virtual disk."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest
import trio

from odradek.replication.controller.image import DisablePolicy, TieredState, TopicTiering
from odradek.storage.log.leader_epoch_cache import EpochStart, format_checkpoint
from odradek.storage.log.segment import Segment
from odradek.storage.tiered.errors import (
    InvalidRemoteState,
    RemoteResourceNotFound,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadataUpdate,
)
from odradek.testing.in_memory_remote_log_metadata import (
    InMemoryMetadataTopic,
    InMemoryRemoteLogMetadataManager,
)
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.tiered.tiered_world import (
    DELETED,
    DELETING,
    FINISHED,
    ID,
    ME,
    OTHER,
    STARTED,
    TIERED,
    TieredWorld,
    tiered_world,
)
from tests.support.log_managers import append

EXPIRED_LOCALLY = replace(TIERED, local_retention_bytes=1)


async def lose_leader_epochs(world: TieredWorld) -> tuple[EpochStart, ...]:
    """Copy three segments, delete them locally, let another broker lead, and remove their leader epochs from
    the log. Returns the removed epochs."""
    log = world.log
    world.fill(3)
    await world.pass_time()
    log.flush()
    log.delete_expired(world.clock.wall_ms())
    assert log.local_log_start_offset == 9
    known = log.epochs.entries
    world.follow(1)
    log.epochs.restore(log.epochs.entries_in(9, log.end_offset))
    return known


async def test_new_leader_continues_after_copies_of_previous_leader(clock: VirtualClock) -> None:
    """T-31, T-53: a follower knows the highest copied offset of its leader."""
    async with tiered_world(clock) as world:
        world.follow(1)
        world.fill(2)
        await world.pass_time()
        assert world.storage.calls == []
        world.lead(2)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 3"]
        world.follow(3)
        world.log.reset_highest_copied_offset()
        await world.pass_time()
        assert world.log.highest_copied_offset == 5


async def test_copy_is_deleted_after_loss_of_leadership(clock: VirtualClock) -> None:
    """T-38: leadership is lost during the copy. The copy is not published as finished, and its copier deletes
    it."""
    async with tiered_world(clock) as world:
        world.fill(3)
        world.storage.before_copy = lambda: world.follow(1)
        await world.pass_time(120)
        assert world.published() == [(0, STARTED), (0, DELETING), (0, DELETED)]
        assert world.storage.calls == ["copy 0", "delete 0"]


async def test_unrelated_role_change_does_not_stop_copy(clock: VirtualClock) -> None:
    """The change concerns other configs, or another partition."""
    async with tiered_world(clock) as world:
        world.fill(1)

        def nothing_new() -> None:
            world.storage.before_copy = lambda: None
            world.manager.role_changed(world.partition)

        world.storage.before_copy = nothing_new
        await world.pass_time()
        assert world.published() == [(0, STARTED), (0, FINISHED)]
        assert world.storage.calls == ["copy 0"]


async def test_copy_of_topic_deleted_meanwhile_is_deleted(clock: VirtualClock) -> None:
    """T-51: the remover may have run before the last object was written."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.storage.before_copy = lambda: world.manager.gone("orders", 0)
        world.storage.failing["delete"] = RemoteStorageUnavailable("503")
        await world.pass_time(1)
        assert len(world.storage.kept) == 1
        world.storage.failing.clear()
        await world.pass_time(1)
        assert world.storage.kept == {}


async def test_failed_deletion_is_retried_by_one_task_only(clock: VirtualClock) -> None:
    """Tiered storage of the topic is disabled while the store is unavailable. No other task starts the deletion
    between the attempts."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.storage.before_copy = lambda: world.change(
            remote_storage_enable=False, remote_log_delete_on_disable=True
        )
        world.storage.failing["delete"] = RemoteStorageUnavailable("503")
        await world.pass_time(0.1)
        for _ in range(100):
            (segment,) = world.metadata.segments(ID)
            assert world.manager.work.in_progress == {segment.id: 1}
            await world.pass_time(0.7)
        world.storage.failing.clear()
        await world.pass_time(60)
        assert world.storage.kept == {}
        assert not world.manager.work.in_progress


async def test_late_publication_has_custom_metadata(clock: VirtualClock) -> None:
    """A compressed or encrypted segment cannot be read without its custom metadata."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.storage.custom = b"in chunks"

        def fail_metadata() -> None:
            world.metadata.failing = RemoteStorageUnavailable("no leader")

        world.storage.before_copy = fail_metadata
        await world.pass_time(10)
        world.follow(1)
        await world.pass_time(10)
        world.metadata.failing = None
        await world.pass_time(60)
        (segment,) = world.metadata.segments(ID)
        assert (segment.state, segment.custom_metadata) == (FINISHED, b"in chunks")


async def test_copy_removed_by_other_broker_is_deleted(clock: VirtualClock) -> None:
    """T-51: this node is the last to receive the deletion of the topic."""
    async with tiered_world(clock) as world:
        world.fill(1)

        def removed() -> None:
            world.storage.before_copy = lambda: None
            (segment,) = world.metadata.segments(ID)
            for state in (DELETING, DELETED):
                world.metadata.topic.publish(
                    RemoteLogSegmentMetadataUpdate(segment.id, OTHER, 0, state)
                )

        world.storage.before_copy = removed
        await world.pass_time(0.3)
        assert world.storage.calls == ["copy 0", "delete 0"]
        assert world.storage.kept == {}


async def test_copy_published_by_previous_run_is_not_deleted(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication arrives while the deletion of the seemingly unfinished copy is being published. By then
    another broker may lead without the segment on its disk."""
    async with tiered_world(clock) as world:
        update_segment = InMemoryRemoteLogMetadataManager.update_segment

        async def update(
            metadata: InMemoryRemoteLogMetadataManager, event: RemoteLogSegmentMetadataUpdate
        ) -> None:
            if event.state is DELETING:
                before = RemoteLogSegmentMetadataUpdate(event.id, ME, clock.wall_ms(), FINISHED)
                world.metadata.topic.publish(before)
            await update_segment(metadata, event)

        monkeypatch.setattr(InMemoryRemoteLogMetadataManager, "update_segment", update)
        world.follow(1)
        await world.publish_copy(0, 2, state=STARTED)
        await world.pass_time()
        assert world.states() == [(0, FINISHED)]
        assert world.storage.calls == []


async def test_copy_is_published_after_loss_of_leadership(clock: VirtualClock) -> None:
    """T-29: the metadata becomes unavailable after the copy, and then another broker leads. The publication may
    have succeeded, and followers may rely on it."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.fail_metadata_after_copy()
        await world.pass_time(5)
        world.follow(1)
        await world.pass_time()
        assert world.published() == [(0, STARTED)]
        world.metadata.failing = None
        await world.pass_time(40)
        assert world.published() == [(0, STARTED), (0, FINISHED)]
        await world.pass_time()
        assert world.log.highest_copied_offset == 2


async def test_tasks_wait_until_metadata_is_ready(clock: VirtualClock) -> None:
    """E15: until the metadata is read to its end."""
    async with tiered_world(clock) as world:
        world.follow(1)
        world.manager.gone("orders", 0)
        world.metadata.hold()
        world.lead(2)
        world.fill(1)
        await world.pass_time(120)
        assert world.storage.calls == []
        world.metadata.release()
        await world.pass_time(1)
        assert world.storage.calls == ["copy 0"]


async def test_copy_disable_stops_copies_but_not_retention(clock: VirtualClock) -> None:
    """Part of E2: remote.log.copy.disable."""
    async with tiered_world(clock) as world:
        world.fill(1)
        await world.pass_time(1)
        world.change(remote_log_copy_disable=True)
        world.fill(1)
        await world.pass_time()
        assert world.storage.calls == ["copy 0"]
        world.change(remote_log_copy_disable=True, retention_ms=1)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "delete 0"]
        world.change(remote_log_copy_disable=False, retention_ms=-1)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "delete 0", "copy 3"]


async def test_segments_are_copied_again_after_disable_and_enable(
    clock: VirtualClock,
) -> None:
    """T-30: the copies of the first time are deleted, so the segments stay on the disk until they are copied
    again."""
    async with tiered_world(clock) as world:
        world.fill(2)
        await world.pass_time()
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time()
        assert world.storage.kept == {}
        world.change(remote_storage_enable=True, local_retention_bytes=1)
        await world.pass_time(0.1)
        assert [each for each in world.states() if each[1] is FINISHED] == [
            (0, FINISHED),
            (3, FINISHED),
        ]
        assert len(world.storage.kept) == 2
        assert world.log.highest_copied_offset == 5


async def test_copies_of_earlier_tiered_epochs_are_deleted_and_do_not_count(
    clock: VirtualClock,
) -> None:
    """X-10: the remote data was deleted and tiered storage is enabled again. One copy of another broker was published
    after the deletion, another one is published even later."""
    async with tiered_world(clock) as world:
        world.follow(1)
        world.fill(2)
        await world.publish_copy(0, 2, broker=OTHER, tiered_epoch=1)
        await world.publish_copy(3, 5, broker=OTHER, state=STARTED, tiered_epoch=1)
        (late,) = [each for each in world.metadata.segments(ID) if each.start_offset == 3]
        world.tiering = TopicTiering(3, first_epoch=2)
        world.lead(2)
        await world.pass_time(0.1)
        with pytest.raises((InvalidRemoteState, RemoteResourceNotFound)):
            await world.metadata.update_segment(
                RemoteLogSegmentMetadataUpdate(late.id, OTHER, clock.wall_ms(), FINISHED)
            )
        await world.pass_time()
        found = [(each.start_offset, each.tiered_epoch) for each in world.metadata.segments(ID)]
        assert found == [(0, 3), (3, 3)]
        assert sorted(world.storage.calls) == ["copy 0", "copy 3", "delete 0", "delete 3"]


async def test_incomplete_copy_is_deleted_once_its_broker_has_ended_its_copies(
    clock: VirtualClock,
) -> None:
    """X-05: that broker was killed during the copy. It follows now, or has no replica any more."""
    async with tiered_world(clock) as world:
        manager = world.manager
        await world.publish_copy(0, 2, broker=OTHER, state=STARTED)
        world.tiering = TopicTiering(3, TieredState.DISABLING, DisablePolicy.DELETE, first_epoch=3)
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        manager.set_copying_brokers(ID.topic_id, 3, [ME, OTHER])
        manager.set_copying_brokers(ID.topic_id, 1, [])  # of an earlier disablement
        await world.pass_time(65)
        assert world.states() == [(0, STARTED)]
        assert not manager.is_disabled(world.partition)
        reason = f"1 remote segment is not deleted yet: broker {OTHER} may still be copying"
        assert manager.disablement_progress(world.partition) == reason
        manager.set_copying_brokers(ID.topic_id, 3, [ME])
        await world.pass_time(0.1)
        assert world.states() == []
        assert world.storage.calls == ["delete 0"]
        assert manager.is_disabled(world.partition)


async def test_progress_of_a_disablement_has_the_right_number(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tiered_world(clock) as world:

        def describe() -> str:
            return world.manager.disablement_progress(world.partition)

        def fail(partition: object) -> None:
            raise RemoteStorageUnavailable("503")

        world.fill(2)
        await world.pass_time()
        world.storage.failing["delete"] = RemoteStorageUnavailable("503")
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time(0.1)
        assert describe() == "2 remote segments are not deleted yet: 503"
        monkeypatch.setattr(world.storage, "remove_summaries", fail)
        world.storage.failing.clear()
        await world.pass_time()
        assert describe() == "the summaries of the remote segments are not deleted yet: 503"
        await world.publish_copy(6, 8, broker=OTHER, state=STARTED)
        assert describe().startswith("1 remote segment is not deleted yet")


async def test_incomplete_copy_is_deleted_at_once_after_a_disablement(clock: VirtualClock) -> None:
    """X-05: all brokers have ended their copies of that tiered epoch; this one was published late."""
    async with tiered_world(clock) as world:
        world.tiering = TopicTiering(3, TieredState.DISABLED, DisablePolicy.DELETE, first_epoch=3)
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time(5)
        await world.publish_copy(0, 2, broker=OTHER, state=STARTED, tiered_epoch=2)
        await world.pass_time(0.1)
        assert world.states() == []


async def test_incomplete_copies_of_retained_data_are_kept_for_ten_minutes(
    clock: VirtualClock,
) -> None:
    """X-06: another leader may still copy in the current tiered epoch."""
    async with tiered_world(clock) as world:
        world.tiering = TopicTiering(1, TieredState.DISABLING, DisablePolicy.RETAIN)
        world.change(remote_log_copy_disable=True)
        world.manager.set_copying_brokers(ID.topic_id, 1, [])
        await world.publish_copy(0, 2, broker=OTHER, state=STARTED)
        await world.pass_time(65)
        assert world.states() == [(0, STARTED)]
        await world.pass_time(600)
        assert world.states() == []


@pytest.mark.parametrize("is_lost", [False, True])
async def test_node_may_copy_until_the_copy_in_progress_has_ended(
    clock: VirtualClock, is_lost: bool
) -> None:
    """X-04: the replica may be lost meanwhile, and the deletion of the copy may be retried."""
    async with tiered_world(clock) as world:
        manager, found = world.manager, []
        assert manager.may_copy(ID, world.partition)
        world.fill(1)

        def disable() -> None:
            if is_lost:
                manager.gone("orders", 0)
            world.change(remote_storage_enable=False, remote_log_delete_on_disable=not is_lost)
            found.append(manager.may_copy(ID, None))

        world.storage.before_copy = disable
        world.storage.failing["delete"] = RemoteStorageUnavailable("503")
        await world.pass_time(5)
        assert [*found, manager.may_copy(ID, None)] == [True, True]
        world.storage.failing.clear()
        await world.pass_time(60)
        assert not manager.may_copy(ID, world.partition)


@pytest.mark.parametrize(("first_epoch", "copied"), [(1, 5), (2, -1)])
async def test_follower_does_not_count_copies_of_earlier_tiered_epochs(
    clock: VirtualClock, first_epoch: int, copied: int
) -> None:
    """X-10: local retention must not rely on a copy that the leader deletes."""
    async with tiered_world(clock) as world:
        await world.pass_time(1)
        world.follow(1)
        world.fill(3)
        world.tiering = TopicTiering(3, first_epoch=first_epoch)
        await world.publish_copy(0, 5, broker=OTHER, tiered_epoch=1)
        await world.pass_time()
        assert world.log.highest_copied_offset == copied


async def test_refused_copy_is_deleted_on_brokers_that_have_finished_it(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-10: only leaders refuse to finish copies of earlier tiered epochs."""
    updates: list[RemoteLogSegmentMetadataUpdate] = []
    async with tiered_world(clock) as world:
        honest = world.metadata.update_segment

        async def update_segment(update: RemoteLogSegmentMetadataUpdate) -> None:
            await honest(update)
            updates.append(update)

        world.follow(1)
        world.fill(1)
        await world.publish_copy(0, 2, broker=OTHER, state=STARTED, tiered_epoch=1)
        (copy,) = world.metadata.segments(ID)
        follower = RemoteLogMetadataCache(ID)
        follower.apply(copy)
        follower.apply(RemoteLogSegmentMetadataUpdate(copy.id, OTHER, clock.wall_ms(), FINISHED))
        monkeypatch.setattr(world.metadata, "update_segment", update_segment)
        world.tiering = TopicTiering(3, first_epoch=2)
        world.lead(2)
        await world.pass_time(700)
        for update in updates:
            if update.id == copy.id:
                follower.apply(update)
        assert list(follower.segments()) == []
        assert [each.tiered_epoch for each in world.metadata.segments(ID)] == [3]


async def test_retained_copies_count_after_tiered_storage_is_enabled_again(
    clock: VirtualClock,
) -> None:
    """X-06, X-13: segments without tiered epoch, and those of earlier epochs after `retain`."""
    async with tiered_world(clock) as world:
        world.fill(2)
        await world.pass_time()
        world.change(remote_log_copy_disable=True)
        world.tiering = TopicTiering(2)
        world.change(remote_log_copy_disable=False)
        world.fill(1)
        await world.pass_time()
        found = [(each.start_offset, each.tiered_epoch) for each in world.metadata.segments(ID)]
        assert found == [(0, 0), (3, 0), (6, 2)]


async def test_tasks_start_again_in_another_tiered_epoch(clock: VirtualClock) -> None:
    """X-10: the node receives both changes of the configs at once, so that its role stays the same. Copies of the
    earlier tiered epoch would not count after a later deletion."""
    async with tiered_world(clock) as world:
        await world.pass_time(1)
        world.tiering = TopicTiering(2)
        world.change(retention_ms=-1)
        world.fill(1)
        await world.pass_time()
        assert [each.tiered_epoch for each in world.metadata.segments(ID)] == [2]


async def test_segment_in_deletion_does_not_count_as_copied(clock: VirtualClock) -> None:
    """T-30: tiered storage is enabled again while the first deletion is being published."""
    async with tiered_world(clock) as world, trio.open_nursery() as arriving:
        world.fill(3)
        await world.pass_time()
        update = world.metadata.update_segment

        async def arrive(event: RemoteLogSegmentMetadataUpdate, arrived: trio.Event) -> None:
            await clock.sleep(1)
            await update(event)
            arrived.set()

        async def publish(event: RemoteLogSegmentMetadataUpdate) -> None:
            if event.state is DELETING:
                arrived = trio.Event()
                arriving.start_soon(arrive, event, arrived)
                await arrived.wait()
            else:
                await update(event)

        world.metadata.update_segment = publish  # type: ignore[method-assign]
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time(0.5)
        world.change(remote_storage_enable=True, local_retention_bytes=1)
        world.log.flush()
        for _ in range(100):
            await world.pass_time(0.1)
            world.log.delete_expired(clock.wall_ms())
        assert [each for each in world.states() if each[1] is FINISHED] == [
            (0, FINISHED),
            (3, FINISHED),
            (6, FINISHED),
        ]


async def test_follower_lowers_highest_copied_offset_after_deletion(clock: VirtualClock) -> None:
    """T-30: tiered storage is enabled again, and the leader does not know it yet. The deletion of segments that
    are only remote does not lower it."""
    async with tiered_world(clock, config=EXPIRED_LOCALLY) as world:
        world.fill(3)
        await world.pass_time()
        first, second, _ = world.metadata.segments(ID)
        world.follow(1)
        await world.pass_time(1)
        assert world.log.highest_copied_offset == 8
        world.log.advance_log_start(3, "fetched from the leader")
        for segment in (first, second):
            await world.metadata.update_segment(
                RemoteLogSegmentMetadataUpdate(segment.id, OTHER, clock.wall_ms(), DELETING)
            )
            assert world.log.highest_copied_offset == (8 if segment is first else -1)
        await world.pass_time()
        assert world.log.highest_copied_offset == 2
        world.log.flush()
        world.log.delete_expired(clock.wall_ms())
        assert world.log.local_log_start_offset == 3


async def test_tiered_storage_is_enabled_on_existing_topic(clock: VirtualClock) -> None:
    """E3, T-56."""
    async with tiered_world(clock, config=replace(TIERED, remote_storage_enable=False)) as world:
        world.fill(2)
        await world.pass_time()
        assert world.storage.calls == []
        world.change(remote_storage_enable=True)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 3"]


async def test_failing_copies_are_logged_at_once_and_every_minute(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the failure is logged, too."""
    caplog.set_level(logging.WARNING, "odradek.tiered")
    async with tiered_world(clock) as world:
        world.fill(2)
        world.storage.failing["copy"] = RemoteStorageUnavailable("503 Slow Down")
        await world.pass_time(1)
        assert [record.message for record in caplog.records] == [
            "segments cannot be copied to the object store (503 Slow Down): local retention"
            " deletes no segment that is not copied; check the object store, its credentials and the"
            " network"
        ]
        await world.pass_time(125)
        lines = [record.message for record in caplog.records]
        assert len(lines) == 3
        assert "of 1 partitions wait on the disk" in lines[-1]
        assert "are free" in lines[-1]
        world.storage.failing.clear()
        await world.pass_time(60)
        assert "are copied to the object store again" in caplog.records[-1].message


async def test_log_distinguishes_failed_metadata_from_failed_storage(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The remote storage works, and the metadata topic does not."""
    caplog.set_level(logging.WARNING, "odradek.tiered")
    async with tiered_world(clock) as world:
        world.fill(2)
        world.fail_metadata_after_copy("0 of 2 are in sync")
        await world.pass_time(62)
        first, then = [record.message for record in caplog.records]
        assert first == (
            "segments cannot be copied while topic __remote_log_metadata is unavailable (0 of 2 are"
            " in sync): local retention deletes no segment that is not copied; check its leaders and"
            " in-sync replicas"
        )
        assert re.match(
            "topic __remote_log_metadata has failed for 6. s "
            r"\(.* is copied and not yet published in __remote_log_metadata\)",
            then,
        )
        assert await world.gauge("RemoteStoreUnavailable") == 1, "copies fail"
        world.storage.before_copy = lambda: None
        world.metadata.failing = None
        await world.pass_time(60)
        assert "are copied to the object store again" in caplog.records[-1].message
        world.storage.failing["copy"] = RemoteStorageUnavailable("503 Slow Down")
        world.fill(1)
        await world.pass_time(31)
        assert "to the object store (503 Slow Down)" in caplog.records[-1].message


async def test_copy_lag_and_remote_size_gauges(clock: VirtualClock) -> None:
    """RemoteCopyLagBytes, RemoteCopyLagSegments, and RemoteLogSizeBytes of S-04."""
    async with tiered_world(clock) as world:
        world.fill(2)
        size = sum(each.size for each in world.log.segment_list.all[:2])
        gauge = world.gauge
        world.storage.failing["copy"] = RemoteStorageUnavailable("503")
        await world.pass_time(1)
        assert await gauge("RemoteCopyLagBytes") == size
        assert await gauge("RemoteCopyLagSegments") == 2
        world.storage.failing.clear()
        await world.pass_time()
        assert await gauge("RemoteCopyLagBytes") == 0
        await world.pass_time()
        assert await gauge("RemoteLogSizeBytes") == size
        assert await gauge("RemoteCopyBytesPerSec") == size


async def test_copy_lag_is_not_reported_before_metadata_is_ready(
    clock: VirtualClock,
) -> None:
    """Otherwise each restart and leader change would look like a long failure of the remote storage."""
    async with tiered_world(clock) as world:
        world.fill(2)
        await world.pass_time()
        world.manager.gone("orders", 0)
        world.metadata.hold()
        world.lead(2)
        await world.pass_time()
        with pytest.raises(KeyError):
            await world.gauge("RemoteCopyLagSegments")
        world.metadata.release()
        await world.pass_time()
        assert await world.gauge("RemoteCopyLagSegments") == 0


async def test_lost_leader_epochs_stop_expiration_but_not_copies(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Once such a partition was not copied at all, and its disk filled. Expiration uses leader epochs: segments
    of lost epochs would seem to belong to another log."""
    async with tiered_world(clock, config=EXPIRED_LOCALLY) as world:
        known = await lose_leader_epochs(world)
        world.lead(2)
        world.change(retention_ms=0)
        world.fill(2)
        await world.pass_time(100)
        assert [state for _, state in world.states()] == [FINISHED] * 5
        assert await world.gauge("PartitionsWithoutLeaderEpochsCount") == 1
        warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert [each.levelname for each in warnings] == ["ERROR"]
        assert "cannot restore leader epochs" in warnings[0].message
        world.storage.indexes[IndexType.LEADER_EPOCH] = format_checkpoint(known)
        await world.pass_time(100)
        assert await world.gauge("PartitionsWithoutLeaderEpochsCount") == 0
        assert world.states() == []


async def test_restore_of_leader_epochs_reports_storage_failures_correctly(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Failing copies were logged although only the metadata was being read, or although copies succeeded while
    the leader epochs were being restored."""
    async with tiered_world(clock, config=EXPIRED_LOCALLY) as world:
        await lose_leader_epochs(world)
        world.manager.gone("orders", 0)
        world.metadata.hold()
        world.lead(2)
        await world.pass_time(100)
        assert [each.levelname for each in caplog.records if each.levelno >= logging.WARNING] == []
        world.metadata.release()
        await world.pass_time(100)
        assert await world.gauge("PartitionsWithoutLeaderEpochsCount") == 1
        world.storage.failing["index"] = RemoteStorageUnavailable("503 Slow Down")
        world.fill(1)
        await world.pass_time(100)
        assert [state for _, state in world.states()] == [FINISHED] * 4
        levels = [each.levelname for each in caplog.records if each.levelno >= logging.WARNING]
        assert levels == ["ERROR"]
        world.follow(3)
        world.lead(4)
        await world.pass_time(20)
        assert "cannot be copied" in caplog.records[-1].message, (
            "it waits for a response of the store"
        )


async def test_consecutive_leaders_copy_each_segment_once(clock: VirtualClock) -> None:
    """S-02, E15: otherwise the size counts twice."""
    topic = InMemoryMetadataTopic()
    async with tiered_world(clock, topic=topic) as world:
        world.fill(2)
        await world.pass_time()
        world.lead(4)
        append(world.log, "later", epoch=4)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 3"]
        assert world.metadata.lineage_size(ID, world.log.epochs.entries, world.log.end_offset) == (
            sum(each.size for each in world.log.segment_list.all[:2])
        )


@pytest.mark.parametrize("error", [FileNotFoundError("renamed"), ValueError("closed")])
async def test_copy_lag_is_kept_when_files_are_unreadable(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Neither the gauges nor the log message of every minute fail."""

    def size(segment: Segment) -> int:
        raise error

    async with tiered_world(clock) as world:
        world.fill(2)
        world.storage.failing["copy"] = RemoteStorageUnavailable("503 Slow Down")
        await world.pass_time(1)
        waiting = await world.gauge("RemoteCopyLagBytes")
        assert waiting > 0
        monkeypatch.setattr(Segment, "size", property(size))
        assert await world.gauge("RemoteCopyLagBytes") == waiting
        await world.pass_time(125)
        monkeypatch.undo()
        world.storage.failing.clear()
        await world.pass_time(60)
        assert await world.gauge("RemoteCopyLagBytes") == 0
