"""One partition's log: the door to everything in this room.

Offsets are what the log counts in; `end_offset` is the next to be assigned. The invariants:

- `log_start_offset <= high_watermark <= end_offset`, `recovery_point <= end_offset`, and all below
  the recovery point is durable: data, indexes, epochs, the directory's names.
- The segments are a prefix of what was appended, from the log start on; only the last is written to.
- What can be refused is refused before the first byte is written. An append that fails for space or
  descriptors leaves the log as it was (DiskFull, NoDescriptors); any other failure of the disk ends
  it: every later call raises LogFailed.

Calls are synchronous. One owner, the event loop, makes all that change something, except that
`flush`, `truncate_to`, `truncate_fully_and_start_at`, `delete_expired`, `remove_deleted`, `close`
and `delete` may run through offload, one of them at a time per log, with no append meanwhile except
beside `flush`. `read`, `find_timestamp`, `max_timestamp` and `aborted_transactions` may run there at
any time: what they use of the log is replaced, not changed, and a read that a truncation or a
deletion has overtaken is done again (`_generation`).
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import Batch
from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, OutOfDescriptors, Path, WouldBlock
from odradek.storage.directories.failure import takes_offline
from odradek.storage.errors import (
    DiskFull,
    LogFailed,
    NoDescriptors,
    OffsetOutOfRange,
    StorageError,
)
from odradek.storage.log import timestamps, truncation
from odradek.storage.log.config import LogConfig
from odradek.storage.log.deletion import PendingDeletions
from odradek.storage.log.epochs import EpochEnd, LeaderEpochCache
from odradek.storage.log.loading import Loaded, Loader
from odradek.storage.log.offset_index import RELATIVE_MAX
from odradek.storage.log.partition_metadata import settle_topic_id
from odradek.storage.log.producer_replay import replay
from odradek.storage.log.producers import ProducerStates
from odradek.storage.log.read import LogRead, Tip, read_segments
from odradek.storage.log.retention import count_expired
from odradek.storage.log.roll import should_roll
from odradek.storage.log.segment import Segment
from odradek.storage.log.segments import Segments
from odradek.storage.log.timestamps import TimestampAndOffset
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.log.validation import check_produced, check_raft, check_replicated

__all__ = [
    "AbortedTransaction",
    "Appended",
    "EpochEnd",
    "LogRead",
    "Origin",
    "PartitionLog",
    "TimestampAndOffset",
]

PRODUCER_ID_EXPIRATION_MS = 24 * 60 * 60 * 1000
"""producer.id.expiration.ms"""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Origin(enum.Enum):
    """Who appends; decides what is validated."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """Group and transaction coordinators: control batches allowed, sequences not asked for."""
    RAFT = "raft"
    """The metadata log's leader: offsets and epochs are in the batches already."""


class Appended(NamedTuple):
    """The answer to an append. Offsets are inclusive; `log_append_time_ms` is -1 for CreateTime."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


class PartitionLog:
    """See the module. Made by `open`."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        topic: str,
        partition: int,
        config: LogConfig,
        clock: Clock,
        entropy: Entropy | None,
        on_failure: Callable[[PartitionLog, OSError], None] | None,
        on_recovery_point_lowered: Callable[[PartitionLog], None] | None,
        on_flush_due: Callable[[PartitionLog, int], None] | None,
        producer_id_expiration_ms: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id: UUID | None = None
        self.directory = directory
        self.config = config
        self.failure: BaseException | None = None
        """Why the log is offline; None while it is well."""
        self.last_flush_ms = clock.wall_ms()
        self._files = files
        self._clock = clock
        self._entropy = entropy
        self._on_failure = on_failure
        self._on_recovery_point_lowered = on_recovery_point_lowered
        self._on_flush_due = on_flush_due
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._segments = Segments()
        self._deletions = PendingDeletions(files)
        self._producers: ProducerStates | None = None
        self._generation = 0
        self._flushing = threading.Lock()
        self._loading_producers = threading.Lock()
        self._names_changed = False
        self._touched = False

    # Opening

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
        on_flush_due: Callable[[PartitionLog, int], None] | None = None,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    ) -> PartitionLog:
        """Create the directory if there is none, load a cleanly closed log, or recover one.

        `clean` says that the directory was shut down cleanly: nothing is scanned. Otherwise all
        past `recovery_point` is read and checked.

        `on_failure` is called once, when an operation fails and the log goes offline, on whatever
        thread that was. `on_recovery_point_lowered` is called by a truncation with `recovery_point`
        lowered and before a byte is cut: the lower point must be durable (the log directory's
        checkpoint) when it returns. `on_flush_due` is called with the log and an offset after a
        roll: `flush` up to there is to be run through offload.

        Raises OSError, InconsistentTopicId, CorruptMetadata.
        """
        log = cls(
            files,
            directory,
            topic=topic,
            partition=partition,
            config=config,
            clock=clock,
            entropy=entropy,
            on_failure=on_failure,
            on_recovery_point_lowered=on_recovery_point_lowered,
            on_flush_due=on_flush_due,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        if not files.is_directory(directory):
            files.make_directory(directory)
            files.sync_directory(directory.parent)
        log.topic_id = settle_topic_id(files, directory, topic_id)
        loader = Loader(
            files,
            directory,
            config,
            clock.wall_ms(),
            log._new_producers,
            log._new_segment,
            lambda: log._tip.end_offset,
        )
        log._use(loader.load(recovery_point, log_start_offset, clean=clean))
        return log

    def _use(self, loaded: Loaded) -> None:
        self._segments = Segments(loaded.segments)
        active = self._segments.active
        self.epochs: LeaderEpochCache = loaded.epochs
        self._snapshots = loaded.snapshots
        self._producers = loaded.producers
        self._touched = self._touched or loaded.producers is not None
        self._tip = Tip(loaded.end_offset, active, active.size)
        self._log_start_offset = loaded.log_start_offset
        self._high_watermark = loaded.log_start_offset
        self._recovery_point = loaded.recovery_point

    def _new_producers(self) -> ProducerStates:
        return ProducerStates(
            f"{self.topic}-{self.partition}", expiration_ms=self._producer_id_expiration_ms
        )

    def _new_segment(self, base_offset: int) -> Segment:
        config = self.config
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        self._touched = self._names_changed = True
        return Segment.create(
            self._files,
            self.directory,
            base_offset,
            index_interval_bytes=config.index_interval_bytes,
            created_ms=self._clock.wall_ms(),
            roll_jitter_ms=self._entropy.below(jitter_ms) if jitter_ms and self._entropy else 0,
        )

    def __repr__(self) -> str:
        return f"PartitionLog({self.directory}, {self._log_start_offset} to {self.end_offset})"

    # What it is now

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def end_offset(self) -> int:
        return self._tip.end_offset

    @property
    def recovery_point(self) -> int:
        return self._recovery_point

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """All below it is decided: no transaction open, none whose end is not replicated."""
        high_watermark = self._high_watermark
        first_unstable = self.producers.first_unstable
        if first_unstable is None:
            return high_watermark
        return min(max(first_unstable, self._log_start_offset), high_watermark)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        """From the oldest to the active one; as of now."""
        return self._segments.all

    @property
    def producers(self) -> ProducerStates:
        """Loaded from the latest snapshot when first asked for, after a clean shutdown."""
        producers = self._producers
        return self._load_producers() if producers is None else producers

    def _load_producers(self) -> ProducerStates:
        with self._loading_producers:
            if self._producers is None:
                states = self._new_producers()
                end = self.end_offset
                if self._snapshots.latest is None:
                    states.reset(end)  # as Kafka: closed cleanly, and never had a producer
                else:
                    now_ms = self._clock.wall_ms()
                    self._snapshots.load(
                        states, up_to=end, start=self._log_start_offset, now_ms=now_ms
                    )
                    replay(states, self._segments.all, self._log_start_offset, end)
                self._producers = states
            return self._producers

    def update_config(self, config: LogConfig) -> None:
        self.config = config

    # Appending

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        transaction_version: int = 0,
    ) -> Appended:
        """Validate, assign offsets in place (`records` must be writable), write, index.

        One batch, except from Raft. `transaction_version` (KIP-890) is that of a marker's
        coordinator. Raises what validation.py and `ProducerStates.check` do, DiskFull, NoDescriptors
        and LogFailed.
        """
        if self.failure is not None:
            raise self._offline()
        if origin is Origin.RAFT:
            return self._append_given(
                check_raft(records, self.config, leader_epoch, self.end_offset), records, now_ms
            )
        config = self.config
        from_client = origin is Origin.CLIENT
        batch = check_produced(records, config, now_ms, from_client=from_client)
        if batch.producer_id >= 0:
            kept = self.producers.check(
                batch, from_client=from_client, transaction_version=transaction_version
            )
            if kept is not None:
                return Appended(
                    kept.first_offset,
                    kept.last_offset,
                    kept.timestamp,
                    self._log_start_offset,
                    True,
                )
        first_offset = self._tip.end_offset
        batch.stamp(first_offset, leader_epoch)
        self._append((batch,), batch.view, now_ms)
        return Appended(
            first_offset,
            batch.last_offset,
            now_ms if config.log_append_time else -1,
            self._log_start_offset,
            False,
        )

    def append_as_follower(
        self, records: memoryview, *, leader_epoch: int | None = None
    ) -> Appended:
        """Append what a leader's Fetch answer holds, as it is; a batch cut off at the end is left.

        Batches of an epoch later than `leader_epoch` are left too (KAFKA-18723). Raises CorruptBatch,
        CorruptRecords, UnexpectedOffset, DiskFull, NoDescriptors, LogFailed.
        """
        if self.failure is not None:
            raise self._offline()
        found = check_replicated(records, self.config, self.end_offset, leader_epoch)
        return self._append_given(found, records, self._clock.wall_ms())

    def _append_given(self, found: list[Batch], records: memoryview, now_ms: int) -> Appended:
        """Batches with offsets: at once if a segment can take them, else one by one."""
        start, end = self._log_start_offset, self.end_offset
        if not found:
            return Appended(end, end - 1, -1, start, False)
        first, last = found[0], found[-1]
        size = last.position + last.size
        if (
            size <= self.config.max_segment_bytes
            and last.last_offset - first.base_offset <= RELATIVE_MAX
        ):
            self._append(found, records[:size], now_ms)
        else:
            for batch in found:
                self._append((batch,), batch.view, now_ms)
        return Appended(first.base_offset, last.last_offset, -1, start, False)

    def _append(self, batches: Sequence[Batch], data: memoryview, now_ms: int) -> None:
        """Write `data`, which is exactly `batches`; then all that follows from them, the end last."""
        last = batches[-1]
        segment = self._segments.active
        if should_roll(
            segment,
            self.config,
            append_bytes=len(data),
            last_offset=last.last_offset,
            max_timestamp=max(batch.max_timestamp for batch in batches),
            now_ms=now_ms,
        ):
            segment = self._roll(max(batches[0].base_offset, self.end_offset))
        try:
            position = segment.write(data, len(batches))
        except OSError as error:
            raise self._io_failed(error, undone=True) from error
        self._touched = True
        try:
            segment.added(batches, position)
            self._follow(segment, batches)
        except OSError as error:
            raise self._io_failed(error) from error
        end_offset = last.last_offset + 1
        self._tip = Tip(end_offset, segment, position + len(data))
        if end_offset - self._recovery_point >= self.config.flush_messages:
            self.flush()

    def _follow(self, segment: Segment, batches: Sequence[Batch]) -> None:
        """Epochs, producers and aborted transactions, from what was written."""
        epochs, producers = self.epochs, self.producers
        for batch in batches:
            if batch.leader_epoch != epochs.latest and batch.leader_epoch >= 0:
                epochs.assign(batch.leader_epoch, batch.base_offset)
            if batch.producer_id >= 0:
                completed = producers.apply(batch)
                if completed is not None:
                    if completed.is_aborted:
                        self._names_changed = True
                        segment.transaction_index.append(
                            AbortedTransaction(
                                completed.producer_id,
                                completed.first_offset,
                                completed.last_offset,
                                producers.stable_offset_after(completed),
                            )
                        )
                    producers.complete(completed)
        producers.map_end = batches[-1].last_offset + 1

    # Rolling and flushing

    def roll(self) -> None:
        """Seal the active segment and begin a new one at the end; nothing if it is empty."""
        if self.failure is not None:
            raise self._offline()
        self._roll(self.end_offset)

    def _roll(self, base_offset: int) -> Segment:
        """Seal the active segment, open the next. On the loop: nothing is synced here, `flush` does.

        1. The new segment's files, empty. A crash: an empty last segment, or (its name was lost)
           none. A full disk: they are removed, the roll is refused.
        2. The producer snapshot. A crash: torn, its CRC fails; an older one is used.
        3. The old one's last time index entry, its indexes trimmed. A crash before the flush: it
           begins or ends past the recovery point, its indexes are made anew.
        4. Visible, and a flush asked for: data, indexes, snapshot, names, in this order, and the
           recovery point last. Until then recovery scans both.
        """
        active = self._segments.active
        if not active.size and active.base_offset == base_offset:
            return active
        producers = self.producers
        try:
            fresh = self._new_segment(base_offset)
        except OSError as error:
            raise self._io_failed(error, undone=True) from error
        try:
            producers.map_end = base_offset
            self._snapshots.take(producers)
            active.seal()
        except OSError as error:
            self._undo(fresh.remove)
            raise self._io_failed(error, undone=True) from error
        self._segments.add(fresh)
        self._tip = Tip(self.end_offset, fresh, 0)
        if self._on_flush_due is not None:
            self._on_flush_due(self, base_offset)
        return fresh

    def flush(self, up_to: int | None = None) -> None:
        """Make all below `up_to` (default: the end as of now) durable, then move the recovery point.

        1. Each segment from the recovery point on: data, then indexes.
        2. Producer snapshots; the leader epochs, if the file lags behind.
        3. The directory, if names were added to it.
        4. `recovery_point`, unless a truncation came in between. (The log directory's checkpoint
           follows when it may: an older one only scans more.)

        A failed sync is never tried again: LogFailed.
        """
        if self.failure is not None:
            raise self._offline()
        with self._flushing:
            generation = self._generation
            end = self._tip.end_offset
            target = end if up_to is None else min(up_to, end)
            if target > self._recovery_point:
                self._sync(self._recovery_point, target)
                if generation == self._generation:
                    self._recovery_point = target
                self.last_flush_ms = self._clock.wall_ms()

    def _sync(self, start: int, end: int) -> None:
        try:
            for segment in self._segments.from_offset(start):
                if segment.base_offset < end:
                    segment.sync()
            self._snapshots.sync()
        except OSError as error:
            raise self._io_failed(error) from error
        try:
            self.epochs.save()
        except OSError as error:
            raise self._io_failed(error, undone=True) from error
        if self._names_changed:
            self._names_changed = False
            try:
                self._files.sync_directory(self.directory)
            except OSError as error:
                self._names_changed = True
                raise self._io_failed(error) from error

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        limit: int,
        at_least_one: bool = True,
        nowait: bool = False,
    ) -> LogRead:
        """Batches from the one with `offset` on, none at or past offset `limit`; see read.py.

        The slice is pinned: the caller unpins `slice.file`. With `nowait` (on the loop) WouldBlock
        is raised if a header is not in memory: call again without it, through offload. Raises
        OffsetOutOfRange, CorruptRecords, NoDescriptors, LogFailed.
        """
        while True:
            if self.failure is not None:
                raise self._offline()
            generation = self._generation
            if offset < self._log_start_offset:
                raise OffsetOutOfRange(
                    f"offset {offset} is below the log's start, {self._log_start_offset}"
                )
            try:
                found = read_segments(
                    self._segments,
                    self._tip,
                    offset,
                    max_bytes,
                    limit=limit,
                    at_least_one=at_least_one,
                    nowait=nowait,
                )
            except WouldBlock:
                raise
            except (OSError, ValueError, KafkaError) as error:
                if generation == self._generation:
                    raise self._read_failed(error) from error
                continue
            if generation == self._generation:
                return found
            if found.slice is not None:
                found.slice.file.unpin()

    def upper_bound(self, read: LogRead) -> int:
        """An offset that what was read ends below: for which transactions it matters (KIP-98)."""
        end = self.end_offset
        part = read.slice
        if part is None:
            return read.offset
        after = self._segments.from_offset(max(read.base_offset, self._log_start_offset))
        bound = after[0].offset_index.upper_bound(part.position + part.size, mapped=False)
        if bound is not None:
            return bound
        return after[1].base_offset if len(after) > 1 else end

    def aborted_transactions(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Those that a read_committed read of [start, end) must know of."""
        found: list[AbortedTransaction] = []

        def collect() -> None:
            for segment in self._segments.from_offset(start):
                more, is_complete = segment.transaction_index.collect(start, end)
                found.extend(more)
                if is_complete:
                    break

        self._reading(collect)
        return found

    def find_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record whose timestamp is at or after `timestamp` (KIP-79)."""
        return self._reading(
            lambda: timestamps.find_timestamp(self._segments.all, timestamp, self._log_start_offset)
        )

    def max_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp (KIP-734)."""
        return self._reading(lambda: timestamps.find_max_timestamp(self._segments.all))

    def _reading(self, work: Callable[[], T]) -> T:
        """`work`, again if a truncation or deletion came in between."""
        while True:
            if self.failure is not None:
                raise self._offline()
            generation = self._generation
            try:
                return work()
            except (OSError, ValueError, KafkaError) as error:
                if generation == self._generation:
                    raise self._read_failed(error) from error

    # The high watermark, the start

    def advance_high_watermark(self, offset: int) -> bool:
        """Never down; capped at the end. True if it moved."""
        offset = min(offset, self._tip.end_offset)
        if offset <= self._high_watermark:
            return False
        self._high_watermark = offset
        if self._producers is not None:
            self._producers.replicated_to(offset)
        return True

    def advance_log_start(self, offset: int, reason: str) -> bool:
        """Forget what is below `offset` (DeleteRecords, a leader's start); True if it moved.

        The segments go with the next `delete_expired`. Raises OffsetOutOfRange past the high
        watermark.
        """
        if self.failure is not None:
            raise self._offline()
        if offset > self._high_watermark:
            raise OffsetOutOfRange(
                f"the log cannot start at {offset}, past the high watermark {self._high_watermark}"
            )
        if offset <= self._log_start_offset:
            return False
        _log.info("%s starts at %d now: %s", self, offset, reason)
        self._log_start_offset = offset
        self._touched = True
        self.epochs.truncate_from_start(offset)
        self._recovery_point = max(self._recovery_point, offset)
        if self._producers is not None:
            self._producers.replicated_to(offset)
        return True

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """This node leads in `epoch` from `start_offset` on (KIP-101)."""
        self._touched = True
        self.epochs.assign(epoch, start_offset)

    # Retention

    def delete_expired(self, now_ms: int) -> int:
        """Retention: how many segments were renamed to `.deleted`; `remove_deleted` unlinks them.

        The oldest first, so that a crash leaves a log that begins later, with no gap.
        """
        if self.failure is not None:
            raise self._offline()
        segments = self._segments.all
        try:
            count = count_expired(
                segments,
                self.config,
                log_start_offset=self._log_start_offset,
                high_watermark=self._high_watermark,
                end_offset=self.end_offset,
                now_ms=now_ms,
            )
            if count == len(segments):
                self._roll(self.end_offset)
            if count:
                self._delete_first(count, now_ms)
        except OSError as error:
            raise self._io_failed(error) from error
        return count

    def _delete_first(self, count: int, now_ms: int) -> None:
        segments = self._segments.all
        kept = segments[count:]
        self.advance_log_start(
            max(kept[0].base_offset, self._log_start_offset), "segments were deleted"
        )
        self._touched = True
        self._segments.replace(kept)
        self._generation += 1
        for segment in segments[:count]:
            self._deletions.add(segment, self._snapshots, now_ms + self.config.file_delete_delay_ms)

    def remove_deleted(self, now_ms: int) -> int:
        """Unlink what was renamed more than file.delete.delay.ms ago; how many segments."""
        if self.failure is not None:
            raise self._offline()
        if not self._deletions:
            return 0
        try:
            return self._deletions.remove_due(now_ms)
        except OSError as error:
            raise self._io_failed(error) from error

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers idle for producer.id.expiration.ms; how many."""
        return 0 if self._producers is None else self._producers.expire(now_ms)

    # Truncation

    def truncate_to(self, offset: int) -> bool:
        """Cut off all at or past `offset`; True if there was something.

        1. The recovery point, not past `offset`, durably: what is appended after the cut is not
           taken for synced. A crash: the log is as it was, the replica truncates again.
        2. The end, for readers: no slice from here on reaches past the cut.
        3. The epochs that began past it, durably. A crash: recovery finds them in the batches.
        4. The later segments and snapshots, the newest first. A crash: fewer of them.
        5. The segment in which `offset` lies (truncation.py): indexes, then data.
        6. Data and directory synced, before anything is appended.

        A slice handed out before stays what it was. Raises LogFailed, DiskFull (nothing was cut).
        """
        if self.failure is not None:
            raise self._offline()
        if offset >= self.end_offset:
            self.epochs.truncate_from_end(self.end_offset)
            return False
        if offset < self._segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        with self._flushing:
            try:
                self._truncate(offset)
            except OSError as error:
                raise self._io_failed(error) from error
        return True

    def _truncate(self, offset: int) -> None:
        now_ms = self._clock.wall_ms()
        segments = self._segments.all
        number = next(
            n for n in reversed(range(len(segments))) if segments[n].base_offset <= offset
        )
        segment = segments[number]
        found = segment.locate(offset)
        position = segment.size if found is None else found.position
        producers = self.producers
        self._forget_epochs_from(offset)  # 3, first of all as it can be undone
        self._lower_recovery_point(offset)
        self._tip = Tip(offset, segment, position)
        self._generation += 1
        self._high_watermark = min(self._high_watermark, offset)
        self._log_start_offset = min(self._log_start_offset, offset)
        self._segments.replace(segments[: number + 1])
        self._set_aside(segments[number + 1 :], now_ms)
        for snapshot_offset in self._snapshots.offsets:
            if snapshot_offset > offset:
                self._snapshots.remove(snapshot_offset)
        if found is not None:
            segment = truncation.cut(self._files, segment, offset, position, now_ms)
            self._segments.replace((*segments[:number], segment))
            self._tip = Tip(offset, segment, position)
        self._generation += 1
        segment.sync()
        self._files.sync_directory(self.directory)
        self._rewind(producers, offset, now_ms)

    def _forget_epochs_from(self, offset: int) -> None:
        before = self.epochs.entries
        try:
            self.epochs.truncate_from_end(offset)
            self.epochs.save()
        except OSError as error:
            self.epochs.restore(before)
            raise self._io_failed(error, undone=True) from error

    def _lower_recovery_point(self, offset: int) -> None:
        self._touched = True
        if offset < self._recovery_point:
            self._recovery_point = offset
            if self._on_recovery_point_lowered is not None:
                self._on_recovery_point_lowered(self)

    def _set_aside(self, segments: Sequence[Segment], now_ms: int) -> None:
        at_ms = now_ms + self.config.file_delete_delay_ms
        for segment in reversed(segments):
            self._deletions.add(segment, self._snapshots, at_ms)

    def _rewind(self, producers: ProducerStates, offset: int, now_ms: int) -> None:
        """The producers as they were at `offset`."""
        if not producers.active:
            producers.reset(offset)
            return
        self._snapshots.load(producers, up_to=offset, start=self._log_start_offset, now_ms=now_ms)
        replay(producers, self._segments.all, self._log_start_offset, offset)

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Delete everything; the log is empty at `offset` and starts there (or at
        `log_start_offset`, where what lies below is in another tier).

        1. The recovery point, not past `offset`, durably.
        2. All segments and snapshots, the newest first. A crash: a shorter log, in the end an empty
           one at the checkpointed start; the replica finds itself out of range and does it again.
        3. The new segment, the directory, the epochs: none.

        Raises LogFailed.
        """
        if self.failure is not None:
            raise self._offline()
        with self._flushing:
            try:
                self._start_anew(offset, log_start_offset)
            except OSError as error:
                raise self._io_failed(error) from error

    def _start_anew(self, offset: int, log_start_offset: int | None) -> None:
        now_ms = self._clock.wall_ms()
        producers = self.producers
        self._lower_recovery_point(min(offset, self._log_start_offset))
        self._generation += 1
        self._set_aside(self._segments.all, now_ms)
        for snapshot_offset in self._snapshots.offsets:
            self._snapshots.remove(snapshot_offset)
        fresh = self._new_segment(offset)
        self._segments.replace((fresh,))
        self._tip = Tip(offset, fresh, 0)
        self._log_start_offset = offset if log_start_offset is None else log_start_offset
        self._high_watermark = offset
        self._recovery_point = min(self._recovery_point, offset)
        self._generation += 1
        self._files.sync_directory(self.directory)
        self.epochs.clear()
        self.epochs.save()
        producers.reset(offset)

    # Its end

    def close(self, clean: bool) -> None:
        """`clean`: what was written is durable, indexes trimmed, a producer snapshot at the end.

        Then every later call raises LogFailed. Raises LogFailed if it could not be closed cleanly:
        the directory must not be marked so. A log that was not touched writes nothing.
        """
        try:
            if clean and self.failure is None and self._touched:
                self._close_cleanly()
        finally:
            if self.failure is None:
                self.failure = LogFailed(f"{self.directory} is closed")
            self._close_files()

    def _close_cleanly(self) -> None:
        try:
            self._segments.active.seal()
            self._snapshots.take(self.producers)
        except OSError as error:
            raise self._io_failed(error) from error
        with self._flushing:
            self._names_changed = True
            self._sync(min(self._recovery_point, self._tip.segment.base_offset), 1 << 63)
            self._recovery_point = self.end_offset

    def _close_files(self) -> None:
        for segment in self._segments:
            segment.close()
        self._snapshots.close()
        self._deletions.close()

    def rename_directory(self, new: Path) -> None:
        """The directory gets another name, durably, and every file handle follows."""
        if self.failure is not None:
            raise self._offline()
        try:
            self._files.rename(self.directory, new)
            self.directory = new
            for segment in self._segments:
                segment.move_to(new)
            self._snapshots.move_to(new)
            self._deletions.move_to(new)
            self.epochs.directory = new
            self._files.sync_directory(new.parent)
        except OSError as error:
            raise self._io_failed(error) from error

    def delete(self) -> None:
        """Remove the directory and all in it. Slices that are pinned stay readable."""
        if self.failure is None:
            self.failure = LogFailed(f"{self.directory} is deleted")
        self._close_files()
        self._files.remove_tree(self.directory)

    # Failing

    def fail(self, error: BaseException) -> None:
        """Take the log offline (its directory failed): every later call raises LogFailed."""
        if self.failure is None:
            self.failure = error

    def _offline(self) -> LogFailed:
        return LogFailed(f"{self.topic}-{self.partition} is offline: {self.failure}")

    def _io_failed(self, error: OSError, *, undone: bool = False) -> StorageError:
        """What to raise for `error`; `undone` says that the files are as they were before."""
        if not takes_offline(error, undone=undone):
            kind = NoDescriptors if isinstance(error, OutOfDescriptors) else DiskFull
            return kind(f"{self.directory}: {error}")
        if self.failure is None:
            self.failure = error
            _log.error("%s is offline: %s", self.directory, error)
            if self._on_failure is not None:
                self._on_failure(self, error)
        return self._offline()

    def _read_failed(self, error: Exception) -> Exception:
        return self._io_failed(error) if isinstance(error, OSError) else error

    def _undo(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            raise self._io_failed(error) from error
