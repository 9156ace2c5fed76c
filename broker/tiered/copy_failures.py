"""Log messages about failing copies to the remote tier: early, and not once per partition.

A copy needs the store and the metadata topic. While copies fail, segments stay on the disk, which
fills. The first failure is logged at once, then every minute the component that failed last, the
duration, the backlog and the free space, and finally the recovery. No I/O; the methods return the
messages.
"""

from __future__ import annotations

from enum import Enum

from odradek.seams.units import human_bytes
from odradek.seams.values import value_class
from odradek.storage.tiered.metadata_records import METADATA_TOPIC

REMIND_SECONDS = 60.0


class FailingComponent(Enum):
    """Component that fails, with its name in messages."""

    STORE = "the object store"
    METADATA = f"topic {METADATA_TOPIC}"


@value_class
class CopyBacklog:
    """Bytes that wait to be copied, and the free space of the fullest disk, in bytes."""

    partitions: int
    size_bytes: int
    free_bytes: int | None


class CopyFailureMonitor:
    """Tracks the partitions whose copies fail. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._failing: dict[object, None] = {}
        self._since: float | None = None
        self._logged_at = 0.0
        self._component = FailingComponent.STORE
        self._component_since = 0.0
        self._reason = ""

    @property
    def is_failing(self) -> bool:
        return self._since is not None

    def failed(
        self,
        partition: object,
        reason: str,
        now: float,
        component: FailingComponent = FailingComponent.STORE,
    ) -> str | None:
        """A copy task failed; returns the message to log, or None."""
        self._failing[partition] = None
        self._reason = reason
        if self._since is None or component is not self._component:
            self._component, self._component_since = component, now
        if self._since is not None:
            return None
        self._since = self._logged_at = now
        where, check = "to the object store", "the object store, its credentials and the network"
        if component is FailingComponent.METADATA:
            where = f"while {component.value} is unavailable"
            check = "its leaders and in-sync replicas"
        return (
            f"segments cannot be copied {where} ({reason}): local retention deletes no segment that"
            f" is not copied; check {check}"
        )

    def worked(self, partition: object, now: float) -> str | None:
        """A copy task succeeded; returns the message to log, or None."""
        self._failing.pop(partition, None)
        if self._since is None or self._failing:
            return None
        seconds, self._since = now - self._since, None
        return f"segments are copied to the object store again, after {seconds:.0f} s"

    def forget(self, partition: object, now: float) -> str | None:
        """The partition is not copied here any more."""
        return self.worked(partition, now) if partition in self._failing else None

    def is_reminder_due(self, now: float) -> bool:
        return self._since is not None and now - self._logged_at >= REMIND_SECONDS

    def reminder(self, backlog: CopyBacklog, now: float) -> str:
        """Message to log every minute during a failure."""
        self._logged_at = now
        free = "" if backlog.free_bytes is None else f"; {human_bytes(backlog.free_bytes)} are free"
        return (
            f"{self._component.value} has failed for {now - self._component_since:.0f} s ({self._reason}):"
            f" {human_bytes(backlog.size_bytes)} of {backlog.partitions} partitions wait on the disk{free}"
        )
