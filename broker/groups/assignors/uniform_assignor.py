"""The uniform assignor: the same number of partitions for each member, or one more. Sticky.

Balance takes precedence over stickiness. If all members subscribe to the same topics, members lose
partitions above their quota, and free partitions are assigned in one pass. Otherwise free partitions
are assigned topic by topic to the member with the fewest, then each topic's partitions are moved
from members with most to members with fewest partitions until no move improves the balance, for at
most `ROUNDS_MAX` rounds. With overlapping subscriptions a small imbalance may remain.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from odradek.broker.groups.assignors.spec import Assignment, GroupSpec, Result

NAME = "uniform"
ROUNDS_MAX = 16
"""Maximum rounds over all topics; each round about halves the imbalance."""

Owned = dict[UUID, set[int]]
Run = tuple[UUID, Sequence[int]]
"""A topic and some of its partitions."""


def assign(group: GroupSpec) -> Result:
    if not group.members:
        return {}
    owned = (
        _assign_homogeneous(group)
        if group.is_homogeneous
        else _HeterogeneousAssignment(group).assign()
    )
    return {
        member_id: {
            topic: frozenset(partitions) for topic, partitions in topics.items() if partitions
        }
        for member_id, topics in owned.items()
    }


def _assign_homogeneous(group: GroupSpec) -> dict[str, Owned]:
    topics = next(iter(group.members.values())).topics
    free = _FreePartitions(group, topics)
    total = sum(group.partition_counts[topic] for topic in topics)
    least, extras = divmod(total, len(group.members))
    result: dict[str, Owned] = {}
    missing: list[tuple[str, int]] = []
    for index, (member_id, member) in enumerate(group.members.items()):
        quota = least + (extras > 0)
        takes_extra = extras > 0
        kept, released = _keep(member.assigned, frozenset(topics), quota)
        free.add(released)
        left = quota - sum(map(len, kept.values()))
        # A member that needs partitions leaves the extra one to a later member, which may own one
        # more already, as long as enough members remain for all extra partitions.
        if left and takes_extra and len(group.members) - index > extras:
            left -= 1
            takes_extra = False
        if left:
            missing.append((member_id, left))
        extras -= takes_extra
        result[member_id] = kept
    for member_id, count in missing:
        for topic, partitions in free.take(count):
            result[member_id].setdefault(topic, set()).update(partitions)
    return result


class _FreePartitions:
    """Free partitions in order, as runs of partitions of one topic."""

    def __init__(self, group: GroupSpec, topics: Iterable[UUID]) -> None:
        taken: dict[UUID, list[frozenset[int]]] = {}
        for member in group.members.values():
            for topic, partitions in member.assigned.items():
                taken.setdefault(topic, []).append(partitions)
        self._runs: deque[Run] = deque()
        self._used = 0
        """Number of partitions taken from the first run."""
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
        """Take the next `count` partitions, or fewer if there are not enough."""
        while count and self._runs:
            topic, partitions = self._runs[0]
            taken = partitions[self._used : self._used + count]
            count -= len(taken)
            self._used += len(taken)
            if self._used == len(partitions):
                self._runs.popleft()
                self._used = 0
            yield topic, taken


def _keep(assigned: Assignment, topics: frozenset[UUID], quota: int) -> tuple[Owned, list[Run]]:
    """Partitions that a member keeps, up to its quota, and those that it loses."""
    kept: Owned = {}
    released: list[Run] = []
    for topic, partitions in assigned.items():
        if topic not in topics:
            continue
        if len(partitions) <= quota:
            kept[topic] = set(partitions)
        else:
            ordered = sorted(partitions)
            kept[topic] = set(ordered[:quota])
            released.append((topic, ordered[quota:]))
        quota -= len(kept[topic])
    return kept, released


class _HeterogeneousAssignment:
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
            self._assign_free(topic)
        shared = [topic for topic in topics if len(self._subscribers[topic]) > 1]
        for _ in range(ROUNDS_MAX):
            if not sum([self._balance(topic) for topic in shared]):
                break
        return dict(zip(self._ids, self._owned, strict=True))

    def _order(self, topic: UUID) -> tuple[float, int, UUID]:
        """Order by partitions per subscriber, most first: later topics balance the earlier ones."""
        subscribers = len(self._subscribers[topic])
        return -self._group.partition_counts[topic] / subscribers, subscribers, topic

    def _assign_free(self, topic: UUID) -> None:
        """Assign free partitions to the subscribers with the fewest partitions."""
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
        """Move partitions from the members with most to those with fewest; returns the number of moves."""
        least = [(self._sizes[index], index) for index in self._subscribers[topic]]
        most = [
            (-self._sizes[index], index)
            for index in self._subscribers[topic]
            if self._owned[index].get(topic)
        ]
        heapq.heapify(least)
        heapq.heapify(most)
        moved = 0
        # A giver always has more partitions than a taker, so neither is in both heaps.
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
