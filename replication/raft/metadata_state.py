"""Committed and newest image of a node, pending commits, and listeners.

`image` is committed and changes in log order. On the active controller `newest` also includes
appended, uncommitted records; elsewhere both are the same. Uncommitted steps wait in `_uncommitted`
for the high watermark. When the controller loses its epoch they are dropped, and the log decides
their outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field, fields, replace
from operator import attrgetter

import trio

from odradek.replication.controller.image import MetadataDelta, MetadataImage
from odradek.replication.raft.metadata_batch_loader import MetadataTransaction
from odradek.seams.containment import Containment
from odradek.seams.values import state_class

MetadataListener = Callable[[MetadataDelta], None]


@state_class
class PendingCommit:
    """A caller that waits for the high watermark to reach `offset`; `error` is set if it failed."""

    offset: int
    over: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None


class MetadataState:
    """Committed and newest image; listeners are called after `image` has changed."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.failure: Exception | None = None
        """Why the metadata log is offline; None while it is online."""
        self.newest = self.image
        self.transactions = MetadataTransaction()
        """Open metadata transaction at the offset of `image`."""
        self.applied_bytes = 0
        """Bytes of log applied since the node started."""
        self._uncommitted: deque[tuple[MetadataDelta | None, MetadataImage, int]] = deque()
        self._commits: deque[PendingCommit] = deque()
        self._listeners: dict[int, MetadataListener] = {}
        self._next_listener = 0
        self._containment: Containment[MetadataListener] = Containment(
            "publishing the metadata",
            name=lambda listener: getattr(listener, "__qualname__", repr(listener)),
            consequence="the other listeners are called",
        )
        self._moved = trio.Event()

    def load(
        self, image: MetadataImage, transactions: MetadataTransaction, applied_bytes: int
    ) -> None:
        """Set the recovered state, before any listener subscribes."""
        self.image = self.newest = image
        self.transactions = transactions
        self.applied_bytes = applied_bytes

    # On the active controller

    def take_over(self, end_offset: int, epoch: int, timestamp_ms: int) -> None:
        """Start appending at `end_offset`; only control records are between `image` and it."""
        self._uncommitted.clear()
        self.newest = self.image
        self.control_appended(end_offset - 1, epoch, timestamp_ms)

    def control_appended(self, last_offset: int, epoch: int, timestamp_ms: int) -> None:
        """Advance the newest image over control records, which do not change it."""
        self.newest = replace(
            self.newest, offset=last_offset, epoch=epoch, timestamp_ms=timestamp_ms
        )
        self._uncommitted.append((None, self.newest, 0))

    def appended(self, delta: MetadataDelta, size_bytes: int) -> None:
        self.newest = delta.image
        self._uncommitted.append((delta, delta.image, size_bytes))

    def committed(self, high_watermark: int) -> None:
        """Publish the steps below the high watermark, then complete their pending commits."""
        while self._uncommitted and self._uncommitted[0][1].offset < high_watermark:
            delta, image, size_bytes = self._uncommitted.popleft()
            if delta is None:
                self._move(image)
            else:
                # the activation records have ended an open transaction
                self.transactions = MetadataTransaction()
                self.publish(delta, size_bytes)
        while self._commits and self._commits[0].offset <= high_watermark:
            self._commits.popleft().over.set()

    def wait_for(self, offset: int) -> PendingCommit:
        """Register a pending commit; `offset` must not decrease between calls."""
        commit = PendingCommit(offset)
        self._commits.append(commit)
        return commit

    def step_down(self, error: Exception) -> None:
        """Drop uncommitted steps and fail the pending commits with `error`."""
        self._uncommitted.clear()
        self.newest = self.image
        while self._commits:
            commit = self._commits.popleft()
            commit.error = error
            commit.over.set()

    # On every node

    def publish(self, delta: MetadataDelta, size_bytes: int) -> None:
        """Publish a committed step to the listeners."""
        self.applied_bytes += size_bytes
        self._move(delta.image)
        if changes_cluster(delta):
            for listener in tuple(self._listeners.values()):
                self._containment.call(listener, listener, delta)

    def _move(self, image: MetadataImage) -> None:
        self.image = image
        if self.newest.offset < image.offset:
            self.newest = image
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    async def wait_for_offset(self, offset: int) -> None:
        """Wait until the image contains the record at `offset`."""
        while self.image.offset < offset:
            await self._moved.wait()

    def subscribe(self, listener: MetadataListener) -> Callable[[], None]:
        number = self._next_listener
        self._next_listener += 1
        self._listeners[number] = listener

        def unsubscribe() -> None:
            self._listeners.pop(number, None)

        return unsubscribe


def changes_cluster(delta: MetadataDelta) -> bool:
    """Whether a delta changes anything but control records, NoOpRecords or an open transaction."""
    before, after = delta.before, delta.image
    return (
        bool(delta.changed_configs)
        or before.next_producer_id != after.next_producer_id
        or any(table(before) is not table(after) for table in _TABLES)
    )


_TABLES = [
    attrgetter(each.name)
    for each in fields(MetadataImage)
    if each.name not in ("offset", "epoch", "timestamp_ms", "next_producer_id")
]
"""Images share unchanged tables, so comparing identities is enough."""
