"""Configs of TopicBasedRemoteLogMetadataManager (T-05 to T-08)."""

import logging

import pytest

from odradek.replication.tiered.metadata_manager_settings import read_settings


def test_defaults_are_those_of_kafka() -> None:
    """T-08."""
    settings = read_settings({}, node_id=3, bootstrap="here:9092")
    assert settings.topic.partitions == 50
    assert settings.topic.replication_factor == 3
    assert settings.topic.retention_ms == -1
    assert settings.consume_wait_s == 120
    assert settings.bootstrap == "here:9092"
    assert settings.producer.acks == -1
    assert settings.producer.idempotent
    assert settings.client_id("consumer") == "__remote_log_metadata_client_3_consumer"


def test_topic_configs_are_parsed() -> None:
    """T-08."""
    settings = read_settings(
        {
            "remote.log.metadata.topic.num.partitions": "7",
            "remote.log.metadata.topic.replication.factor": "1",
            "remote.log.metadata.topic.retention.ms": "60000",
            "remote.log.metadata.topic.min.isr": "1",
            "remote.log.metadata.consume.wait.ms": "1500",
        },
        node_id=1,
        bootstrap="",
    )
    topic = settings.topic
    assert (topic.partitions, topic.replication_factor) == (7, 1)
    assert (topic.retention_ms, topic.min_in_sync) == (60_000, 1)
    assert settings.consume_wait_s == 1.5


def test_producer_and_consumer_override_common_configs() -> None:
    """T-07."""
    settings = read_settings(
        {
            "remote.log.metadata.common.client.request.timeout.ms": "4000",
            "remote.log.metadata.producer.request.timeout.ms": "2000",
            "remote.log.metadata.producer.compression.type": "lz4",
            "remote.log.metadata.consumer.max.partition.fetch.bytes": "512",
        },
        node_id=1,
        bootstrap="",
    )
    assert settings.request_timeout_s == 4
    assert settings.producer.request_timeout_s == 2
    assert settings.producer.compression == 3
    assert settings.consumer.partition_bytes == 512


def test_config_without_effect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """T-07."""
    name = "remote.log.metadata.producer.interceptor.classes"
    with caplog.at_level(logging.WARNING):
        read_settings({name: "x"}, node_id=1, bootstrap="")
    assert name in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote.log.metadata.topic.num.partitions", "0"),
        ("remote.log.metadata.topic.num.partitions", "many"),
        ("remote.log.metadata.topic.retention.ms", "0"),
        ("remote.log.metadata.topic.retention.ms", "-2"),
        ("remote.log.metadata.producer.compression.type", "rar"),
    ],
)
def test_invalid_config_is_rejected_with_its_name(name: str, value: str) -> None:
    """T-05, T-08."""
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        read_settings({name: value}, node_id=1, bootstrap="")
