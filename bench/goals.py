"""Performance goals, and how the results of a run compare with them.

A goal is compared with Odradek's median. `required` is a number, or a factor of Apache Kafka's median in the same
run. `target` is a number: a better value that is not required. Numbers were set on another machine, so some goals
also name a figure without a broker (`limits.py`) from the same run.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from odradek.bench.model import Better, Metric
from odradek.bench.results_file import Results
from odradek.bench.summary import Figure, figure, number

ODRADEK = "odradek"
KAFKA = "kafka"


@dataclass(frozen=True)
class TimesKafka:
    """A multiple of Kafka's median in the same run."""

    factor: float = 1.0


@dataclass(frozen=True)
class LimitFigure:
    """A figure of a physical limit."""

    limit: str
    figure: str


WRITE = LimitFigure("socket-to-file", "mb_per_s")
WRITE_CPU = LimitFigure("socket-to-file", "cpu_s_per_gb")
SENDFILE = LimitFigure("sendfile", "mb_per_s")
SENDFILE_CPU = LimitFigure("sendfile", "cpu_s_per_gb")
PING_PONG = LimitFigure("ping-pong", "requests_per_s")
PING_PONG_CPU = LimitFigure("ping-pong", "cpu_us")
PACED_P50, PACED_P99, PACED_P999 = (
    LimitFigure("paced-ping-pong", figure) for figure in ("p50_us", "p99_us", "p999_us")
)


@dataclass(frozen=True)
class Goal:
    """Goal for one metric of a workload. `without_broker` is the comparable figure without a broker."""

    title: str
    workload: str
    metric: str
    required: float | TimesKafka
    target: float | None = None
    better: Better = "lower"
    without_broker: LimitFigure | None = None


GOALS = (
    Goal(
        "produce, 1 KiB records, 1 partition, acks=1",
        "produce-1k-p1",
        "mb_per_s",
        TimesKafka(),
        1000,
        better="higher",
        without_broker=WRITE,
    ),
    Goal(
        "the same: broker's CPU",
        "produce-1k-p1",
        "broker_cpu_s_per_gb",
        TimesKafka(),
        0.8,
        without_broker=WRITE_CPU,
    ),
    Goal("produce, lz4", "produce-1k-p1-lz4", "mb_per_s", TimesKafka(), better="higher"),
    Goal("the same: broker's CPU", "produce-1k-p1-lz4", "broker_cpu_s_per_gb", 0.9, 0.6),
    Goal(
        "consume, 1 partition",
        "consume-1k-p1",
        "mb_per_s",
        TimesKafka(1.2),
        2000,
        better="higher",
        without_broker=SENDFILE,
    ),
    Goal(
        "the same: broker's CPU",
        "consume-1k-p1",
        "broker_cpu_s_per_gb",
        0.25,
        0.2,
        without_broker=SENDFILE_CPU,
    ),
    Goal(
        "consume, 6 partitions",
        "consume-1k-p6",
        "mb_per_s",
        TimesKafka(1.2),
        2000,
        better="higher",
        without_broker=SENDFILE,
    ),
    Goal(
        "the same: broker's CPU",
        "consume-1k-p6",
        "broker_cpu_s_per_gb",
        0.25,
        0.2,
        without_broker=SENDFILE_CPU,
    ),
    Goal(
        "end to end at 1,000/s, acks=all: p50",
        "latency-1000",
        "p50_us",
        TimesKafka(),
        200,
        without_broker=PACED_P50,
    ),
    Goal("the same: p99", "latency-1000", "p99_us", 1000, 500, without_broker=PACED_P99),
    Goal("the same: p99.9", "latency-1000", "p999_us", 3000, 1500, without_broker=PACED_P999),
    Goal(
        "100-byte produces one at a time, 1 connection",
        "requests-c1",
        "requests_per_s",
        10_400,
        better="higher",
        without_broker=PING_PONG,
    ),
    Goal(
        "the same: broker's CPU",
        "requests-c1",
        "broker_cpu_us",
        75,
        50,
        without_broker=PING_PONG_CPU,
    ),
    Goal("the same, 10 connections", "requests-c10", "requests_per_s", 18_000, better="higher"),
    Goal("the same: broker's CPU", "requests-c10", "broker_cpu_us", 75, 50),
    Goal(
        "the same, 1 connection, 32 in flight",
        "requests-c1-in-flight32",
        "requests_per_s",
        13_400,
        20_000,
        better="higher",
    ),
    Goal("start to the first Metadata response", "startup", "ready_ms", 300, 200),
    Goal("resident, idle", "startup", "resident_mb", 60, 45),
    Goal("resident after the whole run", "resident-after", "resident_mb", 150, 100),
    Goal("1,000 topics one by one", "topics-one-by-one", "seconds", 3.0, 1.5),
    Goal("1,000 topics in one request", "topics-at-once", "seconds", 0.2, 0.1),
    Goal("first assignment of a one-member group", "group-assignment", "assignment_ms", 62, 10),
    Goal(
        "the same, with a librdkafka consumer",
        "group-assignment-librdkafka",
        "assignment_ms",
        62,
    ),
)

CLUSTER_GOALS = (
    Goal("three brokers: resident, idle", "cluster-startup", "resident_mb", TimesKafka(1 / 3)),
    Goal(
        "acks=all to three replicas, 6 partitions",
        "replicated-1k-p6",
        "mb_per_s",
        TimesKafka(),
        better="higher",
    ),
    Goal("the same: resident, three brokers", "replicated-1k-p6", "resident_mb", TimesKafka(1 / 3)),
    Goal(
        "leader killed, until the next acknowledgement", "fail-over", "fail_over_ms", TimesKafka()
    ),
    Goal(
        "the same, leader is also the active controller",
        "fail-over-controller",
        "fail_over_ms",
        TimesKafka(),
    ),
    Goal(
        "rolling restart: time without acknowledgements",
        "rolling-restart",
        "unavailable_ms",
        TimesKafka(),
    ),
)
"""Goals for three brokers."""

TIERED_GOALS = (
    Goal("acks=all: p99 with tiering, divided by p99 without", "tiering-acks-all", "on_times", 1.2),
    Goal(
        "acks=all: p99 with tiering and reads of old segments, divided by p99 with neither",
        "tiering-acks-all",
        "reading_times",
        1.5,
    ),
    Goal("acks=1: p99 with tiering, divided by p99 without", "tiering-acks-1", "on_times", 1.2),
    Goal(
        "acks=1: p99 with tiering and reads of old segments, divided by p99 with neither",
        "tiering-acks-1",
        "reading_times",
        1.5,
    ),
)
"""Goals for the latency of producers with tiered storage."""

REBUILD_GOALS = (
    Goal(
        "rebuild of a 10 GiB broker: times faster with tiering",
        "rebuild-10gib",
        "times",
        50,
        better="higher",
    ),
)
"""Goals for rebuilding an empty broker with tiered storage."""

DISKLESS_GOALS = (
    Goal(
        "p99 of acks, without the commit interval and the p99 of a put",
        "diskless-latency",
        "excess_ms",
        25,
    ),
)
"""Goals for diskless topics."""

TABLE_GOALS = (
    Goal("count, 100 bytes", "table-count-100b", "mb_per_s", TimesKafka(20), better="higher"),
    Goal("count, 1 KiB in lz4", "table-count-1k", "mb_per_s", TimesKafka(20), better="higher"),
    Goal("all columns, 100 bytes", "table-full-100b", "mb_per_s", TimesKafka(2.5), better="higher"),
    Goal("the same: CPU", "table-full-100b", "cpu_s", TimesKafka()),
    Goal(
        "all columns, 1 KiB in lz4", "table-full-1k", "mb_per_s", TimesKafka(1.8), better="higher"
    ),
    Goal("the same: CPU", "table-full-1k", "cpu_s", TimesKafka()),
    Goal("sums by a field of JSON", "table-json-1k", "mb_per_s", TimesKafka(1.5), better="higher"),
    Goal(
        "the same, parsed by the source",
        "table-json-columns-1k",
        "mb_per_s",
        TimesKafka(1.5),
        better="higher",
    ),
    Goal("one hour of thirty days", "table-hour-1k", "seconds", TimesKafka(1 / 30)),
    Goal("export to Parquet", "table-export-1k", "mb_per_s", TimesKafka(2), better="higher"),
    Goal("growth of memory during the run, 100 bytes", "table-memory-100b", "growth", 1.1),
    Goal("growth of memory during the run, 1 KiB", "table-memory-1k", "growth", 1.1),
    Goal("the decoder alone, 100 bytes", "table-decode-100b", "gb_per_s", 1, better="higher"),
    Goal("the decoder alone, 1 KiB in lz4", "table-decode-1k", "gb_per_s", 1, better="higher"),
)
"""Goals for topics as Spark tables (`tables/`): "kafka" is Spark's connector with Apache Kafka."""


class GoalVerdict(enum.Enum):
    TARGET_REACHED = "target reached"
    REACHED = "reached"
    MISSED = "missed"
    UNKNOWN = "not measured"


@dataclass(frozen=True)
class GoalResult:
    """A goal with the figures of a run. `required` and `without_broker` are the values in this run."""

    goal: Goal
    metric: Metric | None = None
    odradek: Figure | None = None
    kafka: Figure | None = None
    required: float | None = None
    without_broker: float | None = None

    @property
    def verdict(self) -> GoalVerdict:
        if self.odradek is None or self.required is None:
            return GoalVerdict.UNKNOWN
        if not self._reaches(self.odradek.median, self.required):
            return GoalVerdict.MISSED
        if self.goal.target is not None and self._reaches(self.odradek.median, self.goal.target):
            return GoalVerdict.TARGET_REACHED
        return GoalVerdict.REACHED

    @property
    def words(self) -> str:
        """Return the verdict, with the difference if the goal is missed.

        A star marks a verdict whose figures come only from disturbed runs.
        """
        star = "*" * any(each is not None and each.disturbed for each in self._judged_by)
        if self.verdict is not GoalVerdict.MISSED:
            return str(self.verdict.value) + star * (self.verdict is not GoalVerdict.UNKNOWN)
        assert self.odradek is not None
        assert self.required is not None
        missed = f"missed{star}: {off(self.odradek.median, self.required)} the goal"
        if self.without_broker is not None and not self._reaches(
            self.without_broker, self.required
        ):
            missed += "; without a broker this machine misses it too"
        return missed

    @property
    def _judged_by(self) -> tuple[Figure | None, ...]:
        return (self.odradek, self.kafka if isinstance(self.goal.required, TimesKafka) else None)

    def _reaches(self, value: float, bound: float) -> bool:
        return value >= bound if self.goal.better == "higher" else value <= bound

    @property
    def sign(self) -> str:
        return ">=" if self.goal.better == "higher" else "<="

    def required_text(self) -> str:
        if isinstance(self.goal.required, TimesKafka):
            factor = (
                ""
                if self.goal.required.factor == 1
                else f"{_written(self.goal.required.factor)} x "
            )
            value = "" if self.required is None else f" ({number(self.required)})"
            return f"{self.sign} {factor}Kafka{value}"
        return f"{self.sign} {number(self.goal.required)}"

    def target_text(self) -> str:
        return "" if self.goal.target is None else f"{self.sign} {number(self.goal.target)}"


def off(value: float, bound: float) -> str:
    """Format the difference of a value from a bound, such as '0.4 % above'."""
    if not bound:
        return f"{number(value)} above"
    percent = (value / bound - 1) * 100
    return f"{number(abs(percent))} % {'above' if percent > 0 else 'below'}"


def _written(factor: float) -> str:
    """Format a factor: 2.5, but 1/3."""
    if factor < 1 and (1 / factor).is_integer():
        return f"1/{1 / factor:g}"
    return f"{factor:g}"


def goal_results(results: Results, goals: Sequence[Goal] = GOALS) -> Iterator[GoalResult]:
    """Compare the results of a run with every goal."""
    for goal in goals:
        yield _goal_result(results, goal)


def _goal_result(results: Results, goal: Goal) -> GoalResult:
    workload = results.workload(goal.workload)
    metric = None if workload is None else workload.metric(goal.metric)
    if workload is None or metric is None:
        return GoalResult(goal)
    found = {
        peer: figure(results, metric, workload.peers[peer])
        for peer in (ODRADEK, KAFKA)
        if peer in workload.peers
    }
    odradek, kafka = found.get(ODRADEK), found.get(KAFKA)
    required: float | None
    if isinstance(goal.required, TimesKafka):
        required = None if kafka is None else goal.required.factor * kafka.median
    else:
        required = goal.required
    return GoalResult(goal, metric, odradek, kafka, required, _without_broker(results, goal))


def _without_broker(results: Results, goal: Goal) -> float | None:
    for limit in results.limits:
        if goal.without_broker is not None and limit.name == goal.without_broker.limit:
            return limit.median(goal.without_broker.figure)
    return None
