"""Log configs of diskless topics are computed once, until a config of the topic or the broker changes."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.broker.diskless.settings import TopicLogConfigs
from odradek.storage.log.config import LogConfig


def test_config_is_computed_again_after_a_change() -> None:
    topics: dict[str, Mapping[str, str]] = {"t": {"max.message.bytes": "5"}}
    defaults = LogConfig()
    computed: list[str] = []

    def log_config(overrides: Mapping[str, str] | None) -> LogConfig:
        if overrides is None:
            return defaults
        computed.append(overrides["max.message.bytes"])
        return LogConfig.from_topic_configs(overrides, base=defaults)

    configs = TopicLogConfigs(topics.__getitem__, log_config)
    assert [configs.get("t").max_message_bytes for _ in range(3)] == [5, 5, 5]
    topics["t"] = {"max.message.bytes": "6"}
    assert [configs.get("t").max_message_bytes for _ in range(2)] == [6, 6]
    defaults = LogConfig(segment_bytes=1000)
    assert configs.get("t").segment_bytes == 1000
    configs.forget(["t", "unknown"])
    configs.get("t")
    assert computed == ["5", "6", "6", "6"]
