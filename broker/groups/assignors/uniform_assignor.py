"""The uniform assignor: everyone has as many partitions as anyone, or one more, and keeps its own.

Balance before stickiness. Where all members subscribe to the same topics, members give up what is
over their quota and the rest is handed out, in one pass. Where they do not, what nobody has goes to
whoever has least, topic by topic, and then each topic's partitions move from those who have most to
those who have least until no move helps. Members that share topics but not all of them may then be
a little apart still, see `ROUNDS_MAX`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from odradek.broker.groups.assignors.spec import Assignment, GroupSpec, Result

NAME = "uniform"
ROUNDS_MAX = 16
"""How often all topics are balanced: each round about halves what members are apart."""

Owned = dict[UUID, set[int]]
Run = tuple[UUID, Sequence[int]]
"""Some partitions of a topic."""


def assign(group: GroupSpec) -> Result:
    if not group.members:
        return {}
    owned = _assign_homogeneous(group) if group.is_homogeneous else _Heterogeneous(group).assign()
    return {
        member_id: {
            topic: frozenset(partitions) for topic, partitions in topics.items() if partitions
        }
        for member_id, topics in owned.items()
    }


def _assign_homogeneous(group: GroupSpec) -> dict[str, Owned]:
    topics = next(iter(group.members.values())).topics
    free = _Free(group, topics)
    total = sum(group.partition_counts[topic] for topic in topics)
    least, extras = divmod(total, len(group.members))
    result: dict[str, Owned] = {}
    room: list[tuple[str, int]] = []
    for index, (member_id, member) in enumerate(group.members.items()):
        quota = least + (extras > 0)
        takes_extra = extras > 0
        kept, given = _keep(member.assigned, frozenset(topics), quota)
        free.add(given)
        left = quota - sum(map(len, kept.values()))
        # Whoever has to get something may leave the extra one to somebody who has it already, as
        # long as there are enough left to take them all.
        if left and takes_extra and len(group.members) - index > extras:
            left -= 1
            takes_extra = False
        if left:
            room.append((member_id, left))
        extras -= takes_extra
        result[member_id] = kept
    for member_id, count in room:
        for topic, partitions in free.take(count):
            result[member_id].setdefault(topic, set()).update(partitions)
    return result


class _Free:
    """What is to be handed out, in order: runs of partitions, for there may be many in each."""

    def __init__(self, group: GroupSpec, topics: Iterable[UUID]) -> None:
        """What nobody has."""
        taken: dict[UUID, list[frozenset[int]]] = {}
        for member in group.members.values():
            for topic, partitions in member.assigned.items():
                taken.setdefault(topic, []).append(partitions)
        self._runs: deque[Run] = deque()
        self._used = 0
        """How many of the first run are gone."""
        for topic in topics:
            every = range(group.partition_counts[topic])
            if topic in taken:
                every_free = sorted(frozenset(every).difference(*taken[topic]))
                self.add([(topic, every_free)])
            else:
                self.add([(topic, every)])

    def add(self, runs: Iterable[Run]) -> None:
        self._runs.extend(run for run in runs if run[1])

    def take(self, count: int) -> Iterator[Run]:
        """The next `count`, or as many as there are."""
        while count and self._runs:
            topic, partitions = self._runs[0]
            found = partitions[self._used : self._used + count]
            count -= len(found)
            self._used += len(found)
            if self._used == len(partitions):
                self._runs.popleft()
                self._used = 0
            yield topic, found


def _keep(assigned: Assignment, topics: frozenset[UUID], quota: int) -> tuple[Owned, list[Run]]:
    """What a member keeps, up to its quota, and what it gives to others."""
    kept: Owned = {}
    given: list[Run] = []
    for topic, partitions in assigned.items():
        if topic not in topics:
            continue
        if len(partitions) <= quota:
            kept[topic] = set(partitions)
        else:
            ordered = sorted(partitions)
            kept[topic] = set(ordered[:quota])
            given.append((topic, ordered[quota:]))
        quota -= len(kept[topic])
    return kept, given


class _Heterogeneous:
    """Members that subscribe to different topics."""

    def __init__(self, group: GroupSpec) -> None:
        self._group = group
        self._ids = list(group.members)
        self._owned: list[Owned] = []
        self._subscribers: dict[UUID, list[int]] = {}
        for index, member in enumerate(group.members.values()):
            for topic in member.topics:
                self._subscribers.setdefault(topic, []).append(index)
            topics = frozenset(member.topics)
            kept, _ = _keep(member.assigned, topics, quota=1 << 62)
            self._owned.append(kept)
        self._sizes = [sum(map(len, owned.values())) for owned in self._owned]

    def assign(self) -> dict[str, Owned]:
        topics = sorted(self._subscribers, key=self._order)
        for topic in topics:
            self._hand_out(topic)
        shared = [topic for topic in topics if len(self._subscribers[topic]) > 1]
        for _ in range(ROUNDS_MAX):
            if not sum([self._balance(topic) for topic in shared]):
                break
        return dict(zip(self._ids, self._owned, strict=True))

    def _order(self, topic: UUID) -> tuple[float, int, UUID]:
        """Topics with much for each subscriber first: others even out what those leave."""
        subscribers = len(self._subscribers[topic])
        return -self._group.partition_counts[topic] / subscribers, subscribers, topic

    def _hand_out(self, topic: UUID) -> None:
        """What nobody has goes to whoever has least."""
        subscribers = self._subscribers[topic]
        taken = {each for index in subscribers for each in self._owned[index].get(topic, ())}
        heap = [(self._sizes[index], index) for index in subscribers]
        heapq.heapify(heap)
        for partition in range(self._group.partition_counts[topic]):
            if partition not in taken:
                size, index = heap[0]
                self._owned[index].setdefault(topic, set()).add(partition)
                self._sizes[index] = size + 1
                heapq.heapreplace(heap, (size + 1, index))

    def _balance(self, topic: UUID) -> int:
        """Move partitions of a topic from those with most to those with least; how many moved."""
        least = [(self._sizes[index], index) for index in self._subscribers[topic]]
        most = [
            (-self._sizes[index], index)
            for index in self._subscribers[topic]
            if self._owned[index].get(topic)
        ]
        heapq.heapify(least)
        heapq.heapify(most)
        moved = 0
        # Whoever gives stays above whoever gets, so neither comes up in the other heap.
        while most and -most[0][0] - least[0][0] > 1:
            size, giver = most[0]
            partitions = self._owned[giver][topic]
            taker_size, taker = heapq.heappop(least)
            partition = max(partitions)
            partitions.remove(partition)
            self._owned[taker].setdefault(topic, set()).add(partition)
            self._sizes[giver] -= 1
            self._sizes[taker] += 1
            heapq.heappush(least, (taker_size + 1, taker))
            if partitions:
                heapq.heapreplace(most, (size + 1, giver))
            else:
                heapq.heappop(most)
            moved += 1
        return moved
