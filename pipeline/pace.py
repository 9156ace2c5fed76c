"""How fast something may go: so many records and so many bytes a second, and no more than that.

Without I/O and clock: what was used comes in with the time, how long to wait comes out. What was not used
is lost: after a pause nothing goes faster than it may.
"""

from __future__ import annotations


class Pace:
    """See the module. None is no limit. Times in seconds of one monotonic clock."""

    def __init__(self, records_per_s: float | None, bytes_per_s: float | None) -> None:
        self._records_per_s = records_per_s
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def records_at_once(self, most: int) -> int:
        """Not more than a second's worth."""
        return most if self._records_per_s is None else max(1, min(most, int(self._records_per_s)))

    def bytes_at_once(self, most: int) -> int:
        return most if self._bytes_per_s is None else max(1, min(most, int(self._bytes_per_s)))

    def used(self, now_s: float, records: int, size_bytes: int) -> None:
        """So much went just now."""
        took = 0.0
        if self._records_per_s is not None:
            took = records / self._records_per_s
        if self._bytes_per_s is not None:
            took = max(took, size_bytes / self._bytes_per_s)
        self._free_at = max(self._free_at, now_s) + took

    def wait_s(self, now_s: float) -> float:
        """How long until the next may go."""
        return max(0.0, self._free_at - now_s)
