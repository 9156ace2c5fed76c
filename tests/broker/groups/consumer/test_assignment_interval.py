"""Tests of the interval between target assignments."""

from __future__ import annotations

from odradek.broker.groups.config import ConsumerGroupConfig
from tests.broker.groups.consumer.consumer_group_driver import ConsumerStage


def test_wall_clock_set_back_does_not_delay_assignment() -> None:
    """Nor does the clock of a new coordinator that is behind that of the previous one."""
    stage = ConsumerStage(settings=ConsumerGroupConfig(assignment_interval_ms=1000))
    stage.set_topic("t", 2)
    stage.set_topic("u", 2)
    stage.join_new("A", regex="t")
    stage.beat("A")
    stage.advance(11_000)
    stage.wall_ms_more = -3_600_000
    stage.join_new("B", regex="u")
    for _ in range(3):
        stage.advance(1000)
        stage.beat("A")
        stage.beat("B")
    assert stage.consumer("A").owned == {"t": (0, 1)}
    assert stage.consumer("B").owned == {"u": (0, 1)}
