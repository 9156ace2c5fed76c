"""Configs for `odradek serve --tiered DIR|URL` and `odradek.testing`.

The minimum that Kafka requires (T-01, T-02, T-06), for a directory in the layout of LocalTieredStorage or a
URL, and a metadata topic for the size of the cluster.
"""

from __future__ import annotations

from odradek.broker.config.types import ConfigError

LOCAL_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
OBJECT_STORE = "odradek.ObjectStore"
METADATA_PARTITIONS = 5


def tiered_settings(target: str, *, brokers: int, listener: str) -> dict[str, str]:
    """Storage and metadata configs together."""
    return storage_settings(target) | metadata_settings(brokers, listener)


def absolute_target(target: str, what: str = "tiered storage") -> str:
    """Return the absolute directory of a path or a `file://` URL; another URL is returned unchanged. Raises
    ConfigError for a text that looks like a mistyped URL, which would become a directory. `what` is stored there."""
    from odradek.storage.tiered.store_location import directory_of

    try:
        directory = directory_of(target)
    except ValueError as error:
        raise ConfigError(f"the location of {what}: {error}") from None
    return target if directory is None else str(directory)


def storage_settings(target: str) -> dict[str, str]:
    """Configs for the object store `target`: a URL, or an absolute directory."""
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
    """Defaults for the metadata topic; `listener` is the listener by which brokers reach it."""
    return {
        "remote.log.metadata.manager.listener.name": listener,
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(min(3, brokers)),
        "rlmm.config.remote.log.metadata.topic.min.isr": str(min(2, brokers)),
        "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
    }
