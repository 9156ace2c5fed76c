"""Voter sets and kraft.version levels in the log, uncommitted ones included (Kafka's `VoterSetHistory`;
KIP-853).

A voter applies the newest voter set in its log at once. Truncation of the log restores the previous set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odradek.replication.raft.voters import Voter, VoterSet
from odradek.seams.values import value_class

BEFORE_THE_LOG = -1


@value_class
class ControlChange:
    """A KRaftVersionRecord or VotersRecord. Those of a snapshot have its end offset minus 1."""

    offset: int
    voters: tuple[Voter, ...] | None = None
    kraft_version: int | None = None


class VoterHistory:
    """History of control records; `static_voters` apply while there is no VotersRecord."""

    def __init__(
        self, static_voters: Sequence[Voter] = (), changes: Iterable[ControlChange] = ()
    ) -> None:
        self._static = VoterSet(static_voters)
        self._changes: list[ControlChange] = []
        self.append(changes)

    def append(self, changes: Iterable[ControlChange]) -> None:
        """Add control records that were appended to the log, in log order."""
        self._changes += changes
        self._refresh()

    def truncate(self, end_offset: int) -> None:
        """Drop the changes from `end_offset` on."""
        self._changes = [each for each in self._changes if each.offset < end_offset]
        self._refresh()

    def reset(self, changes: Iterable[ControlChange]) -> None:
        """Replace all changes by those of an installed snapshot."""
        self._changes = []
        self.append(changes)

    def compact(self, start_offset: int) -> None:
        """Drop the changes before `start_offset` that later ones before it replaced."""
        past = [each for each in self._changes if each.offset < start_offset]
        voters = [each for each in past if each.voters is not None][-1:]
        versions = [each for each in past if each.kraft_version is not None][-1:]
        kept = sorted({*voters, *versions}, key=lambda each: each.offset)
        self._changes = kept + self._changes[len(past) :]

    def _refresh(self) -> None:
        self.voters = self._static
        self.voters_offset: int | None = None  # None while there is no VotersRecord
        self.kraft_version = 0
        for change in self._changes:
            if change.voters is not None:
                self.voters, self.voters_offset = VoterSet(change.voters), change.offset
            if change.kraft_version is not None:
                self.kraft_version = change.kraft_version

    def at(self, end_offset: int) -> tuple[int, VoterSet]:
        """Level of kraft.version and voter set at `end_offset` (exclusive)."""
        past = VoterHistory(
            tuple(self._static), [each for each in self._changes if each.offset < end_offset]
        )
        return past.kraft_version, past.voters
