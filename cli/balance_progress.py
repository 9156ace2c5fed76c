"""How far moves between directories are, and how long they still take: values in, text out."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from odradek.cli.log_dirs_output import percent
from odradek.cli.output import human_bytes
from odradek.seams.values import value_class

WINDOW_S = 30.0
"""The rate is that of so many seconds."""


@value_class
class Copied:
    """Of a replica on its way: bytes that are there, and bytes in all."""

    size_bytes: int
    total_bytes: int
    done: bool = False


class Progress:
    """What was seen, for the last `WINDOW_S`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._replicas = self._replicas_done = 0
        self._bytes = self._bytes_done = 0

    def saw(self, now: float, copied: Collection[Copied]) -> None:
        """The state of all of them, at a monotonic time in seconds."""
        self._replicas = len(copied)
        self._replicas_done = sum(each.done for each in copied)
        self._bytes = sum(each.total_bytes for each in copied)
        self._bytes_done = sum(
            each.total_bytes if each.done else min(each.size_bytes, each.total_bytes)
            for each in copied
        )
        self._seen.append((now, self._bytes_done))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()

    @property
    def is_done(self) -> bool:
        return self._replicas_done == self._replicas

    @property
    def bytes_per_s(self) -> float:
        """0 while it is not known."""
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return max(0.0, (last - first) / (now - began)) if now > began else 0.0

    @property
    def seconds_left(self) -> float | None:
        """None while it is not known: nothing has moved yet."""
        left = self._bytes - self._bytes_done
        if left == 0:
            return 0.0
        rate = self.bytes_per_s
        return left / rate if rate > 0 else None

    def __str__(self) -> str:
        done = f"{human_bytes(self._bytes_done)} of {human_bytes(self._bytes)}"
        parts = [
            f"{self._replicas_done} of {self._replicas} replicas",
            f"{done} ({percent(self._bytes_done, self._bytes)} %)",
        ]
        if not self.is_done:
            left = self.seconds_left
            parts.append(f"{human_bytes(int(self.bytes_per_s))}/s")
            parts.append("time left not known yet" if left is None else f"{duration(left)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """75 -> '1:15', 3700 -> '1:01:40'; begun seconds count."""
    whole = int(-(-seconds // 1))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
