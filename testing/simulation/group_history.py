"""The assignments and commits of a group's members, and checks of them.

Each record is assigned to a member, no later member reads records below an acknowledged commit
again, and no member commits the offsets of another's partitions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from odradek.testing.simulation.history import Anomaly, ReadRecord


@dataclass
class MemberAssignment:
    """The partitions of a member in one generation (or member epoch)."""

    member: str
    generation: int
    partitions: set[int]
    poll_started_s: float
    poll_returned_s: float
    """The start of the first poll that returned records of this assignment, and its end."""
    seen: list[ReadRecord] = field(default_factory=list)

    def continues(self, generation: int, partitions: set[int], records: list[ReadRecord]) -> bool:
        """Whether the assignment is unchanged and these are its next records.

        A member that rejoins starts at the committed offsets, even in the same generation.
        """
        if (generation, partitions) != (self.generation, self.partitions):
            return False
        last = {each.partition: each.offset for each in self.seen}
        return all(each.offset > last.get(each.partition, -1) for each in records)


@dataclass
class OffsetCommit:
    member: str
    generation: int
    offsets: Mapping[int, int]
    requested_s: float
    acknowledged_s: float | None = None
    """The time of the acknowledgement, if there was one."""


@dataclass
class GroupHistory:
    assignments: list[MemberAssignment] = field(default_factory=list)
    commits: list[OffsetCommit] = field(default_factory=list)

    def acknowledged(self) -> dict[int, int]:
        """The highest acknowledged offset of each partition."""
        furthest: dict[int, int] = defaultdict(int)
        for each in self.commits:
            if each.acknowledged_s is not None:
                for partition, offset in each.offsets.items():
                    furthest[partition] = max(furthest[partition], offset)
        return dict(furthest)

    def count_done(self) -> Counter[str]:
        """Count the acknowledged commits."""
        acknowledged = [each for each in self.commits if each.acknowledged_s is not None]
        return Counter({"acknowledged commits of a group": len(acknowledged)})

    def anomalies(
        self,
        final: list[ReadRecord],
        has: Mapping[int, int],
        log_starts: Mapping[int, int] = MappingProxyType({}),
    ) -> Iterator[Anomaly]:
        """Check the history.

        `final` are all committed records, `has` the committed offsets of the group at the end. Records below
        `log_starts` were deleted meanwhile.
        """
        yield from self._lost_offsets(has)
        yield from self._read_again()
        yield from self._fenced_commits()
        yield from self._unread(final, log_starts)
        yield from self._out_of_order()

    def _lost_offsets(self, has: Mapping[int, int]) -> Iterator[Anomaly]:
        for partition, offset in self.acknowledged().items():
            found = has.get(partition, -1)
            possible = {
                each.offsets[partition] for each in self.commits if partition in each.offsets
            }
            if found < offset or found not in possible:
                why = (
                    f"the group has offset {found} of partition {partition}, but committed {offset}"
                )
                yield Anomaly("wrong committed offset", why)

    def _read_again(self) -> Iterator[Anomaly]:
        for assignment in self.assignments:
            for partition in assignment.partitions:
                offsets = [each.offset for each in assignment.seen if each.partition == partition]
                known = [
                    each.offsets[partition]
                    for each in self.commits
                    if each.acknowledged_s is not None
                    and each.acknowledged_s <= assignment.poll_started_s
                    and partition in each.offsets
                ]
                if offsets and known and offsets[0] < max(known):
                    why = (
                        f"{assignment.member} began partition {partition} in {assignment.generation} at "
                        f"{offsets[0]}, {max(known)} was committed"
                    )
                    yield Anomaly("read again", why)

    def _fenced_commits(self) -> Iterator[Anomaly]:
        for commit in self.commits:
            for assignment in self.assignments:
                others = assignment.partitions & commit.offsets.keys()
                if (
                    commit.acknowledged_s is not None
                    and others
                    and assignment.member != commit.member
                    and assignment.generation > commit.generation
                    and assignment.poll_returned_s < commit.requested_s
                ):
                    why = (
                        f"{commit.member} committed {sorted(others)} in {commit.generation}, which "
                        f"{assignment.member} had in {assignment.generation}"
                    )
                    yield Anomaly("partition of another member", why)

    def _unread(self, final: list[ReadRecord], log_starts: Mapping[int, int]) -> Iterator[Anomaly]:
        seen = {
            (each.partition, each.offset, each.value)
            for one in self.assignments
            for each in one.seen
            if each.offset >= log_starts.get(each.partition, 0)
        }
        there = {
            (each.partition, each.offset, each.value)
            for each in final
            if each.offset >= log_starts.get(each.partition, 0)
        }
        for partition, offset, value in sorted(there - seen):
            why = f"{value!r} at {partition}:{offset}"
            yield Anomaly("unread", f"no member of the group has had {why}")
        for partition, offset, value in sorted(seen - there):
            why = f"{value!r} at {partition}:{offset}, which is not there in the end"
            yield Anomaly("aborted read", f"a member of the group has had {why}")

    def _out_of_order(self) -> Iterator[Anomaly]:
        for assignment in self.assignments:
            for partition in assignment.partitions:
                offsets = [each.offset for each in assignment.seen if each.partition == partition]
                if offsets != sorted(set(offsets)):
                    why = f"{assignment.member} in partition {partition}: {offsets}"
                    yield Anomaly("non-monotonic poll", why)
