"""Missing segments in the middle of a log are reported after a start."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio

from odradek.storage.directories import clean_shutdown
from odradek.storage.log.config import LogConfig
from odradek.storage.log.file_names import SEGMENT_FILES
from odradek.storage.log.partition_log import PartitionLog
from tests.support.log_managers import ONE, SMALL, A, LogManagerWorld, append, contents

COMPACTED = replace(SMALL, cleanup_policy=("compact",), min_compaction_lag_ms=1 << 60)


def filled(config: LogConfig = SMALL) -> LogManagerWorld:
    """A node that was shut down cleanly; its log has one batch per offset and about four per segment."""
    world = LogManagerWorld(paths=(A,), default=config)

    async def run() -> None:
        async with world.running() as manager:
            log = await manager.create("t", 0, ONE)
            for number in range(40):
                append(log, f"{number}" + "x" * 30, key=b"k")
            log.update_config(replace(config, retention_ms=-1))

    trio.run(run, clock=world.clock)
    return world


def bases(world: LogManagerWorld) -> list[int]:
    return [int(name[:20]) for name in world.names(A / "t-0") if name.endswith(".log")]


def lose(world: LogManagerWorld, base: int, kinds: Sequence[str] = SEGMENT_FILES) -> None:
    for kind in kinds:
        world.files.remove(A / "t-0" / f"{base:020}{kind}", missing_ok=True)


def errors_after_start(world: LogManagerWorld, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()

    async def run() -> None:
        async with world.running(housekeeping=True) as manager:
            log = manager.get("t", 0)
            assert isinstance(log, PartitionLog)
            await world.clock.run_for(60)
            assert contents(log)[0].startswith("0x")

    with caplog.at_level(logging.ERROR, "odradek.log_manager"):
        trio.run(run, clock=world.clock)
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("kinds", [SEGMENT_FILES, [".log"]])
def test_missing_segment_is_logged_once_per_gap(
    kinds: Sequence[str], is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = filled()
    offsets = bases(world)
    assert len(offsets) > 6
    for number in (2, 4, 5):
        lose(world, offsets[number], kinds)
    if not is_clean:
        world.files.remove(A / clean_shutdown.FILE_NAME)
    assert errors_after_start(world, caplog) == [
        f"a segment of log /a/t-0 is missing: no segment has offsets {first} to {after - 1}, "
        "and consumers skip them"
        for first, after in ((offsets[2], offsets[3]), (offsets[4], offsets[6]))
    ]


@pytest.mark.parametrize("damage", [b"", b"\x7f\xff\xff\xff" * 4, bytes(16)])
def test_index_of_segment_before_the_gap_does_not_matter(
    damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world = filled()
    offsets = bases(world)
    index = A / "t-0" / f"{offsets[1]:020}.index"
    world.files.remove(index)
    if damage:
        world.files.write_new(index, damage)
    assert errors_after_start(world, caplog) == []
    lose(world, offsets[2])
    (error,) = errors_after_start(world, caplog)
    assert f"offsets {offsets[2]} to {offsets[3] - 1}" in error


def test_gap_in_log_that_is_or_was_compacted_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = filled(COMPACTED)
    lose(world, bases(world)[2])
    assert errors_after_start(world, caplog) == []
    # The checkpoint of the log cleaner shows that it was compacted
    world.configs["t"] = replace(SMALL, retention_ms=-1)
    checkpoint = A / "cleaner-offset-checkpoint"
    world.files.remove(checkpoint, missing_ok=True)
    world.files.write_new(checkpoint, b"0\n1\nt 0 8\n")
    assert errors_after_start(world, caplog) == []
    world.files.remove(checkpoint)
    assert len(errors_after_start(world, caplog)) == 1


def test_complete_log_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert errors_after_start(filled(), caplog) == []
