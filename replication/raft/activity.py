"""Whether this node is the active controller: the leader that has taken over, in this very epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.replication.raft.driver import QuorumDriver


class Activity:
    """See the module. There is no `driver` before the node has started."""

    def __init__(self) -> None:
        self.driver: QuorumDriver | None = None
        self._epoch: int | None = None  # in which it took over
        self._stopped = False
        self._callbacks: list[Callable[[bool], None]] = []

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
