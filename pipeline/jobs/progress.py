"""How far a job is, for whoever shows it: the same for all jobs."""

from __future__ import annotations

from odradek.seams.values import value_class


@value_class
class Progress:
    """`done` of `total` (offsets, mostly; 0 where nobody knows how many there will be), of which
    `done_before` were done by earlier runs; `seconds` since this run began."""

    done: int
    total: int
    seconds: float
    done_before: int = 0

    @property
    def percent(self) -> float | None:
        return min(100.0, 100.0 * self.done / self.total) if self.total else None

    @property
    def per_second(self) -> float:
        return (self.done - self.done_before) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the rate so far."""
        if not self.total or self.per_second <= 0:
            return None
        return max(0, self.total - self.done) / self.per_second

    def said(self, what: str) -> str:
        """In a line: `what` are the things that are counted."""
        rate = f"{self.per_second:,.0f} {what}/s"
        if self.percent is None:
            return f"{self.done:,} {what}, {rate}"
        left = self.seconds_left
        until = "" if left is None else f", {_duration(left)} left"
        return f"{self.percent:5.1f}% {self.done:,} of {self.total:,} {what}, {rate}{until}"

    def row(self) -> dict[str, object]:
        """For JSON."""
        percent = self.percent
        return {
            "done": self.done,
            "total": self.total or None,
            "percent": None if percent is None else round(percent, 1),
            "perSecond": round(self.per_second, 1),
            "seconds": round(self.seconds, 1),
        }


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
