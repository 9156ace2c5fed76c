"""Log lines about a full log directory.

An operation that fails because the disk is full is undone and refused (`io_errors.py`), so clients see the error but
the operator does not. Therefore the broker logs an error at once, every minute while the directory is full, and a
line when it has free space again. Free space is checked by allocating a file, because the size that the file system
reports includes neither quotas nor a lack of inodes. There is no I/O in this module; `LogDirectory.disk_space` does
it.
"""

from __future__ import annotations

import logging

from odradek.seams.files import DiskUsage, Path
from odradek.seams.units import human_bytes
from odradek.seams.values import value_class

log = logging.getLogger(__name__)

REMIND_SECONDS = 60.0
FREE_BYTES_MIN = 16 << 20
"""A directory is full if a file of this size cannot be allocated; enough for some batches and a new segment."""


@value_class
class DiskSpace:
    """Free space of a directory: by the file system, and whether `FREE_BYTES_MIN` could be allocated."""

    usage: DiskUsage
    is_enough: bool


class LowDiskSpace:
    """State of one full log directory.

    `write_failed` may be called from any thread, the rest on the event loop. Times are monotonic seconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._error: OSError | None = None
        self._has_failed_since_check = False
        self._since: float | None = None
        self._logged_at: float | None = None
        self._is_logged = False

    @property
    def is_check_due(self) -> bool:
        """A write failed, so the free space must be checked periodically."""
        return self._error is not None

    def write_failed(self, error: OSError) -> None:
        """Record that an operation failed because the disk is full."""
        self._error = error
        self._has_failed_since_check = True

    def checked(self, disk_space: DiskSpace, now: float) -> None:
        """Record the free space at `now`, and log; called while `is_check_due`.

        The directory is no longer full if no operation has failed since the last check either, because a batch may be
        larger than the file that was allocated.
        """
        has_failed, self._has_failed_since_check = self._has_failed_since_check, False
        if self._since is None:
            self._since = now
        if disk_space.is_enough and not has_failed:
            self._end(disk_space, now)
        elif self._logged_at is None or now - self._logged_at >= REMIND_SECONDS:
            self._logged_at, self._is_logged = now, True
            log.error(
                "log directory %s is full%s (%s): %s of %s are free. Writes fail; reading and"
                " deleting continue. Free disk space, for example with `odradek topics trim`; no restart is needed",
                self._path,
                f" for {now - self._since:.0f} s now" if now > self._since else "",
                self._error,
                human_bytes(disk_space.usage.free_bytes),
                human_bytes(disk_space.usage.total_bytes),
            )

    def _end(self, disk_space: DiskSpace, now: float) -> None:
        assert self._since is not None
        if self._is_logged:
            log.warning(
                "log directory %s has free space again, after %.0f s: %s are free",
                self._path,
                now - self._since,
                human_bytes(disk_space.usage.free_bytes),
            )
        self._error, self._since, self._is_logged = None, None, False
