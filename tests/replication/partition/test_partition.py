"""Partition: role changes, watchers, and images that are deferred during a change of the log."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import batches
from odradek.replication.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    UnknownPartition,
)
from odradek.replication.partition.high_watermark import UNCOUNTED_BYTES
from odradek.replication.partition.isr_state import CommittedIsr
from odradek.replication.partition.partition import ACKS_ALL
from odradek.storage.errors import DiskFull
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.partition_log import AppendResult
from tests.replication.partition.replica_of_three import Stand, alone
from tests.support.partition_logs import NOW_MS, TOPIC_ID, batch

SIZE = len(batch())


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_new_leader_assigns_its_epoch(stand: Stand) -> None:
    assert stand.world.log.epochs.entries == (EpochStart(5, 0),)
    stand.append()
    stand.see(leader_epoch=6)
    assert stand.world.log.epochs.entries == (EpochStart(5, 0), EpochStart(6, 1))


def test_only_replica_append_advances_high_watermark(stand: Stand) -> None:
    stand.see(**alone(stand.image), leader_epoch=7)
    assert stand.partition.leader_role is None
    assert stand.world.log.epochs.latest == 7
    stand.partition.watch(stand.described)
    stand.append(ACKS_ALL)
    assert stand.described.bytes == [SIZE]
    assert stand.partition.is_replicated(0, 7)


@pytest.mark.parametrize("has_followers", [False, True])
def test_watcher_receives_readable_bytes(stand: Stand, has_followers: bool) -> None:
    """The size is that of the log: compression by the topic may change that of the producer's batch."""
    if not has_followers:
        stand.see(**alone(stand.image))
    log = stand.world.log
    log.update_config(replace(log.config, compression_type="uncompressed"))
    stand.partition.watch(stand.described, end=has_followers)
    sent = batch(size=5000, compression=1)
    stand.partition.append(sent, acks=1, now_ms=NOW_MS)
    assert stand.described.bytes == [log.size_bytes]
    assert log.size_bytes > 5000 > len(sent)


def test_only_replica_satisfies_min_isr() -> None:
    stand = Stand(min_isr=2)
    stand.see(**alone(stand.image))
    stand.append(ACKS_ALL)


def test_watcher_is_notified_as_followers_fetch(stand: Stand) -> None:
    stand.fetch(2, 0)
    stand.partition.watch(stand.described)
    for _ in range(3):
        stand.append()
    assert stand.described.bytes == []
    stand.fetch(2, 1)
    assert stand.described.bytes == [SIZE]
    stand.fetch(2, 3)
    assert stand.described.bytes == [SIZE, 2 * SIZE]
    assert stand.world.log.high_watermark == 3


@pytest.mark.parametrize("has_followers", [False, True])
def test_flush_messages_delays_high_watermark_until_flush(
    stand: Stand, has_followers: bool
) -> None:
    """Records below the high watermark must survive: for coordinators, acks=all producers and consumers."""
    if not has_followers:
        stand.see(**alone(stand.image))
    log = stand.world.log
    log.update_config(replace(log.config, flush_messages=2))
    stand.partition.watch(stand.described)

    def appended() -> None:
        stand.append()
        if has_followers:
            stand.fetch(2, log.end_offset)

    appended()
    assert (log.high_watermark, stand.world.flush_due) == (1, [])
    appended()
    appended()
    assert (log.high_watermark, stand.world.flush_due) == (1, [2, 3])
    assert not stand.partition.is_replicated(1, 5)
    log.flush(2)
    appended()
    log.flushed()
    assert log.high_watermark == 2
    log.flush()
    log.flushed()
    assert log.high_watermark == 4
    assert sum(stand.described.bytes) == 4 * SIZE


def test_new_leader_with_unflushed_records_requests_flush(stand: Stand) -> None:
    """The records are of an earlier process, or flush.messages was decreased."""
    log = stand.world.log
    stand.see(leader=2, leader_epoch=6)
    log.append_as_leader(batch(3), leader_epoch=6, now_ms=NOW_MS)
    log.update_config(replace(log.config, flush_messages=2))
    assert stand.world.flush_due == [3]
    stand.see(**alone(stand.image), leader=1, leader_epoch=7)
    assert (log.high_watermark, stand.world.flush_due[1:]) == (0, [3])
    assert stand.partition.is_behind_its_epoch
    log.flush()
    log.flushed()
    assert log.high_watermark == 3
    assert not stand.partition.is_behind_its_epoch


def test_removing_other_replicas_advances_and_notifies(stand: Stand) -> None:
    """Otherwise a fetch that waits for one byte would wait until its timeout."""
    stand.fetch(2, 0)
    stand.append()
    stand.partition.watch(stand.described)
    stand.see(**alone(stand.image))
    assert stand.partition.log.high_watermark == 1
    assert sum(stand.described.bytes) >= SIZE
    stand.append()
    assert stand.described.bytes[-1] == SIZE


def test_end_watcher_is_notified_of_appends(stand: Stand) -> None:
    stand.partition.watch(stand.described, end=True)
    stand.append()
    assert stand.described.bytes == [SIZE]
    stand.see(leader=2, leader_epoch=6)
    assert stand.described.interruptions == 1
    stand.partition.unwatch(stand.described)
    stand.see(leader=1, leader_epoch=7)
    stand.append()
    assert stand.described.bytes == [SIZE]


def test_acks_all_completes_when_isr_has_the_record(stand: Stand) -> None:
    offset = stand.append(ACKS_ALL)
    assert not stand.partition.is_replicated(offset, 5)
    stand.fetch(2, offset + 1)
    assert stand.partition.is_replicated(offset, 5)


def test_append_before_another_leader_is_not_acknowledged(stand: Stand) -> None:
    """Another record may be at this offset now, and may be replicated."""
    offset = stand.append(ACKS_ALL)
    stand.see(leader=2, leader_epoch=6)
    with pytest.raises(NotLeader):
        stand.partition.is_replicated(offset, 5)
    stand.see(leader=1, leader_epoch=7, isr=(1,))
    with pytest.raises(NotLeader):
        stand.partition.is_replicated(offset, 5)


def test_leader_after_skipped_epoch_forgets_follower_progress() -> None:
    """Node 2 may have led the skipped epoch with fewer records, so that node 3 truncated its log.

    One metadata delta has both epochs, and node 2 is fenced.
    """
    stand = Stand(isr=(1, 2, 3))
    offset = stand.append(ACKS_ALL)
    stand.fetch(3, offset + 1)
    stand.partition.watch(stand.described)
    stand.see(leader_epoch=7, isr=(1, 3))
    assert stand.described.interruptions == 1
    assert stand.partition.log.high_watermark == 0
    with pytest.raises(NotLeader):
        stand.partition.is_replicated(offset, 5)
    stand.fetch(3, offset + 1)
    assert stand.partition.log.high_watermark == offset + 1


def test_reelected_leader_keeps_pending_appends(stand: Stand) -> None:
    offset = stand.append(ACKS_ALL)
    stand.see(leader_epoch=6)
    assert not stand.partition.is_replicated(offset, 5)
    stand.fetch(2, offset + 1)
    assert stand.partition.is_replicated(offset, 5)


def test_append_under_min_isr_is_rejected() -> None:
    stand = Stand(min_isr=2)
    offset = stand.append(ACKS_ALL)
    stand.fetch(2, offset + 1)
    stand.see(isr=(1,))
    with pytest.raises(NotEnoughReplicas):
        stand.append(ACKS_ALL)
    with pytest.raises(NotEnoughReplicasAfterAppend):
        stand.partition.is_replicated(offset, 5)
    stand.append(1)


def test_committed_duplicate_under_min_isr_is_acknowledged() -> None:
    """Otherwise a producer without the first response would write the batch again in a new epoch."""
    stand = Stand(min_isr=2)

    def send(sequence: int) -> AppendResult:
        sent = batch(producer_id=7, producer_epoch=0, base_sequence=sequence)
        return stand.partition.append(sent, acks=ACKS_ALL, now_ms=NOW_MS)

    committed = send(0)
    stand.fetch(2, 1)
    pending = send(1)
    stand.see(isr=(1,))
    again = send(0)
    assert again.duplicate
    assert (again.first_offset, again.last_offset) == (committed.first_offset, 0)
    for sequence in (1, 2):
        with pytest.raises(NotEnoughReplicas):
            send(sequence)
    assert stand.partition.log.end_offset == pending.last_offset + 1


def test_caught_up_follower_is_proposed_and_joins_isr(stand: Stand) -> None:
    stand.append()
    stand.fetch(3, 1)
    ((topic_id, index, asked, responded),) = stand.proposed
    assert (topic_id, index) == (TOPIC_ID, 0)
    assert asked.isr == ((1, 1), (2, -1), (3, 1))
    responded(CommittedIsr(frozenset({1, 2, 3}), 5, 11))
    assert stand.isr_changed == [1]
    assert stand.partition.leader_role is not None
    assert stand.partition.leader_role.state.isr.committed == {1, 2, 3}
    stand.partition.update(stand.image)  # an earlier image
    assert stand.partition.leader_role.state.isr.committed == {1, 2, 3}


def test_proposal_response_to_former_leader_is_ignored(stand: Stand) -> None:
    stand.fetch(3, 0)
    ((_, _, _, responded),) = stand.proposed
    stand.see(leader=2, leader_epoch=6)
    responded(ErrorCode.request_timed_out)
    stand.see(leader=1, leader_epoch=7)
    responded(CommittedIsr(frozenset({1, 2, 3}), 7, 20))
    assert len(stand.proposed) == 1
    assert stand.partition.leader_role is not None
    assert stand.partition.leader_role.state.isr.committed == {1, 2}


def test_log_start_change_notifies_watchers(stand: Stand) -> None:
    stand.append()
    stand.fetch(2, 1)
    stand.partition.watch(stand.described)
    stand.fetch(2, 1, start_offset=1)
    assert stand.described.bytes == [0]


# Follower


def second() -> memoryview:
    """Return the second batch of a leader, after a batch of one record."""
    (after,) = batches(batch())
    after.stamp(1, 5)
    return after.view


def test_follower_high_watermark_comes_from_leader() -> None:
    stand = Stand(leader=2)
    log, partition = stand.world.log, stand.partition
    partition.watch(stand.described)
    sent = batch()
    log.append_as_follower(sent)
    partition.replicated(0, len(sent))
    assert stand.described.bytes == []
    partition.replicated(1, 0)
    assert log.high_watermark == 1
    log.append_as_follower(second())
    partition.replicated(1, len(sent))
    partition.replicated(9, 0)
    assert log.high_watermark == 2
    assert stand.described.bytes == [UNCOUNTED_BYTES, len(sent)]


def test_leadership_waits_for_running_log_change() -> None:
    stand = Stand(leader=2)
    partition = stand.partition
    partition.watch(stand.described)
    partition.begin_change()
    stand.see(leader=1, leader_epoch=6)
    assert not partition.is_leader
    with pytest.raises(NotLeader):
        stand.append()
    assert partition.end_change()
    assert partition.is_leader
    assert stand.described.interruptions == 1
    assert stand.append() == 0


def test_deferred_image_is_replaced_by_newer_one() -> None:
    stand = Stand(leader=2)
    stand.partition.begin_change()
    stand.see(leader=1, leader_epoch=6)
    stand.see(leader=3, leader_epoch=7)
    assert stand.partition.leader == 3
    assert not stand.partition.end_change()
    assert stand.partition.leader == 3


async def test_wait_unchanged_returns_after_log_change() -> None:
    stand = Stand(leader=2)
    stand.partition.begin_change()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stand.partition.wait_unchanged)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        stand.partition.end_change()
        await trio.testing.wait_all_tasks_blocked()
        assert not nursery.child_tasks


@pytest.mark.parametrize(("isr", "became"), [((1, 2, 3), [1]), ((1,), [])])
def test_image_before_proposal_response_commits_isr(
    stand: Stand, isr: tuple[int, ...], became: list[int]
) -> None:
    """The image comes first if this node is the active controller; the later response is ignored."""
    stand.fetch(2, 0)
    stand.fetch(3, 0)
    ((_, _, _, responded),) = stand.proposed
    image = stand.see(isr=isr)
    assert stand.isr_changed == became
    responded(CommittedIsr(frozenset(isr), 5, image.partition_epoch))
    assert stand.isr_changed == became


def test_rejected_proposal_counts_as_failed(stand: Stand) -> None:
    stand.fetch(2, 0)
    stand.fetch(3, 0)
    ((_, _, _, responded),) = stand.proposed
    responded(ErrorCode.ineligible_replica)
    assert stand.isr_changed == [None]


def test_retired_partition_raises_its_reason(stand: Stand) -> None:
    stand.fetch(3, 0)
    ((_, _, _, responded),) = stand.proposed
    stand.partition.retire(UnknownPartition("deleted"))
    responded(ErrorCode.request_timed_out)
    assert stand.isr_changed == []
    assert len(stand.proposed) == 1
    with pytest.raises(UnknownPartition):
        stand.append()


def test_retired_partition_does_not_become_leader() -> None:
    """Neither a deferred image nor a later one makes it the leader."""
    stand = Stand(leader=2)
    partition = stand.partition
    partition.watch(stand.described)
    partition.begin_change()
    stand.see(leader=1, leader_epoch=6)
    partition.retire(UnknownPartition("deleted"))
    assert not partition.end_change()
    stand.see(leader=1, leader_epoch=7)
    assert not partition.is_leader
    assert partition.leader_role is None
    assert stand.world.log.epochs.latest is None
    assert stand.described.interruptions == 1
    stand.see(leader=3, leader_epoch=8)
    assert partition.leader == 3


@pytest.mark.parametrize(
    ("isr", "min_isr", "expected"),
    [((1, 2, 3), 2, True), ((1, 2), 2, False), ((1, 2), 1, True), ((1,), 1, False)],
)
def test_leader_is_dispensable_with_enough_other_isr_members(
    isr: tuple[int, ...], min_isr: int, expected: bool
) -> None:
    stand = Stand(isr=isr, min_isr=min_isr)
    assert stand.partition.leader_role is not None
    assert stand.partition.leader_role.is_dispensable() is expected


def test_full_disk_of_leader_is_reported() -> None:
    stand = Stand()
    stand.append()
    mount = stand.world.disk.root.mount
    mount.capacity_bytes = mount.used_bytes
    with pytest.raises(DiskFull):
        stand.append()
    assert [log for log, _ in stand.full] == [stand.partition.log]
