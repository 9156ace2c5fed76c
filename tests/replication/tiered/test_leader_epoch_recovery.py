"""Leader epochs of what left the disk, found again in the remote tier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek.replication.tiered.leader_epoch_recovery import (
    LeaderEpochRecovery,
    lacks_leader_epochs,
)
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.errors import (
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.testing.virtual_world import VirtualWorld
from tests.replication.tiered.tier import Tier, leave_the_disk, partition_of
from tests.support.partition_logs import FOREVER, World, batch

TIERED = replace(FOREVER, remote_storage_enable=True)


def filled(tier: Tier, *segments: str, local: str = "") -> World:
    """A segment for each text, which leaves the disk, with a record for each digit: its leader epoch."""
    world = World(TIERED)
    for epochs in segments:
        write(world, epochs)
        world.log.roll()
    world.log.advance_high_watermark(world.log.end_offset)
    tier.copy(world.log)
    leave_the_disk(world.log)
    write(world, local)
    return world


def write(world: World, epochs: str) -> None:
    for each in epochs:
        world.append(batch(), epoch=int(each))


def forget(world: World, *, but_from: int) -> None:
    """As a start that finds no checkpoint, and what is on the disk."""
    log = world.log
    log.epochs.restore(log.epochs.entries_in(but_from, log.end_offset))


def restored(world: World, tier: Tier) -> dict[int, int]:
    virtual = VirtualWorld(1)
    histories = LeaderEpochRecovery(tier.metadata, tier.storage, virtual.node("a").seams.offload)
    log = world.log
    virtual.run(lambda: histories.restore(log, partition_of(log)))
    return {each.epoch: each.start_offset for each in log.epochs.entries}


def test_a_log_that_is_all_there_lacks_nothing() -> None:
    world = filled(Tier(), "00", "01", local="1")
    assert not lacks_leader_epochs(world.log)
    forget(world, but_from=4)
    assert lacks_leader_epochs(world.log)
    world.log.advance_log_start(4, "test")
    assert not lacks_leader_epochs(world.log)


def test_it_is_that_of_a_segment_of_the_first_epoch_on_the_disk() -> None:
    tier = Tier()
    world = filled(tier, "00", "01", "12", local="23")
    known = world.log.epochs.entries
    forget(world, but_from=6)
    assert restored(world, tier) == {0: 0, 1: 3, 2: 5, 3: 7}
    assert world.log.epochs.entries == known
    assert world.kill().epochs.entries == known  # it is durable


def test_it_begins_where_the_log_does() -> None:
    tier = Tier()
    world = filled(tier, "00", "01", "12", local="23")
    world.log.advance_log_start(4, "test")
    forget(world, but_from=6)
    assert restored(world, tier) == {1: 4, 2: 5, 3: 7}


def test_of_another_epoch_than_the_disks_it_is_that_of_the_segment_before() -> None:
    tier = Tier()
    world = filled(tier, "00", "01", local="23")
    forget(world, but_from=4)
    assert restored(world, tier) == {0: 0, 1: 3, 2: 4, 3: 5}


def test_where_nothing_is_on_the_disk_it_is_the_last_one() -> None:
    tier = Tier()
    world = filled(tier, "00", "01")
    world.log.epochs.clear()
    assert restored(world, tier) == {0: 0, 1: 3}


def test_an_unclean_leaders_segment_is_not_taken_for_the_logs_own() -> None:
    """E15: epochs 0 and 2 are the log's, and 1 was another's, who copied offsets 2 to 5."""
    tier = Tier()
    world = filled(tier, "0000", "02", local="2")
    other = World(TIERED)
    other.log.topic_id = world.log.topic_id
    write(other, "00")
    other.log.roll()
    write(other, "1111")
    other.log.roll()
    other.log.advance_high_watermark(6)
    tier.copy(other.log)
    forget(world, but_from=6)
    assert restored(world, tier) == {0: 0, 2: 5}


def test_what_the_tier_does_not_have_stays_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """It has expired, and a kill came before the log's start was in its checkpoint: nothing is lost."""
    tier = Tier()
    world = filled(tier, "00", local="1")
    forget(world, but_from=2)
    tier.metadata.stop_partitions([partition_of(world.log)])
    tier.metadata.topic.events.clear()
    tier.announce(world.log)
    assert restored(world, tier) == {1: 2}
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
    later = World(TIERED)
    later.log.topic_id = world.log.topic_id
    write(later, "22")
    later.log.roll()
    later.log.advance_high_watermark(2)
    tier.copy(later.log)  # something is there, and nobody knows whose
    assert restored(world, tier) == {1: 2}
    assert [each.levelname for each in caplog.records if each.levelname == "ERROR"] == ["ERROR"]


def test_a_store_that_is_away_changes_nothing() -> None:
    tier = Tier()
    world = filled(tier, "00", local="1")
    forget(world, but_from=2)
    tier.storage.failing = RemoteStorageUnavailable("away")
    with pytest.raises(RemoteStorageError):
        restored(world, tier)
    assert world.log.epochs.entries == (EpochStart(1, 2),)


def test_a_copy_without_its_history_is_passed_over() -> None:
    tier = Tier()
    world = filled(tier, "00", "01", "12", "2", local="23")
    known = world.log.epochs.entries
    forget(world, but_from=7)
    of_the_epoch = [each.id for each in tier.metadata.segments(partition_of(world.log), 2)]
    assert len(of_the_epoch) == 2
    del tier.storage.indexes[of_the_epoch[0], IndexType.LEADER_EPOCH]
    restored(world, tier)
    assert world.log.epochs.entries == known


def test_where_none_can_be_read_nothing_is_given_up() -> None:
    """Else the log would begin on the disk, and what lies before be deleted."""
    tier = Tier()
    world = filled(tier, "00", local="1")
    forget(world, but_from=2)
    tier.storage.indexes.clear()
    with pytest.raises(RemoteResourceNotFound):
        restored(world, tier)
    assert lacks_leader_epochs(world.log)
