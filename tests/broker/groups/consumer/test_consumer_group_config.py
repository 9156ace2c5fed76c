"""Tests of the configs of a consumer group and their bounds."""

from __future__ import annotations

from odradek.broker.groups.config import (
    ConsumerGroupConfig,
)


class Configs:
    """Kafka's defaults, by the suffix of the config name."""

    def get_int(self, name: str) -> int:
        bounds = {"min.session": 45_000, "max.session": 60_000}
        return next((ms for part, ms in bounds.items() if part in name), 1_000)


def test_group_configs_are_limited_to_broker_bounds() -> None:
    for asked, kept in (("50000", 50_000), ("1", 45_000), ("99000", 60_000)):
        overrides = {"consumer.session.timeout.ms": asked}
        assert ConsumerGroupConfig.of(Configs(), overrides).session_timeout_ms == kept
    assert ConsumerGroupConfig.of(Configs(), {}).session_timeout_ms == 1_000
