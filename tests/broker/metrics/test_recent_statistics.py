"""Average and maximum of the values that were recorded in the last minute."""

from __future__ import annotations

from odradek.broker.metrics.recent_statistics import RecentStatistics


def test_statistics_cover_last_minute() -> None:
    now = [100.0]
    recent = RecentStatistics(lambda: now[0])
    assert (recent.average, recent.maximum) == (None, None)
    recent.record(10)
    recent.record(30)
    assert (recent.average, recent.maximum) == (20, 30)
    now[0] += 31
    recent.record(5)
    assert (recent.average, recent.maximum) == (15, 30)
    now[0] += 31
    assert (recent.average, recent.maximum) == (5, 5)
    now[0] += 60
    assert (recent.average, recent.maximum) == (None, None)
