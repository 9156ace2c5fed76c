"""Power failure at every sync of a pass, and a kill at every rename: after the next start the log
has either the old segments or the complete new one, and no other file. A worker that dies leaves
the log unchanged."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from odradek.seams.files import Path
from odradek.seams.workers import WorkerDied
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_files import VirtualFiles
from tests.storage.compaction.compacted_logs import check_files
from tests.storage.compaction.compaction_model import Kept
from tests.storage.compaction.random_log_content import COMPACTED, History, content
from tests.support.log_managers import ONE, A, LogManagerWorld


@dataclass
class Story:
    """A log that will be compacted, in a few groups of segments, with its expected content."""

    world: LogManagerWorld = field(
        default_factory=lambda: LogManagerWorld(paths=(A,), configs={"t": COMPACTED})
    )
    before: list[Kept] = field(default_factory=list)
    syncs: int = 0
    """Before the pass; `syncs_after` after it."""
    syncs_after: int = 0
    is_checkpointed: bool = True
    """Whether the recovery point was written down before."""

    async def begin(self, manager: LogManager) -> PartitionLog:
        log = await manager.create("t", 0, ONE)
        history = History(log, random.Random(3), self.world.clock, keys=6)
        history.go_on(45)
        history.seal()
        if self.is_checkpointed:
            await manager.checkpoint(Checkpoint)
        self.before = content(log)
        self.syncs = self.world.files.syncs
        return log

    async def play(self, manager: LogManager) -> list[Kept]:
        log = await self.begin(manager)
        assert manager.log_cleaner is not None
        await manager.log_cleaner.clean_due_logs()
        return content(log)


async def told(story: Story) -> list[Kept]:
    """Run the pass; returns the resulting content."""
    async with story.world.running() as manager:
        after = await story.play(manager)
        story.syncs_after = story.world.files.syncs
        log = manager.get("t", 0)
        assert log is not None
        assert len(log.segments) > 4
    return after


async def crashed(cut: Callable[[VirtualFiles], None], *, is_checkpointed: bool = True) -> Story:
    """Run the pass until the power failure."""
    story = Story(is_checkpointed=is_checkpointed)
    manager = story.world.manager()
    await manager.load()
    await story.begin(manager)
    cut(story.world.files)
    assert manager.log_cleaner is not None
    with suppress(NodeCrashed):
        await manager.log_cleaner.clean_due_logs()
    return story


async def check(story: Story, after: list[Kept], *, seeds: int = 1) -> None:
    """Check that each group of segments is unchanged or completely compacted."""
    for seed in range(seeds):
        world = story.world.crashed(seed)
        async with world.running() as manager:
            log = manager.get("t", 0)
            assert log is not None
            found = content(log)
            check_mixture(story.before, found, after)
            check_files(world, log)
            assert log.end_offset == story.before[-1].last_offset + 1
            # The next pass completes the result.
            assert manager.log_cleaner is not None
            await manager.log_cleaner.clean_due_logs()
            assert survivors(content(log)) == survivors(after)
        assert not [name for name in world.names(A / "t-0") if name.endswith((".cleaned", ".swap"))]


def survivors(batches: list[Kept]) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.value)
        for batch in batches
        if not batch.is_control
        for record in batch.records
    ]


def check_mixture(before: list[Kept], found: list[Kept], after: list[Kept]) -> None:
    """Check that a prefix is compacted, the rest is unchanged, and no record is duplicated."""
    offsets = [batch.base_offset for batch in found]
    assert offsets == sorted(set(offsets))
    for point in (*(batch.base_offset for batch in before), before[-1].last_offset + 1):
        mixed = [batch for batch in after if batch.base_offset < point]
        mixed += [batch for batch in before if batch.base_offset >= point]
        if without_horizons(mixed) == without_horizons(found):
            return
    raise AssertionError("neither the old log nor the new one, nor one after the other")


def without_horizons(batches: list[Kept]) -> list[tuple[int, tuple[object, ...]]]:
    return [(batch.base_offset, batch.records) for batch in batches]


@pytest.mark.slow
async def test_power_cut_at_every_sync() -> None:
    story = Story()
    after = await told(story)
    first, last = story.syncs, story.syncs_after
    assert last - first > 15
    for sync in range(first, last + 1):
        at = await crashed(lambda files: files.cut_power_at(sync + 1))  # noqa: B023
        await check(at, after, seeds=2)
        just_after = await crashed(lambda files: files.cut_power_after(sync))  # noqa: B023
        await check(just_after, after)


@pytest.mark.parametrize("lost", [False, True])
async def test_gaps_left_by_compaction_are_no_loss_after_cleanup_policy_change(lost: bool) -> None:
    """The recovery point was not written before the pass, or it was and is lost, so that the
    whole log is recovered."""
    story = Story(is_checkpointed=lost)
    after = await told(story)
    for sync in range(story.syncs, story.syncs_after + 1):
        at = await crashed(
            lambda files: files.cut_power_after(sync),  # noqa: B023
            is_checkpointed=lost,
        )
        world = at.world.crashed(seed=0)
        world.configs = {"t": replace(COMPACTED, cleanup_policy=("delete",))}
        if lost:
            world.files.remove(A / Checkpoint.RECOVERY_POINT.value, missing_ok=True)
        async with world.running() as manager:
            log = manager.get("t", 0)
            assert log is not None
            check_mixture(at.before, content(log), after)
            assert log.end_offset == at.before[-1].last_offset + 1


class CountedFiles:
    """Counts renames, and cuts the power before the given one."""

    def __init__(self, files: VirtualFiles, at: int) -> None:
        self.count = 0
        self._files = files
        self._at = at
        self._put = files.disk.put
        files.disk.put = self.put  # type: ignore[method-assign]

    def put(self, *changes: object) -> None:
        if self.count == self._at:
            self._files.disk.put = self._put  # type: ignore[method-assign]
            self._files.power.cut()
            raise NodeCrashed
        self.count += 1
        self._put(*changes)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_power_cut_at_every_rename() -> None:
    after = await told(Story())
    counted: list[CountedFiles] = []
    await crashed(lambda files: counted.append(CountedFiles(files, -1)))
    (names,) = [each.count for each in counted]
    assert names > 30
    for number in range(names):
        story = await crashed(lambda files: counted.append(CountedFiles(files, number)))  # noqa: B023
        await check(story, after)


async def test_dead_worker_leaves_log_unchanged_and_no_files() -> None:
    story = Story()
    async with story.world.running() as manager:
        log = await story.begin(manager)
        names = story.world.names(log.directory)
        assert manager.log_cleaner is not None
        story.world.workers.deaths = 1
        with pytest.raises(WorkerDied):
            await manager.log_cleaner.clean_due_logs()
        assert content(log) == story.before
        assert story.world.names(log.directory) == names
        assert await manager.log_cleaner.clean_due_logs() > 0
        assert content(log) != story.before


async def test_cleaned_files_of_killed_worker_are_removed_by_next_swap() -> None:
    """A start treats a `.swap` file as unfinished if there is a `.cleaned` file at a lower
    offset."""
    story = Story()
    async with story.world.running() as manager:
        log = await story.begin(manager)
        stray: Path = log.directory / "00000000000000000000.log.cleaned"
        story.world.files.open(stray, create=True).close()
        later: Path = log.directory / "00000000000000000099.index.cleaned"
        story.world.files.open(later, create=True).close()
        assert manager.log_cleaner is not None
        await manager.log_cleaner.clean_due_logs()
        check_files(story.world, log)
