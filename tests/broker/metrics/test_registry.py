"""Tests of meters, timers and gauges of the registry, and of collected values."""

from __future__ import annotations

import pytest

from odradek.broker.metrics.metric_table import Kind, by_name
from odradek.broker.metrics.registry import NUMBERS_PER_STEP, Labels, Metrics, Timer, Value


def numbers(metrics: Metrics, name: str) -> dict[Labels, Value | Timer]:
    values = filter(None, metrics.collect())
    return {metric.name: dict(found) for metric, found in values}.get(name, {})


def test_meter_is_shared_by_equal_labels() -> None:
    metrics = Metrics()
    metrics.meter("RemoteCopyBytesPerSec", topic="a").mark(3)
    metrics.meter("RemoteCopyBytesPerSec", topic="a").mark()
    metrics.meter("RemoteCopyBytesPerSec", topic="b").mark(10)
    assert numbers(metrics, "RemoteCopyBytesPerSec") == {
        (): 14,
        (("topic", "a"),): 4,
        (("topic", "b"),): 10,
    }


def test_total_does_not_decrease_when_topic_is_removed() -> None:
    metrics = Metrics()
    metrics.meter("RemoteCopyBytesPerSec", topic="a").mark(4)
    metrics.meter("RemoteCopyBytesPerSec", topic="b").mark(10)
    metrics.forget(topic="a")
    assert numbers(metrics, "RemoteCopyBytesPerSec") == {(): 14, (("topic", "b"),): 10}


def test_partitions_are_summed_up_without_partition_label() -> None:
    metrics = Metrics()
    metrics.gauge("RemoteCopyLagBytes", lambda: 5, topic="a", partition=0)
    metrics.gauge("RemoteCopyLagBytes", lambda: 6, topic="a", partition=1)
    assert numbers(metrics, "RemoteCopyLagBytes") == {(("topic", "a"),): 11}
    metrics.forget(topic="a", partition=1)
    assert numbers(metrics, "RemoteCopyLagBytes") == {(("topic", "a"),): 5}


def test_gauge_is_read_at_each_collection_and_may_be_empty() -> None:
    metrics, values = Metrics(), [None, 0.5]
    metrics.gauge("RemoteLogReaderAvgIdlePercent", lambda: values.pop(0))
    assert numbers(metrics, "RemoteLogReaderAvgIdlePercent") == {}
    assert numbers(metrics, "RemoteLogReaderAvgIdlePercent") == {(): 0.5}


def test_values_of_many_partitions_are_read_in_steps() -> None:
    """Thousands of gauges occupied the event loop for 5 ms each, and so did their removal."""
    metrics, asked = Metrics(), [0]

    def value() -> int:
        asked[0] += 1
        return 1

    for index in range(3000):
        metrics.gauge("RemoteCopyLagBytes", value, topic=f"t{index % 1000}", partition=index)
    steps, before, found = [], 0, {}
    for each in metrics.collect():
        steps.append(asked[0] - before)
        before = asked[0]
        if each is not None and each[0].name == "RemoteCopyLagBytes":
            found = dict(each[1])
    assert sum(steps) == 3000
    assert max(steps) <= NUMBERS_PER_STEP
    assert sum(found.values()) == 3000
    assert found[("topic", "t7"),] == 3
    for index in range(3000):
        metrics.forget(topic=f"t{index % 1000}", partition=index)
    assert numbers(metrics, "RemoteCopyLagBytes") == {}


def test_timer_has_count_and_sum() -> None:
    timer = Metrics().timer("RemoteLogReaderFetchRateAndTimeMs")
    timer.update(1.5)
    timer.update(2.0)
    assert (timer.count, timer.total_ms) == (2, 3.5)


def test_metric_without_row_is_rejected() -> None:
    with pytest.raises(LookupError, match=r"no meter RemoteCopyByte$"):
        Metrics().meter("RemoteCopyByte")
    with pytest.raises(LookupError, match="no meter RemoteCopyLagBytes"):
        Metrics().meter("RemoteCopyLagBytes")


async def test_slow_gauges_are_computed_before_each_collection() -> None:
    metrics, asked = Metrics(), []

    async def work_out() -> None:
        asked.append(True)

    metrics.before_collection(work_out)
    await metrics.prepare()
    await metrics.prepare()
    assert len(asked) == 2


def test_tiered_metrics_have_names_of_kip_405_and_kafka() -> None:
    """T-54, T-55, S-04."""
    also = {str(other) for metric in by_name().values() for other in metric.also}
    assert also >= {
        f"kafka.server:type=BrokerTopicMetrics,name={name}"
        for name in (
            "RemoteReadRequestsPerSec",
            "RemoteBytesInPerSec",
            "RemoteReadErrorPerSec",
            "RemoteBytesOutPerSec",
            "RemoteWriteErrorPerSec",
        )
    }
    assert "kafka.log.remote:type=BrokerTopicMetrics,name=RemoteLogSizeBytes" in also
    names = {str(metric.mbean) for metric in by_name().values()}
    assert names >= {
        "kafka.log.remote:type=RemoteStorageThreadPool,name=RemoteLogReaderTaskQueueSize",
        "kafka.log.remote:type=RemoteStorageThreadPool,name=RemoteLogReaderAvgIdlePercent",
        "kafka.log.remote:type=RemoteLogManager,name=RemoteLogManagerTasksAvgIdlePercent",
        "kafka.server:type=BrokerTopicMetrics,name=RemoteLogSizeBytes",
    }


def test_names_of_kafkas_counters_end_in_per_sec() -> None:
    for metric in by_name().values():
        assert (metric.kind is Kind.METER) == metric.name.endswith("PerSec"), metric.name
