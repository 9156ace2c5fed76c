"""Registry of the meters, timers and gauges of a node.

A component requests its meters when it is created and keeps them: counting is then one addition. Gauges are
read when metrics are collected. Values are identified by labels (`topic="orders"`); values with labels that the
row does not have are summed, so each partition may have its own meter. The registry is used on the event loop
only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import TypeVar

from odradek.broker.metrics.metric_table import Kind, Metric, by_name

Labels = tuple[tuple[str, str], ...]
"""Label names and values, sorted by name."""
Value = int | float
Numbers = Iterable[tuple[Labels, Value]]
Source = Callable[[], Numbers]
Summing = Generator[None, None, list[tuple[Labels, Value]]]
"""Yields None between steps, and returns the values."""
NUMBERS_PER_STEP = 400
"""Gauges per step, about half a millisecond."""


class Meter:
    """A counter that only increases."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def mark(self, n: int = 1) -> None:
        self.count += n


class Timer:
    """Number of measurements and their total in ms."""

    __slots__ = ("count", "total_ms")

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0.0

    def update(self, ms: float) -> None:
        """Add a measurement of `ms`."""
        self.count += 1
        self.total_ms += ms


class Gauge:
    """Reads a value when metrics are collected. `value` returns None if there is none."""

    __slots__ = ("value",)

    def __init__(self, value: Callable[[], Value | None]) -> None:
        self.value = value


Made = TypeVar("Made", Meter, Timer)


class Metrics:
    """Registry of the metrics of one node."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[Labels, Meter | Timer | Gauge]] = {}
        self._labelled: dict[tuple[str, str], dict[tuple[str, Labels], None]] = {}
        """Meters and gauges by label, so that `forget` finds them among many."""
        self._gone: dict[str, int] = {}
        """Sums of removed meters, so totals do not decrease."""
        self._sources: dict[str, list[Source]] = {}
        self._before_collection: list[Callable[[], Awaitable[None]]] = []

    def meter(self, name: str, **labels: str | int) -> Meter:
        """Return the meter with these labels, created once. `name` is a row of `metric_table.py`."""
        return self._counting(Meter, Kind.METER, name, labels)

    def timer(self, name: str, **labels: str | int) -> Timer:
        """Return the timer with these labels, created once."""
        return self._counting(Timer, Kind.TIMER, name, labels)

    def gauge(self, name: str, value: Callable[[], Value | None], **labels: str | int) -> None:
        """Register a gauge with these labels. `value` must neither wait nor fail."""
        self._keep(name, Kind.GAUGE, _labels(labels), Gauge(value))

    def source(self, name: str, numbers: Source) -> None:
        """Register a source of all values of a meter or gauge, for values that come and go, such as those of
        partitions. Labels are those of the row, sorted; without labels a value counts in the total only.
        `numbers` must neither wait nor fail."""
        if name not in by_name() or by_name()[name].kind is Kind.TIMER:
            raise LookupError(f"the table of metrics has no meter or gauge {name}")
        self._sources.setdefault(name, []).append(numbers)

    def before_collection(self, work_out: Callable[[], Awaitable[None]]) -> None:
        """Register a function that is awaited before each collection, for gauges whose computation takes long."""
        self._before_collection.append(work_out)

    def forget(self, **labels: str | int) -> None:
        """Remove all values with these labels, when a topic or partition is removed."""
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
        """Await the functions that were registered with `before_collection`."""
        for work_out in self._before_collection:
            await work_out()

    def collect(self) -> Iterator[tuple[Metric, Iterable[tuple[Labels, Value | Timer]]] | None]:
        """Yield every metric with values, in the order of the table; a total comes first.

        There may be a value per partition: at each None other tasks may run and change the registry.
        """
        for name, metric in by_name().items():
            kept, sources = self._kept.get(name, {}), self._sources.get(name, ())
            sourced = chain.from_iterable(source() for source in sources)
            if metric.kind is Kind.TIMER:
                timers = [(labels, each) for labels, each in kept.items()]
                yield metric, [(labels, each) for labels, each in timers if isinstance(each, Timer)]
            elif metric.total:
                summed = yield from _summed(metric, kept)
                yield metric, (yield from self._with_total(metric, chain(summed, sourced)))
            else:
                yield metric, chain((yield from _summed(metric, kept)), sourced)

    def _with_total(self, metric: Metric, numbers: Numbers) -> Summing:
        total: Value = self._gone.get(metric.name, 0)
        shown: list[tuple[Labels, Value]] = [((), total)]
        has_any = metric.name in self._gone
        for count, (labels, value) in enumerate(numbers, 1):
            has_any = True
            total += value
            if labels:
                shown.append((labels, value))
            if count % NUMBERS_PER_STEP == 0:
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
    """Sums for each combination of the row's labels."""
    shown: dict[Labels, Value] = {}
    for count, (labels, each) in enumerate(list(kept.items()), 1):
        if count % NUMBERS_PER_STEP == 0:
            yield None
        assert not isinstance(each, Timer)
        value = each.count if isinstance(each, Meter) else each.value()
        if value is not None:
            key = tuple(label for label in labels if label[0] in metric.labels)
            shown[key] = shown.get(key, 0) + value
    return list(shown.items())


def _labels(labels: dict[str, str | int]) -> Labels:
    return tuple(sorted((name, str(value)) for name, value in labels.items()))
