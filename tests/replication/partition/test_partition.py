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
from tests.replication.partition.replica_of_three import ReplicaOfThree, alone
from tests.support.partition_logs import NOW_MS, TOPIC_ID, batch

SIZE = len(batch())


@pytest.fixture
def scenario() -> ReplicaOfThree:
    return ReplicaOfThree()


def test_new_leader_assigns_its_epoch(scenario: ReplicaOfThree) -> None:
    assert scenario.world.log.epochs.entries == (EpochStart(5, 0),)
    scenario.append()
    scenario.see(leader_epoch=6)
    assert scenario.world.log.epochs.entries == (EpochStart(5, 0), EpochStart(6, 1))


def test_only_replica_append_advances_high_watermark(scenario: ReplicaOfThree) -> None:
    scenario.see(**alone(scenario.image), leader_epoch=7)
    assert scenario.partition.leader_role is None
    assert scenario.world.log.epochs.latest == 7
    scenario.partition.watch(scenario.described)
    scenario.append(ACKS_ALL)
    assert scenario.described.bytes == [SIZE]
    assert scenario.partition.is_replicated(0, 7)


@pytest.mark.parametrize("has_followers", [False, True])
def test_watcher_receives_readable_bytes(scenario: ReplicaOfThree, has_followers: bool) -> None:
    """The size is that of the log: compression by the topic may change that of the producer's batch."""
    if not has_followers:
        scenario.see(**alone(scenario.image))
    log = scenario.world.log
    log.update_config(replace(log.config, compression_type="uncompressed"))
    scenario.partition.watch(scenario.described, end=has_followers)
    sent = batch(size=5000, compression=1)
    scenario.partition.append(sent, acks=1, now_ms=NOW_MS)
    assert scenario.described.bytes == [log.size_bytes]
    assert log.size_bytes > 5000 > len(sent)


def test_only_replica_satisfies_min_isr() -> None:
    scenario = ReplicaOfThree(min_isr=2)
    scenario.see(**alone(scenario.image))
    scenario.append(ACKS_ALL)


def test_watcher_is_notified_as_followers_fetch(scenario: ReplicaOfThree) -> None:
    scenario.fetch(2, 0)
    scenario.partition.watch(scenario.described)
    for _ in range(3):
        scenario.append()
    assert scenario.described.bytes == []
    scenario.fetch(2, 1)
    assert scenario.described.bytes == [SIZE]
    scenario.fetch(2, 3)
    assert scenario.described.bytes == [SIZE, 2 * SIZE]
    assert scenario.world.log.high_watermark == 3


@pytest.mark.parametrize("has_followers", [False, True])
def test_flush_messages_delays_high_watermark_until_flush(
    scenario: ReplicaOfThree, has_followers: bool
) -> None:
    """Records below the high watermark must survive: for coordinators, acks=all producers and consumers."""
    if not has_followers:
        scenario.see(**alone(scenario.image))
    log = scenario.world.log
    log.update_config(replace(log.config, flush_messages=2))
    scenario.partition.watch(scenario.described)

    def appended() -> None:
        scenario.append()
        if has_followers:
            scenario.fetch(2, log.end_offset)

    appended()
    assert (log.high_watermark, scenario.world.flush_due) == (1, [])
    appended()
    appended()
    assert (log.high_watermark, scenario.world.flush_due) == (1, [2, 3])
    assert not scenario.partition.is_replicated(1, 5)
    log.flush(2)
    appended()
    log.flushed()
    assert log.high_watermark == 2
    log.flush()
    log.flushed()
    assert log.high_watermark == 4
    assert sum(scenario.described.bytes) == 4 * SIZE


def test_new_leader_with_unflushed_records_requests_flush(scenario: ReplicaOfThree) -> None:
    """The records are of an earlier process, or flush.messages was decreased."""
    log = scenario.world.log
    scenario.see(leader=2, leader_epoch=6)
    log.append_as_leader(batch(3), leader_epoch=6, now_ms=NOW_MS)
    log.update_config(replace(log.config, flush_messages=2))
    assert scenario.world.flush_due == [3]
    scenario.see(**alone(scenario.image), leader=1, leader_epoch=7)
    assert (log.high_watermark, scenario.world.flush_due[1:]) == (0, [3])
    assert scenario.partition.is_behind_its_epoch
    log.flush()
    log.flushed()
    assert log.high_watermark == 3
    assert not scenario.partition.is_behind_its_epoch


def test_removing_other_replicas_advances_and_notifies(scenario: ReplicaOfThree) -> None:
    """Otherwise a fetch that waits for one byte would wait until its timeout."""
    scenario.fetch(2, 0)
    scenario.append()
    scenario.partition.watch(scenario.described)
    scenario.see(**alone(scenario.image))
    assert scenario.partition.log.high_watermark == 1
    assert sum(scenario.described.bytes) >= SIZE
    scenario.append()
    assert scenario.described.bytes[-1] == SIZE


def test_end_watcher_is_notified_of_appends(scenario: ReplicaOfThree) -> None:
    scenario.partition.watch(scenario.described, end=True)
    scenario.append()
    assert scenario.described.bytes == [SIZE]
    scenario.see(leader=2, leader_epoch=6)
    assert scenario.described.interruptions == 1
    scenario.partition.unwatch(scenario.described)
    scenario.see(leader=1, leader_epoch=7)
    scenario.append()
    assert scenario.described.bytes == [SIZE]


def test_acks_all_completes_when_isr_has_the_record(scenario: ReplicaOfThree) -> None:
    offset = scenario.append(ACKS_ALL)
    assert not scenario.partition.is_replicated(offset, 5)
    scenario.fetch(2, offset + 1)
    assert scenario.partition.is_replicated(offset, 5)


def test_append_before_another_leader_is_not_acknowledged(scenario: ReplicaOfThree) -> None:
    """Another record may be at this offset now, and may be replicated."""
    offset = scenario.append(ACKS_ALL)
    scenario.see(leader=2, leader_epoch=6)
    with pytest.raises(NotLeader):
        scenario.partition.is_replicated(offset, 5)
    scenario.see(leader=1, leader_epoch=7, isr=(1,))
    with pytest.raises(NotLeader):
        scenario.partition.is_replicated(offset, 5)


def test_leader_after_skipped_epoch_forgets_follower_progress() -> None:
    """Node 2 may have led the skipped epoch with fewer records, so that node 3 truncated its log.

    One metadata delta has both epochs, and node 2 is fenced.
    """
    scenario = ReplicaOfThree(isr=(1, 2, 3))
    offset = scenario.append(ACKS_ALL)
    scenario.fetch(3, offset + 1)
    scenario.partition.watch(scenario.described)
    scenario.see(leader_epoch=7, isr=(1, 3))
    assert scenario.described.interruptions == 1
    assert scenario.partition.log.high_watermark == 0
    with pytest.raises(NotLeader):
        scenario.partition.is_replicated(offset, 5)
    scenario.fetch(3, offset + 1)
    assert scenario.partition.log.high_watermark == offset + 1


def test_reelected_leader_keeps_pending_appends(scenario: ReplicaOfThree) -> None:
    offset = scenario.append(ACKS_ALL)
    scenario.see(leader_epoch=6)
    assert not scenario.partition.is_replicated(offset, 5)
    scenario.fetch(2, offset + 1)
    assert scenario.partition.is_replicated(offset, 5)


def test_append_under_min_isr_is_rejected() -> None:
    scenario = ReplicaOfThree(min_isr=2)
    offset = scenario.append(ACKS_ALL)
    scenario.fetch(2, offset + 1)
    scenario.see(isr=(1,))
    with pytest.raises(NotEnoughReplicas):
        scenario.append(ACKS_ALL)
    with pytest.raises(NotEnoughReplicasAfterAppend):
        scenario.partition.is_replicated(offset, 5)
    scenario.append(1)


def test_committed_duplicate_under_min_isr_is_acknowledged() -> None:
    """Otherwise a producer without the first response would write the batch again in a new epoch."""
    scenario = ReplicaOfThree(min_isr=2)

    def send(sequence: int) -> AppendResult:
        sent = batch(producer_id=7, producer_epoch=0, base_sequence=sequence)
        return scenario.partition.append(sent, acks=ACKS_ALL, now_ms=NOW_MS)

    committed = send(0)
    scenario.fetch(2, 1)
    pending = send(1)
    scenario.see(isr=(1,))
    again = send(0)
    assert again.duplicate
    assert (again.first_offset, again.last_offset) == (committed.first_offset, 0)
    for sequence in (1, 2):
        with pytest.raises(NotEnoughReplicas):
            send(sequence)
    assert scenario.partition.log.end_offset == pending.last_offset + 1


def test_caught_up_follower_is_proposed_and_joins_isr(scenario: ReplicaOfThree) -> None:
    scenario.append()
    scenario.fetch(3, 1)
    ((topic_id, index, asked, responded),) = scenario.proposed
    assert (topic_id, index) == (TOPIC_ID, 0)
    assert asked.isr == ((1, 1), (2, -1), (3, 1))
    responded(CommittedIsr(frozenset({1, 2, 3}), 5, 11))
    assert scenario.isr_changed == [1]
    assert scenario.partition.leader_role is not None
    assert scenario.partition.leader_role.state.isr.committed == {1, 2, 3}
    scenario.partition.update(scenario.image)  # an earlier image
    assert scenario.partition.leader_role.state.isr.committed == {1, 2, 3}


def test_proposal_response_to_former_leader_is_ignored(scenario: ReplicaOfThree) -> None:
    scenario.fetch(3, 0)
    ((_, _, _, responded),) = scenario.proposed
    scenario.see(leader=2, leader_epoch=6)
    responded(ErrorCode.request_timed_out)
    scenario.see(leader=1, leader_epoch=7)
    responded(CommittedIsr(frozenset({1, 2, 3}), 7, 20))
    assert len(scenario.proposed) == 1
    assert scenario.partition.leader_role is not None
    assert scenario.partition.leader_role.state.isr.committed == {1, 2}


def test_log_start_change_notifies_watchers(scenario: ReplicaOfThree) -> None:
    scenario.append()
    scenario.fetch(2, 1)
    scenario.partition.watch(scenario.described)
    scenario.fetch(2, 1, start_offset=1)
    assert scenario.described.bytes == [0]


# Follower


def second() -> memoryview:
    """Return the second batch of a leader, after a batch of one record."""
    (after,) = batches(batch())
    after.stamp(1, 5)
    return after.view


def test_follower_high_watermark_comes_from_leader() -> None:
    scenario = ReplicaOfThree(leader=2)
    log, partition = scenario.world.log, scenario.partition
    partition.watch(scenario.described)
    sent = batch()
    log.append_as_follower(sent)
    partition.replicated(0, len(sent))
    assert scenario.described.bytes == []
    partition.replicated(1, 0)
    assert log.high_watermark == 1
    log.append_as_follower(second())
    partition.replicated(1, len(sent))
    partition.replicated(9, 0)
    assert log.high_watermark == 2
    assert scenario.described.bytes == [UNCOUNTED_BYTES, len(sent)]


def test_leadership_waits_for_running_log_change() -> None:
    scenario = ReplicaOfThree(leader=2)
    partition = scenario.partition
    partition.watch(scenario.described)
    partition.begin_change()
    scenario.see(leader=1, leader_epoch=6)
    assert not partition.is_leader
    with pytest.raises(NotLeader):
        scenario.append()
    assert partition.end_change()
    assert partition.is_leader
    assert scenario.described.interruptions == 1
    assert scenario.append() == 0


def test_deferred_image_is_replaced_by_newer_one() -> None:
    scenario = ReplicaOfThree(leader=2)
    scenario.partition.begin_change()
    scenario.see(leader=1, leader_epoch=6)
    scenario.see(leader=3, leader_epoch=7)
    assert scenario.partition.leader == 3
    assert not scenario.partition.end_change()
    assert scenario.partition.leader == 3


async def test_wait_unchanged_returns_after_log_change() -> None:
    scenario = ReplicaOfThree(leader=2)
    scenario.partition.begin_change()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scenario.partition.wait_unchanged)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        scenario.partition.end_change()
        await trio.testing.wait_all_tasks_blocked()
        assert not nursery.child_tasks


@pytest.mark.parametrize(("isr", "became"), [((1, 2, 3), [1]), ((1,), [])])
def test_image_before_proposal_response_commits_isr(
    scenario: ReplicaOfThree, isr: tuple[int, ...], became: list[int]
) -> None:
    """The image comes first if this node is the active controller; the later response is ignored."""
    scenario.fetch(2, 0)
    scenario.fetch(3, 0)
    ((_, _, _, responded),) = scenario.proposed
    image = scenario.see(isr=isr)
    assert scenario.isr_changed == became
    responded(CommittedIsr(frozenset(isr), 5, image.partition_epoch))
    assert scenario.isr_changed == became


def test_rejected_proposal_counts_as_failed(scenario: ReplicaOfThree) -> None:
    scenario.fetch(2, 0)
    scenario.fetch(3, 0)
    ((_, _, _, responded),) = scenario.proposed
    responded(ErrorCode.ineligible_replica)
    assert scenario.isr_changed == [None]


def test_retired_partition_raises_its_reason(scenario: ReplicaOfThree) -> None:
    scenario.fetch(3, 0)
    ((_, _, _, responded),) = scenario.proposed
    scenario.partition.retire(UnknownPartition("deleted"))
    responded(ErrorCode.request_timed_out)
    assert scenario.isr_changed == []
    assert len(scenario.proposed) == 1
    with pytest.raises(UnknownPartition):
        scenario.append()


def test_retired_partition_does_not_become_leader() -> None:
    """Neither a deferred image nor a later one makes it the leader."""
    scenario = ReplicaOfThree(leader=2)
    partition = scenario.partition
    partition.watch(scenario.described)
    partition.begin_change()
    scenario.see(leader=1, leader_epoch=6)
    partition.retire(UnknownPartition("deleted"))
    assert not partition.end_change()
    scenario.see(leader=1, leader_epoch=7)
    assert not partition.is_leader
    assert partition.leader_role is None
    assert scenario.world.log.epochs.latest is None
    assert scenario.described.interruptions == 1
    scenario.see(leader=3, leader_epoch=8)
    assert partition.leader == 3


@pytest.mark.parametrize(
    ("isr", "min_isr", "expected"),
    [((1, 2, 3), 2, True), ((1, 2), 2, False), ((1, 2), 1, True), ((1,), 1, False)],
)
def test_leader_is_dispensable_with_enough_other_isr_members(
    isr: tuple[int, ...], min_isr: int, expected: bool
) -> None:
    scenario = ReplicaOfThree(isr=isr, min_isr=min_isr)
    assert scenario.partition.leader_role is not None
    assert scenario.partition.leader_role.is_dispensable() is expected


def test_full_disk_of_leader_is_reported() -> None:
    scenario = ReplicaOfThree()
    scenario.append()
    mount = scenario.world.disk.root.mount
    mount.capacity_bytes = mount.used_bytes
    with pytest.raises(DiskFull):
        scenario.append()
    assert [log for log, _ in scenario.full] == [scenario.partition.log]
