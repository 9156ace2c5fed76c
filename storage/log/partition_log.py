"""One partition's log: what leaders, followers and housekeeping call.

SKELETON of signatures, being filled in.

All calls are synchronous and made by one owner (the event loop); `flush`, `open`, `delete` and
reads of old data may run through offload, everything else stays on the loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, FileSlice, Path
from odradek.storage.log.config import LogConfig


class Origin(enum.Enum):
    """Who appends; decides what is validated."""

    CLIENT = "client"
    COORDINATOR = "coordinator"  # group and transaction coordinators; control batches allowed
    RAFT = "raft"  # the metadata log's leader: offsets and epochs are already in the batches


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append. Offsets are inclusive; `log_append_time_ms` is -1 for CreateTime."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class LogRead:
    """What a read found: from `offset` (as asked) on, a slice that the caller must unpin, or None.

    `first_batch_size` is the whole first batch's bytes (the slice may be cut within it only if
    `at_least_one` was False); `aborted_transactions` is asked for separately.
    """

    offset: int
    slice: FileSlice | None
    first_batch_size: int


@dataclass(frozen=True, slots=True)
class TimestampAndOffset:
    timestamp: int
    offset: int
    leader_epoch: int  # -1 if none is known


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The largest known epoch at or below the one asked for, and the offset where it ends."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class PartitionLog:
    """See the module. Offsets are ints; `end_offset` is the next offset to be assigned."""

    topic: str
    partition: int
    topic_id: UUID | None
    directory: Path
    config: LogConfig
    log_start_offset: int
    end_offset: int
    recovery_point: int
    high_watermark: int
    last_stable_offset: int
    size_bytes: int
    failure: BaseException | None  # why the log is offline, None while it is well

    @classmethod
    def open(
        cls,
        files: Files,
        directory: Path,
        *,
        topic: str,
        partition: int,
        topic_id: UUID | None,
        config: LogConfig,
        clock: Clock,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: bool,
        entropy: Entropy | None = None,
        on_failure: Callable[[PartitionLog, OSError], None] | None = None,
        on_recovery_point_lowered: Callable[[PartitionLog], None] | None = None,
    ) -> PartitionLog:
        """Create the directory if there is none, load a cleanly closed log, or recover one.

        `clean` says that the directory was shut down cleanly: nothing is scanned. Otherwise all
        past `recovery_point` is read and checked. `on_failure` is called once, when a write or
        sync fails and the log goes offline. `on_recovery_point_lowered` is called by a truncation
        with `recovery_point` already lowered and before any byte is cut: it must make the lower
        recovery point durable (the log directory's checkpoint) before it returns.
        """
        raise NotImplementedError

    def update_config(self, config: LogConfig) -> None: ...

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        transaction_version: int = 0,
    ) -> Appended:
        """Validate, assign offsets in place (`records` must be writable), write, index."""
        raise NotImplementedError

    def append_as_follower(self, records: memoryview) -> Appended:
        raise NotImplementedError

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        limit: int,
        at_least_one: bool = True,
        nowait: bool = False,
    ) -> LogRead:
        """Batches from the one with `offset` on, none at or past offset `limit`.

        Raises OffsetOutOfRange; WouldBlock if `nowait` and a header needed is not in memory (call
        again through offload).
        """
        raise NotImplementedError

    def advance_high_watermark(self, offset: int) -> bool:
        """Never down; capped at the end. True if it moved."""
        raise NotImplementedError

    def advance_log_start(self, offset: int, reason: str) -> bool: ...  # type: ignore[empty-body]

    def assign_epoch(self, epoch: int, start_offset: int) -> None: ...

    def truncate_to(self, offset: int) -> None: ...

    def truncate_fully_and_start_at(self, offset: int) -> None: ...

    def roll(self) -> None: ...

    def flush(self, up_to: int | None = None) -> None:
        """Make all below `up_to` (default: the end now) durable, then move the recovery point."""

    def delete_expired(self, now_ms: int) -> int:
        """Retention: how many segments were renamed to `.deleted`; they go by `remove_deleted`."""
        raise NotImplementedError

    def remove_deleted(self, now_ms: int) -> int:
        """Unlink what was renamed more than file.delete.delay.ms ago; how many segments."""
        raise NotImplementedError

    def expire_producers(self, now_ms: int, producer_id_expiration_ms: int) -> None: ...

    def find_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record whose timestamp is at or after `timestamp` (KIP-79)."""
        raise NotImplementedError

    def max_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp (KIP-734)."""
        raise NotImplementedError

    def aborted_transactions(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Those that a read_committed read of [start, end) must know of."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Take the log offline (its directory failed): every later call raises LogFailed."""

    def close(self, clean: bool) -> None:
        """`clean`: everything flushed, indexes trimmed, a producer snapshot at the end."""

    def rename_directory(self, new: Path) -> None:
        """The directory is renamed and every file handle follows."""

    def delete(self) -> None:
        """Remove the directory and all in it."""
