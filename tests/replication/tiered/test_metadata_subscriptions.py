"""What is read of the metadata topic, for whom (T-49)."""

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
    """These are in metadata partition 7, which was read to its end."""
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


def test_partition_is_ready_once_read_to_where_it_ended() -> None:
    """T-49: a new one is caught up first."""
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7)
    asked = subscriptions.ends_wanted()
    read(subscriptions, Lane.LIVE, 7, 5)
    assert not subscriptions.is_ready(A)  # nobody knows the end
    subscriptions.ends_found(7, asked[7], 9)
    read(subscriptions, Lane.LIVE, 7, 8)
    assert not subscriptions.is_ready(A)
    read(subscriptions, Lane.LIVE, 7, 9)
    assert subscriptions.is_ready(A)
    assert subscriptions.pop_newly_ready() == [A]
    assert subscriptions.pop_newly_ready() == []


def test_an_end_asked_before_a_partition_came_is_not_its_end() -> None:
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7)
    asked = subscriptions.ends_wanted()
    subscriptions.follow(B, 7)
    subscriptions.ends_found(7, asked[7], 0)
    assert subscriptions.is_ready(A)
    assert not subscriptions.is_ready(B)
    assert subscriptions.ends_wanted() == {7: [B]}


def test_an_end_asked_before_a_partition_came_again_is_not_its_end() -> None:
    """T-49: a partition that is assigned, unassigned and assigned again."""
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7)
    asked = subscriptions.ends_wanted()
    subscriptions.forget(A)
    subscriptions.follow(A, 7)
    subscriptions.ends_found(7, asked[7], 0)
    assert not subscriptions.is_ready(A)
    assert subscriptions.ends_wanted() == {7: [A]}


def test_newcomer_does_not_hold_up_who_is_ready() -> None:
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7)
    assert subscriptions.cursors(Lane.LIVE) == {7: 100}
    assert subscriptions.cursors(Lane.CATCHING_UP) == {7: 0}
    assert subscriptions.is_for(A, Lane.LIVE, 7, 100)
    assert not subscriptions.is_for(B, Lane.LIVE, 7, 100)
    assert subscriptions.is_for(B, Lane.CATCHING_UP, 7, 3)
    assert not subscriptions.is_for(A, Lane.CATCHING_UP, 7, 3)


def test_newcomer_joins_the_others_where_it_meets_them() -> None:
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7)
    find_ends(subscriptions, 100)
    read(subscriptions, Lane.CATCHING_UP, 7, 99)
    assert not subscriptions.is_ready(B)
    read(subscriptions, Lane.CATCHING_UP, 7, 104)  # further than LIVE is
    assert subscriptions.is_ready(B)
    assert subscriptions.cursors(Lane.CATCHING_UP) == {}
    assert subscriptions.cursors(Lane.LIVE) == {7: 100}
    assert not subscriptions.is_for(B, Lane.LIVE, 7, 103)  # it has read that
    assert subscriptions.is_for(B, Lane.LIVE, 7, 104)
    assert subscriptions.position(B) == 104


def test_newcomer_with_a_snapshot_begins_there() -> None:
    """T-48."""
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7, 60)
    subscriptions.follow(C, 7, 100)
    assert subscriptions.cursors(Lane.CATCHING_UP) == {7: 60}
    assert subscriptions.is_for(C, Lane.LIVE, 7, 100)


def test_second_newcomer_sets_the_first_back_without_telling_it_twice() -> None:
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7, 10)
    read(subscriptions, Lane.CATCHING_UP, 7, 50)
    subscriptions.follow(C, 7, 0)
    assert subscriptions.cursors(Lane.CATCHING_UP) == {7: 0}
    assert not subscriptions.is_for(B, Lane.CATCHING_UP, 7, 49)
    assert subscriptions.is_for(B, Lane.CATCHING_UP, 7, 50)
    assert subscriptions.is_for(C, Lane.CATCHING_UP, 7, 49)


def test_before_anybody_is_ready_all_begin_together() -> None:
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7, 30)
    read(subscriptions, Lane.LIVE, 7, 40)
    subscriptions.follow(B, 7, 5)
    assert subscriptions.cursors(Lane.LIVE) == {7: 5}
    assert subscriptions.cursors(Lane.CATCHING_UP) == {}
    assert not subscriptions.is_for(A, Lane.LIVE, 7, 39)
    assert subscriptions.position(A) == 40


def test_last_of_the_live_leaves_and_newcomers_go_on() -> None:
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


def test_census_reads_on_its_own_until_it_has_all() -> None:
    """T-49: a metadata partition that this node leads is read too, for the remover."""
    subscriptions = MetadataSubscriptions()
    inventory = InventoryOf(7)
    subscriptions.follow(inventory, 7)
    assert subscriptions.cursors(Lane.INVENTORY) == {7: 0}
    find_ends(subscriptions, 10)
    read(subscriptions, Lane.INVENTORY, 7, 10)
    assert subscriptions.is_ready(inventory)
    assert subscriptions.cursors(Lane.INVENTORY) == {}
    assert subscriptions.is_for(inventory, Lane.LIVE, 7, 10)


def test_records_cut_away_are_passed_over() -> None:
    """T-44: the topic may have a retention."""
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7, 3)
    find_ends(subscriptions, 20)
    subscriptions.reset(Lane.LIVE, 7, 3, 15, 20)
    assert subscriptions.cursors(Lane.LIVE) == {7: 15}
    read(subscriptions, Lane.LIVE, 7, 20)
    assert subscriptions.is_ready(A)


def test_who_has_gone_on_is_not_taken_for_beyond_the_end_that_was_asked_for_another() -> None:
    """T-44, T-49: while that was asked for a newcomer, more was published, and read."""
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


def test_who_was_set_back_while_the_ends_were_asked_for_stays_there() -> None:
    subscriptions = MetadataSubscriptions()
    subscriptions.follow(A, 7, 30)
    subscriptions.follow(B, 7, 5)
    subscriptions.reset(Lane.LIVE, 7, 30, 0, 20)
    assert subscriptions.cursors(Lane.LIVE) == {7: 5}


def test_a_partition_that_became_shorter_is_read_again() -> None:
    subscriptions = caught_up(A, end=100)
    subscriptions.follow(B, 7, 100)
    subscriptions.reset(Lane.LIVE, 7, 100, 0, 4)
    assert subscriptions.cursors(Lane.LIVE) == {7: 0}
    assert subscriptions.is_for(A, Lane.LIVE, 7, 0)
    assert subscriptions.is_for(B, Lane.LIVE, 7, 0)
    assert subscriptions.is_ready(A)  # what is known of it stays known


def test_another_topic_of_the_name_is_read_from_its_start() -> None:
    subscriptions = caught_up(A, end=100)
    assert not subscriptions.topic_is(UUID(int=8))
    subscriptions.follow(B, 7, 50)
    assert not subscriptions.topic_is(UUID(int=8))
    assert subscriptions.cursors(Lane.CATCHING_UP) == {7: 50}
    assert subscriptions.topic_is(UUID(int=9))
    assert subscriptions.cursors(Lane.LIVE) == {7: 0}
    assert subscriptions.is_for(A, Lane.LIVE, 7, 0)
    assert subscriptions.ends_wanted() == {7: [B]}


def test_what_was_read_of_another_topic_is_not_gone_on_with() -> None:
    """T-47: whichever is known first, the topic that there is, or the one on the disk."""
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
def test_everybody_is_told_each_record_once_and_in_order(data: st.DataObject) -> None:
    """T-49: whoever comes and goes, and however far a read gets, from a snapshot or from the start."""
    subscriptions = MetadataSubscriptions()
    end = 0
    told: dict[Subject, int] = {}  # up to where each was told
    everyone: list[Subject] = [A, B, C, InventoryOf(7)]
    for _ in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["publish", "follow", "forget", "ends", "read", "read"]))
        if action == "publish":
            end += data.draw(st.integers(1, 5))
        elif action == "follow":
            subject = data.draw(st.sampled_from(everyone))
            if subject not in subscriptions:
                start = data.draw(st.integers(0, end))
                subscriptions.follow(subject, 7, start)
                told[subject] = start
        elif action == "forget":
            subject = data.draw(st.sampled_from(everyone))
            subscriptions.forget(subject)
            told.pop(subject, None)
        elif action == "ends":
            find_ends(subscriptions, end)
        else:
            lane = data.draw(st.sampled_from(list(Lane)))
            begun_at = subscriptions.cursors(lane).get(7)
            if begun_at is None:
                continue
            to = data.draw(st.integers(begun_at, max(begun_at, end)))
            for offset in range(begun_at, to):
                for subject in told:
                    if subscriptions.is_for(subject, lane, 7, offset):
                        assert offset == told[subject]
                        told[subject] = offset + 1
            subscriptions.advanced(lane, 7, begun_at, to)
        for subject, reached in told.items():
            assert subscriptions.position(subject) == reached
    find_ends(subscriptions, end)
    for lane in (Lane.INVENTORY, Lane.CATCHING_UP, Lane.LIVE):
        if 7 in subscriptions.cursors(lane):
            begun_at = subscriptions.cursors(lane)[7]
            subscriptions.advanced(lane, 7, begun_at, max(begun_at, end))
    assert all(subscriptions.is_ready(subject) for subject in told)
    assert subscriptions.cursors(Lane.CATCHING_UP) == subscriptions.cursors(Lane.INVENTORY) == {}
