"""What is said of a full directory: at once, once a minute while it lasts, and when it is over."""

from __future__ import annotations

import errno

import pytest

from odradek.seams.files import DiskUsage, Path
from odradek.storage.directories.shortage import ROOM_BYTES, Room, Shortage

FULL = OSError(errno.ENOSPC, "No space left on device")
NONE = Room(DiskUsage(64 << 20, 1536), has_some=False)
SOME = Room(DiskUsage(64 << 20, ROOM_BYTES), has_some=True)


@pytest.fixture
def shortage() -> Shortage:
    return Shortage(Path("/data"))


def test_it_is_said_at_once_every_minute_and_when_it_is_over(
    shortage: Shortage, caplog: pytest.LogCaptureFixture
) -> None:
    assert not shortage.is_on
    shortage.met(FULL)
    for second in range(1, 130):
        assert shortage.is_on
        shortage.looked(NONE, second)
    assert [(each.levelname, each.message.partition(". ")[0]) for each in caplog.records] == [
        ("ERROR", f"log directory /data is full{lasting} ({FULL}): 1.5 KiB of 64.0 MiB are free")
        for lasting in ("", " for 60 s now", " for 120 s now")
    ]
    caplog.clear()
    shortage.looked(SOME, 130)
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("WARNING", "log directory /data has room again, after 129 s: 16.0 MiB are free")
    ]
    assert not shortage.is_on


def test_while_something_is_still_refused_it_is_not_over(
    shortage: Shortage, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch may be larger than what was tried; or it is another directory's quota."""
    for second in range(50):
        shortage.met(FULL)
        shortage.looked(SOME, second)
    assert len(caplog.records) == 1
    shortage.looked(SOME, 50)
    assert "has room again" in caplog.messages[-1]


def test_a_disk_that_is_full_every_now_and_then_fills_no_log(
    shortage: Shortage, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(0, 59, 2):
        shortage.met(FULL)
        shortage.looked(SOME, second)
        shortage.looked(SOME, second + 1)
        assert not shortage.is_on
    assert len(caplog.records) == 2
    shortage.met(FULL)
    shortage.looked(SOME, 60)
    assert "is full (" in caplog.messages[-1]
