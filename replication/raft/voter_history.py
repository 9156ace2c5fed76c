"""Voters and kraft.version as the log tells them, up to its very end, committed or not (KIP-853).

A voter acts by the newest voter set in its log at once. If the log is truncated, what came after is
forgotten and the set before it holds again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odradek.replication.raft.voters import Voter, VoterSet
from odradek.seams.values import value_class

BEFORE_THE_LOG = -1


@value_class
class ControlChange:
    """A KRaftVersionRecord or VotersRecord at this offset; of a snapshot: its end offset less one."""

    offset: int
    voters: tuple[Voter, ...] | None = None
    kraft_version: int | None = None


class VoterHistory:
    """See the module. `static_voters` hold as long as the log names none (kraft.version 0)."""

    def __init__(
        self, static_voters: Sequence[Voter] = (), changes: Iterable[ControlChange] = ()
    ) -> None:
        self._static = VoterSet(static_voters)
        self._changes: list[ControlChange] = []
        self.append(changes)

    def append(self, changes: Iterable[ControlChange]) -> None:
        """The log has grown by these, in the order of the log."""
        self._changes += changes
        self._refresh()

    def truncate(self, end_offset: int) -> None:
        """The log ends here now."""
        self._changes = [each for each in self._changes if each.offset < end_offset]
        self._refresh()

    def reset(self, changes: Iterable[ControlChange]) -> None:
        """A snapshot has taken the log's place."""
        self._changes = []
        self.append(changes)

    def compact(self, start_offset: int) -> None:
        """The log starts here now: what held at its start is kept, what it replaced is not."""
        past = [each for each in self._changes if each.offset < start_offset]
        voters = [each for each in past if each.voters is not None][-1:]
        versions = [each for each in past if each.kraft_version is not None][-1:]
        kept = sorted({*voters, *versions}, key=lambda each: each.offset)
        self._changes = kept + self._changes[len(past) :]

    def _refresh(self) -> None:
        self.voters = self._static
        self.voters_offset: int | None = None  # None while the log names none
        self.kraft_version = 0
        for change in self._changes:
            if change.voters is not None:
                self.voters, self.voters_offset = VoterSet(change.voters), change.offset
            if change.kraft_version is not None:
                self.kraft_version = change.kraft_version

    def at(self, end_offset: int) -> tuple[int, VoterSet]:
        """kraft.version and the voters as of the records below `end_offset`."""
        past = VoterHistory(
            tuple(self._static), [each for each in self._changes if each.offset < end_offset]
        )
        return past.kraft_version, past.voters
