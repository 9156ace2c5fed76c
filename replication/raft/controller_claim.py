"""Whether this node is the active controller, and the callbacks that follow the role and the leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from odradek.replication.raft.raft_client_driver import RaftClientDriver


class ControllerClaim:
    """Whether this node is the active controller. `driver` is None until the node has started."""

    def __init__(self) -> None:
        self.driver: RaftClientDriver | None = None
        self._epoch: int | None = None  # in which it took over
        self._stopped = False
        self._callbacks: list[Callable[[bool], None]] = []
        self._watchers: list[Callable[[], None]] = []
        self._seen: Any = None
        self._moved = trio.Event()

    @property
    def is_active(self) -> bool:
        driver = self.driver
        leads = driver is not None and driver.leads and driver.raft_client.epoch == self._epoch
        return leads and not self._stopped

    def can_claim(self, applied_offset: int) -> bool:
        """Whether this node leads and its image (up to `applied_offset`) contains all earlier
        epochs."""
        leadership = None if self.driver is None else self.driver.raft_client.leadership
        return (
            leadership is not None
            and leadership.high_watermark > leadership.start_offset
            and applied_offset >= leadership.start_offset
        )

    def claim(self, epoch: int) -> None:
        """Claim the role for `epoch`, before the first record is appended; then call `notify`."""
        self._epoch = epoch

    def renounce_if_lost(self) -> bool:
        """Renounce if the leadership was lost; returns whether this node stopped being active."""
        if self._epoch is None or self.is_active:
            return False
        self._epoch = None
        return True

    def stop(self) -> None:
        """Renounce permanently: the node has left the quorum."""
        self._stopped = True

    def notify(self) -> None:
        for callback in self._callbacks:
            callback(self.is_active)
        self.check_leader()

    def check_leader(self) -> None:
        """Notify the watchers if the leader, its epoch or endpoints, or `is_active` changed."""
        if self.driver is None:
            return
        quorum = self.driver.raft_client
        seen = (quorum.leader_id, quorum.epoch, quorum.leader_endpoints, self.is_active)
        if seen != self._seen:
            self._seen = seen
            moved, self._moved = self._moved, trio.Event()
            moved.set()
            for watcher in self._watchers:
                watcher()

    async def wait_for_change(self) -> None:
        """Wait until the leader or `is_active` changes."""
        await self._moved.wait()

    def on_leader(self, callback: Callable[[], None]) -> None:
        self._watchers.append(callback)

    def subscribe(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)
        if self.is_active:
            callback(True)

    @property
    def is_followed(self) -> bool:
        """Whether another voter or an observer fetches from this node."""
        driver = self.driver
        if driver is None or not driver.raft_client.is_only_voter:
            return driver is not None
        leadership = driver.raft_client.leadership
        return leadership is not None and bool(leadership.observer_progress(driver.now_ms))
