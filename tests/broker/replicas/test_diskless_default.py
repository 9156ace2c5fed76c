"""Topics that become diskless by `log.diskless.enable`."""

from __future__ import annotations

import pytest

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.coordination.internal_topics import (
    DISKLESS_METADATA_TOPIC,
    OFFSETS_TOPIC,
    diskless_metadata_topic,
    is_coordinator_topic,
    is_internal_topic,
)
from odradek.broker.replicas.topic_creation import diskless_by_default
from odradek.replication.controller.topics import NewTopic

CONFIG = ServerConfig.from_properties(
    {
        "log.diskless.enable": "true",
        "diskless.storage.system.enable": "true",
        "diskless.storage.url": "/objects",
    },
    test_node=True,
)


def test_topic_becomes_diskless() -> None:
    topic = diskless_by_default(CONFIG, NewTopic("events", configs={"retention.ms": "1"}))
    assert topic.configs == {"retention.ms": "1", "diskless.enable": "true"}


@pytest.mark.parametrize(
    "topic",
    [
        NewTopic(OFFSETS_TOPIC),
        NewTopic(DISKLESS_METADATA_TOPIC),
        NewTopic("classic", configs={"diskless.enable": "false"}),
        NewTopic("compacted", configs={"cleanup.policy": "compact,delete"}),
        NewTopic("tiered", configs={"remote.storage.enable": "true"}),
    ],
    ids=lambda topic: topic.name,
)
def test_topic_that_cannot_be_diskless_is_classic(topic: NewTopic) -> None:
    assert diskless_by_default(CONFIG, topic) is topic


def test_metadata_topic_is_internal_and_kept_for_ever_d15() -> None:
    topic = diskless_metadata_topic(CONFIG)
    assert is_internal_topic(topic.name)
    assert is_coordinator_topic(topic.name)
    assert (topic.partitions, topic.replication_factor) == (12, 3)
    assert topic.configs["retention.ms"] == topic.configs["retention.bytes"] == "-1"
    assert topic.configs["min.insync.replicas"] == "2"
    CONFIG.validate_topic_configs(topic.configs)
