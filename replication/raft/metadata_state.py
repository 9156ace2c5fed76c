"""The cluster's state as this node has it: what is committed, and what it decided on top of that.

`image` is committed state and moves in the order of the log, between two awaits of anyone else. The
active controller has `newest` ahead of it, with all that it has appended; elsewhere the two are one.
Each step that the controller appended waits in `_uncommitted` until the high watermark passes it; if
the controller loses its epoch first, the steps are forgotten, and what became of them the log tells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field, fields, replace
from operator import attrgetter

import trio

from odradek.replication.controller.image import MetadataDelta, MetadataImage
from odradek.replication.raft.metadata_batch_loader import MetadataTransaction
from odradek.seams.values import state_class

MetadataListener = Callable[[MetadataDelta], None]


@state_class
class PendingCommit:
    """Somebody waits for all below `offset` to be committed; `error` says why it never will."""

    offset: int
    over: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None


class MetadataState:
    """See the module. All listeners hear of every step, in order, after `image` has moved."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.newest = self.image
        self.transactions = MetadataTransaction()
        """Of the log up to `image`."""
        self.applied_bytes = 0
        """Of the log, since the node started."""
        self._uncommitted: deque[tuple[MetadataDelta | None, MetadataImage, int]] = deque()
        self._commits: deque[PendingCommit] = deque()
        self._listeners: dict[int, MetadataListener] = {}
        self._next_listener = 0
        self._moved = trio.Event()

    def load(
        self, image: MetadataImage, transactions: MetadataTransaction, applied_bytes: int
    ) -> None:
        """What the disk tells, before anybody listens."""
        self.image = self.newest = image
        self.transactions = transactions
        self.applied_bytes = applied_bytes

    # On the active controller

    def take_over(self, end_offset: int, epoch: int, timestamp_ms: int) -> None:
        """From here on records are appended by this node, the next one at `end_offset`; all that is
        between `image` and there are control records."""
        self._uncommitted.clear()
        self.newest = self.image
        self.control_appended(end_offset - 1, epoch, timestamp_ms)

    def control_appended(self, last_offset: int, epoch: int, timestamp_ms: int) -> None:
        """Control records: the same state, further on."""
        self.newest = replace(
            self.newest, offset=last_offset, epoch=epoch, timestamp_ms=timestamp_ms
        )
        self._uncommitted.append((None, self.newest, 0))

    def appended(self, delta: MetadataDelta, size_bytes: int) -> None:
        self.newest = delta.image
        self._uncommitted.append((delta, delta.image, size_bytes))

    def committed(self, high_watermark: int) -> None:
        """Publish the steps that are below; then wake who waited for them."""
        while self._uncommitted and self._uncommitted[0][1].offset < high_watermark:
            delta, image, size_bytes = self._uncommitted.popleft()
            if delta is None:
                self._move(image)
            else:
                self.transactions = (
                    MetadataTransaction()
                )  # what is appended here ends what was open
                self.publish(delta, size_bytes)
        while self._commits and self._commits[0].offset <= high_watermark:
            self._commits.popleft().over.set()

    def wait_for(self, offset: int) -> PendingCommit:
        """For all below `offset`, which is not below that of the call before."""
        commit = PendingCommit(offset)
        self._commits.append(commit)
        return commit

    def step_down(self, error: Exception) -> None:
        """What is appended and not committed is up to others now."""
        self._uncommitted.clear()
        self.newest = self.image
        while self._commits:
            commit = self._commits.popleft()
            commit.error = error
            commit.over.set()

    # Everywhere

    def publish(self, delta: MetadataDelta, size_bytes: int) -> None:
        """A step that is committed."""
        self.applied_bytes += size_bytes
        self._move(delta.image)
        if changes_cluster(delta):
            for listener in tuple(self._listeners.values()):
                listener(delta)

    def _move(self, image: MetadataImage) -> None:
        self.image = image
        if self.newest.offset < image.offset:
            self.newest = image
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    async def wait_for_offset(self, offset: int) -> None:
        """Until the image has the record at `offset`."""
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
    """Not what holds only control records, a NoOpRecord, or the middle of a transaction."""
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
"""Steps share what they do not change."""
