"""Replication quotas (KIP-73), without I/O: how fast bytes go, and whether that is too fast by now.

The rate is that of the last few samples, the one that is being taken included, over the time since
the oldest of them began, and over a whole sample at the least: so a burst is borrowed, and what it
was above the rate is waited for. Who is throttled is told only whether; nobody is delayed here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

EVERY_REPLICA = "*"


class ReplicationQuota:
    """See the module. Times are monotonic, in seconds."""

    def __init__(
        self, rate: Callable[[], float], *, samples: int = 11, sample_seconds: float = 1.0
    ) -> None:
        """`rate`: bytes a second, as of now; `samples` (replication.quota.window.num) are kept, of
        `sample_seconds` (replication.quota.window.size.seconds) each."""
        self._rate = rate
        self._sample_seconds = sample_seconds
        self._window_seconds = samples * sample_seconds
        self._samples: deque[list[float]] = deque()
        """[when it began, bytes] of each, the oldest first."""
        self._total = 0.0

    def record(self, size_bytes: int, now: float) -> None:
        """So much has gone, whether the quota allowed it or not."""
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
        """Until it is not exceeded any more, as far as is known now; 0 if it is not."""
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
    """Whether a topic's list (leader.replication.throttled.replicas, follower.…) names the replica
    of partition `index` on `node_id`."""
    return bool(replicas) and (EVERY_REPLICA in replicas or f"{index}:{node_id}" in replicas)
