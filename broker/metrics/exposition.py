"""Metrics in Prometheus' text format 0.0.4, named as by the JMX exporter with its example rules for Kafka.

| MBean | name |
|---|---|
| `kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=t` | `kafka_server_brokertopicmetrics_bytesin_total{topic="t"}` |
| `kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec` | `kafka_server_brokertopicmetrics_bytesin_alltopics_total` |
| `kafka.server:type=ReplicaManager,name=LeaderCount` | `kafka_server_replicamanager_leadercount` |
| `kafka.server:type=raft-metrics`, attribute `current-epoch` | `kafka_server_raftmetrics_current_epoch` |

A metric with several MBeans is reported under each name. Two names differ from those of the JMX exporter, so that
sum() over a family is right and promtool accepts labels: the total of all topics has its own name, and labels are in
snake case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from odradek.broker.metrics.metric_table import Kind, MBean
from odradek.broker.metrics.registry import Labels, Metrics, Timer, Value

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PER_SECOND = "PerSec"


def exposition(metrics: Metrics) -> Iterator[str]:
    """Lines of the page, each with its newline; an empty line means that the event loop should run other tasks.
    Call `Metrics.prepare` first."""
    for found in metrics.collect():
        if found is None:
            yield ""
            continue
        metric, numbers = found
        values = list(numbers)
        for mbean in (metric.mbean, *metric.also):
            name, about = exported_name(mbean, metric.kind), f"{metric.help} ({mbean}"
            if metric.total:
                yield from _family(exported_total(mbean), f"{about})", metric.kind, values[:1])
                yield from _family(name, f"{about},topic=…)", metric.kind, values[1:])
            else:
                yield from _family(name, f"{about})", metric.kind, values)


def _family(
    name: str, help: str, kind: Kind, numbers: Iterable[tuple[Labels, Value | Timer]]
) -> Iterator[str]:
    """Lines of one metric; none without values."""
    is_first = True
    for labels, value in numbers:
        if is_first:
            yield f"# HELP {name} {help}\n# TYPE {name} {kind.value}\n"
            is_first = False
        shown = _labels(labels)
        if isinstance(value, Timer):
            yield f"{name}_sum{shown} {value.total_ms!r}\n{name}_count{shown} {value.count}\n"
        else:
            yield f"{name}{shown} {value!r}\n"


def exported_name(mbean: MBean, kind: Kind) -> str:
    """Name of the MBean in the JMX exporter."""
    name = mbean.name
    if kind is Kind.METER:
        name = name.removesuffix(PER_SECOND) + "_total"
    words = (mbean.domain.replace(".", "_"), mbean.type.replace("-", ""), name.replace("-", "_"))
    return "_".join(words).lower()


def exported_total(mbean: MBean) -> str:
    """Name of the sum of a meter over all topics."""
    return exported_name(mbean, Kind.METER).removesuffix("_total") + "_alltopics_total"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
