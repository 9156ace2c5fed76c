"""The page follows Prometheus' conventions, with every metric of the table."""

from __future__ import annotations

import pytest

from odradek.broker.metrics.exposition import exposition
from odradek.broker.metrics.metric_table import Kind, by_name
from odradek.broker.metrics.registry import Metrics
from tests.broker.metrics.exposition_lint import lint

HEAD = "# HELP a_total Help.\n# TYPE a_total counter\n"


def full_page() -> str:
    """A page with all metrics, each with two sets of label values if it has labels."""
    metrics = Metrics()
    for name, metric in by_name().items():
        for value in ("a", "b") if metric.labels else ("",):
            labels: dict[str, str | int] = dict.fromkeys(
                (*metric.labels, *(["partition"] if value else [])), value
            )
            if metric.kind is Kind.GAUGE:
                metrics.gauge(name, lambda: 1, **labels)
            elif metric.kind is Kind.METER:
                metrics.meter(name, **labels).mark()
            else:
                metrics.timer(name, **labels).update(1.0)
    return "".join(exposition(metrics))


def test_all_metrics_follow_the_conventions() -> None:
    text = full_page()
    assert text.count("# TYPE") > 80
    assert lint(text) == []


def test_total_of_all_topics_is_a_metric_of_its_own() -> None:
    """sum() over the topics counts each record once."""
    metrics = Metrics()
    metrics.meter("BytesInPerSec", topic="a").mark(3)
    metrics.meter("BytesInPerSec", topic="b").mark(4)
    metrics.gauge("RemoteCopyLagBytes", lambda: 5, topic="a")
    samples = [line for line in "".join(exposition(metrics)).splitlines() if line[0] != "#"]
    assert samples == [
        "kafka_server_brokertopicmetrics_bytesin_alltopics_total 7",
        'kafka_server_brokertopicmetrics_bytesin_total{topic="a"} 3',
        'kafka_server_brokertopicmetrics_bytesin_total{topic="b"} 4',
        'kafka_server_brokertopicmetrics_remotecopylagbytes{topic="a"} 5',
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + 'a_total 1\na_total{topic="t"} 1\n', "a_total mixes the labels [(), ('topic',)]"),
        (HEAD + 'a_total{logDirectory="d"} 1\n', "the label logDirectory of a_total is not in snake case"),
        (HEAD + 'a_total{le="1"} 1\n', "a_total has the label le and is no histogram"),
        (HEAD + 'a_total{quantile="1"} 1\n', "a_total has the label quantile and is no summary"),
        (HEAD + "a_total 1\na_total 1\n", "a_total is reported twice"),
        (HEAD + "a_total x\n", "a_total x is not a sample"),
        ("# TYPE a gauge\na 1\n", "a has no help"),
        ("# HELP a Help.\na 1\n", "a has no type"),
        ("# HELP a Help.\n# TYPE a counter\na 1\n", "a is a counter: only counters end in _total, and all do"),
        (HEAD.replace("counter", "gauge") + "a_total 1\n", "a_total is a gauge: only counters end in"),
        ("# HELP aB Help.\n# TYPE aB gauge\naB 1\n", "aB is not in snake case"),
        ("# HELP a_ms Help.\n# TYPE a_ms gauge\na_ms 1\n", "a_ms is in ms, not in seconds"),
        ("# HELP a_gauge Help.\n# TYPE a_gauge gauge\na_gauge 1\n", "a_gauge has a type in its name"),
        ("# HELP a_count Help.\n# TYPE a_count gauge\na_count 1\n", "a_count has a suffix of summaries"),
    ],
)  # fmt: skip
def test_problem_of_a_page_is_found(text: str, problem: str) -> None:
    assert any(found.startswith(problem) for found in lint(text)), lint(text)
