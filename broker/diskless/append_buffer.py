"""Rotation of WAL files, without I/O and without a clock (KIP-1163).

One file is open at a time. It is due when `interval_seconds` have passed since its first batch, or as soon as it has
`max_bytes`. A batch that would make the file larger than `max_bytes` opens the next one, so that only a single larger
batch exceeds the limit. Files are taken in the order in which they were opened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import LOG_APPEND_TIME, Batch
from odradek.seams.values import value_class
from odradek.storage.diskless.wal_file import WalFile


@value_class
class AppendOutcome:
    """Result of one batch, with the values of a Produce response."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    base_offset: int = -1
    log_append_ms: int = -1
    log_start_offset: int = -1


class AppendWaiter:
    """Counts the batches of one Produce request that have no outcome yet."""

    __slots__ = ("on_done", "pending", "request_id")

    def __init__(self, on_done: Callable[[], None] = lambda: None, *, request_id: int = -1) -> None:
        """`on_done` is called on the event loop when no added batch is without an outcome. `request_id` identifies the
        Produce request in the commit."""
        self.pending = 0
        self.on_done = on_done
        self.request_id = request_id

    def completed(self) -> None:
        self.pending -= 1
        if not self.pending:
            self.on_done()


class BufferedBatch:
    """A batch of the open file or of a file that is not committed yet; `outcome` is None until it is."""

    __slots__ = (
        "coordinator_id",
        "has_append_time",
        "index",
        "outcome",
        "topic_id",
        "waiter",
    )

    def __init__(
        self, topic_id: UUID, index: int, coordinator_id: int, batch: Batch, waiter: AppendWaiter
    ) -> None:
        """`coordinator_id` is the partition of `__diskless_metadata` that coordinates the batch's partition (D-14)."""
        self.topic_id = topic_id
        self.index = index
        self.coordinator_id = coordinator_id
        self.has_append_time = batch.timestamp_type == LOG_APPEND_TIME
        self.outcome: AppendOutcome | None = None
        self.waiter = waiter
        waiter.pending += 1

    def complete(self, outcome: AppendOutcome) -> None:
        """Set the outcome, unless the batch has one."""
        if self.outcome is None:
            self.outcome = outcome
            self.waiter.completed()


class RotatedFile:
    """A file, its batches in the order of their arrival, and the time of the first one in monotonic seconds."""

    __slots__ = ("batches", "opened_at", "wal")

    def __init__(self, opened_at: float) -> None:
        self.opened_at = opened_at
        self.wal = WalFile()
        self.batches: list[BufferedBatch] = []

    @property
    def size_bytes(self) -> int:
        return self.wal.size_bytes

    def coordinator_ids(self) -> list[int]:
        """The coordinators of the batches, sorted."""
        return sorted({each.coordinator_id for each in self.batches})


class AppendBuffer:
    """The open file, and closed ones that are not taken yet. Times are monotonic seconds."""

    def __init__(self, interval_seconds: float, max_bytes: int) -> None:
        self.interval_seconds = interval_seconds
        self.max_bytes = max_bytes
        self._open: RotatedFile | None = None
        self._closed: deque[RotatedFile] = deque()

    def __bool__(self) -> bool:
        """Whether there is any batch."""
        return self._open is not None or bool(self._closed)

    @property
    def due_at(self) -> float:
        """When the next file can be taken: in the past if one is closed, never if there is no batch."""
        if self._closed:
            return -inf
        return inf if self._open is None else self._open.opened_at + self.interval_seconds

    def add(self, buffered: BufferedBatch, batch: Batch, now: float) -> bool:
        """Add a validated batch, whose bytes are copied. Returns whether a file became due earlier than before."""
        due_at = self.due_at
        file = self._open
        if file is not None and file.size_bytes + len(batch.view) > self.max_bytes:
            self._close()
            file = None
        if file is None:
            file = self._open = RotatedFile(now)
        request_id = buffered.waiter.request_id
        file.wal.add(buffered.topic_id, buffered.index, batch, request_id=request_id)
        file.batches.append(buffered)
        if file.size_bytes >= self.max_bytes:
            self._close()
        return self.due_at < due_at

    def close(self) -> None:
        """Close the open file, so that it is due."""
        if self._open is not None:
            self._close()

    def _close(self) -> None:
        assert self._open is not None
        self._closed.append(self._open)
        self._open = None

    def take(self, now: float) -> RotatedFile | None:
        """Return the oldest file if it is due; the caller owns it."""
        if not self._closed and self.due_at <= now:
            self._close()
        return self._closed.popleft() if self._closed else None
