"""Configs of a cluster whose object store is a directory."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import (
    KafkaError,
)

STORAGE = "kafka-tiered-storage"


NOT_READY = (KafkaError.UNKNOWN,)
"""Retriable errors that a consumer receives while remote storage is not ready."""


def tiered_configs(store: Path, brokers: int) -> dict[str, str]:
    """Return the configs of remote storage for a node of Odradek or Kafka."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "rsm.config.dir": str(store),
        "rsm.config.delete.on.close": "false",
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(brokers),
        "rlmm.config.remote.log.metadata.initialization.retry.interval.ms": "300",
        "remote.log.manager.task.interval.ms": "500",
        "log.initial.task.delay.ms": "0",
        "log.retention.check.interval.ms": "500",
        "log.segment.delete.delay.ms": "500",
        "log.cleaner.enable": "false",
    }
