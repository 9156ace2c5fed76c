"""Whether this node is the active controller: the leader that has taken over, in this very epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from odradek.replication.raft.errors import NotController
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors

if TYPE_CHECKING:
    from odradek.replication.raft.metadata_manager import MetadataManager
    from odradek.replication.raft.metadata_state import MetadataState
    from odradek.replication.raft.raft_client_driver import RaftClientDriver
    from odradek.seams.clock import Clock

log = logging.getLogger("odradek.metadata")


class ControllerClaim:
    """See the module. There is no `driver` before the node has started."""

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
        leads = driver is not None and driver.leads and driver.quorum.epoch == self._epoch
        return leads and not self._stopped

    def may_begin(self, applied_offset: int) -> bool:
        """It leads, and `applied_offset` says that its image has all that came before its epoch."""
        leadership = None if self.driver is None else self.driver.quorum.leadership
        return (
            leadership is not None
            and leadership.high_watermark > leadership.start_offset
            and applied_offset >= leadership.start_offset
        )

    def begin(self, epoch: int) -> None:
        """Before the first record is appended; `announce` comes after that."""
        self._epoch = epoch

    def ends(self) -> bool:
        """The quorum may have changed: whether this node ceased to be active by that."""
        if self._epoch is None or self.is_active:
            return False
        self._epoch = None
        return True

    def stop(self) -> None:
        """For good: the node takes no part in the quorum any more."""
        self._stopped = True

    def announce(self) -> None:
        for callback in self._callbacks:
            callback(self.is_active)
        self.look()

    def look(self) -> None:
        """The quorum may have changed: tell who wants to know who leads, if that is another."""
        if self.driver is None:
            return
        quorum = self.driver.quorum
        seen = (quorum.leader_id, quorum.epoch, quorum.leader_endpoints, self.is_active)
        if seen != self._seen:
            self._seen = seen
            moved, self._moved = self._moved, trio.Event()
            moved.set()
            for watcher in self._watchers:
                watcher()

    async def moved(self) -> None:
        """Until another node leads, or this one is active, or is not any more."""
        await self._moved.wait()

    def on_leader(self, callback: Callable[[], None]) -> None:
        self._watchers.append(callback)

    def subscribe(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)
        if self.is_active:
            callback(True)

    @property
    def is_followed(self) -> bool:
        """By another voter, or by somebody who only observes."""
        driver = self.driver
        if driver is None or not driver.quorum.is_alone:
            return driver is not None
        leadership = driver.quorum.leadership
        return leadership is not None and bool(leadership.observer_progress(driver.now_ms))


async def write_no_op_records(
    metadata: MetadataManager,
    state: MetadataState,
    activity: ControllerClaim,
    clock: Clock,
    max_idle_ms: int,
) -> None:
    """While nothing happens, followers are told by a NoOpRecord that something could; 0: never."""
    from odradek.protocol.schemas.cluster_records import NoOpRecord

    driver = activity.driver
    while max_idle_ms > 0 and driver is not None:
        if not activity.is_active:
            await activity.moved()
            continue
        if not activity.is_followed:
            await driver.news()
            continue
        offset = state.newest.offset
        await clock.sleep(max_idle_ms / 1000)
        if activity.is_active and state.newest.offset == offset:
            try:
                await metadata.commit([NoOpRecord()])
            except (NotController, DiskFull, NoDescriptors, LogFailed) as error:
                log.debug("no NoOpRecord: %s", error)
