"""The measurement of query query_planning, with a small history: it sends the same requests per partition at any size."""

from __future__ import annotations

import json

import pytest

from odradek.bench import query_planning


def test_planning_sends_a_constant_number_of_requests_per_partition(
    capfd: pytest.CaptureFixture[str],
) -> None:
    small = ["--partitions", "3", "--segments", "700", "--latency-ms", "0", "--json"]
    small += ["--cores", "10"]
    assert query_planning.main(small) == 0
    everything, one, hour = json.loads(capfd.readouterr().out)
    assert (everything["segments"], one["segments"]) == (3 * 700, 700)
    assert 3 <= hour["segments"] < 3 * 3
    # the topics; where each begins and what is behind its summary
    assert everything["lists"] == hour["lists"] == 1 + 2 * 3
    assert one["lists"] == 1 + 2, "other partitions are not looked into"
    # the summary, what is behind it, the leader epochs and their manifest
    a_partition = 1 + query_planning.BEHIND_SUMMARY + 2
    assert (everything["gets"], one["gets"]) == (3 * a_partition, a_partition)
    assert everything["tasks_mb"] * 1e6 < 500 * everything["tasks"]
    assert everything["tasks_a_core"] == everything["tasks"] / 10
    assert everything["task_mean_gb"] * everything["tasks"] == pytest.approx(3 * 700 * 0.1, 0.01)
