"""Log of one partition (Kafka's UnifiedLog): append, read, truncation, retention, flush.

Invariants:

- `log_start_offset <= high_watermark <= end_offset` and `recovery_point <= end_offset`. Everything below
  the recovery point is durable: data, indexes, leader epochs, file names.
- Only the active segment is written to. The segments of a tiered log (KIP-405) begin at
  `local_log_start_offset`: reading below it raises InRemoteTier. The epoch cache begins at
  `log_start_offset`.
- An append is validated before its first byte is written. If the disk is full or no file descriptor is
  free, the log is unchanged (DiskFull, NoDescriptors). After any other I/O error the log is offline: every
  later call raises LogFailed.

Threads: calls are synchronous, and the event loop makes all calls that change the log. `flush`,
`truncate_to`, `truncate_fully`, `delete_expired`, `remove_deleted`, `close`, `rename_directory` and
`delete` may run in a worker thread, one at a time for each log, and only `flush` concurrently with
appends. `read`, `find_timestamp`, `max_timestamp` and `aborted_transactions` may run in a worker thread at
any time: they use a snapshot of `log_end` and of the segment list, which are replaced and never modified.

Operations that remove files (truncation, deletion, renaming) run within `replacing`, which makes
`generation` odd. Readers wait until it is even, and repeat a read during which it changed. So a reader pins
a slice either before the first file is touched or after the last.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from uuid import UUID

from odradek.protocol.errors import CorruptBatch, KafkaError
from odradek.protocol.records.batch import Batch
from odradek.protocol.topics import TopicPartition
from odradek.seams.files import OutOfDescriptors, Path, WouldBlock
from odradek.storage.errors import (
    InRemoteTier,
    LogFailed,
    OffsetOutOfRange,
    StorageError,
)
from odradek.storage.log import flush, relocation, retention, state, timestamp_lookup, truncation
from odradek.storage.log.append import AppendOrigin, AppendResult, update_epochs_and_producers
from odradek.storage.log.batch_validation import check_produced, check_raft, check_replicated
from odradek.storage.log.config import LogConfig
from odradek.storage.log.leader_epoch_cache import EpochEnd, LeaderEpochCache
from odradek.storage.log.loader import LoadedLog, LogLoader, RecoveryOptions
from odradek.storage.log.log_segments import LogSegments
from odradek.storage.log.offset_index import RELATIVE_MAX
from odradek.storage.log.partition_metadata import ensure_topic_id
from odradek.storage.log.producer_replay import load_producers
from odradek.storage.log.producer_snapshots import ProducerSnapshots
from odradek.storage.log.producer_state import TRANSACTION_VERSION_2, BatchMetadata, ProducerStates
from odradek.storage.log.read import LogEnd, LogRead, read_segments, read_upper_bound
from odradek.storage.log.roll import RollLimits, new_segment, roll, roll_if_full
from odradek.storage.log.segment import Segment
from odradek.storage.log.segment_deletion import PendingDeletions
from odradek.storage.log.state import LogEnvironment
from odradek.storage.log.timestamp_lookup import TimestampAndOffset
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.log.transaction_verification import VerificationGuard
from odradek.storage.log.truncation import EmptyLogStart

__all__ = [
    "AbortedTransaction",
    "AppendOrigin",
    "AppendResult",
    "EpochEnd",
    "LogEnvironment",
    "LogRead",
    "PartitionLog",
    "RecoveryOptions",
    "TimestampAndOffset",
]

T = TypeVar("T")
_logger = logging.getLogger("odradek.log")


class PartitionLog:
    """Log of one partition; `open` creates it. LogState documents its attributes."""

    roll_limits = RollLimits()
    """Limits up to which an append needs no check whether the active segment is full."""
    epochs: LeaderEpochCache
    snapshots: ProducerSnapshots
    log_end: LogEnd
    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    recovery_point: int
    last_accepted_gap_end: int

    def __init__(
        self,
        environment: LogEnvironment,
        directory: Path,
        partition: TopicPartition,
        config: LogConfig,
    ) -> None:
        """Incomplete until `open` has loaded the files."""
        self.directory = directory
        self.topic, self.partition = partition
        self.config = config
        self.clock = environment.clock
        self.files = environment.files
        self.topic_id: UUID | None = None
        self.highest_copied_offset = -1
        self.failure: BaseException | None = None
        self.segment_list = LogSegments()
        self.deletions = PendingDeletions(environment.files)
        self.generation = 0
        self._replacing = threading.Lock()
        self.flushing = threading.Lock()
        self.directory_needs_sync = False
        self.needs_clean_close = False
        self.is_checkpointed = False
        self.cleaned_to: int | None = None
        self.on_failure: Callable[[OSError], None] | None = None
        self.on_full: Callable[[OSError], None] | None = None
        self.on_log_failed: Callable[[], None] | None = None
        self.on_checkpoint_due: Callable[[], None] | None = None
        self.on_flush_due: Callable[[int], None] | None = None
        self.on_flushed: Callable[[], None] | None = None
        self.on_appended: Callable[[memoryview], None] | None = None
        self.on_truncated: Callable[[Segment, Segment, LogEnd], None] | None = None
        self.entropy = environment.entropy
        self._producer_id_expiration_ms = environment.producer_id_expiration_ms
        self._producers: ProducerStates | None = None
        self._loading_producers = threading.Lock()

    @classmethod
    def open(
        cls,
        environment: LogEnvironment,
        directory: Path,
        partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: UUID | None,
        recovery: RecoveryOptions,
    ) -> PartitionLog:
        """Create the directory if there is none, load a cleanly closed log, or recover one.

        Raises OSError, InconsistentTopicId, CorruptMetadata, DamagedLog.
        """
        log = cls(environment, directory, partition, config)
        files = environment.files
        if not files.is_directory(directory):
            files.make_directory(directory)
            files.sync_directory(directory.parent)
        log.topic_id = ensure_topic_id(files, directory, topic_id)
        loader = LogLoader(log, partial(new_segment, log), recovery)
        log._use(loader.load())
        return log

    def _use(self, loaded: LoadedLog) -> None:
        """Take over the loaded segments, epochs and producer state."""
        self.segment_list = LogSegments(loaded.segments)
        self.epochs = loaded.epochs
        self.snapshots = loaded.snapshots
        self._producers = loaded.producers
        if loaded.producers is not None:
            # After log recovery: the previous process may have left data unsynced.
            self.directory_needs_sync = True
            self.needs_clean_close = True
        active = self.segment_list.active
        self.log_end = LogEnd(loaded.end_offset, active, active.size)
        self.set_log_start(loaded.log_start_offset)
        self.high_watermark = self.local_log_start_offset  # copied records were replicated
        self.recovery_point = loaded.recovery_point
        self.last_accepted_gap_end = loaded.last_accepted_gap_end

    def __repr__(self) -> str:
        return f"PartitionLog({self.directory}, {self.log_start_offset} to {self.end_offset})"

    @property
    def end_offset(self) -> int:
        return self.log_end.end_offset

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction is completed and its marker replicated (KIP-98)."""
        first_unstable_offset = self.producers.first_unstable_offset
        if first_unstable_offset is None:
            return self.high_watermark
        return min(max(first_unstable_offset, self.log_start_offset), self.high_watermark)

    @property
    def size_bytes(self) -> int:
        return self.segment_list.size_bytes

    @property
    def is_flush_due(self) -> bool:
        """Whether at least flush.messages offsets are not durable yet."""
        return self.log_end.end_offset - self.recovery_point >= self.config.flush_messages

    @property
    def reported_end_offset(self) -> int:
        """End offset that this replica reports for replication: the log end offset, or the recovery point
        while a flush that flush.messages requires is pending."""
        return self.recovery_point if self.is_flush_due else self.log_end.end_offset

    def request_flush(self) -> None:
        """Request a flush if flush.messages requires one. Appends do this themselves."""
        if self.is_flush_due and self.failure is None and self.on_flush_due is not None:
            self.on_flush_due(self.end_offset)

    def update_config(self, config: LogConfig) -> None:
        """Apply a new config.

        If remote storage is disabled, the log start moves to the local log start, because the remote
        segments are deleted (remote.log.delete.on.disable). If it is enabled again, the highest copied offset is reset:
        the earlier copies may be deleted, and retention must not rely on them.
        """
        was_tiered = self.is_tiered
        if config.remote_storage_enable and not was_tiered:
            self.reset_highest_copied_offset()
        self.config = config
        self.request_flush()
        if was_tiered and not self.is_tiered and self.failure is None:
            start = min(self.local_log_start_offset, self.high_watermark)
            retention.advance_log_start(self, start, "disabled remote storage")

    # Remote tier

    @property
    def is_tiered(self) -> bool:
        """Whether remote storage is enabled for the log (KIP-405)."""
        return self.config.remote_storage_enable

    @property
    def is_copied(self) -> bool:
        """Whether segments are copied to the remote tier before the local disk may delete them."""
        return self.is_tiered and not self.config.remote_log_copy_disable

    def set_log_start(self, log_start_offset: int) -> None:
        """Set the log start offset and derive the local one; called after the first segment changed, too."""
        self.log_start_offset = log_start_offset
        self.local_log_start_offset = max(log_start_offset, self.segment_list.first.base_offset)

    def advance_highest_copied_offset(self, offset: int) -> None:
        """Everything up to `offset` (inclusive) is in the remote tier; a smaller offset is ignored."""
        self.highest_copied_offset = max(self.highest_copied_offset, offset)

    @property
    def local_only_bytes(self) -> int:
        """Bytes of the segments that are not in the remote tier."""
        copied = self.highest_copied_offset
        found = self.segment_list.past(copied)
        return sum(segment.size for segment in found if segment.base_offset > copied)

    def reset_highest_copied_offset(self) -> None:
        """Forget the highest copied offset: a new leader determines it again."""
        self.highest_copied_offset = -1

    def flushed(self) -> None:
        """Notify `on_flushed`, on the loop: a flush has completed, or is no longer needed."""
        if self.on_flushed is not None:
            self.on_flushed()

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Rename, truncate or close files in the block; `log_end` must already exclude what is removed."""
        with self._replacing:
            self.generation += 1
            try:
                yield
            finally:
                self.generation += 1

    def wait_until_settled(self) -> int:
        """Wait until no files are being replaced. Returns the generation, an even number."""
        generation = self.generation
        while generation & 1:
            with self._replacing:
                generation = self.generation
        return generation

    @property
    def producers(self) -> ProducerStates:
        """Producer state; after a clean shutdown it is loaded at first use. Raises LogFailed,
        NoDescriptors."""
        producers = self._producers
        return self._load_producers() if producers is None else producers

    @property
    def producers_if_loaded(self) -> ProducerStates | None:
        return self._producers

    def new_producers(self) -> ProducerStates:
        return ProducerStates(
            f"{self.topic}-{self.partition}", expiration_ms=self._producer_id_expiration_ms
        )

    def _load_producers(self) -> ProducerStates:
        with self._loading_producers:
            if self._producers is None:
                try:
                    self._producers = load_producers(self)
                except OSError as error:
                    raise self.handle_io_error(error) from error
            return self._producers

    def fail(self, error: BaseException) -> None:
        """Take the log offline without a notification: every later call raises LogFailed."""
        if self.failure is None:
            self.failure = error

    def take_log_offline(self, error: BaseException) -> None:
        """Take only this log offline, while its directory stays online, and notify `on_log_failed`."""
        if self.failure is None:
            self.failure = error
            if self.on_log_failed is not None:
                self.on_log_failed()

    def check_online(self) -> None:
        if self.failure is not None:
            raise self.offline()

    def offline(self) -> LogFailed:
        return LogFailed(f"{self.topic}-{self.partition} is offline: {self.failure}")

    def handle_io_error(self, error: OSError, *, files_unchanged: bool = False) -> StorageError:
        """Exception to raise for `error`; see `state.handle_io_error`."""
        return state.handle_io_error(self, error, files_unchanged=files_unchanged)

    # Reads

    @property
    def segments(self) -> Sequence[Segment]:
        """Snapshot of the segments, the oldest first; the last one is active."""
        return self.segment_list.all

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        limit: int,
        at_least_one: bool = True,
        nowait: bool = False,
    ) -> LogRead:
        """Slice of batches: the first contains `offset`, none is at or past offset `limit` (read.py).

        The slice is pinned: the caller unpins `slice.file`. `nowait`, for calls on the loop, raises
        WouldBlock if a batch header is not in memory: the caller repeats the read in a worker thread.
        Raises OffsetOutOfRange (InRemoteTier if only the remote tier has the offset), CorruptRecords,
        NoDescriptors, LogFailed.
        """
        while True:
            if self.failure is not None:
                raise self.offline()
            generation = self.generation
            if generation & 1:
                if nowait:
                    raise WouldBlock
                generation = self.wait_until_settled()
            try:
                if offset < self.local_log_start_offset:
                    raise self._below_local_log(offset)
                found = read_segments(
                    self.segment_list,
                    self.log_end,
                    offset,
                    max_bytes,
                    limit=limit,
                    at_least_one=at_least_one,
                    nowait=nowait,
                )
            except WouldBlock:
                raise
            except (OSError, ValueError, KafkaError) as error:
                self._raise_unless_replaced(generation, error)
                continue
            if generation == self.generation:
                return found
            _unpin(found)

    def read_committed(
        self,
        offset: int,
        max_bytes: int,
        *,
        limit: int,
        at_least_one: bool = True,
        nowait: bool = False,
    ) -> tuple[LogRead, Sequence[AbortedTransaction]]:
        """`read` and `aborted_in` of the same generation of files: after compaction the transaction index
        no longer lists what an older slice contains."""
        while True:
            generation = self.generation
            read = self.read(
                offset, max_bytes, limit=limit, at_least_one=at_least_one, nowait=nowait
            )
            try:
                aborted = self.aborted_in(read, nowait=nowait)
            except BaseException:
                _unpin(read)
                raise
            if generation == self.generation:
                return read, aborted
            _unpin(read)

    def _below_local_log(self, offset: int) -> OffsetOutOfRange:
        """Error for an `offset` below the local log."""
        start = self.log_start_offset
        if start <= offset and self.is_tiered:
            return InRemoteTier(f"offset {offset} is in the remote tier")
        return OffsetOutOfRange(f"offset {offset} is below the log start offset {start}")

    def retry_if_files_replaced(self, work: Callable[[], T]) -> T:
        """Call `work`, again after a failure during which files were replaced; in a worker thread, or on the
        loop if no truncation or deletion can be running. Raises what `work` raises, LogFailed."""
        while True:
            self.check_online()
            generation = self.wait_until_settled()
            try:
                return work()
            except (OSError, ValueError, KafkaError) as error:
                self._raise_unless_replaced(generation, error)

    def _raise_unless_replaced(self, generation: int, error: Exception) -> None:
        """Raise a read's error unless files were replaced meanwhile; LogFailed if the log is offline."""
        if generation == self.generation:
            if self.failure is not None:
                raise self.offline() from error
            raise (self.handle_io_error(error) if isinstance(error, OSError) else error) from error

    def measure(self) -> int:
        """Bytes of all data files, consistent with concurrent replacements; in a worker thread."""
        return self.retry_if_files_replaced(lambda: self.segment_list.size_bytes)

    def aborted_in(self, read: LogRead, *, nowait: bool = False) -> Sequence[AbortedTransaction]:
        """Aborted transactions that overlap what was read (KIP-98). Raises what `read` raises."""

        def collect() -> Sequence[AbortedTransaction]:
            if not self.segment_list.may_have_aborted(read.offset):
                return ()  # without searching the offset index
            return self.aborted_transactions(
                read.offset,
                read_upper_bound(self.segment_list, read, self.end_offset, nowait=nowait),
                nowait=nowait,
            )

        found = self.retry_if_files_replaced(collect)
        if read.offset < self.local_log_start_offset:
            raise self._below_local_log(read.offset)
        return found

    def may_have_aborted(self, offset: int) -> bool:
        """Whether any local segment from `offset` on has a transaction index."""
        return self.segment_list.may_have_aborted(offset)

    def aborted_transactions(
        self, start: int, end: int, *, nowait: bool = False
    ) -> Sequence[AbortedTransaction]:
        """Aborted transactions that overlap offsets [start, end). `nowait`, for calls on the loop, raises
        WouldBlock if an index was not compared with the log yet (transaction_index_check.py)."""

        def verify(segment: Segment, offset: int) -> None:
            if nowait:
                raise WouldBlock
            from odradek.storage.log.transaction_index_check import verify_transaction_index

            verify_transaction_index(self, segment, offset)

        return self.retry_if_files_replaced(
            lambda: self.segment_list.aborted_transactions(start, end, verify)
        )

    def find_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """First record with a timestamp of at least `timestamp` ms (KIP-79); None: there is none."""
        return self.retry_if_files_replaced(
            lambda: timestamp_lookup.find_timestamp(self.segments, timestamp, self.log_start_offset)
        )

    def max_timestamp(self) -> TimestampAndOffset | None:
        """First record with the largest timestamp (KIP-734); None: the log has no timestamps."""
        return self.retry_if_files_replaced(
            lambda: timestamp_lookup.find_max_timestamp(self.segments)
        )

    # Appends

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = 0,
        guard: VerificationGuard | None = None,
        checked: Batch | None = None,
        at_once: bool = False,
    ) -> AppendResult:
        """Validate a batch, assign its offsets in place (`records` must be writable), write and index it.

        Only the Raft leader appends several batches. `transaction_version` (KIP-890) is that of a marker's
        coordinator; `guard` is the result of `ProducerStates.begin_verification` for the first batch of a
        transaction. With `at_once`, a batch whose validation belongs in a worker thread raises
        ValidationTooSlow before anything changes; the caller validates it there (`check_produced`) and
        passes the result as `checked`. Raises the errors of batch_validation.py and of `ProducerStates.check`,
        DiskFull, NoDescriptors, LogFailed.
        """
        if self.failure is not None:
            raise self.offline()
        config = self.config
        if origin is AppendOrigin.RAFT:
            found = check_raft(records, config, leader_epoch, self.log_end.end_offset)
            return self._append_given(found, records, now_ms)
        from_client = origin is AppendOrigin.CLIENT
        batch = checked
        if batch is None:
            batch = check_produced(
                records, config, now_ms, from_client=from_client, at_once=at_once
            )
        if batch.producer_id >= 0:
            kept = self.producers.check(
                batch,
                from_client=from_client,
                transaction_version=transaction_version,
                guard=guard,
            )
            if kept is not None:
                return self._duplicate(kept)
        first_offset = self.log_end.end_offset
        batch.stamp(first_offset, leader_epoch)
        self._append((batch,), batch.view, now_ms)
        if not from_client and batch.is_control and transaction_version < TRANSACTION_VERSION_2:
            self.producers.ended_in_epoch(batch)
        return AppendResult(
            first_offset,
            batch.last_offset,
            now_ms if config.log_append_time else -1,
            self.log_start_offset,
            False,
            batch.size,
            batch.view,
        )

    def find_committed_duplicate(self, records: memoryview) -> AppendResult | None:
        """Result of an earlier append of the same batch, if that is below the high watermark; None if it is
        not among the producer's last batches. Raises LogFailed."""
        try:
            batch = Batch(records)
        except CorruptBatch:
            return None
        entry = self.producers.get(batch.producer_id)
        kept = None if entry is None or batch.is_control else entry.duplicate_of(batch)
        if kept is None or kept.last_offset >= self.high_watermark:
            return None
        return self._duplicate(kept)

    def _duplicate(self, kept: BatchMetadata) -> AppendResult:
        return AppendResult(
            kept.first_offset, kept.last_offset, kept.timestamp, self.log_start_offset, True, 0
        )

    def append_as_follower(
        self, records: memoryview, *, leader_epoch: int | None = None
    ) -> AppendResult:
        """Append the records of a leader's Fetch response unchanged, without an incomplete last batch.

        Batches with an epoch greater than `leader_epoch` are skipped (KAFKA-18723). Raises CorruptBatch,
        CorruptRecords, UnexpectedOffset, DiskFull, NoDescriptors, LogFailed.
        """
        self.check_online()
        found = check_replicated(records, self.end_offset, leader_epoch)
        return self._append_given(found, records, self.clock.wall_ms())

    def _append_given(self, found: list[Batch], records: memoryview, now_ms: int) -> AppendResult:
        """Append batches that have offsets: in one write if one segment can contain them."""
        start, end = self.log_start_offset, self.end_offset
        if not found:
            return AppendResult(end, end - 1, -1, start, False, 0)
        first, last = found[0], found[-1]
        size = last.position + last.size
        if size <= self.config.max_segment_bytes and last.last_offset - end <= RELATIVE_MAX:
            self._append(found, records[:size], now_ms)
        else:
            for batch in found:
                end = self.end_offset
                self._append((batch,), batch.view, now_ms)
                if batch.last_offset - end > RELATIVE_MAX:
                    flush.flush_gap(self)
        return AppendResult(first.base_offset, last.last_offset, -1, start, False, size)

    def _append(self, batches: Sequence[Batch], data: memoryview, now_ms: int) -> None:
        """Write `data`, the bytes of `batches`; then update indexes, epochs, producers, and the end last."""
        last = batches[-1]
        size_bytes = len(data)
        segment = self.log_end.segment
        max_timestamp = last.max_timestamp
        if len(batches) > 1:
            max_timestamp = max(batch.max_timestamp for batch in batches)
        limits = self.roll_limits
        if not (
            limits.active is segment
            and limits.config is self.config
            and self.log_end.position + size_bytes <= limits.position
            and max_timestamp <= limits.max_timestamp
            and last.last_offset <= limits.last_offset
        ):
            segment = roll_if_full(self, batches, size_bytes, max_timestamp, now_ms)
        if self._producers is None:
            self._load_producers()  # it may raise: not between the write and the new end
        try:
            position = segment.write(data, len(batches))
        except OSError as error:
            raise self.handle_io_error(error, files_unchanged=True) from error
        self.needs_clean_close = True
        try:
            segment.index_batches(batches, position)
            update_epochs_and_producers(self, segment, batches)
        except OutOfDescriptors as error:  # the data is written: no further append is safe
            self.take_log_offline(
                LogFailed(
                    f"{self.directory}: indexes or state of the last append are missing: {error}"
                )
            )
            raise self.offline() from error
        except OSError as error:
            raise self.handle_io_error(error) from error
        except Exception as error:  # an error of this code: as above
            self.take_log_offline(error)
            raise
        end_offset = last.last_offset + 1
        self.log_end = LogEnd(end_offset, segment, position + size_bytes)
        if self.on_appended is not None:
            self.on_appended(data)
            self.check_online()
        due = end_offset - self.recovery_point >= self.config.flush_messages
        if due and self.on_flush_due is not None:
            self.on_flush_due(end_offset)

    def roll(self) -> None:
        """Seal the active segment and create the next at the log end offset; no effect on an empty one."""
        self.check_online()
        roll(self, self.end_offset)

    def flush(self, up_to: int | None = None) -> None:
        """Make everything below `up_to` (default: the log end offset) durable, then advance the recovery point.

        In a worker thread, concurrently with appends (flush.py). Raises LogFailed; DiskFull if only the
        epoch checkpoint has no space.
        """
        self.check_online()
        flush.flush(self, up_to)

    def assign_topic_id(self, topic_id: UUID) -> None:
        """Write the topic id of a log that has none (KIP-516), durably.

        A log has no topic id if a crash interrupted its creation, or if it is older than topic ids. In a
        worker thread. Raises LogFailed, DiskFull; InconsistentTopicId if it has another topic id.
        """
        self.check_online()
        try:
            self.topic_id = ensure_topic_id(self.files, self.directory, topic_id)
        except OSError as error:
            raise self.handle_io_error(error, files_unchanged=True) from error

    # High watermark, log start offset, leader epoch

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to `offset`, at most to the log end offset; True if it changed."""
        if offset > self.log_end.end_offset:
            offset = self.log_end.end_offset
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        producers = self._producers
        if producers is not None:
            producers.replicated_to(offset)
        return True

    def advance_log_start(self, offset: int, reason: str) -> bool:
        """Raise the log start offset; True if it changed. The next `delete_expired` deletes the segments.
        Raises OffsetOutOfRange past the high watermark, LogFailed."""
        self.check_online()
        return retention.advance_log_start(self, offset, reason)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Record that leader epoch `epoch` begins at `start_offset` (KIP-101)."""
        self.check_online()
        self.needs_clean_close = True
        self.epochs.assign(epoch, start_offset)

    def delete_expired(self, now_ms: int) -> int:
        """Apply retention: rename segments to `.deleted`, and return their number.

        Raises NoDescriptors, LogFailed.
        """
        self.check_online()
        try:
            return retention.delete_expired(self, now_ms)
        except OSError as error:
            raise self.handle_io_error(error) from error

    def remove_deleted(self, now_ms: int) -> int:
        """Unlink segments renamed more than file.delete.delay.ms ago; their number."""
        self.check_online()
        try:
            return self.deletions.remove_due(now_ms)
        except OSError as error:
            raise self.handle_io_error(error) from error

    def expire_producers(self, now_ms: int) -> int:
        """Remove producers idle for producer.id.expiration.ms; their number."""
        producers = self.producers_if_loaded
        return 0 if producers is None else producers.expire(now_ms)

    def truncate_to(self, offset: int) -> bool:
        """Truncate the log to `offset`; True if that removed anything (truncation.py).

        Whole batches are removed, so the log ends at or below `offset`. Slices pinned before keep their
        content. In a worker thread. Raises DiskFull and NoDescriptors with nothing changed, LogFailed.
        """
        self.check_online()
        if offset >= self.end_offset:
            self.epochs.truncate_from_end(self.end_offset)
            return False
        if offset < self.segment_list.first.base_offset:
            self.truncate_fully(truncation.start_below_local_log(self, offset))
            return True
        with self.flushing:
            try:
                truncation.truncate_to(self, offset)
            except OSError as error:
                raise self.handle_io_error(error, files_unchanged=True) from error
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete all records; the empty log starts at `offset`. Raises what `truncate_fully` raises."""
        self.truncate_fully(EmptyLogStart.at(offset))

    def truncate_fully(self, beginning: EmptyLogStart) -> None:
        """Delete all records; `beginning` defines the start of the empty log (truncation.py).

        In a worker thread. Raises DiskFull and NoDescriptors with nothing deleted, LogFailed.
        """
        self.check_online()
        with self.flushing:
            try:
                truncation.truncate_fully(self, beginning)
            except OSError as error:
                raise self.handle_io_error(error, files_unchanged=True) from error

    # Close, rename, delete

    def close(self, clean: bool) -> None:
        """Close the files; every later call raises LogFailed.

        `clean` first makes the data durable, trims the indexes and writes a producer snapshot, unless
        nothing has changed since the log was opened. Raises LogFailed if that failed: then the directory
        must not get the clean shutdown file.
        """
        try:
            if clean and self.failure is None and self.needs_clean_close:
                flush.close_cleanly(self)
        finally:
            self.fail(LogFailed(f"{self.directory} was closed"))
            self._close_files()

    def _close_files(self) -> None:
        for segment in self.segment_list:
            segment.close()
        self.snapshots.close()
        self.deletions.close()

    def rename_directory(self, new: Path) -> None:
        """Rename the log's directory, durably; open files stay open."""
        self.check_online()
        try:
            relocation.rename(self, new)
            self.files.sync_directory(new.parent)
        except OSError as error:
            raise self.handle_io_error(error) from error

    def delete(self) -> None:
        """Remove the directory and its files; pinned slices stay readable. Raises OSError."""
        self.fail(LogFailed(f"{self.directory} was deleted"))
        self._close_files()
        self.files.remove_tree(self.directory)


def _unpin(read: LogRead) -> None:
    if read.slice is not None:
        read.slice.file.unpin()
