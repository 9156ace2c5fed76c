"""Power failure at every sync of every operation that changes files in several steps, before the
sync takes effect and right after it. What was synced remains, the log is a prefix of what was
written, its indexes are correct, and appends continue."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import File, Path
from odradek.storage.log.config import LogConfig
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.partition_log import LogEnvironment, PartitionLog, RecoveryOptions
from odradek.storage.log.producer_state import BatchMetadata, ProducerEntry
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.log.truncation import EmptyLogStart
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_files import VirtualFiles
from tests.support.partition_logs import (
    DIRECTORY,
    FOREVER,
    NOW_MS,
    TOPIC_ID,
    LogWorld,
    check_indexes,
    idempotent,
    marker,
    records_in,
)

CONFIG = dataclasses.replace(
    FOREVER, internal_segment_bytes=700, index_interval_bytes=100, file_delete_delay_ms=0
)
TIERED = dataclasses.replace(CONFIG, remote_storage_enable=True)
SEEDS = range(3)


@dataclass
class Story:
    """A log, what was written to it, and what must remain."""

    world: LogWorld = field(default_factory=lambda: LogWorld(CONFIG))
    written: list[int] = field(default_factory=list)
    """The timestamps of its records, one at each offset; they are all different."""
    durable: int = 0
    """All below this offset must be there."""
    start: int = 0
    local_start: int = 0
    """Nothing before it need be on the disk."""
    time: int = 0

    @property
    def log(self) -> PartitionLog:
        return self.world.log

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.time += 1
            data = idempotent(7, len(self.written), size=40, timestamps=NOW_MS + self.time)
            self.written.append(NOW_MS + self.time)
            self.world.append(data, epoch=self.time // 7)

    def flush(self) -> None:
        end = len(self.written)
        self.world.flush()
        self.durable = end

    def replace_with(self, config: LogConfig) -> None:
        self.world.config = config
        self.log.update_config(config)

    def behind(self, offset: int) -> None:
        """Continue the log at `offset`, like the leader's: seven records per epoch."""
        while len(self.written) < offset:
            self.time += 1
            self.written.append(NOW_MS + self.time)
        history = tuple(EpochStart(e, max(0, 7 * e - 1)) for e in range((offset + 7) // 7))
        entry = ProducerEntry(
            7, 0, -1, NOW_MS, -1, [BatchMetadata(offset - 1, offset - 1, 0, NOW_MS)]
        )
        self.local_start = offset
        self.log.truncate_fully(EmptyLogStart(offset, 0, history, [entry]))

    def truncate(self, offset: int) -> None:
        self.durable = min(self.durable, offset)
        self.log.truncate_to(offset)
        del self.written[offset:]


def rolling(story: Story) -> Iterator[None]:
    story.append(20)
    yield
    story.log.flush(up_to=12)
    story.world.recovery_point = story.durable = 12
    story.append(5)
    story.flush()
    story.append(9)
    story.flush()


def truncating(story: Story) -> Iterator[None]:
    story.append(29)
    story.flush()
    story.append(3)
    yield
    story.truncate(21)
    story.append(4)
    story.flush()


def truncating_twice(story: Story) -> Iterator[None]:
    story.append(29)
    story.flush()
    yield
    story.truncate(26)
    story.append(3)
    story.truncate(8)
    story.append(14)
    story.flush()


def truncating_under_a_pinned_slice(story: Story) -> Iterator[None]:
    story.append(29)
    story.flush()
    story.log.read(24, 10_000, limit=29)
    yield
    story.truncate(26)
    story.append(4)
    story.flush()


def starting_anew(story: Story) -> Iterator[None]:
    story.append(29)
    story.flush()
    yield
    # Until it completes, a prefix of the old log may remain.
    story.durable = 0
    story.log.truncate_fully_and_start_at(3)
    story.start = story.world.log_start_offset = 3
    story.written = [-1] * 3
    story.time += 100
    story.append(2)
    story.flush()


def expiring(story: Story) -> Iterator[None]:
    story.append(29)
    story.flush()
    story.log.advance_high_watermark(29)
    yield
    story.log.update_config(dataclasses.replace(CONFIG, retention_bytes=1000))
    assert story.log.delete_expired(NOW_MS) > 1
    story.log.remove_deleted(NOW_MS)
    story.start = story.log.log_start_offset
    story.append(8)
    story.flush()


def expiring_altogether(story: Story) -> Iterator[None]:
    story.append(8)
    story.flush()
    story.log.advance_high_watermark(8)
    yield
    story.log.update_config(dataclasses.replace(CONFIG, retention_ms=0))
    assert story.log.delete_expired(NOW_MS + 10**6) == 2
    story.log.remove_deleted(NOW_MS)
    story.log.update_config(CONFIG)
    story.start = story.log.log_start_offset
    story.append(3)
    story.flush()


def deleted_by_local_retention(story: Story) -> Iterator[None]:
    """Local retention (KIP-405): the log start offset does not change."""
    story.append(29)
    story.flush()
    story.log.advance_high_watermark(29)
    yield
    story.replace_with(TIERED)
    story.log.advance_highest_copied_offset(20)
    story.log.update_config(dataclasses.replace(TIERED, local_retention_bytes=0))
    story.local_start = 21
    assert story.log.delete_expired(NOW_MS) > 1
    story.log.remove_deleted(NOW_MS)
    assert story.log.log_start_offset == 0
    story.append(8)
    story.flush()
    story.local_start = 32
    story.log.advance_highest_copied_offset(31)
    assert story.log.delete_expired(NOW_MS)
    story.log.remove_deleted(NOW_MS)


def continued_after_auxiliary_state(story: Story) -> Iterator[None]:
    """A follower's auxiliary state is installed (T-42) over an existing log."""
    story.append(14)
    story.flush()
    story.replace_with(TIERED)
    yield
    story.durable = 0
    story.behind(30)
    story.append(4)
    story.flush()


def cutting_below_the_disk(story: Story) -> Iterator[None]:
    story.append(14)
    story.flush()
    story.replace_with(TIERED)
    story.behind(30)
    story.append(4)
    story.flush()
    yield
    story.durable = 0  # records behind the remote tier are deleted first
    story.truncate(25)
    story.append(9)
    story.flush()


def closing(story: Story) -> Iterator[None]:
    story.append(20)
    story.flush()
    story.append(3)
    yield
    story.log.close(True)


def reopening(story: Story) -> Iterator[None]:
    story.append(20)
    story.world.reopen()
    story.durable = 20
    yield
    story.append(3)
    story.flush()


SCENES = [
    rolling,
    truncating,
    truncating_twice,
    truncating_under_a_pinned_slice,
    starting_anew,
    expiring,
    expiring_altogether,
    closing,
    reopening,
    deleted_by_local_retention,
    continued_after_auxiliary_state,
    cutting_below_the_disk,
]


def syncs_of(scene: Callable[[Story], Iterator[None]]) -> tuple[int, int]:
    """Number of syncs before the watched part, and in it."""
    story = Story()
    steps = scene(story)
    next(steps)
    before = story.world.files.syncs
    for _ in steps:
        pass
    return before, story.world.files.syncs


def points() -> Iterator[tuple[Callable[[Story], Iterator[None]], int, bool]]:
    for scene in SCENES:
        before, after = syncs_of(scene)
        for sync in range(before, after + 1):
            yield scene, sync, False
            yield scene, sync, True


def play(scene: Callable[[Story], Iterator[None]], sync: int, done: bool) -> Story:
    """Run until the power failure at that sync, or to the end."""
    story = Story()
    steps = scene(story)
    next(steps)
    if done:
        story.world.files.cut_power_after(sync)
    else:
        story.world.files.cut_power_at(sync)
    with suppress(NodeCrashed):
        for _ in steps:
            pass
    return story


def check(story: Story, world: LogWorld) -> None:
    log = world.log
    assert log.log_start_offset <= max(story.start, 3)
    assert log.end_offset >= story.durable
    start = log.local_log_start_offset
    assert start <= max(story.local_start, story.start, 3)
    found = records_in(log, start)
    wanted = story.written[start : log.end_offset]
    assert [record.timestamp for record in found] == wanted
    check_indexes(world, reopened=True)
    starts = [entry.start_offset for entry in log.epochs.entries]
    assert starts == sorted(set(starts))
    for record in found:
        epoch = log.epochs.epoch_for(record.offset)
        assert epoch == (record.timestamp - NOW_MS) // 7
    # The epochs of locally deleted records are known
    if log.is_tiered and start > log.log_start_offset:
        for offset in range(log.log_start_offset, start):
            assert log.epochs.epoch_for(offset) == (story.written[offset] - NOW_MS) // 7


def restarted(world: LogWorld, seed: int) -> LogWorld:
    again = LogWorld.__new__(LogWorld)
    again.__dict__ |= world.__dict__
    again.power_cut(seed)
    return again


@pytest.mark.parametrize(
    ("scene", "sync", "done"),
    [
        pytest.param(*point, id=f"{point[0].__name__}-{'after' if point[2] else 'at'}-{point[1]}")
        for point in points()
    ],
)
def test_power_cut_at_every_sync(
    scene: Callable[[Story], Iterator[None]], sync: int, done: bool
) -> None:
    story = play(scene, sync, done)
    for seed in SEEDS:
        world = restarted(story.world, seed)
        check(story, world)
        # A second failure, while changes of the recovery are not synced.
        again = restarted(world, seed + 100)
        check(story, again)
        # The log continues, and later syncs survive the next failure.
        end = again.log.end_offset
        data = idempotent(11, 0, 2, timestamps=NOW_MS + 10**6)
        assert again.append(data, epoch=10**6 // 7).first_offset == end
        again.flush()
        last = restarted(again, seed + 200)
        assert last.log.end_offset == end + 2
        assert last.append(idempotent(11, 0, 2), epoch=10**6).duplicate


def test_aborted_transactions_match_remaining_markers() -> None:
    def scene(world: LogWorld) -> list[int]:
        markers = []
        for number in range(8):
            world.append(idempotent(9, number, transactional=True, size=40))
            markers.append(world.coordinate(marker(9, commit=number % 3 == 0)).first_offset)
            if number == 3:
                world.flush()
        world.flush()
        return markers

    dry = LogWorld(CONFIG)
    before = dry.files.syncs
    markers = scene(dry)
    for sync in range(before, dry.files.syncs + 1):
        world = LogWorld(CONFIG)
        world.files.cut_power_after(sync)
        with suppress(NodeCrashed):
            scene(world)
        for seed in SEEDS:
            log = restarted(world, seed).log
            found = log.aborted_transactions(0, log.end_offset)
            wanted = [
                AbortedTransaction(9, at - 1, at, at + 1)
                for number, at in enumerate(markers)
                if number % 3 and at < log.end_offset
            ]
            assert list(found) == wanted
            log.advance_high_watermark(log.end_offset)
            is_open = log.end_offset % 2 == 1
            assert log.last_stable_offset == log.end_offset - is_open


def opened(world: LogWorld, directory: Path) -> PartitionLog:
    return PartitionLog.open(
        LogEnvironment(world.files, world.clock),
        directory,
        TopicPartition("n", 0),
        CONFIG,
        topic_id=TOPIC_ID,
        recovery=RecoveryOptions(clean=False, recovery_point=world.recovery_point),
    )


def test_interrupted_log_creation_is_repeated() -> None:
    new = Path("/logs/n-0")
    dry = LogWorld(CONFIG)
    before = dry.files.syncs
    opened(dry, new)
    assert dry.files.syncs > before
    for sync in range(before, dry.files.syncs + 1):
        world = LogWorld(CONFIG)
        world.files.cut_power_after(sync)
        with suppress(NodeCrashed):
            opened(world, new)
        for seed in SEEDS:
            log = opened(restarted(world, seed), new)
            assert (log.end_offset, log.topic_id) == (0, TOPIC_ID)


def test_interrupted_directory_rename_leaves_one_name() -> None:
    new = Path("/logs/t-0.moved")
    for done in (True, False):
        story = Story()
        story.append(10)
        story.flush()
        story.world.files.cut_power_at(story.world.files.syncs + 1 + done)
        with suppress(NodeCrashed):
            story.log.rename_directory(new)
        for seed in SEEDS:
            world = LogWorld.__new__(LogWorld)
            world.__dict__ |= story.world.__dict__
            world.disk = world.disk.crash(seed)
            world.files = VirtualFiles(world.disk)
            (there,) = [path for path in (DIRECTORY, new) if world.files.exists(path)]
            assert there == new or not done
            log = opened(world, there)
            assert [record.timestamp for record in records_in(log)] == story.written


def test_unsynced_names_of_killed_process_are_synced_before_recovery_point_advances() -> None:
    story = Story()
    story.append(3)
    story.flush()
    story.log.roll()
    story.append(3)  # same epoch: writing a new one would sync the directory
    story.world.kill()
    story.flush()
    for seed in range(20):
        assert restarted(story.world, seed).log.end_offset == 6


class BesideAFlush(VirtualFiles):
    """A flush in a thread syncs the directory before each creation of a file."""

    flush: Callable[[], None] | None = None

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        flush, self.flush = self.flush, None
        if create and flush is not None:
            flush()
            self.flush = flush
        return super().open(path, create=create, write=write)


def rolls(story: Story) -> None:
    story.log.roll()


def aborts(story: Story) -> None:
    story.world.append(idempotent(9, 0, transactional=True))
    story.world.coordinate(marker(9, commit=False))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("makes", [rolls, aborts])
def test_file_created_during_flush_is_synced_by_next_flush(
    makes: Callable[[Story], None], seed: int
) -> None:
    """The files of a segment with its snapshot, and of a transaction index."""
    story = Story()
    world = story.world
    world.log.close(clean=False)
    world.files = files = BesideAFlush(world.disk)
    world.log = world.open(clean=False)
    world.flush()
    story.append(3)
    files.flush = story.log.flush
    makes(story)
    files.flush = None
    story.append(1)
    world.flush()
    names, end = world.names(), story.log.end_offset
    log = world.power_cut(seed)
    assert set(names) <= set(world.names())
    assert log.end_offset == end
