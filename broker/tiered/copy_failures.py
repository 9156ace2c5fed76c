"""Whether copies to the remote store work, as the operator is told: early, and not once for each partition.

A copy takes two: the store, and the topic of the metadata. While copies fail nothing that is not copied
may leave the disk, which fills. The first failure is told at once, then every minute which of the two
failed last and for how long, how much waits, and how much room there is; and at last that it is over.
All of it without I/O: lines of text come out.
"""

from __future__ import annotations

from enum import Enum

from odradek.seams.units import human_bytes
from odradek.seams.values import value_class
from odradek.storage.tiered.metadata_records import METADATA_TOPIC

REMIND_SECONDS = 60.0


class FailingComponent(Enum):
    """What fails, as the lines name it."""

    STORE = "the remote store"
    METADATA = f"topic {METADATA_TOPIC}"


@value_class
class CopyBacklog:
    """What waits to be copied, and the free space of the disk that has least of it, in bytes."""

    partitions: int
    size_bytes: int
    free_bytes: int | None


class CopyFailureMonitor:
    """See the module. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._failing: dict[object, None] = {}
        self._since: float | None = None
        self._told_at = 0.0
        self._culprit = FailingComponent.STORE
        self._culprit_since = 0.0
        self._reason = ""

    @property
    def is_failing(self) -> bool:
        return self._since is not None

    def seconds_away(self, now: float) -> float:
        """For how long copies have failed; 0 while they work."""
        return 0.0 if self._since is None else now - self._since

    def failed(
        self,
        partition: object,
        reason: str,
        now: float,
        culprit: FailingComponent = FailingComponent.STORE,
    ) -> str | None:
        """A round of this partition did; what to say, if anything."""
        self._failing[partition] = None
        self._reason = reason
        if self._since is None or culprit is not self._culprit:
            self._culprit, self._culprit_since = culprit, now
        if self._since is not None:
            return None
        self._since = self._told_at = now
        where = "to the remote store"
        if culprit is FailingComponent.METADATA:
            where = f"while {culprit.value} takes nothing"
        return (
            f"segments cannot be copied {where} ({reason}): nothing that is not copied leaves the"
            " disk"
        )

    def worked(self, partition: object, now: float) -> str | None:
        """A round of this partition went well; what to say, if anything."""
        self._failing.pop(partition, None)
        if self._since is None or self._failing:
            return None
        seconds, self._since = now - self._since, None
        return f"segments are copied to the remote store again, after {seconds:.0f} s"

    def forget(self, partition: object, now: float) -> str | None:
        """It is not copied here any more."""
        return self.worked(partition, now) if partition in self._failing else None

    def is_reminder_due(self, now: float) -> bool:
        return self._since is not None and now - self._told_at >= REMIND_SECONDS

    def reminder(self, backlog: CopyBacklog, now: float) -> str:
        """What to say once a minute while it lasts."""
        self._told_at = now
        free = "" if backlog.free_bytes is None else f"; {human_bytes(backlog.free_bytes)} are free"
        return (
            f"{self._culprit.value} has failed for {now - self._culprit_since:.0f} s ({self._reason}):"
            f" {human_bytes(backlog.size_bytes)} of {backlog.partitions} partitions wait on the disk{free}"
        )
