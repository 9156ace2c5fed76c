"""Configs for `odradek serve --diskless DIR|URL` and `odradek.testing`."""

from __future__ import annotations

METADATA_PARTITIONS = 3


def diskless_settings(target: str, *, brokers: int) -> dict[str, str]:
    """Storage and metadata configs together."""
    return diskless_storage_settings(target) | diskless_metadata_settings(brokers)


def diskless_storage_settings(target: str) -> dict[str, str]:
    """Configs for the object store `target`: a URL, or an absolute directory."""
    return {"diskless.storage.system.enable": "true", "diskless.storage.url": target}


def diskless_metadata_settings(brokers: int) -> dict[str, str]:
    """Defaults for `__diskless_metadata` of a small cluster."""
    return {
        "diskless.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
        "diskless.metadata.topic.replication.factor": str(min(3, brokers)),
    }
