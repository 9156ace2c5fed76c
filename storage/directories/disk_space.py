"""A log directory that is full, as the operator is told of it.

Whoever meets a full disk takes back what it had begun, and refuses (`failure.py`): clients hear of that,
and not the one who can make room. So it is said here, once a minute for as long as it lasts, and when
there is room again. That is tried out, by making a file: what a quota leaves, and a lack of inodes, shows
in no number. No I/O here; `LogDirectory.room` does that.
"""

from __future__ import annotations

import logging

from odradek.seams.files import DiskUsage, Path
from odradek.seams.units import human_bytes
from odradek.seams.values import value_class

log = logging.getLogger(__name__)

REMIND_SECONDS = 60.0
FREE_BYTES_MIN = 16 << 20
"""A directory where a file of that size can be made has room: for some batches, and a new segment."""


@value_class
class DiskSpace:
    """What there is in a directory: by the file system, and whether `ROOM_BYTES` could be had."""

    usage: DiskUsage
    is_enough: bool


class LowDiskSpace:
    """See the module. `met` from any thread, the rest on the loop; times are monotonic, in seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._error: OSError | None = None
        self._has_failed_since_check = False
        self._since: float | None = None
        self._logged_at: float | None = None
        self._is_logged = False

    @property
    def is_check_due(self) -> bool:
        """Whether there is to be looked for room."""
        return self._error is not None

    def write_failed(self, error: OSError) -> None:
        """Something was refused because of it."""
        self._error = error
        self._has_failed_since_check = True

    def checked(self, disk_space: DiskSpace, now: float) -> None:
        """What was found, while `is_on`. There is room again where nothing was refused since the last
        look, either: a batch may be larger than what was tried."""
        has_failed, self._has_failed_since_check = self._has_failed_since_check, False
        if self._since is None:
            self._since = now
        if disk_space.is_enough and not has_failed:
            self._end(disk_space, now)
        elif self._logged_at is None or now - self._logged_at >= REMIND_SECONDS:
            self._logged_at, self._is_logged = now, True
            log.error(
                "log directory %s is full%s (%s): %s of %s are free. What needs more is refused, reading and"
                " deleting go on. Make room, by `odradek topics trim` or on the disk: no restart is needed",
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
                "log directory %s has room again, after %.0f s: %s are free",
                self._path,
                now - self._since,
                human_bytes(disk_space.usage.free_bytes),
            )
        self._error, self._since, self._is_logged = None, None, False
