"""Broker configs of the RemoteLogManager (T-11, T-12), with their current values."""

from __future__ import annotations

from odradek.broker.config.server_config import ServerConfig


class RemoteLogSettings:
    """Current values; times in seconds, sizes in bytes."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config

    @property
    def copiers(self) -> int:
        return self._config.get_int("remote.log.manager.copier.thread.pool.size")

    @property
    def expirers(self) -> int:
        return self._config.get_int("remote.log.manager.expiration.thread.pool.size")

    @property
    def followers(self) -> int:
        """Threads for follower tasks; the older name of the config is used if only that is set."""
        name, older = (
            "remote.log.manager.follower.thread.pool.size",
            "remote.log.manager.thread.pool.size",
        )
        config = self._config
        is_older = config.is_set(older) and not config.is_set(name)
        return config.get_int(older if is_older else name)

    @property
    def interval_seconds(self) -> float:
        """Time from the end of a successful run to the next one."""
        return self._config.get_int("remote.log.manager.task.interval.ms") / 1000

    @property
    def back_off_seconds(self) -> float:
        return self._config.get_int("remote.log.manager.task.retry.backoff.ms") / 1000

    @property
    def back_off_max_seconds(self) -> float:
        return self._config.get_int("remote.log.manager.task.retry.backoff.max.ms") / 1000

    @property
    def jitter(self) -> float:
        """Random share of a backoff, up or down."""
        return self._config.get_float("remote.log.manager.task.retry.jitter")

    @property
    def copy_bytes_per_second(self) -> int:
        return self._config.get_int("remote.log.manager.copy.max.bytes.per.second")

    @property
    def copy_samples(self) -> int:
        return self._config.get_int("remote.log.manager.copy.quota.window.num")

    @property
    def copy_sample_seconds(self) -> int:
        return self._config.get_int("remote.log.manager.copy.quota.window.size.seconds")

    @property
    def custom_metadata_bytes_max(self) -> int:
        return self._config.get_int("remote.log.metadata.custom.metadata.max.bytes")
