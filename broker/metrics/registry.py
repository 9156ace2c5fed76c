"""Where a node's rooms put what they measure.

A room asks for its meters once, when it is made, and keeps them: counting is then one addition.
What a gauge says is asked for when somebody looks, and so costs nothing before. Both are told apart by
labels (`topic="orders"`); of those that the row does not have, the numbers are summed up, so that each
partition may have its own. All of it belongs to the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import TypeVar

from odradek.broker.metrics.table import Kind, Metric, by_name

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""
Value = int | float
Numbers = Iterable[tuple[Labels, Value]]
Source = Callable[[], Numbers]
Summing = Generator[None, None, list[tuple[Labels, Value]]]
"""Numbers in the end, and before them None for each turn of others."""
NUMBERS_A_TURN = 400
"""Asked for, about half a millisecond, before others have the loop."""


class Meter:
    """Counts up."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def mark(self, n: int = 1) -> None:
        self.count += n


class Timer:
    """Counts what was done, and adds up how long that took."""

    __slots__ = ("count", "total_ms")

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0.0

    def update(self, ms: float) -> None:
        """It was done once more, and took `ms`."""
        self.count += 1
        self.total_ms += ms


class Gauge:
    """Knows whom to ask. `value` is None where there is nothing to tell."""

    __slots__ = ("value",)

    def __init__(self, value: Callable[[], Value | None]) -> None:
        self.value = value


Made = TypeVar("Made", Meter, Timer)


class Metrics:
    """The registry of one node."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[Labels, Meter | Timer | Gauge]] = {}
        self._labelled: dict[tuple[str, str], dict[tuple[str, Labels], None]] = {}
        """Of each label, names and labels of the numbers that have it: there may be very many others."""
        self._gone: dict[str, int] = {}
        """What meters that are forgotten had counted: a total never falls."""
        self._sources: dict[str, list[Source]] = {}
        self._before_looks: list[Callable[[], Awaitable[None]]] = []

    def meter(self, name: str, **labels: str | int) -> Meter:
        """The meter of these labels, always the same one. `name` is a row's of `table.py`."""
        return self._counting(Meter, Kind.METER, name, labels)

    def timer(self, name: str, **labels: str | int) -> Timer:
        """The timer of these labels, always the same one."""
        return self._counting(Timer, Kind.TIMER, name, labels)

    def gauge(self, name: str, value: Callable[[], Value | None], **labels: str | int) -> None:
        """From now on `value` is asked for the gauge of these labels. It must not wait, nor fail."""
        self._keep(name, Kind.GAUGE, _labels(labels), Gauge(value))

    def source(self, name: str, numbers: Source) -> None:
        """From now on `numbers` is asked for all of a meter's or gauge's numbers at each look, beside what
        else there is: for what comes and goes, such as partitions. Labels are those of the row, sorted;
        none at all for what counts in the total only. It must not wait, nor fail."""
        if name not in by_name() or by_name()[name].kind is Kind.TIMER:
            raise LookupError(f"the table of metrics has no meter or gauge {name}")
        self._sources.setdefault(name, []).append(numbers)

    def before_looks(self, work_out: Callable[[], Awaitable[None]]) -> None:
        """Have `work_out` awaited whenever somebody is about to look: for gauges that take so long to
        work out that others should get their turn in between."""
        self._before_looks.append(work_out)

    def forget(self, **labels: str | int) -> None:
        """Drop every number that has these labels: that topic, or that partition of it, is gone."""
        gone = set(_labels(labels))
        rarest = min((self._labelled.get(label, {}) for label in gone), key=len)
        for name, key in [each for each in rarest if gone.issubset(each[1])]:
            dropped = self._kept[name].pop(key)
            if isinstance(dropped, Meter):
                self._gone[name] = self._gone.get(name, 0) + dropped.count
            for label in key:
                self._labelled[label].pop((name, key))
                if not self._labelled[label]:
                    del self._labelled[label]

    async def prepare(self) -> None:
        """Before a look: `before_looks`."""
        for work_out in self._before_looks:
            await work_out()

    def look(self) -> Iterator[tuple[Metric, Iterable[tuple[Labels, Value | Timer]]] | None]:
        """Every metric that has numbers, in the order of the table; the total, where there is one, first.

        There may be a number for each partition, so take the time that it needs: others may change what
        is here meanwhile, and get their turn at each None.
        """
        for name, metric in by_name().items():
            kept, sources = self._kept.get(name, {}), self._sources.get(name, ())
            asked = chain.from_iterable(source() for source in sources)
            if metric.kind is Kind.TIMER:
                timers = [(labels, each) for labels, each in kept.items()]
                yield metric, [(labels, each) for labels, each in timers if isinstance(each, Timer)]
            elif metric.total:
                summed = yield from _summed(metric, kept)
                yield metric, (yield from self._with_total(metric, chain(summed, asked)))
            else:
                yield metric, chain((yield from _summed(metric, kept)), asked)

    def _with_total(self, metric: Metric, numbers: Numbers) -> Summing:
        total: Value = self._gone.get(metric.name, 0)
        shown: list[tuple[Labels, Value]] = [((), total)]
        has_any = metric.name in self._gone
        for count, (labels, value) in enumerate(numbers, 1):
            has_any = True
            total += value
            if labels:
                shown.append((labels, value))
            if count % NUMBERS_A_TURN == 0:
                yield None
        shown[0] = ((), total)
        return shown if has_any else []

    def _counting(
        self, make: type[Made], kind: Kind, name: str, labels: dict[str, str | int]
    ) -> Made:
        rows, key = self._rows(name, kind), _labels(labels)
        found = rows.get(key)
        if found is None:
            found = make()
            self._keep(name, kind, key, found)
        assert isinstance(found, make)
        return found

    def _keep(self, name: str, kind: Kind, key: Labels, made: Meter | Timer | Gauge) -> None:
        self._rows(name, kind)[key] = made
        for label in key:
            self._labelled.setdefault(label, {})[name, key] = None

    def _rows(self, name: str, kind: Kind) -> dict[Labels, Meter | Timer | Gauge]:
        found = self._kept.get(name)
        if found is None:
            metric = by_name().get(name)
            if metric is None or metric.kind is not kind:
                raise LookupError(f"the table of metrics has no {kind.name.lower()} {name}")
            found = self._kept[name] = {}
        return found


def _summed(metric: Metric, kept: dict[Labels, Meter | Timer | Gauge]) -> Summing:
    """Of each set of the row's labels."""
    shown: dict[Labels, Value] = {}
    for count, (labels, each) in enumerate(list(kept.items()), 1):
        if count % NUMBERS_A_TURN == 0:
            yield None
        assert not isinstance(each, Timer)
        value = each.count if isinstance(each, Meter) else each.value()
        if value is not None:
            key = tuple(label for label in labels if label[0] in metric.labels)
            shown[key] = shown.get(key, 0) + value
    return list(shown.items())


def _labels(labels: dict[str, str | int]) -> Labels:
    return tuple(sorted((name, str(value)) for name, value in labels.items()))
