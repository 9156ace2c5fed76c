"""Tests of the settings of tiered storage (T-05, T-10 to T-12)."""

from __future__ import annotations

import random

import pytest

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.tiered.periodic_task import BackOff
from odradek.broker.tiered.remote_read_service import _cache_bytes
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.broker.tiered.tiered_storage import metadata_properties
from odradek.seams.entropy import SeededEntropy

MANAGER = "remote.log.manager"
CACHE = "remote.log.index.file.cache.total.size"


def config(**named: str) -> ServerConfig:
    return ServerConfig.from_properties(dict(named), test_node=True)


def test_defaults_are_kafkas() -> None:
    """T-11, T-12."""
    found = RemoteLogSettings(config())
    assert (found.copiers, found.expirers, found.followers) == (10, 10, 2)
    assert found.interval_seconds == 30
    assert (found.back_off_seconds, found.back_off_max_seconds, found.jitter) == (0.5, 30, 0.2)
    assert (found.copy_bytes_per_second, found.copy_samples) == (2**63 - 1, 11)
    assert found.custom_metadata_bytes_max == 128


@pytest.mark.parametrize(
    ("names", "followers"),
    [
        ({f"{MANAGER}.thread.pool.size": "5"}, 5),
        ({f"{MANAGER}.follower.thread.pool.size": "3"}, 3),
        (
            {
                f"{MANAGER}.thread.pool.size": "5",
                f"{MANAGER}.follower.thread.pool.size": "3",
            },
            3,
        ),
    ],
)
def test_follower_pool_size_by_both_names(names: dict[str, str], followers: int) -> None:
    """T-11."""
    assert RemoteLogSettings(config(**names)).followers == followers


def test_backoff_doubles_up_to_limit_with_jitter() -> None:
    """T-12."""
    back_off = BackOff(RemoteLogSettings(config()), SeededEntropy(random.Random(1)))
    pauses = [back_off.next() for _ in range(10)]
    for pause, whole in zip(pauses, [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30], strict=True):
        assert 0.8 * whole <= pause <= 1.2 * whole
    assert len(set(pauses)) == 10
    back_off.reset()
    assert back_off.next() <= 0.6


@pytest.mark.parametrize(
    ("names", "size"),
    [
        ({}, 1 << 30),
        ({f"{CACHE}.mb": "3"}, 3 << 20),
        ({f"{CACHE}.bytes": "7"}, 7),
        ({f"{CACHE}.mb": "3", f"{CACHE}.bytes": "7"}, 7),
    ],
)
def test_index_cache_size_by_both_names(names: dict[str, str], size: int) -> None:
    """T-10."""
    assert _cache_bytes(config(**names)) == size


def test_metadata_manager_configs_by_name_and_prefix() -> None:
    """T-05: names that begin with remote.log.metadata, and names with the prefix, which is removed."""
    given = {
        "remote.log.metadata.manager.impl.prefix": "mine.",
        "remote.log.metadata.consume.wait.ms": "9",
        "mine.remote.log.metadata.topic.num.partitions": "3",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "4",
    }
    found = metadata_properties(config(**given))
    assert found["remote.log.metadata.consume.wait.ms"] == "9"
    assert found["remote.log.metadata.topic.num.partitions"] == "3"
