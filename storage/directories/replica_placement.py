"""Which directory a new partition goes to: a decision over values, no disk.

The one with the fewest bytes; of equals the one with the fewest partitions; of those the first in the
order of `log.dirs`. (Kafka looks at the number of partitions alone, and leaves ties to a hash map.)

A new partition has no bytes yet, and a topic's partitions are made in one go: all would be sent to
the same directory. So those made in one go, which is with pauses below `PAUSE_S`, count as much as the
average partition of the node had when that began. A directory that is far behind gets more of them,
until it has caught up by this estimate; then they alternate. At the first partition after a pause the
directories are measured anew, from what the open logs know of themselves.

All directories are returned, best first: when the best one fails while the partition is being made
there, the next one is tried. Cordoned directories (KIP-1066) get nothing new; where all are cordoned
by now, the first of them takes what was assigned before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from math import inf
from typing import Generic, TypeVar

from odradek.seams.values import value_class

D = TypeVar("D", bound=Hashable)

PAUSE_SECONDS = 1.0
"""Partitions that are made with longer pauses than this are not made in one go."""
MEASUREMENT_SECONDS_MAX = 60.0
"""How long a measurement is good for where creation never pauses."""


@value_class
class DirectoryUsage:
    """What is in a directory: bytes, and how many partitions; moves count where they go to."""

    size_bytes: int
    partitions: int


@value_class
class PlacementCandidate(Generic[D]):
    """A directory that is online, and what speaks for or against it."""

    directory: D
    size_bytes: int
    """Measured and estimated."""
    partitions: int
    """Logs in it, and those that are being made there right now."""
    cordoned: bool = False


def order_candidates(candidates: Iterable[PlacementCandidate[D]]) -> list[D]:
    """The directories in the order in which to try them; `candidates` are in that of `log.dirs`."""
    known = list(candidates)
    ranked = sorted(
        (each for each in known if not each.cordoned),
        key=lambda candidate: (candidate.size_bytes, candidate.partitions),
    )
    return [candidate.directory for candidate in ranked or known[:1]]


class PlacementEstimate(Generic[D]):
    """The directories' bytes while partitions are made in one go. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._measured: Mapping[D, DirectoryUsage] = {}
        self._made: Counter[D] = Counter()
        self._average = 1
        self._measured_at = -inf
        self._used_at = -inf

    def is_stale(self, now: float) -> bool:
        """Whether the directories must be measured before the next partition is placed."""
        return (
            now - self._used_at > PAUSE_SECONDS or now - self._measured_at > MEASUREMENT_SECONDS_MAX
        )

    def measured(self, content: Mapping[D, DirectoryUsage], now: float) -> None:
        """A measurement of all directories that are online."""
        count = sum(each.partitions for each in content.values())
        size_bytes = sum(each.size_bytes for each in content.values())
        self._measured = content
        self._average = max(1, size_bytes // max(1, count))
        self._made.clear()
        self._measured_at = self._used_at = now

    def size_bytes(self, directory: D) -> int:
        """What was measured (nothing, for one that was not), and the average for each made since."""
        found = self._measured.get(directory)
        return (0 if found is None else found.size_bytes) + self._made[directory] * self._average

    def reserved(self, directory: D, now: float) -> None:
        """A partition is being made there."""
        self._made[directory] += 1
        self._used_at = now

    def released(self, directory: D) -> None:
        """It could not be made."""
        self._made[directory] = max(0, self._made[directory] - 1)  # it may have been measured since
