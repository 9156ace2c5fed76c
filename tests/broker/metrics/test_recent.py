"""What a quota's throttling has come to lately."""

from __future__ import annotations

from odradek.broker.metrics.recent import Recent


def test_the_average_and_the_largest_of_the_last_minute() -> None:
    now = [100.0]
    recent = Recent(lambda: now[0])
    assert (recent.average, recent.largest) == (None, None)
    recent.record(10)
    recent.record(30)
    assert (recent.average, recent.largest) == (20, 30)
    now[0] += 31
    recent.record(5)
    assert (recent.average, recent.largest) == (15, 30)
    now[0] += 31
    assert (recent.average, recent.largest) == (5, 5)
    now[0] += 60
    assert (recent.average, recent.largest) == (None, None)
