"""Replication quotas (KIP-73), without I/O: measure a byte rate and compare it with the limit.

The rate is the sum of the last samples, the current one included, divided by the time since the
oldest sample began, but at least by one sample's length. So a burst exceeds the quota until the
average is below the limit again. The quota only reports whether it is exceeded; the callers
throttle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

EVERY_REPLICA = "*"


class ReplicationQuota:
    """Quota of the leader or the followers. Times are monotonic, in seconds."""

    def __init__(
        self, rate: Callable[[], float], *, samples: int = 11, sample_seconds: float = 1.0
    ) -> None:
        """`rate` returns the current limit in bytes a second.

        `samples` is replication.quota.window.num, `sample_seconds` is
        replication.quota.window.size.seconds.
        """
        self._rate = rate
        self._sample_seconds = sample_seconds
        self._window_seconds = samples * sample_seconds
        self._samples: deque[list[float]] = deque()
        """[start time, bytes] of each sample, the oldest first."""
        self._total = 0.0

    def record(self, size_bytes: int, now: float) -> None:
        """Add transferred bytes, whether the quota was exceeded or not."""
        self._forget(now)
        samples = self._samples
        if not samples or now - samples[-1][0] >= self._sample_seconds:
            samples.append([now, 0.0])
        samples[-1][1] += size_bytes
        self._total += size_bytes

    def is_exceeded(self, now: float) -> bool:
        if not self._samples:
            return False
        self._forget(now)
        return self._total > self._rate() * self._measured_seconds(now)

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the quota is no longer exceeded; 0 if it is not."""
        if not self.is_exceeded(now):
            return 0.0
        oldest = self._samples[0][0]
        expires = oldest + self._window_seconds - now
        rate = self._rate()
        if rate <= 0:
            return expires
        return max(0.0, min(expires, oldest + self._total / rate - now))

    def _measured_seconds(self, now: float) -> float:
        oldest = self._samples[0][0] if self._samples else now
        return max(now - oldest, self._sample_seconds)

    def _forget(self, now: float) -> None:
        samples = self._samples
        while samples and now - samples[0][0] >= self._window_seconds:
            self._total -= samples.popleft()[1]


def is_throttled(replicas: Sequence[str], index: int, node_id: int) -> bool:
    """Whether a list of throttled replicas names partition `index` on `node_id`.

    `replicas` is leader.replication.throttled.replicas or follower.replication.throttled.replicas
    of the topic.
    """
    return bool(replicas) and (EVERY_REPLICA in replicas or f"{index}:{node_id}" in replicas)
