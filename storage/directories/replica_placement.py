"""Choice of the log directory for a new replica, without I/O.

The order is: the fewest bytes, then the fewest replicas, then the order of `log.dirs`. (Kafka compares only the
number of replicas, and the order of equal directories is that of a hash map.)

A new replica has no bytes yet, and the replicas of a topic are created together, so all of them would go to the same
directory. Therefore each replica that is created less than `PAUSE_SECONDS` after the previous one counts as much as
the average replica of the node. A directory with fewer bytes gets more of them until the estimates are equal; then
the directories alternate. At the first creation after a pause, the sizes are taken from the open logs again.

The result contains all directories: if the creation fails in the first one, the next one is used. Cordoned
directories (KIP-1066) get no new replicas. If all are cordoned, the first one gets the replicas that were assigned
before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from math import inf
from typing import Generic, TypeVar

from odradek.seams.values import value_class

D = TypeVar("D", bound=Hashable)

PAUSE_SECONDS = 1.0
"""Replicas that are created with longer pauses than this are not created together."""
MEASUREMENT_SECONDS_MAX = 60.0
"""Maximum age of the sizes if replicas are created without a pause."""


@value_class
class DirectoryUsage:
    """Bytes and number of replicas in a directory; a moving replica counts in its destination."""

    size_bytes: int
    partitions: int


@value_class
class PlacementCandidate(Generic[D]):
    """An online directory with the properties that determine its place in the order."""

    directory: D
    size_bytes: int
    """Measured bytes and estimated bytes of new replicas."""
    partitions: int
    """Number of logs, including those that are being created."""
    cordoned: bool = False


def order_candidates(candidates: Iterable[PlacementCandidate[D]]) -> list[D]:
    """Return the directories, best first; `candidates` are in the order of `log.dirs`."""
    known = list(candidates)
    ranked = sorted(
        (each for each in known if not each.cordoned),
        key=lambda candidate: (candidate.size_bytes, candidate.partitions),
    )
    return [candidate.directory for candidate in ranked or known[:1]]


class PlacementEstimate(Generic[D]):
    """Estimated bytes of the directories while replicas are created. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._measured: Mapping[D, DirectoryUsage] = {}
        self._made: Counter[D] = Counter()
        self._average = 1
        self._measured_at = -inf
        self._used_at = -inf

    def is_stale(self, now: float) -> bool:
        """Return whether the directories must be measured before the next replica is placed."""
        return (
            now - self._used_at > PAUSE_SECONDS or now - self._measured_at > MEASUREMENT_SECONDS_MAX
        )

    def measured(self, content: Mapping[D, DirectoryUsage], now: float) -> None:
        """Set the measured usage of all online directories."""
        count = sum(each.partitions for each in content.values())
        size_bytes = sum(each.size_bytes for each in content.values())
        self._measured = content
        self._average = max(1, size_bytes // max(1, count))
        self._made.clear()
        self._measured_at = self._used_at = now

    def size_bytes(self, directory: D) -> int:
        """Return the measured bytes (0 if unknown), plus the average size per replica created since."""
        found = self._measured.get(directory)
        return (0 if found is None else found.size_bytes) + self._made[directory] * self._average

    def reserved(self, directory: D, now: float) -> None:
        """Count a replica that is being created in `directory`."""
        self._made[directory] += 1
        self._used_at = now

    def released(self, directory: D) -> None:
        """Uncount a replica whose creation failed."""
        # A measurement may have reset the count
        self._made[directory] = max(0, self._made[directory] - 1)
