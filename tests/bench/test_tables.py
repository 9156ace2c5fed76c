"""Topics as Spark tables, compared with Spark's connector: their records, and short runs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from odradek.bench import machine
from odradek.bench.results_file import load
from odradek.bench.tables.__main__ import main
from odradek.bench.tables.records import (
    BATCH_BYTES,
    ORDERS,
    PARTITIONS,
    POOL,
    SMALL,
    Topic,
    TopicContent,
    content,
)
from odradek.protocol.records.batch import Batch
from odradek.protocol.records.records import Record, decode

EACH_KIND = (
    "table-count-100b",
    "table-json-1k",
    "table-hour*",
    "table-export-1k",
    "table-memory-1k",
    "table-decode-1k",
)


def records_of(made: TopicContent) -> list[Record]:
    """Check the batches of one partition: each is complete and as large as a producer's."""
    found = []
    for number in range(made.batches):
        batch = Batch(memoryview(made.batch(number)))
        batch.check()
        assert 0.9 < batch.size / BATCH_BYTES < 1.1
        found += decode(batch)
    return found


@pytest.mark.parametrize("topic", [ORDERS, SMALL], ids=lambda topic: topic.name)
def test_expected_query_results_are_known(topic: Topic) -> None:
    made = content(topic, 25_000_000)
    assert made.batches > POOL
    records = records_of(made)
    assert made.records == PARTITIONS * len(records)
    sizes = {len(each.key or b"") + len(each.value or b"") for each in records}
    assert sizes == {topic.record_bytes}
    times = [each.timestamp for each in records]
    assert all(after - before == made.step_ms for before, after in pairwise(times))
    since, until = made.hour_ms()
    within = sum(since <= at < until for at in times)
    assert made.records_between(since, until) == PARTITIONS * within > 0
    assert made.records_between(0, 1 << 60) == made.records
    if topic is ORDERS:
        amounts = [json.loads(each.value or b"")["amount"] for each in records]
        assert made.total_amount() == PARTITIONS * sum(amounts)


@pytest.mark.slow
def test_both_sources_return_the_expected_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "settle", lambda *bystanders: None)  # other tests run concurrently
    out = tmp_path / "tables.json"
    words = ["--gb", "0.01", "--rounds", "1", "--warm-up", "0", "--repeats", "0", "--out", str(out)]
    words += ["--warm-memory", "0", "--readers", "odradek", "kafka", "--workloads", *EACH_KIND]
    assert main([str(tmp_path / "data"), *words]) == 0
    results = load(out)
    assert not results.has_failures()
    for workload in results.workloads:
        assert workload.peers["odradek"].samples
        assert workload.peers["kafka"].samples or workload.peers["kafka"].skipped
