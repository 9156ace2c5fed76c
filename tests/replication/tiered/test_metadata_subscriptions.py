"""Decisions about which metadata partitions are read, from which offset, for which subjects (T-49)."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.replication.tiered.metadata_subscriptions import (
    InventoryOf,
    Lane,
    MetadataSubscriptions,
    Subject,
)
from odradek.storage.tiered.segment_metadata import TopicIdPartition


def partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=number), f"topic{number}", 0)


A, B, C = map(partition, (1, 2, 3))


def read(subscriptions: MetadataSubscriptions, lane: Lane, where: int, to: int) -> None:
    subscriptions.advanced(lane, where, subscriptions.cursors(lane)[where], to)


def find_ends(subscriptions: MetadataSubscriptions, end: int) -> None:
    for where, subjects in subscriptions.ends_wanted().items():
        subscriptions.ends_found(where, subjects, end)


def caught_up(*subjects: TopicIdPartition, end: int) -> MetadataSubscriptions:
    """Subscriptions to partitions in metadata partition 7, read to its end offset."""
    found = MetadataSubscriptions()
    for each in subjects:
        found.follow(each, 7)
    find_ends(found, end)
    read(found, Lane.LIVE, 7, end)
    assert found.pop_newly_ready() == list(subjects)
    return found


def test_only_metadata_partitions_of_followed_partitions_are_read() -> None:
    """T-49."""
    subscriptions = MetadataSubscriptions()
    assert subscriptions.cursors(Lane.LIVE) == {}
    subscriptions.follow(A, 7)
    subscriptions.follow(B, 11, 40)
    assert subscriptions.cursors(Lane.LIVE) == {7: 0, 11: 40}
    subscriptions.forget(A)
    assert subscriptions.cursors(Lane.LIVE) == {11: 40}
    assert A not in subscriptions


def test_partition_is_ready_after_reading_to_its_end_offset() -> None:
    """T-49: a new partition first catches up."""
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7)
    asked = subscriptions.ends_wanted()
    read(subscriptions, Lane.LIVE, 7, 5)
    assert not subscriptions.is_ready(A)  # the end offset is unknown
    subscriptions.ends_found(7, asked[7], 9)
    read(subscriptions, Lane.LIVE, 7, 8)
    assert not subscriptions.is_ready(A)
    read(subscriptions, Lane.LIVE, 7, 9)
    assert subscriptions.is_ready(A)
    assert subscriptions.pop_newly_ready() == [A]
    assert subscriptions.pop_newly_ready() == []


def test_end_offset_requested_before_subscription_is_not_used() -> None:
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7)
    asked = subscriptions.ends_wanted()
    subscriptions.follow(B, 7)
    subscriptions.ends_found(7, asked[7], 0)
    assert subscriptions.is_ready(A)
    assert not subscriptions.is_ready(B)
    assert subscriptions.ends_wanted() == {7: [B]}


def test_end_offset_requested_before_resubscription_is_not_used() -> None:
    """T-49: a partition that is assigned, unassigned and assigned again."""
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7)
    asked = subscriptions.ends_wanted()
    subscriptions.forget(A)
    subscriptions.follow(A, 7)
    subscriptions.ends_found(7, asked[7], 0)
    assert not subscriptions.is_ready(A)
    assert subscriptions.ends_wanted() == {7: [A]}


def test_new_partition_does_not_delay_ready_ones() -> None:
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7)
    assert subscriptions.cursors(Lane.LIVE) == {7: 100}
    assert subscriptions.cursors(Lane.CATCHING_UP) == {7: 0}
    assert subscriptions.is_for(A, Lane.LIVE, 7, 100)
    assert not subscriptions.is_for(B, Lane.LIVE, 7, 100)
    assert subscriptions.is_for(B, Lane.CATCHING_UP, 7, 3)
    assert not subscriptions.is_for(A, Lane.CATCHING_UP, 7, 3)


def test_lane_that_reaches_the_live_cursor_is_merged() -> None:
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7)
    find_ends(subscriptions, 100)
    read(subscriptions, Lane.CATCHING_UP, 7, 99)
    assert not subscriptions.is_ready(B)
    read(subscriptions, Lane.CATCHING_UP, 7, 104)  # past the cursor of LIVE
    assert subscriptions.is_ready(B)
    assert subscriptions.cursors(Lane.CATCHING_UP) == {}
    assert subscriptions.cursors(Lane.LIVE) == {7: 100}
    assert not subscriptions.is_for(B, Lane.LIVE, 7, 103)  # already read
    assert subscriptions.is_for(B, Lane.LIVE, 7, 104)
    assert subscriptions.position(B) == 104


def test_partition_with_snapshot_starts_at_its_offset() -> None:
    """T-48."""
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7, 60)
    subscriptions.follow(C, 7, 100)
    assert subscriptions.cursors(Lane.CATCHING_UP) == {7: 60}
    assert subscriptions.is_for(C, Lane.LIVE, 7, 100)


def test_second_new_partition_moves_the_cursor_back_without_duplicates() -> None:
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7, 10)
    read(subscriptions, Lane.CATCHING_UP, 7, 50)
    subscriptions.follow(C, 7, 0)
    assert subscriptions.cursors(Lane.CATCHING_UP) == {7: 0}
    assert not subscriptions.is_for(B, Lane.CATCHING_UP, 7, 49)
    assert subscriptions.is_for(B, Lane.CATCHING_UP, 7, 50)
    assert subscriptions.is_for(C, Lane.CATCHING_UP, 7, 49)


def test_partitions_start_together_before_one_is_ready() -> None:
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7, 30)
    read(subscriptions, Lane.LIVE, 7, 40)
    subscriptions.follow(B, 7, 5)
    assert subscriptions.cursors(Lane.LIVE) == {7: 5}
    assert subscriptions.cursors(Lane.CATCHING_UP) == {}
    assert not subscriptions.is_for(A, Lane.LIVE, 7, 39)
    assert subscriptions.position(A) == 40


def test_catching_up_partition_becomes_live_when_the_last_live_one_leaves() -> None:
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7)
    read(subscriptions, Lane.CATCHING_UP, 7, 20)
    subscriptions.forget(A)
    assert subscriptions.cursors(Lane.LIVE) == {}
    find_ends(subscriptions, 100)
    read(subscriptions, Lane.CATCHING_UP, 7, 100)
    assert subscriptions.is_ready(B)
    assert subscriptions.cursors(Lane.LIVE) == {7: 100}
    assert subscriptions.cursors(Lane.CATCHING_UP) == {}


def test_inventory_is_read_in_its_own_lane_until_complete() -> None:
    """T-49: metadata partitions that this node leads are also read, for the remover."""
    subscriptions = MetadataSubscriptions()
    inventory = InventoryOf(7)
    subscriptions.follow(inventory, 7)
    assert subscriptions.cursors(Lane.INVENTORY) == {7: 0}
    find_ends(subscriptions, 10)
    read(subscriptions, Lane.INVENTORY, 7, 10)
    assert subscriptions.is_ready(inventory)
    assert subscriptions.cursors(Lane.INVENTORY) == {}
    assert subscriptions.is_for(inventory, Lane.LIVE, 7, 10)


def test_deleted_records_are_skipped() -> None:
    """T-44: the topic may have a retention time."""
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7, 3)
    find_ends(subscriptions, 20)
    subscriptions.reset(Lane.LIVE, 7, 3, 15, 20)
    assert subscriptions.cursors(Lane.LIVE) == {7: 15}
    read(subscriptions, Lane.LIVE, 7, 20)
    assert subscriptions.is_ready(A)


def test_live_cursor_past_a_stale_end_offset_is_not_reset() -> None:
    """T-44, T-49: more records are published and read during the request for the end offset."""
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7)
    read(subscriptions, Lane.LIVE, 7, 102)
    find_ends(subscriptions, 102)
    subscriptions.reset(Lane.CATCHING_UP, 7, 0, 40, 100)
    assert subscriptions.position(A) == 102
    assert subscriptions.cursors(Lane.CATCHING_UP) == {7: 40}
    read(subscriptions, Lane.CATCHING_UP, 7, 100)
    assert not subscriptions.is_ready(B)
    read(subscriptions, Lane.CATCHING_UP, 7, 102)
    assert subscriptions.is_ready(B)


def test_cursor_moved_back_during_the_request_is_not_reset() -> None:
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7, 30)
    subscriptions.follow(B, 7, 5)
    subscriptions.reset(Lane.LIVE, 7, 30, 0, 20)
    assert subscriptions.cursors(Lane.LIVE) == {7: 5}


def test_truncated_metadata_partition_is_read_again() -> None:
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7, 100)
    subscriptions.reset(Lane.LIVE, 7, 100, 0, 4)
    assert subscriptions.cursors(Lane.LIVE) == {7: 0}
    assert subscriptions.is_for(A, Lane.LIVE, 7, 0)
    assert subscriptions.is_for(B, Lane.LIVE, 7, 0)
    assert subscriptions.is_ready(A)  # its metadata is kept


def test_recreated_topic_is_read_from_its_start() -> None:
    subscriptions = caught_up(A, end=100)
    assert not subscriptions.topic_is(UUID(int=8))
    subscriptions.follow(B, 7, 50)
    assert not subscriptions.topic_is(UUID(int=8))
    assert subscriptions.cursors(Lane.CATCHING_UP) == {7: 50}
    assert subscriptions.topic_is(UUID(int=9))
    assert subscriptions.cursors(Lane.LIVE) == {7: 0}
    assert subscriptions.is_for(A, Lane.LIVE, 7, 0)
    assert subscriptions.ends_wanted() == {7: [B]}


def test_offset_of_another_topic_id_is_not_used() -> None:
    """T-47: in either order: the topic id of the snapshot first, or the current topic id."""
    old, new = UUID(int=8), UUID(int=9)
    disk_first = MetadataSubscriptions()
    assert disk_first.start_in(old, 50) == 50
    disk_first.follow(A, 7, 50)
    assert disk_first.topic_is(new)
    assert disk_first.cursors(Lane.LIVE) == {7: 0}
    topic_first = MetadataSubscriptions()
    assert not topic_first.topic_is(new)
    assert topic_first.start_in(old, 50) == 0
    assert topic_first.start_in(new, 50) == 50
    assert MetadataSubscriptions().start_in(None, 50) == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_subject_gets_each_record_once_in_order(data: st.DataObject) -> None:
    """T-49: for any sequence of subscriptions and reads, from a snapshot or from the start."""
    subscriptions = MetadataSubscriptions()
    end = 0
    next_offsets: dict[Subject, int] = {}
    subjects: list[Subject] = [A, B, C, InventoryOf(7)]
    for _ in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["publish", "follow", "forget", "ends", "read", "read"]))
        if action == "publish":
            end += data.draw(st.integers(1, 5))
        elif action == "follow":
            subject = data.draw(st.sampled_from(subjects))
            if subject not in subscriptions:
                start = data.draw(st.integers(0, end))
                subscriptions.follow(subject, 7, start)
                next_offsets[subject] = start
        elif action == "forget":
            subject = data.draw(st.sampled_from(subjects))
            subscriptions.forget(subject)
            next_offsets.pop(subject, None)
        elif action == "ends":
            find_ends(subscriptions, end)
        else:
            lane = data.draw(st.sampled_from(list(Lane)))
            begun_at = subscriptions.cursors(lane).get(7)
            if begun_at is None:
                continue
            to = data.draw(st.integers(begun_at, max(begun_at, end)))
            for offset in range(begun_at, to):
                for subject in next_offsets:
                    if subscriptions.is_for(subject, lane, 7, offset):
                        assert offset == next_offsets[subject]
                        next_offsets[subject] = offset + 1
            subscriptions.advanced(lane, 7, begun_at, to)
        for subject, reached in next_offsets.items():
            assert subscriptions.position(subject) == reached
    find_ends(subscriptions, end)
    for lane in (Lane.INVENTORY, Lane.CATCHING_UP, Lane.LIVE):
        if 7 in subscriptions.cursors(lane):
            begun_at = subscriptions.cursors(lane)[7]
            subscriptions.advanced(lane, 7, begun_at, max(begun_at, end))
    assert all(subscriptions.is_ready(subject) for subject in next_offsets)
    assert subscriptions.cursors(Lane.CATCHING_UP) == subscriptions.cursors(Lane.INVENTORY) == {}
