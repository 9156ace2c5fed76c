"""Replica fetchers that are imported and started with the first followed partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import trio

from odradek.replication.partition.partition import Partition
from odradek.storage.log_manager.log_manager import LogManager

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig
    from odradek.broker.environment import NodeEnvironment
    from odradek.replication.fetching.replica_fetcher import ReplicaFetcherConfig
    from odradek.replication.fetching.replica_fetcher_manager import ReplicaFetcherManager
    from odradek.replication.partition.follower_role import RemoteTier


class LazyReplicaFetchers:
    """Creates the `ReplicaFetcherManager` when needed. All methods except `run` are synchronous."""

    def __init__(
        self,
        environment: NodeEnvironment,
        logs: LogManager,
        broker_epoch: Callable[[], int],
        on_role: Callable[[Partition], None],
        *,
        tier: Callable[[], RemoteTier | None],
    ) -> None:
        """`on_role` is called with the partition when a deferred role takes effect after a change
        of its log."""
        self._environment = environment
        self._broker_epoch = broker_epoch
        self._tier = tier
        self._logs = logs
        self._on_role = on_role
        self._needed = trio.Event()

    @cached_property
    def _fetcher_manager(self) -> ReplicaFetcherManager:
        from odradek.replication.fetching.replica_fetcher_manager import (
            ReplicaFetcherManager,
            ReplicaFetcherNode,
        )
        from odradek.replication.replication_quota import ReplicationQuota

        environment, config = self._environment, self._environment.config
        return ReplicaFetcherManager(
            ReplicaFetcherNode(
                environment.node_id,
                config.inter_broker_listener,
                lambda: environment.metadata.image,
                self._broker_epoch,
                environment.seams.network,
                environment.seams.clock,
            ),
            settings=lambda: replica_fetcher_config(config),
            quota=ReplicationQuota(
                lambda: config.get_int("follower.replication.throttled.rate"),
                samples=config.get_int("replication.quota.window.num"),
                sample_seconds=config.get_int("replication.quota.window.size.seconds"),
            ),
            logs=self._logs,
            on_role=self._on_role,
            tier=self._tier(),
        )

    @property
    def is_catching_up(self) -> bool:
        """Whether a followed partition is behind its leader or has not fetched yet."""
        return self._needed.is_set() and self._fetcher_manager.is_catching_up

    def role_changed(self, partition: Partition) -> None:
        """Handle a partition that was opened, or whose leader or leader epoch changed."""
        is_followed = partition.leader >= 0 and not partition.is_leader
        if is_followed or self._needed.is_set():
            self._needed.set()
            self._fetcher_manager.role_changed(partition)

    def gone(self, topic: str, index: int) -> None:
        """Stop fetching: the replica was removed, or its log directory is offline."""
        if self._needed.is_set():
            self._fetcher_manager.gone(topic, index)

    def brokers_changed(self) -> None:
        if self._needed.is_set():
            self._fetcher_manager.brokers_changed()

    def settings_changed(self) -> None:
        if self._needed.is_set():
            self._fetcher_manager.settings_changed()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the fetchers until cancelled."""
        task_status.started()
        await self._needed.wait()
        await self._fetcher_manager.run()


def replica_fetcher_config(config: ServerConfig) -> ReplicaFetcherConfig:
    """Return the configs of fetchers, cached until a config changes: each fetch reads them."""
    from odradek.replication.fetching.replica_fetcher import ReplicaFetcherConfig

    kept: ReplicaFetcherConfig | None = config.derived.get(ReplicaFetcherConfig)
    if kept is None:
        kept = config.derived[ReplicaFetcherConfig] = ReplicaFetcherConfig(
            fetchers=config.get_int("num.replica.fetchers"),
            fetch_max_bytes=config.get_int("replica.fetch.max.bytes"),
            response_max_bytes=config.get_int("replica.fetch.response.max.bytes"),
            min_bytes=config.get_int("replica.fetch.min.bytes"),
            wait_max_ms=config.get_int("replica.fetch.wait.max.ms"),
            back_off_ms=config.get_int("replica.fetch.backoff.ms"),
            socket_timeout_ms=config.get_int("replica.socket.timeout.ms"),
        )
    return kept
