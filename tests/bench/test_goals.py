"""Goals refer to measured metrics, and are judged by the correct bound."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from odradek.bench.goals import (
    CLUSTER_GOALS,
    GOALS,
    REBUILD_GOALS,
    TABLE_GOALS,
    TIERED_GOALS,
    Goal,
    GoalVerdict,
    goal_results,
    off,
)
from odradek.bench.instructions import STORED
from odradek.bench.model import Metric
from odradek.bench.page_sections import SECTIONS, UnknownSection
from odradek.bench.performance_page import performance_page
from odradek.bench.results_file import (
    LimitResults,
    Measured,
    Results,
    Sample,
    SampleState,
    WorkloadResults,
    load,
)
from odradek.bench.tables.workloads import WORKLOADS as TABLE_WORKLOADS
from odradek.bench.workloads import ROUNDS_MOST, WORKLOADS
from tests.bench.fakes import empty_results
from tests.bench.full_results import full_results

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
VERSION = version("odradek")


ALL_GOALS = (*GOALS, *CLUSTER_GOALS, *TIERED_GOALS, *REBUILD_GOALS, *TABLE_GOALS)


@pytest.mark.parametrize("goal", ALL_GOALS, ids=lambda goal: f"{goal.workload}-{goal.metric}")
def test_goals_refer_to_measured_metrics(goal: Goal) -> None:
    workloads = (*WORKLOADS, *TABLE_WORKLOADS)
    (workload,) = [each for each in workloads if each.name == goal.workload]
    (metric,) = [each for each in workload.metrics if each.name == goal.metric]
    assert metric.better == goal.better


def test_default_run_measures_every_goal() -> None:
    measured_unasked = {each.name for each in WORKLOADS if each.default}
    assert measured_unasked >= {goal.workload for goal in (*GOALS, *CLUSTER_GOALS)}


def test_only_default_workloads_far_from_their_goals_have_fewer_rounds() -> None:
    assert {each.name for each in WORKLOADS if each.default} >= set(ROUNDS_MOST)
    with_goal = {goal.workload for goal in GOALS} & set(ROUNDS_MOST)
    assert with_goal == {"topics-one-by-one"}


def measured(values: dict[tuple[str, str, str], float]) -> Results:
    """(workload, metric, peer) -> value."""
    results = empty_results()
    for (name, metric, peer), value in values.items():
        workload = results.workload(name)
        if workload is None:
            better = next(g.better for g in ALL_GOALS if (g.workload, g.metric) == (name, metric))
            workload = WorkloadResults(name, name, (Metric(metric, "?", better),), {})
            results.workloads.append(workload)
        workload.peers[peer] = Measured([Sample(1, {metric: value})])
    return results


def verdict(results: Results, workload: str, metric: str) -> GoalVerdict:
    (found,) = [
        each.verdict
        for each in goal_results(results)
        if (each.goal.workload, each.goal.metric) == (workload, metric)
    ]
    return found


@pytest.mark.parametrize(
    ("without_broker", "words"),
    [
        (0.24, "missed: 20.0 % above the goal"),
        (0.4, "missed: 20.0 % above the goal; without a broker this machine misses it too"),
    ],
)
def test_missed_goal_reports_whether_the_machine_misses_it(
    without_broker: float, words: str
) -> None:
    results = measured({("consume-1k-p1", "broker_cpu_s_per_gb", "odradek"): 0.3})
    bare = LimitResults("sendfile", "", Metric("mb_per_s", "MB/s", "higher"))
    bare.samples = [(2000, {"cpu_s_per_gb": each}) for each in (9.0, without_broker, 0.01)]
    results.limits.append(bare)
    found = [each for each in goal_results(results) if each.odradek is not None]
    assert [(each.without_broker, each.words) for each in found] == [(without_broker, words)]


@pytest.mark.parametrize(
    ("odradek", "expected"),
    [
        (799, GoalVerdict.MISSED),
        (800, GoalVerdict.REACHED),
        (999, GoalVerdict.REACHED),
        (1000, GoalVerdict.TARGET_REACHED),
    ],
)
def test_throughput_goal_is_relative_to_kafka(odradek: float, expected: GoalVerdict) -> None:
    where = ("produce-1k-p1", "mb_per_s")
    results = measured({(*where, "odradek"): odradek, (*where, "kafka"): 800})
    assert verdict(results, *where) is expected


@pytest.mark.parametrize(
    ("odradek", "expected"),
    [(0.21, GoalVerdict.MISSED), (0.2, GoalVerdict.REACHED), (0.1, GoalVerdict.TARGET_REACHED)],
)
def test_time_goal_is_an_upper_bound(odradek: float, expected: GoalVerdict) -> None:
    where = ("topics-at-once", "seconds")
    assert verdict(measured({(*where, "odradek"): odradek}), *where) is expected


def test_missed_goal_is_reported_in_percent() -> None:
    assert off(3011, 3000) == "0.367 % above"
    assert off(950, 1000) == "5.00 % below"
    where = ("replicated-1k-p6", "resident_mb")
    results = measured({(*where, "odradek"): 100, (*where, "kafka"): 600})
    found = [each for each in goal_results(results, CLUSTER_GOALS) if each.odradek is not None]
    assert [each.required_text() for each in found] == ["<= 1/3 x Kafka (200)"]


@pytest.mark.parametrize(("peer", "words"), [("odradek", "reached*"), ("kafka", "reached*")])
def test_verdict_of_disturbed_runs_has_a_star(peer: str, words: str) -> None:
    where = ("produce-1k-p1", "mb_per_s")
    results = measured({(*where, "odradek"): 800, (*where, "kafka"): 700})
    sample = Sample(1, {"mb_per_s": 800.0}, SampleState.DISTURBED)
    results.workloads[0].peers[peer] = Measured([sample])
    assert [each.words for each in goal_results(results) if each.odradek is not None] == [words]


def test_verdict_without_kafka_is_unknown() -> None:
    where = ("produce-1k-p1", "mb_per_s")
    results = measured({(*where, "odradek"): 5000})
    assert verdict(results, *where) is GoalVerdict.UNKNOWN
    assert verdict(empty_results(), *where) is GoalVerdict.UNKNOWN


def test_page_lists_figures_and_missing_measurements() -> None:
    text = performance_page(full_results(), "0.1.0.json")
    for expected in (
        "| produce, 1 KiB records | `produce-1k` | `mb_per_s` | MB/s | 110 (100\N{EN DASH}120) 55% | FAILED |",
        "not measured: no cargo",
        "produce-1k on kafka FAILED in round 1",
        "**Remarks about this run:**\n\n- kafka was restarted after a failure\n",
        "| kafka | three brokers that are also controllers | 4.3.0 | `heap=1 GB` |",
        "(../bench/results/0.1.0.json)",
        ">= Kafka",
    ):
        assert expected in text
    widths = {line.count("|") for line in text.split("## All figures")[1].splitlines()[2:6]}
    assert len(widths) == 1


def test_page_has_tables_of_measured_sections() -> None:
    tables = measured(
        {
            ("table-full-100b", "mb_per_s", "odradek"): 500.0,
            ("table-full-100b", "mb_per_s", "kafka"): 150.0,
        }
    )
    text = performance_page(full_results(), "0.1.0.json", {"tables-1.json": tables})
    assert "| all columns, 100 bytes | ? | 500 | 150 | >= 2.5 x Kafka (375) |  | reached |" in text
    assert "(../bench/results/tables-1.json)" in text
    assert "Spark tables" not in performance_page(full_results(), "0.1.0.json")
    with pytest.raises(UnknownSection, match="chairs"):
        performance_page(full_results(), "0.1.0.json", {"chairs-1.json": tables})


def test_page_compares_one_core_with_two() -> None:
    """Only of workloads that also ran with two cores, not of others whose names end in 1."""
    tables = measured(
        {
            ("table-full-100b", "mb_per_s", "odradek"): 600.0,
            ("table-full-100b", "mb_per_s", "kafka"): 150.0,
        }
    )
    (full,) = tables.workloads
    for name, rate in (("table-full-100b-1", 400.0), ("table-none-1", 5.0)):
        alone = WorkloadResults(name, name, full.metrics, {})
        alone.peers["odradek"] = Measured([Sample(1, {"mb_per_s": rate})])
        tables.workloads.append(alone)
    text = performance_page(full_results(), "0.1.0.json", {"tables-1.json": tables})
    (_, after) = text.split(
        "| from one core to two | peer | unit | one core | two cores | ratio |\n"
    )
    rows = after.split("\n\n")[0].splitlines()[1:]
    assert rows == ["| table-full-100b | odradek | ? | 400 | 600 | 1.50 |"]
    assert "this project's source has `pushFilters`" in text


def test_stored_page_matches_the_stored_results() -> None:
    """To make it: odradek bench report bench/results/VERSION.json --markdown docs/performance.md, and
    `--with bench/results/SECTION-VERSION.json` for each that is there, in the order of SECTIONS."""
    stored = [each.name for each in STORED.parent.glob("*.json") if each != STORED]
    further = [f"{section}-{VERSION}.json" for section in SECTIONS]
    assert set(stored) <= {f"{VERSION}.json", *further}
    loaded = {name: load(STORED.parent / name) for name in further if name in stored}
    run = load(STORED.parent / f"{VERSION}.json")
    assert PAGE.read_text() == performance_page(run, f"{VERSION}.json", loaded)
