"""Metrics and results to begin with."""

from __future__ import annotations

from odradek.bench.model import Metric
from odradek.bench.results_file import Results

SPEED = Metric("mb_per_s", "MB/s", "higher", limit="sendfile")
DELAY = Metric("p99_us", "µs", "lower")


def empty_results() -> Results:
    return Results(
        "0.1.0", "2026-01-01T00:00:00+00:00", {"processor": "abacus", "cores": "2"}, {"rounds": 2}
    )
