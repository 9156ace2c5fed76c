"""Average and maximum over the last minute, as Kafka's Avg and Max sensors with two samples of 30 s."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

SAMPLES = 2
SAMPLE_SECONDS = 30.0


@dataclass(slots=True)
class _Sample:
    began: float
    count: int = 0
    total: float = 0.0
    maximum: float = 0.0


class RecentStatistics:
    """Recorded values of the last minute. `average` and `maximum` are None without any value."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)

    def record(self, value: float) -> None:
        """Record a value, 0 or more."""
        now = self._monotonic()
        if not self._samples or now - self._samples[-1].began >= SAMPLE_SECONDS:
            self._samples.append(_Sample(now))
        sample = self._samples[-1]
        sample.count += 1
        sample.total += value
        sample.maximum = max(sample.maximum, value)

    @property
    def average(self) -> float | None:
        kept = self._kept()
        return sum(each.total for each in kept) / sum(each.count for each in kept) if kept else None

    @property
    def maximum(self) -> float | None:
        return max((each.maximum for each in self._kept()), default=None)

    def _kept(self) -> list[_Sample]:
        oldest = self._monotonic() - SAMPLES * SAMPLE_SECONDS
        return [each for each in self._samples if each.began > oldest]
