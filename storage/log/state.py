"""Interface of a partition log to the operations that change its files.

`PartitionLog` implements it. Roll, flush, truncation, retention, relocation and the log cleaner's swap
are functions over a `LogState`: the order of steps in each function is the order in which data becomes
durable.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol
from uuid import UUID

from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, OutOfDescriptors, Path
from odradek.seams.values import value_class
from odradek.storage.directories.io_errors import WRONG_FILE_TYPE_ERRNOS, takes_offline
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors, StorageError
from odradek.storage.log.config import LogConfig
from odradek.storage.log.leader_epoch_cache import LeaderEpochCache
from odradek.storage.log.log_segments import LogSegments
from odradek.storage.log.producer_snapshots import ProducerSnapshots
from odradek.storage.log.producer_state import ProducerStates
from odradek.storage.log.read import LogEnd
from odradek.storage.log.segment import Segment
from odradek.storage.log.segment_deletion import PendingDeletions

_logger = logging.getLogger("odradek.log")

PRODUCER_ID_EXPIRATION_MS = 24 * 60 * 60 * 1000
"""producer.id.expiration.ms"""


@value_class
class LogEnvironment:
    """Services of the node that its partition logs share."""

    files: Files
    clock: Clock
    entropy: Entropy | None = None
    """Source of segment.jitter.ms; without it segments have no jitter."""
    producer_id_expiration_ms: Callable[[], int] = lambda: PRODUCER_ID_EXPIRATION_MS


class LogState(Protocol):
    """State that the operations read and change."""

    files: Files
    clock: Clock
    entropy: Entropy | None
    directory: Path
    topic: str
    partition: int
    topic_id: UUID | None
    config: LogConfig
    epochs: LeaderEpochCache
    snapshots: ProducerSnapshots
    segment_list: LogSegments
    deletions: PendingDeletions
    log_end: LogEnd
    log_start_offset: int
    """First offset of the log, local or remote; `set_log_start` changes it."""
    local_log_start_offset: int
    """First offset on the local disk; greater than `log_start_offset` only in a tiered log."""
    high_watermark: int
    recovery_point: int
    """Everything below this offset is durable: data, indexes, epochs, file names."""
    highest_copied_offset: int
    """Last offset (inclusive) of the finished copies in the remote tier; -1: none, or not known
    yet. Retention deletes no local segment past it (T-30)."""
    last_accepted_gap_end: int
    """End of the last gap between two segments that log recovery accepted past the recovery point."""
    cleaned_to: int | None
    """Everything below this offset is compacted (cleaner-offset-checkpoint); None: the log cleaner has
    never started on this log."""
    failure: BaseException | None
    """Reason why the log is offline; None while it is online."""
    generation: int
    """Odd while files are replaced."""
    flushing: threading.Lock
    """Held during a flush, a truncation and a clean close."""
    directory_needs_sync: bool
    """Whether the directory must be synced before the recovery point advances. Set after a file is
    created, and cleared before the sync: a file created during the sync sets it again."""
    needs_clean_close: bool
    """Whether closing has anything to write."""
    is_checkpointed: bool
    """Whether the checkpoint file of the directory has contained this log's recovery point."""
    on_failure: Callable[[OSError], None] | None
    """Called once, in the failing operation's thread, when an I/O error takes the log offline."""
    on_full: Callable[[OSError], None] | None
    """Called for each operation that is refused because the disk is full."""
    on_log_failed: Callable[[], None] | None
    """Called when the log goes offline for an error that does not concern the disk."""
    on_checkpoint_due: Callable[[], None] | None
    """Writes `recovery_point` to the directory's checkpoint before it returns. Called by a truncation
    that lowers it, by an append after a gap that no segment spans, and by the first roll of a
    compacted log."""
    on_flush_due: Callable[[int], None] | None
    """Requests a flush up to an offset: after a roll, and when `is_flush_due` becomes true. The
    flush runs in a worker thread, and `PartitionLog.flushed` is called on the loop after it."""
    on_flushed: Callable[[], None] | None
    """Called on the loop after a flush."""
    on_appended: Callable[[memoryview], None] | None
    """Called with the appended bytes after the log end offset has advanced; must not raise. If it
    takes the log offline, the append fails."""
    on_truncated: Callable[[Segment, Segment, LogEnd], None] | None
    """Called by a truncation, in its thread: the old segment, its remaining part, and the log end."""

    @property
    def is_tiered(self) -> bool: ...
    @property
    def is_copied(self) -> bool: ...
    @property
    def producers(self) -> ProducerStates: ...
    @property
    def producers_if_loaded(self) -> ProducerStates | None: ...
    def new_producers(self) -> ProducerStates: ...
    def set_log_start(self, log_start_offset: int) -> None: ...
    def reset_highest_copied_offset(self) -> None: ...
    def replacing(self) -> AbstractContextManager[None]: ...
    def wait_until_settled(self) -> int: ...
    def offline(self) -> LogFailed: ...
    def take_log_offline(self, error: BaseException) -> None: ...
    def handle_io_error(self, error: OSError, *, files_unchanged: bool = False) -> StorageError: ...


def handle_io_error(log: LogState, error: OSError, *, files_unchanged: bool) -> StorageError:
    """Exception to raise for `error`; `files_unchanged` means that the files are unchanged.

    Returns DiskFull or NoDescriptors if the log stays usable. Otherwise the log goes offline: alone if
    the error concerns only its own file names, else with its directory.
    """
    if not takes_offline(error, files_unchanged=files_unchanged):
        if isinstance(error, OutOfDescriptors):
            return NoDescriptors(f"{log.directory}: {error}")
        if log.on_full is not None:
            log.on_full(error)
        return DiskFull(f"{log.directory}: {error}")
    if log.failure is None:
        # The failure of the directory is logged once, not for each of its logs
        is_alone = error.errno in WRONG_FILE_TYPE_ERRNOS
        level = logging.ERROR if is_alone else logging.DEBUG
        _logger.log(level, "log %s is offline: %s", log.directory, error)
        if is_alone:
            log.take_log_offline(error)
        else:
            log.failure = error
            if log.on_failure is not None:
                log.on_failure(error)
    return log.offline()


@contextmanager
def offline_on_failure(log: LogState) -> Iterator[None]:
    """Take the log offline if a step in the block fails: the steps must be done all or not at all.

    After a failure the files are in a state between the old and the new. If the error does not concern
    the disk (no file descriptors), only this log goes offline. Log recovery at the next start repairs
    the files. Raises LogFailed for every error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and takes_offline(error):
            raise log.handle_io_error(error) from error
        if log.failure is None:
            _logger.error(
                "log %s is offline, because an operation was left incomplete: %s",
                log.directory,
                error,
            )
            log.take_log_offline(error)
        raise log.offline() from error
