"""Tiered storage turned on in one word: `odradek serve --tiered DIR|URL`, `odradek.testing`.

What Kafka asks for at the least (T-01, T-02, T-06), for a store in a directory, laid out as that of
Kafka's LocalTieredStorage, or at a URL; and a metadata topic as small as the cluster is.
"""

from __future__ import annotations

from pathlib import Path

from odradek.broker.config.types import ConfigError

LOCAL_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
OBJECT_STORE = "odradek.ObjectStore"
METADATA_PARTITIONS = 5


def tiered_settings(target: str, *, brokers: int, listener: str) -> dict[str, str]:
    """Both of the following."""
    return storage_settings(target) | metadata_settings(brokers, listener)


def absolute_target(target: str) -> str:
    """A URL as it is; a directory wherever whoever reads it stands. Raises ConfigError for what is neither: a
    mistyped URL would be made a directory, where nobody looks for it."""
    if "://" in target:
        return target
    if not target or ":" in target.partition("/")[0]:
        raise ConfigError(
            f"tiered storage is kept in a directory or at a URL like s3://bucket/prefix: {target!r} is neither"
        )
    return str(Path(target).absolute())


def storage_settings(target: str) -> dict[str, str]:
    """The configs of a node whose remote store is `target`: a URL, or an absolute directory."""
    settings = {"remote.log.storage.system.enable": "true"}
    if "://" in target:
        return settings | {
            "remote.log.storage.manager.class.name": OBJECT_STORE,
            "rsm.config.url": target,
        }
    return settings | {
        "remote.log.storage.manager.class.name": LOCAL_STORAGE,
        "rsm.config.dir": target,
    }


def metadata_settings(brokers: int, listener: str) -> dict[str, str]:
    """What the metadata topic is like where nobody says otherwise; `listener` is the one of each
    broker at which the others find it."""
    return {
        "remote.log.metadata.manager.listener.name": listener,
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(min(3, brokers)),
        "rlmm.config.remote.log.metadata.topic.min.isr": str(min(2, brokers)),
        "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
    }
