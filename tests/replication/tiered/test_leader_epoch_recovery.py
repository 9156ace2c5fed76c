"""Leader epochs of offsets that are only in the remote tier, restored after the local checkpoint was lost."""

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
from tests.replication.tiered.remote_tier_in_memory import Tier, leave_the_disk, partition_of
from tests.support.partition_logs import FOREVER, LogWorld, batch

TIERED = replace(FOREVER, remote_storage_enable=True)


def filled(tier: Tier, *segments: str, local: str = "") -> LogWorld:
    """Create a log with a tiered segment per text, and a record per digit, which is its leader epoch."""
    world = LogWorld(TIERED)
    for epochs in segments:
        write(world, epochs)
        world.log.roll()
    world.log.advance_high_watermark(world.log.end_offset)
    tier.copy(world.log)
    leave_the_disk(world.log)
    write(world, local)
    return world


def write(world: LogWorld, epochs: str) -> None:
    for each in epochs:
        world.append(batch(), epoch=int(each))


def forget(world: LogWorld, *, but_from: int) -> None:
    """Drop the epochs before an offset, as a start without checkpoint does."""
    log = world.log
    log.epochs.restore(log.epochs.entries_in(but_from, log.end_offset))


def restored(world: LogWorld, tier: Tier) -> dict[int, int]:
    virtual = VirtualWorld(1)
    histories = LeaderEpochRecovery(tier.metadata, tier.storage, virtual.node("a").seams.offload)
    log = world.log
    virtual.run(lambda: histories.restore(log, partition_of(log)))
    return {each.epoch: each.start_offset for each in log.epochs.entries}


def test_complete_log_lacks_no_leader_epochs() -> None:
    world = filled(Tier(), "00", "01", local="1")
    assert not lacks_leader_epochs(world.log)
    forget(world, but_from=4)
    assert lacks_leader_epochs(world.log)
    world.log.advance_log_start(4, "test")
    assert not lacks_leader_epochs(world.log)


def test_epochs_are_restored_from_a_segment_of_the_first_local_epoch() -> None:
    tier = Tier()
    world = filled(tier, "00", "01", "12", local="23")
    known = world.log.epochs.entries
    forget(world, but_from=6)
    assert restored(world, tier) == {0: 0, 1: 3, 2: 5, 3: 7}
    assert world.log.epochs.entries == known
    assert world.kill().epochs.entries == known  # durable


def test_restored_epochs_begin_at_log_start_offset() -> None:
    tier = Tier()
    world = filled(tier, "00", "01", "12", local="23")
    world.log.advance_log_start(4, "test")
    forget(world, but_from=6)
    assert restored(world, tier) == {1: 4, 2: 5, 3: 7}


def test_epochs_are_restored_from_the_segment_before_the_local_log() -> None:
    tier = Tier()
    world = filled(tier, "00", "01", local="23")
    forget(world, but_from=4)
    assert restored(world, tier) == {0: 0, 1: 3, 2: 4, 3: 5}


def test_log_without_local_epochs_uses_the_last_segment() -> None:
    tier = Tier()
    world = filled(tier, "00", "01")
    world.log.epochs.clear()
    assert restored(world, tier) == {0: 0, 1: 3}


def test_segment_of_unclean_leader_is_not_used() -> None:
    """E15: the log has epochs 0 and 2. Another replica copied offsets 2 to 5 of epoch 1."""
    tier = Tier()
    world = filled(tier, "0000", "02", local="2")
    other = LogWorld(TIERED)
    other.log.topic_id = world.log.topic_id
    write(other, "00")
    other.log.roll()
    write(other, "1111")
    other.log.roll()
    other.log.advance_high_watermark(6)
    tier.copy(other.log)
    forget(world, but_from=6)
    assert restored(world, tier) == {0: 0, 2: 5}


def test_epochs_that_the_tier_does_not_have_stay_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """The segment expired, and a kill preceded the checkpoint of the log start offset: nothing is lost."""
    tier = Tier()
    world = filled(tier, "00", local="1")
    forget(world, but_from=2)
    tier.metadata.stop_partitions([partition_of(world.log)])
    tier.metadata.topic.events.clear()
    tier.announce(world.log)
    assert restored(world, tier) == {1: 2}
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
    later = LogWorld(TIERED)
    later.log.topic_id = world.log.topic_id
    write(later, "22")
    later.log.roll()
    later.log.advance_high_watermark(2)
    tier.copy(later.log)  # a segment of an unknown lineage
    assert restored(world, tier) == {1: 2}
    assert [each.levelname for each in caplog.records if each.levelname == "ERROR"] == ["ERROR"]


def test_unavailable_store_changes_nothing() -> None:
    tier = Tier()
    world = filled(tier, "00", local="1")
    forget(world, but_from=2)
    tier.storage.failing = RemoteStorageUnavailable("away")
    with pytest.raises(RemoteStorageError):
        restored(world, tier)
    assert world.log.epochs.entries == (EpochStart(1, 2),)


def test_segment_without_checkpoint_is_skipped() -> None:
    tier = Tier()
    world = filled(tier, "00", "01", "12", "2", local="23")
    known = world.log.epochs.entries
    forget(world, but_from=7)
    of_the_epoch = [each.id for each in tier.metadata.segments(partition_of(world.log), 2)]
    assert len(of_the_epoch) == 2
    del tier.storage.indexes[of_the_epoch[0], IndexType.LEADER_EPOCH]
    restored(world, tier)
    assert world.log.epochs.entries == known


def test_log_is_unchanged_if_no_checkpoint_can_be_read() -> None:
    """Otherwise the log would start at its local log start offset, and earlier segments would be deleted."""
    tier = Tier()
    world = filled(tier, "00", local="1")
    forget(world, but_from=2)
    tier.storage.indexes.clear()
    with pytest.raises(RemoteResourceNotFound):
        restored(world, tier)
    assert lacks_leader_epochs(world.log)
