"""What the members of a group were given and committed, and what of it cannot be: each record is somebody's, what
was acknowledged to be committed is not read again by whoever comes next, and nobody commits what is another's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from odradek.testing.simulation.history import Anomaly, Seen


@dataclass
class Given:
    """Partitions that are a member's, in one generation (or member epoch)."""

    member: str
    generation: int
    partitions: set[int]
    asked_s: float
    told_s: float
    """When it had not asked yet for the records that it was the first to get of these, and when it had them."""
    seen: list[Seen] = field(default_factory=list)

    def goes_on(self, generation: int, partitions: set[int], records: list[Seen]) -> bool:
        """Whether it has the same still and these are its next records. Who joins again begins where the group
        is, though its generation may be the same."""
        if (generation, partitions) != (self.generation, self.partitions):
            return False
        last = {each.partition: each.offset for each in self.seen}
        return all(each.offset > last.get(each.partition, -1) for each in records)


@dataclass
class Commit:
    member: str
    generation: int
    offsets: Mapping[int, int]
    asked_s: float
    told_s: float | None = None
    """When it was acknowledged, if it was."""


@dataclass
class GroupHistory:
    given: list[Given] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)

    def acknowledged(self) -> dict[int, int]:
        """The furthest that the group has come, as it was told."""
        furthest: dict[int, int] = defaultdict(int)
        for each in self.commits:
            if each.told_s is not None:
                for partition, offset in each.offsets.items():
                    furthest[partition] = max(furthest[partition], offset)
        return dict(furthest)

    def count_done(self) -> Counter[str]:
        """How much came of what members asked for."""
        told = [each for each in self.commits if each.told_s is not None]
        return Counter({"acknowledged commits of a group": len(told)})

    def anomalies(self, final: list[Seen], has: Mapping[int, int]) -> Iterator[Anomaly]:
        """`final` is all that is committed, `has` the offsets that the group has in the end."""
        yield from self._lost_offsets(has)
        yield from self._read_again()
        yield from self._fenced_commits()
        yield from self._unread(final)
        yield from self._out_of_order()

    def _lost_offsets(self, has: Mapping[int, int]) -> Iterator[Anomaly]:
        for partition, offset in self.acknowledged().items():
            found = has.get(partition, -1)
            possible = {
                each.offsets[partition] for each in self.commits if partition in each.offsets
            }
            if found < offset or found not in possible:
                why = f"the group has {found} of partition {partition}, it committed {offset}"
                yield Anomaly("group offset", why)

    def _read_again(self) -> Iterator[Anomaly]:
        for given in self.given:
            for partition in given.partitions:
                offsets = [each.offset for each in given.seen if each.partition == partition]
                known = [
                    each.offsets[partition]
                    for each in self.commits
                    if each.told_s is not None
                    and each.told_s <= given.asked_s
                    and partition in each.offsets
                ]
                if offsets and known and offsets[0] < max(known):
                    why = (
                        f"{given.member} began partition {partition} in {given.generation} at "
                        f"{offsets[0]}, {max(known)} was committed"
                    )
                    yield Anomaly("read again", why)

    def _fenced_commits(self) -> Iterator[Anomaly]:
        for commit in self.commits:
            for given in self.given:
                others = given.partitions & commit.offsets.keys()
                if (
                    commit.told_s is not None
                    and others
                    and given.member != commit.member
                    and given.generation > commit.generation
                    and given.told_s < commit.asked_s
                ):
                    why = (
                        f"{commit.member} committed {sorted(others)} in {commit.generation}, which "
                        f"{given.member} had in {given.generation}"
                    )
                    yield Anomaly("another member's", why)

    def _unread(self, final: list[Seen]) -> Iterator[Anomaly]:
        seen = {
            (each.partition, each.offset, each.value) for one in self.given for each in one.seen
        }
        there = {(each.partition, each.offset, each.value) for each in final}
        for partition, offset, value in sorted(there - seen):
            why = f"{value!r} at {partition}:{offset}"
            yield Anomaly("unseen", f"no member of the group has had {why}")
        for partition, offset, value in sorted(seen - there):
            why = f"{value!r} at {partition}:{offset}, which is not there in the end"
            yield Anomaly("aborted read", f"a member of the group has had {why}")

    def _out_of_order(self) -> Iterator[Anomaly]:
        for given in self.given:
            for partition in given.partitions:
                offsets = [each.offset for each in given.seen if each.partition == partition]
                if offsets != sorted(set(offsets)):
                    why = f"{given.member} in partition {partition}: {offsets}"
                    yield Anomaly("non-monotonic poll", why)
