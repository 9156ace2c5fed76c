"""A follower of a log that starts in the remote tier: the auxiliary state that it reads, and its first fetch offset.

The scenarios are those of followers in KIP-405 (Kafka's TierStateMachine).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
import trio

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import PartitionImage
from odradek.replication.partition.follower_state import BuildRemoteLogAuxState
from odradek.replication.tiered.auxiliary_state import READING_S, AuxiliaryState, history
from odradek.seams import Seams
from odradek.storage.log.leader_epoch_cache import EpochStart, format_checkpoint
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteNotReady,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.remote_storage_manager import IndexType
from tests.replication.tiered.remote_tier_in_memory import Tier, leave_the_disk, partition_of
from tests.support.partition_logs import idempotent
from tests.support.remote_segments import segment
from tests.support.replica_fetching import (
    FOLLOWER,
    SMALL,
    FollowerWithLeaders,
    LeaderPartition,
    is_same,
)

A = (UUID(int=1), 0)
TIERED = replace(SMALL, internal_segment_bytes=1 << 20, remote_storage_enable=True)
PRODUCER = 7


class TieredStand(FollowerWithLeaders):
    """Broker 1 leads a tiered log. `lead` takes the leader epochs of its records, by segment."""

    def __init__(self) -> None:
        self.tier = Tier()
        self.built: list[bool] = []
        """Whether each attempt failed."""
        self.after_building: Callable[[], None] = lambda: None
        super().__init__(config=TIERED, tier=self._auxiliary)

    def _auxiliary(self, seams: Seams) -> AuxiliaryState:
        return AuxiliaryState(
            self.tier.metadata,
            self.tier.storage,
            seams.offload,
            on_built=self._on_built,
        )

    def _on_built(self, topic: str, failed: bool) -> None:
        self.built.append(failed)
        self.after_building()

    def lead(self, broker: int, *segments: str, local: int = 1) -> LeaderPartition:
        """Create a log with a segment per text, and a record per digit, which is its leader epoch.

        All segments but the last are copied. The last `local` segments are on the local disk.
        """
        led = self.broker(broker).lead(A, int(segments[0][0]), config=TIERED)
        copied = len(segments) - local
        for number, epochs in enumerate(segments):
            write(led.log, epochs)
            if number + 1 < len(segments):
                led.log.roll()
            if number + 1 == copied:
                led.commit()
                self.tier.copy(led.log)
                leave_the_disk(led.log)
        led.leader_epoch = int(segments[-1][-1])
        led.commit()
        self.tier.copy(led.log)
        return led


def write(log: PartitionLog, epochs: str) -> None:
    """Append a record per digit, all of one producer."""
    for digit in epochs:
        log.append_as_leader(
            idempotent(PRODUCER, log.end_offset, size=30),
            leader_epoch=int(digit),
            now_ms=log.clock.wall_ms(),
        )


def epochs_of(log: PartitionLog) -> dict[int, int]:
    return {each.epoch: each.start_offset for each in log.epochs.entries}


def last_sequence(log: PartitionLog) -> int:
    entry = log.producers.get(PRODUCER)
    assert entry is not None
    return entry.last_sequence


def fetched_from(led: LeaderPartition) -> int:
    """First fetch offset at which the leader had records."""
    return led.asked[0]


def test_new_follower_starts_at_local_log_start_of_leader() -> None:
    """T-58, T-42, T-40, E13: leader epochs 0 to 3, local log start offset 3."""
    stand = TieredStand()
    led = stand.lead(1, "000", "112", "23", local=2)
    assert (led.log.log_start_offset, led.log.local_log_start_offset) == (0, 3)

    async def test() -> None:
        log = await stand.follow(A, 1, 3)
        await stand.until(lambda: is_same(log, led.log))
        assert fetched_from(led) == 3
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 3)
        assert epochs_of(log) == {0: 0, 1: 3, 2: 5, 3: 7}
        assert last_sequence(log) == 7
        assert stand.built == [False]
        asked = stand.brokers[1].asked_for
        located = ["ListOffsets", "ListOffsets", "OffsetForLeaderEpoch"]
        assert [each for each in asked if each != "Fetch"] == located

    stand.run(test)


def test_follower_offsets_after_building_auxiliary_state() -> None:
    """E13: log start offset 0; local log start offset, log end offset and high watermark 5. E14: it then fetches."""
    stand = TieredStand()
    led = stand.lead(1, "00111", "2222")

    def refuse() -> None:
        led.error = ErrorCode.unknown_server_error

    async def test() -> None:
        stand.after_building = refuse
        log = await stand.follow(A, 1, 2)
        await stand.until(lambda: log.local_log_start_offset == 5)
        assert (log.log_start_offset, log.high_watermark) == (0, 5)
        assert log.end_offset == 5
        assert epochs_of(log) == {0: 0, 1: 2}
        led.error = None
        await stand.until(lambda: is_same(log, led.log))
        assert log.end_offset == 9

    stand.run(test)


def test_offset_out_of_range_leads_to_log_start_then_remote_tier() -> None:
    """E14: the leader has log start offset 5, local log start offset 7 and log end offset 11."""
    stand = TieredStand()
    led = stand.lead(1, "0000", "000", "0000")
    assert led.log.local_log_start_offset == 7
    led.log.advance_log_start(5, "test")

    async def test() -> None:
        log = await stand.follow(A, 1, 0)
        await stand.until(lambda: is_same(log, led.log))
        assert fetched_from(led) == 7
        assert (log.log_start_offset, log.local_log_start_offset, log.end_offset) == (5, 7, 11)
        assert epochs_of(log) == {0: 5}

    stand.run(test)


def test_follower_behind_local_log_start_is_truncated_fully() -> None:
    """T-59: its log end offset is 4, and the local log start offset of the leader is 9."""
    stand = TieredStand()
    led = stand.lead(1, "000", "112", "233", "333")

    async def test() -> None:
        log = await stand.replica(A)
        write(log, "0001")
        await stand.follow(A, 1, 3)
        await stand.until(lambda: is_same(log, led.log))
        assert fetched_from(led) == 9
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 9)
        assert epochs_of(log) == {0: 0, 1: 3, 2: 5, 3: 7}
        assert last_sequence(log) == 11

    stand.run(test)


def test_follower_overlapping_the_local_log_only_truncates() -> None:
    """T-43: it has offsets 0 to 3 of epochs 0 and 1, which are all in the local log of the leader."""
    stand = TieredStand()
    led = stand.lead(1, "000", "112", "2333", local=3)
    assert led.log.local_log_start_offset == 0

    async def test() -> None:
        log = await stand.replica(A)
        write(log, "0001")
        await stand.follow(A, 1, 3)
        await stand.until(lambda: is_same(log, led.log))
        assert fetched_from(led) == 4
        assert stand.built == []

    stand.run(test)


def test_unclean_election_takes_epochs_of_the_leader() -> None:
    """T-61: the tier has offsets 0 to 3 twice: of epoch 0, and of epochs 0 and 1.

    The leader has the epochs {0: 0, 2: 5} and the local log start offset 6.
    """
    stand = TieredStand()
    led = stand.lead(1, "0000", "02", "2")

    async def test() -> None:
        log = await stand.replica(A)
        write(log, "00")
        log.roll()
        write(log, "11")
        log.roll()
        write(log, "1")
        log.advance_high_watermark(5)
        stand.tier.copy(log)  # it led in epoch 1
        await stand.follow(A, 1, 2)
        await stand.until(lambda: is_same(log, led.log))
        assert fetched_from(led) == 6
        assert epochs_of(log) == {0: 0, 2: 5}
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 6)

    stand.run(test)


def test_follower_after_double_crash_takes_epochs_of_the_leader() -> None:
    """T-60: the follower takes offset 1 of epoch 1, although the tier also has offset 1 of epoch 0."""
    stand = TieredStand()
    led = stand.lead(1, "0", "11", "2")

    async def test() -> None:
        log = await stand.replica(A)
        write(log, "00")
        log.roll()
        write(log, "0")
        log.advance_high_watermark(3)
        stand.tier.copy(log)  # seg-0-1 of epoch 0
        await stand.follow(A, 1, 2)
        await stand.until(lambda: is_same(log, led.log))
        assert epochs_of(log) == {0: 0, 1: 1, 2: 3}
        at = stand.tier.metadata.segment_for(partition_of(log), 1, 1)
        assert at is not None
        assert at.start_offset == 1
        old = stand.tier.metadata.segment_for(partition_of(log), 0, 1)
        assert old is not None
        assert old.start_offset == 0

    stand.run(test)


def test_auxiliary_state_is_restored_after_restart() -> None:
    """Leader epochs, producer state and log start offset from the tier are durable."""
    stand = TieredStand()
    led = stand.lead(1, "000", "112", "23")
    led.log.advance_log_start(1, "test")

    async def test() -> None:
        log = await stand.follow(A, 1, 3)
        await stand.until(lambda: is_same(log, led.log))

    stand.run(test)

    async def again() -> None:
        stand.partitions.clear()
        log = await stand.replica(A)
        assert (log.log_start_offset, log.local_log_start_offset, log.end_offset) == (1, 6, 8)
        assert epochs_of(log) == {0: 1, 1: 3, 2: 5, 3: 7}
        assert last_sequence(log) == 7
        await stand.follow(A, 1, 3)
        write(led.log, "3")
        led.commit()
        await stand.until(lambda: is_same(log, led.log))
        assert stand.built == [False]

    stand.run(again)


@pytest.mark.parametrize(
    "trouble", ["not ready", "not there", "store away", "corrupt epochs", "corrupt producers"]
)
def test_failed_tier_read_is_retried_and_keeps_the_log(
    trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    stand = TieredStand()
    led = stand.lead(1, "000", "112", "23")
    storage, metadata = stand.tier.storage, stand.tier.metadata
    partition = partition_of(led.log)
    events = list(metadata.topic.events)
    indexes = dict(storage.indexes)
    match trouble:
        case "not ready":
            metadata.stop_partitions([partition])
        case "not there":
            metadata.stop_partitions([partition])
            metadata.topic.events.clear()
            metadata.partitions_changed([partition], [])
        case "store away":
            storage.failing = RemoteStorageUnavailable("away")
        case _:
            kind = {"epochs": IndexType.LEADER_EPOCH, "producers": IndexType.PRODUCER_SNAPSHOT}[
                trouble.split()[1]
            ]
            storage.indexes = {
                key: b"garbage" if key[1] is kind else data for key, data in indexes.items()
            }

    async def test() -> None:
        log = await stand.replica(A)
        write(log, "00")
        await stand.follow(A, 1, 3)
        await stand.clock.run_for(1)
        assert log.end_offset == 2
        assert log.failure is None
        assert len(stand.built) in range(4, 12)  # it backs off
        assert all(stand.built)
        storage.failing, storage.indexes = None, indexes
        metadata.topic.events[:] = events
        metadata.stop_partitions([partition])
        metadata.partitions_changed([partition], [])
        await stand.until(lambda: is_same(log, led.log))

    stand.run(test)
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert any("Could not build remote log auxiliary state" in text for text in warned) == (
        trouble != "not ready"
    )


def test_follower_waits_for_metadata_that_is_being_read() -> None:
    stand = TieredStand()
    led = stand.lead(1, "000", "112", "23")
    metadata, partition = stand.tier.metadata, partition_of(led.log)
    read = metadata.metadata_of(partition)
    assert read is not None
    metadata.restart(read)

    async def test() -> None:
        log = await stand.replica(A)
        await stand.follow(A, 1, 3)
        await stand.clock.run_for(READING_S / 2)
        assert not stand.built
        metadata.ready(partition)
        await stand.until(lambda: is_same(log, led.log))
        assert stand.built == [False]

    stand.run(test)


def test_node_may_become_leader_while_reading_the_tier() -> None:
    stand = TieredStand()
    stand.lead(1, "000", "112", "23")

    async def test() -> None:
        log = await stand.replica(A)
        write(log, "00")

        def lead() -> None:
            partition = stand.partitions[A]
            replicas = (1, FOLLOWER)
            image = PartitionImage(replicas, (UUID(int=1),) * 2, (FOLLOWER,), FOLLOWER, 4, 2)
            partition.update(image)
            stand.followers.role_changed(partition)
            assert partition.is_leader

        stand.tier.storage.before_fetch = lead
        await stand.follow(A, 1, 3)
        await stand.clock.run_for(1)
        assert stand.partitions[A].is_leader
        assert log.end_offset == 2
        assert stand.tier.storage.fetches == 2

    stand.run(test)


def test_errors_of_missing_auxiliary_state_are_distinguished() -> None:
    stand = TieredStand()
    led = stand.lead(1, "000", "112", "23")
    log, tier = led.log, stand.tier
    state = AuxiliaryState(tier.metadata, tier.storage, stand.node.seams.offload)

    def error_of(change: BuildRemoteLogAuxState) -> Exception:
        with pytest.raises(RemoteStorageError) as caught:
            trio.run(state.beginning, log, change)
        return caught.value

    assert type(error_of(BuildRemoteLogAuxState(3, 7, 3, 0))) is RemoteResourceNotFound
    assert type(error_of(BuildRemoteLogAuxState(3, 6, 1, 0))) is RemoteResourceNotFound
    tier.metadata.stop_partitions([partition_of(log)])
    assert type(error_of(BuildRemoteLogAuxState(3, 6, 2, 0))) is RemoteNotReady
    log.update_config(replace(TIERED, remote_storage_enable=False))
    assert type(error_of(BuildRemoteLogAuxState(3, 6, 2, 0))) is RemoteStorageError


# Parsing of auxiliary state


@pytest.mark.parametrize(
    ("start", "end", "kept"),
    [
        (0, 10, {0: 0, 2: 4, 5: 8}),
        (0, 8, {0: 0, 2: 4}),
        (4, 10, {2: 4, 5: 8}),
        (5, 9, {2: 5, 5: 8}),
        (9, 10, {5: 9}),
    ],
)
def test_leader_epochs_are_limited_to_the_log(start: int, end: int, kept: dict[int, int]) -> None:
    data = format_checkpoint([EpochStart(0, 0), EpochStart(2, 4), EpochStart(5, 8)])
    found = history(data, start, end, segment(1, 4, end - 1))
    assert {each.epoch: each.start_offset for each in found} == kept


@pytest.mark.parametrize("entries", [((1, 0), (1, 4)), ((2, 0), (1, 4)), ((0, 4), (1, 4))])
def test_decreasing_leader_epochs_are_corrupt(entries: tuple[tuple[int, int], ...]) -> None:
    data = format_checkpoint(EpochStart(*each) for each in entries)
    with pytest.raises(CorruptRemoteData):
        history(data, 0, 10, segment(1, 0, 9))
