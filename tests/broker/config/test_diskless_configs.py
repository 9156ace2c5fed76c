"""Configs of diskless topics and of the brokers that serve them."""

from __future__ import annotations

import pytest

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.config.types import ConfigError
from odradek.protocol.errors import ErrorCode, KafkaError

ENABLED = {"diskless.storage.system.enable": "true", "diskless.storage.url": "/objects"}
DISKLESS = {"diskless.enable": "true"}


def node(**more: str) -> ServerConfig:
    return ServerConfig.from_properties({**ENABLED, **more}, test_node=True)


def refusal(config: ServerConfig, configs: dict[str, str]) -> str:
    with pytest.raises(KafkaError) as raised:
        config.validate_topic_configs(configs)
    assert raised.value.code == ErrorCode.invalid_config
    return raised.value.message


def test_topic_may_be_diskless() -> None:
    node().validate_topic_configs(DISKLESS | {"retention.ms": "1000", "min.insync.replicas": "2"})


def test_disabled_broker_refuses_diskless_topic() -> None:
    config = ServerConfig.from_properties({}, test_node=True)
    assert "diskless.storage.system.enable" in refusal(config, DISKLESS)
    config.validate_topic_configs({"diskless.enable": "false"})


def test_disabled_broker_accepts_changes_of_diskless_topic() -> None:
    config = ServerConfig.from_properties({}, test_node=True)
    config.validate_topic_configs(DISKLESS | {"retention.ms": "1000"}, DISKLESS)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_topic_cannot_be_diskless(policy: str) -> None:
    assert "compacted" in refusal(node(), DISKLESS | {"cleanup.policy": policy})


def test_compaction_by_broker_default_is_refused() -> None:
    assert "compacted" in refusal(node(**{"log.cleanup.policy": "compact"}), DISKLESS)


def test_tiered_topic_cannot_be_diskless() -> None:
    reason = refusal(node(), DISKLESS | {"remote.storage.enable": "true"})
    assert "remote.storage.enable=true and diskless.enable=true" in reason


def test_enabled_broker_needs_url() -> None:
    with pytest.raises(ConfigError, match=r"diskless\.storage\.url is required"):
        ServerConfig.from_properties({"diskless.storage.system.enable": "true"}, test_node=True)


def test_default_of_topics_needs_diskless_storage() -> None:
    with pytest.raises(ConfigError, match=r"log\.diskless\.enable=true requires"):
        ServerConfig.from_properties({"log.diskless.enable": "true"}, test_node=True)


def test_options_of_store_are_known_only_if_diskless_topics_are_enabled() -> None:
    option = {"diskless.storage.aws_region": "eu-north-1"}
    assert not node(**option).warnings
    (warning,) = ServerConfig.from_properties(option, test_node=True).warnings
    assert "diskless.storage.aws_region" in warning
