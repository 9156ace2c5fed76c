"""Log lines about a full directory: at once, every minute, and when it has free space again."""

from __future__ import annotations

import errno

import pytest

from odradek.seams.files import DiskUsage, Path
from odradek.storage.directories.log_directory import FREE_BYTES_MIN, DiskSpace, LowDiskSpace

FULL = OSError(errno.ENOSPC, "No space left on device")
NONE = DiskSpace(DiskUsage(64 << 20, 1536), is_enough=False)
SOME = DiskSpace(DiskUsage(64 << 20, FREE_BYTES_MIN), is_enough=True)


@pytest.fixture
def low_disk_space() -> LowDiskSpace:
    return LowDiskSpace(Path("/data"))


def test_full_directory_is_logged_at_once_each_minute_and_at_end(
    low_disk_space: LowDiskSpace, caplog: pytest.LogCaptureFixture
) -> None:
    assert not low_disk_space.is_check_due
    low_disk_space.write_failed(FULL)
    for second in range(1, 130):
        assert low_disk_space.is_check_due
        low_disk_space.checked(NONE, second)
    assert [(each.levelname, each.message.partition(". ")[0]) for each in caplog.records] == [
        (
            "ERROR",
            f"no space left in log directory /data{lasting} ({FULL}): 1.5 KiB of 64.0 MiB are available",
        )
        for lasting in ("", " for 60 s", " for 120 s")
    ]
    caplog.clear()
    low_disk_space.checked(SOME, 130)
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("WARNING", "log directory /data has free space again after 129 s: 16.0 MiB are available")
    ]
    assert not low_disk_space.is_check_due


def test_full_directory_stays_full_while_writes_fail(
    low_disk_space: LowDiskSpace, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch may be larger than what was tried; or it is another directory's quota."""
    for second in range(50):
        low_disk_space.write_failed(FULL)
        low_disk_space.checked(SOME, second)
    assert len(caplog.records) == 1
    low_disk_space.checked(SOME, 50)
    assert "has free space again" in caplog.messages[-1]


def test_repeatedly_full_directory_is_logged_once_a_minute(
    low_disk_space: LowDiskSpace, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(0, 59, 2):
        low_disk_space.write_failed(FULL)
        low_disk_space.checked(SOME, second)
        low_disk_space.checked(SOME, second + 1)
        assert not low_disk_space.is_check_due
    assert len(caplog.records) == 2
    low_disk_space.write_failed(FULL)
    low_disk_space.checked(SOME, 60)
    assert "no space left in log directory /data (" in caplog.messages[-1]
