"""Planning of moves that balance the log directories of a broker, as a pure function.

Directories are balanced if the bytes and the number of replicas of each one are within a tolerance of the
mean (the number of replicas: at least to the next integer). A replica that is larger than that gets a
directory for itself and is excluded from the mean. The imbalance of bytes is the deviation beyond the
tolerance in percent of the mean, squared and summed over the directories; the imbalance of replicas is the
same in replicas. The plan minimizes, in this order: imbalance of bytes, imbalance of replicas, bytes moved,
replicas moved.

With few replicas all placements are compared (`EXACT_STATES`). Otherwise the plan is built greedily from
steps that move or exchange replicas between two directories: each step is the one with the largest
improvement per byte moved. Then moves are undone or replaced by smaller ones, as long as the imbalance does
not increase. The number of replicas is balanced only with single moves that do not unbalance the bytes.

A plan never increases the imbalance. After it was executed, the next plan is empty.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from odradek.seams.values import value_class

EXACT_STATES = 5_000
"""Limit of placements for the exact plan: 12 replicas in two directories, or 7 in three."""
TOLERANCE_PERCENT = 5
EXTREMES = 2
EXCHANGED = 200
"""Largest replicas of a directory that are considered for an exchange."""

Imbalance = tuple[int, int]
Score = tuple[int, int, int, int]


@value_class
class BalanceGoal:
    """Definition of balanced: the mean of a directory is `share_bytes / sharing` bytes."""

    directories: int
    replicas: int
    share_bytes: int
    sharing: int
    tolerance_percent: int

    @classmethod
    def of(
        cls, sizes: Sequence[int], directories: int, tolerance_percent: int = TOLERANCE_PERCENT
    ) -> BalanceGoal:
        """Compute the mean; replicas larger than it get a directory for themselves and are excluded."""
        left, sharing = sum(sizes), directories
        for size in sorted(sizes, reverse=True):
            if sharing == 1 or size * sharing * 100 <= left * (100 + tolerance_percent):
                break
            left, sharing = left - size, sharing - 1
        return cls(directories, len(sizes), left, sharing, tolerance_percent)

    @property
    def low_bytes(self) -> int:
        """Lower limit of the bytes of a balanced directory; `high_bytes` is the upper limit."""
        return -(-self.share_bytes * (100 - self.tolerance_percent) // (100 * self.sharing))

    @property
    def high_bytes(self) -> int:
        return self.share_bytes * (100 + self.tolerance_percent) // (100 * self.sharing)

    def of_bytes(self, size_bytes: int) -> int:
        """Imbalance of a directory with these bytes, not squared, times `sharing`."""
        away = abs(size_bytes * self.sharing - self.share_bytes)
        beyond = away - self.share_bytes * self.tolerance_percent // 100
        percent = max(self.sharing, self.share_bytes // 100)
        return -(-beyond // percent) if beyond > 0 else 0

    def of_replicas(self, count: int) -> int:
        away = abs(count * self.directories - self.replicas)
        tolerated = max(self.directories - 1, self.replicas * self.tolerance_percent // 100)
        return -(-(away - tolerated) // self.directories) if away > tolerated else 0

    def imbalance(self, sizes: Sequence[int], counts: Sequence[int]) -> Imbalance:
        return (
            sum(self.of_bytes(size) ** 2 for size in sizes),
            sum(self.of_replicas(count) ** 2 for count in counts),
        )


def plan(
    sizes: Sequence[int],
    homes: Sequence[int],
    directories: int,
    *,
    tolerance_percent: int = TOLERANCE_PERCENT,
) -> list[int]:
    """Plan the directory number of each replica.

    `sizes` are in bytes, `homes` are the current directory numbers.
    """
    goal = BalanceGoal.of(sizes, directories, tolerance_percent)
    if directories < 2 or not sizes:
        return list(homes)
    if directories ** len(sizes) <= EXACT_STATES:
        return _best_of_all(goal, sizes, homes)
    return by_steps(goal, sizes, homes)


def score(
    goal: BalanceGoal, sizes: Sequence[int], homes: Sequence[int], places: Sequence[int]
) -> Score:
    """Score of a placement, lower is better: imbalance of bytes, of replicas, bytes moved, replicas moved."""
    loads = [0] * goal.directories
    counts = [0] * goal.directories
    moved_bytes = moved = 0
    for size, home, place in zip(sizes, homes, places, strict=True):
        loads[place] += size
        counts[place] += 1
        if place != home:
            moved_bytes += size
            moved += 1
    return (*goal.imbalance(loads, counts), moved_bytes, moved)


def _best_of_all(goal: BalanceGoal, sizes: Sequence[int], homes: Sequence[int]) -> list[int]:
    every = (list(each) for each in product(range(goal.directories), repeat=len(sizes)))
    return min(every, key=lambda places: score(goal, sizes, homes, places))


def by_steps(goal: BalanceGoal, sizes: Sequence[int], homes: Sequence[int]) -> list[int]:
    """Plan with greedy steps, for placements that are too many to compare."""
    places = list(homes)
    while (better := _better(goal, sizes, homes, places)) is not None:
        places = better
    # Plan again from the result, so that the next plan after its execution is empty.
    while (better := _better(goal, sizes, places, places)) is not None:
        places = better
    return places


def _better(
    goal: BalanceGoal, sizes: Sequence[int], homes: Sequence[int], places: Sequence[int]
) -> list[int] | None:
    """Return a placement with less imbalance than `places`, or None if steps find none."""
    state = _Placement(goal, sizes, homes, places)
    while state.step():
        pass
    state.save()
    before, after = (score(goal, sizes, homes, each) for each in (places, state.places))
    return state.places if after[:2] < before[:2] else None


@value_class
class _PlanStep:
    """Move of replica `there` from source to target, in exchange for replica `back` if there is one."""

    there: int
    back: int | None
    source: int
    target: int


class _Placement:
    """Placement of replicas that steps improve."""

    def __init__(
        self, goal: BalanceGoal, sizes: Sequence[int], homes: Sequence[int], places: Sequence[int]
    ) -> None:
        self._goal = goal
        self._sizes = sizes
        self._homes = homes
        self.places = list(places)
        self._loads = [0] * goal.directories
        self._counts = [0] * goal.directories
        self._by_size: list[list[tuple[int, int]]] = [[] for _ in range(goal.directories)]
        for number, (size, place) in enumerate(zip(sizes, places, strict=True)):
            self._loads[place] += size
            self._counts[place] += 1
            self._by_size[place].append((size, number))
        for each in self._by_size:
            each.sort()

    # Steps

    def step(self) -> bool:
        """Apply the best step; return whether a step improves the placement."""
        for steps in (self._moves, self._exchanges):
            for pairs in (self._extreme_pairs, self._pairs):
                best = self._best(steps(pairs()))
                if best is not None:
                    self._take(best)
                    return True
        return False

    def _best(self, steps: Iterator[_PlanStep]) -> _PlanStep | None:
        ranked = ((rank, step) for step in steps if (rank := self._rank(step)) is not None)
        return min(ranked, key=lambda pair: pair[0], default=(None, None))[1]

    def _rank(self, step: _PlanStep) -> tuple[int, float, int] | None:
        """Rank of a step, lower is better; None for a step that does not improve the placement.

        Steps that balance bytes come first, even by less than one percent, ordered by their
        improvement per byte moved. Among equal ones, the step that moves more bytes comes first,
        because fewer steps follow it.
        """
        before, after = self._pair(step, taken=False), self._pair(step, taken=True)
        if after >= before:
            return None
        cost = self._cost(step)
        if after[0][0] < before[0][0] or after[0] == before[0]:
            return (0, -(before[1] - after[1]) / max(1, cost), -cost)
        return (1, cost, 0)

    def _pair(self, step: _PlanStep, *, taken: bool) -> tuple[Imbalance, int]:
        """Imbalance of the two directories, and their bytes outside of the tolerance."""
        goal = self._goal
        weight, count = self._weight(step) if taken else (0, 0)
        sizes = (self._loads[step.source] - weight, self._loads[step.target] + weight)
        counts = (self._counts[step.source] - count, self._counts[step.target] + count)
        missed = sum(max(size - goal.high_bytes, goal.low_bytes - size, 0) for size in sizes)
        return goal.imbalance(sizes, counts), missed

    def _weight(self, step: _PlanStep) -> tuple[int, int]:
        """Bytes and replicas that the target directory gains."""
        if step.back is None:
            return self._sizes[step.there], 1
        return self._sizes[step.there] - self._sizes[step.back], 0

    def _cost(self, step: _PlanStep) -> int:
        """Bytes that the step adds to the plan; negative if a replica returns to its current directory."""
        cost = self._moved(step.there, step.target) - self._moved(step.there, step.source)
        if step.back is not None:
            cost += self._moved(step.back, step.source) - self._moved(step.back, step.target)
        return cost

    def _moved(self, number: int, place: int) -> int:
        return 0 if place == self._homes[number] else self._sizes[number]

    def _take(self, step: _PlanStep) -> None:
        self._put(step.there, step.target)
        if step.back is not None:
            self._put(step.back, step.source)

    def _put(self, number: int, place: int) -> None:
        size, old = self._sizes[number], self.places[number]
        by_size = self._by_size[old]
        del by_size[bisect_left(by_size, (size, number))]
        insort(self._by_size[place], (size, number))
        self._loads[old] -= size
        self._loads[place] += size
        self._counts[old] -= 1
        self._counts[place] += 1
        self.places[number] = place

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Yield (source, target) pairs of directories that are out of balance."""
        goal, loads, counts = self._goal, self._loads, self._counts
        uneven = [goal.of_bytes(size) > 0 for size in loads]
        crowded = [goal.of_replicas(count) > 0 for count in counts]
        for source, target in product(range(goal.directories), repeat=2):
            by_bytes = uneven[source] or uneven[target]
            by_count = crowded[source] or crowded[target]
            if (by_bytes and loads[source] > loads[target]) or (
                by_count and counts[source] > counts[target]
            ):
                yield source, target

    def _extreme_pairs(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of the fullest and the emptiest directories, which usually have the best step."""
        by_load = sorted(range(self._goal.directories), key=lambda each: self._loads[each])
        by_count = sorted(range(self._goal.directories), key=lambda each: self._counts[each])
        sources = {*by_load[-EXTREMES:], *by_count[-EXTREMES:]}
        targets = {*by_load[:EXTREMES], *by_count[:EXTREMES]}
        for source, target in self._pairs():
            if source in sources and target in targets:
                yield source, target

    def _wanted(self, source: int, target: int) -> tuple[int, ...]:
        """Numbers of bytes whose move from source to target reaches a limit or the middle."""
        goal, here, there = self._goal, self._loads[source], self._loads[target]
        sizes = {
            here - goal.high_bytes,
            here - goal.low_bytes,
            goal.low_bytes - there,
            goal.high_bytes - there,
            (here - there) // 2,
            0,
        }
        return tuple(sorted(size for size in sizes if size >= 0))

    def _moves(self, pairs: Iterable[tuple[int, int]]) -> Iterator[_PlanStep]:
        """Yield moves of one replica with about a wanted size."""
        for source, target in pairs:
            for number in self._near(source, self._wanted(source, target)):
                yield _PlanStep(number, None, source, target)

    def _exchanges(self, pairs: Iterable[tuple[int, int]]) -> Iterator[_PlanStep]:
        """Yield exchanges of two replicas whose sizes differ by about a wanted size."""
        for source, target in pairs:
            if self._loads[source] <= self._loads[target]:
                continue
            wanted = self._wanted(source, target)
            for size, number in self._by_size[source][-EXCHANGED:]:
                for back in self._near(target, [size - each for each in wanted]):
                    yield _PlanStep(number, back, source, target)

    def _near(self, place: int, sizes: Sequence[int]) -> set[int]:
        """Replicas of a directory with the nearest sizes above and below the given ones."""
        by_size = self._by_size[place]
        found: set[int] = set()
        for size in sizes:
            slot = bisect_left(by_size, (size, -1))
            found.update(number for _, number in by_size[max(0, slot - 1) : slot + 2])
        return found

    # Saving

    def save(self) -> None:
        """Undo or shrink moves that do not improve the balance."""
        moved = [number for number, place in enumerate(self.places) if place != self._homes[number]]
        for number in sorted(moved, key=lambda each: -self._sizes[each]):
            home, place = self._homes[number], self.places[number]
            for back in (None, *self._smaller(number)):
                # Reversed: `number` returns to its home, and a smaller replica moves instead.
                step = _PlanStep(number, back, place, home)
                before, after = self._pair(step, taken=False), self._pair(step, taken=True)
                if after[0] <= before[0] and self._cost(step) < 0:
                    self._take(step)
                    break

    def _smaller(self, number: int) -> Iterator[int]:
        """Yield smaller replicas that did not leave its home, by size."""
        home, size = self._homes[number], self._sizes[number]
        by_size = self._by_size[home]
        for _, other in by_size[: bisect_left(by_size, (size, -1))][-EXCHANGED:]:
            if self._homes[other] == home:
                yield other
