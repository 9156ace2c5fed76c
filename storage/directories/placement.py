"""Which directory a new partition goes to: a decision over values, no disk.

The one with the fewest partitions, as Kafka has it; of equals the first in the order of `log.dirs`
(Kafka leaves that to a hash map). All are returned, best first: when the best one fails while the
partition is being made there, the next one is tried. Cordoned directories (KIP-1066) get nothing
new; where all are cordoned by now, the first of them takes what was assigned before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Candidate(Generic[D]):
    """A directory that is online, and what speaks for or against it."""

    directory: D
    partitions: int
    """Logs in it, and those that are being made there right now."""
    cordoned: bool = False


def best_first(candidates: Iterable[Candidate[D]]) -> list[D]:
    """The directories in the order in which to try them; `candidates` are in that of `log.dirs`."""
    known = list(candidates)
    ranked = sorted(
        (each for each in known if not each.cordoned), key=lambda candidate: candidate.partitions
    )
    return [candidate.directory for candidate in ranked or known[:1]]
