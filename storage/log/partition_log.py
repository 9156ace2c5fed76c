"""One partition's log: the door to everything in this room.

Offsets are what the log counts in; `end_offset` is the next to be assigned. The invariants:

- `log_start_offset <= high_watermark <= end_offset`, `recovery_point <= end_offset`, and all below
  the recovery point is durable: data, indexes, epochs, the directory's names.
- The segments are a prefix of what was appended, from the log start on; only the last is written to.
  In a tiered log (KIP-405) they begin at `local_log_start_offset`, and what lies below that is
  elsewhere: reading it raises InRemoteTier. Epochs are known from the log's start on all the same.
- What can be refused is refused before the first byte is written. An append that fails for space or
  descriptors leaves the log as it was (DiskFull, NoDescriptors); any other failure of the disk ends
  it: every later call raises LogFailed.

Calls are synchronous. One owner, the event loop, makes all that change something, except that
`flush`, `truncate_to`, `truncate_fully`, `delete_expired`, `remove_deleted`, `close`,
`rename_directory` and `delete` may run through offload, one of them at a time per log, with no
append meanwhile except beside `flush`. `read`, `find_timestamp`, `max_timestamp` and
`aborted_transactions` may run there at any time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from odradek.protocol.errors import CorruptBatch, KafkaError
from odradek.protocol.records.batch import Batch
from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, OutOfDescriptors, Path, WouldBlock
from odradek.storage.errors import InRemoteTier, LogFailed, OffsetOutOfRange
from odradek.storage.log import flush, relocation, retention, timestamp_lookup, truncation
from odradek.storage.log.config import LogConfig
from odradek.storage.log.epochs import EpochEnd
from odradek.storage.log.loader import Loader
from odradek.storage.log.offset_index import RELATIVE_MAX
from odradek.storage.log.partition_metadata import ensure_topic_id
from odradek.storage.log.producers import TRANSACTION_VERSION_2, BatchMetadata
from odradek.storage.log.read import LogRead, Tip, read_segments
from odradek.storage.log.roll import RollLimits, roll, roll_limits, should_roll
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState
from odradek.storage.log.timestamp_lookup import TimestampAndOffset
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.log.transaction_verification import VerificationGuard
from odradek.storage.log.truncation import EmptyLogStart
from odradek.storage.log.validation import check_produced, check_raft, check_replicated

__all__ = [
    "AbortedTransaction",
    "Appended",
    "EpochEnd",
    "LogRead",
    "AppendOrigin",
    "PartitionLog",
    "TimestampAndOffset",
]

T = TypeVar("T")

PRODUCER_ID_EXPIRATION_MS = 24 * 60 * 60 * 1000
"""producer.id.expiration.ms"""


class AppendOrigin(enum.Enum):
    """Who appends; decides what is validated."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """Group and transaction coordinators: control batches allowed, sequences not asked for."""
    RAFT = "raft"
    """The metadata log's leader: offsets and epochs are in the batches already."""


class Appended(NamedTuple):
    """The answer to an append. Offsets are inclusive; `log_append_time_ms` is -1 for CreateTime.
    `size_bytes` is what the log has grown by. `data` is a leader's batch as written, a view to be copied."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool
    size_bytes: int
    data: memoryview | None = None


class PartitionLog(LogState):
    """See the module. Made by `open`."""

    _roll_limits = RollLimits()

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
        on_full: Callable[[PartitionLog, OSError], None] | None = None,
        on_log_failed: Callable[[PartitionLog], None] | None = None,
        on_checkpoint_due: Callable[[PartitionLog], None] | None = None,
        on_flush_due: Callable[[PartitionLog, int], None] | None = None,
        producer_id_expiration_ms: Callable[[], int] = lambda: PRODUCER_ID_EXPIRATION_MS,
        accepted_gaps_end: int = 0,
        required_end_offset: int = 0,
    ) -> PartitionLog:
        """Create the directory if there is none, load a cleanly closed log, or recover one.

        `clean` says that the directory was shut down cleanly: nothing is scanned. Otherwise all
        past `recovery_point` is read and checked; gaps between segments are no loss up to there, or up to
        `accepted_gaps_end`. Below `required_end_offset` nothing is cut off. One that `config` puts into the remote tier, too, may begin below its first segment.

        `on_failure` is called once, when an operation fails and the log goes offline, on whatever
        thread that was, `on_log_failed` where it does so for an error that says nothing of the disk;
        `on_full` each time that one is refused because the disk is full.
        `on_checkpoint_due` is called where `recovery_point` must be durable (the log directory's
        checkpoint) when it returns: by a truncation that has lowered it, before a byte is cut, by
        an append past a gap that no segment spans, and before the first roll of a compacted log. `on_flush_due` is called with the log and an offset after a
        roll, and by an append that makes `is_flush_due` true: `flush` up to there is to be run
        through offload, and `flushed` called on the loop after that.

        Raises OSError, InconsistentTopicId, CorruptMetadata, DamagedLog.
        """
        log = cls(
            files,
            directory,
            topic=topic,
            partition=partition,
            config=config,
            clock=clock,
            entropy=entropy,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        if on_failure is not None:
            log.on_failure = lambda error: on_failure(log, error)
        if on_full is not None:
            log.on_full = lambda error: on_full(log, error)
        if on_log_failed is not None:
            log.on_log_failed = lambda: on_log_failed(log)
        if on_checkpoint_due is not None:
            log.on_checkpoint_due = lambda: on_checkpoint_due(log)
        if on_flush_due is not None:
            log.on_flush_due = lambda offset: on_flush_due(log, offset)
        if not files.is_directory(directory):
            files.make_directory(directory)
            files.sync_directory(directory.parent)
        log.topic_id = ensure_topic_id(files, directory, topic_id)
        loader = Loader(
            files,
            directory,
            config,
            clock.wall_ms(),
            log.new_producers,
            log.new_segment,
            lambda: log.end_offset,
            accepted_gaps_end,
            required_end_offset,
            log.is_tiered,
        )
        log.use(loader.load(recovery_point, log_start_offset, clean=clean))
        return log

    def __repr__(self) -> str:
        return f"PartitionLog({self.directory}, {self.log_start_offset} to {self.end_offset})"

    # What it is now

    @property
    def last_stable_offset(self) -> int:
        """All below it is decided: no transaction open, none whose end is not replicated."""
        first_unstable = self.producers.first_unstable
        if first_unstable is None:
            return self.high_watermark
        return min(max(first_unstable, self.log_start_offset), self.high_watermark)

    @property
    def size_bytes(self) -> int:
        return self.segment_list.size_bytes

    @property
    def is_flush_due(self) -> bool:
        """flush.messages or more are not durable yet."""
        return self.tip.end_offset - self.recovery_point >= self.config.flush_messages

    @property
    def counted_end(self) -> int:
        """Up to where others may be told that this log has it: to its end, or no further than what is
        durable, while flush.messages has more of it wait for the disk."""
        return self.recovery_point if self.is_flush_due else self.tip.end_offset

    def ask_for_flush(self) -> None:
        """If flush.messages wants one by now. An append asks by itself."""
        if self.is_flush_due and self.failure is None and self.on_flush_due is not None:
            self.on_flush_due(self.end_offset)

    def update_config(self, config: LogConfig) -> None:
        """Take it over. A log that is not tiered any more starts where the disk does, for what lies
        before is deleted (remote.log.delete.on.disable); this replica's disk may start later than its
        leader's. One that is tiered again has no copies until they are found: those of the time before
        may be deleted, and retention would take what is on the disk for theirs."""
        was_tiered = self.is_tiered
        if config.remote_storage_enable and not was_tiered:
            self.reset_highest_copied_offset()
        self.config = config
        self.ask_for_flush()
        if was_tiered and not self.is_tiered and self.failure is None:
            start = min(self.local_log_start_offset, self.high_watermark)
            retention.advance_log_start(self, start, "it is not tiered any more")

    # Reading

    @property
    def segments(self) -> Sequence[Segment]:
        """From the oldest to the active one, as of now."""
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
        """Batches from the one with `offset` on, none at or past offset `limit`; see read.py.

        The slice is pinned: the caller unpins `slice.file`. With `nowait` (on the loop) WouldBlock
        is raised if a header is not in memory: call again without it, through offload. Raises
        OffsetOutOfRange (InRemoteTier, where the log has it, but not here), CorruptRecords,
        NoDescriptors, LogFailed.
        """
        while True:
            if self.failure is not None:
                raise self.offline()
            generation = self.generation
            if generation & 1:
                if nowait:
                    raise WouldBlock
                generation = self.settled()
            try:
                if offset < self.local_log_start_offset:
                    raise self._not_here(offset)
                found = read_segments(
                    self.segment_list,
                    self.tip,
                    offset,
                    max_bytes,
                    limit=limit,
                    at_least_one=at_least_one,
                    nowait=nowait,
                )
            except WouldBlock:
                raise
            except (OSError, ValueError, KafkaError) as error:
                self._check_overtaken(generation, error)
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
        """As `read`, and of the same moment `aborted_in` what was read: once compaction has taken aborted
        records away it forgets whose they were, and a slice of before has them still."""
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

    def _not_here(self, offset: int) -> OffsetOutOfRange:
        """For an `offset` below what is on the disk."""
        start = self.log_start_offset
        if start <= offset and self.is_tiered:
            return InRemoteTier(f"offset {offset} is in the remote tier")
        return OffsetOutOfRange(f"offset {offset} is below the log's start, {start}")

    def retry_if_files_replaced(self, work: Callable[[], T]) -> T:
        """`work`, once more if a truncation or a deletion came in between, once that is done: off the loop,
        unless the caller knows that there is none. Raises what `work` does, LogFailed, NoDescriptors."""
        while True:
            self.check_online()
            generation = self.settled()
            try:
                return work()
            except (OSError, ValueError, KafkaError) as error:
                self._check_overtaken(generation, error)

    def _check_overtaken(self, generation: int, error: Exception) -> None:
        """Raise what a read failed with, unless files were replaced meanwhile; of a log that went offline,
        or was deleted, whose files are no more where they were, that alone."""
        if generation == self.generation:
            if self.failure is not None:
                raise self.offline() from error
            raise (self.handle_io_error(error) if isinstance(error, OSError) else error) from error

    def measure(self) -> int:
        """Bytes of all data files. Off the loop; `size_bytes` is for who has it to itself, or can do without."""
        return self.retry_if_files_replaced(lambda: self.segment_list.size_bytes)

    def aborted_in(self, read: LogRead, *, nowait: bool = False) -> Sequence[AbortedTransaction]:
        """Those that a read_committed reader must know of, in what was read (KIP-98), unless files were
        replaced since.

        Raises what `read` would now, where that has left the disk since, and its list with it.
        """

        def collect() -> Sequence[AbortedTransaction]:
            if not self.may_have_aborted(read.offset):
                return ()  # and no offset index need be searched
            return self.aborted_transactions(read.offset, self.upper_bound(read, nowait=nowait))

        found = self.retry_if_files_replaced(collect)
        if read.offset < self.local_log_start_offset:
            raise self._not_here(read.offset)
        return found

    def may_have_aborted(self, offset: int) -> bool:
        """Whether any segment on the disk from `offset` on has an index of aborted transactions."""
        segments = self.segment_list.from_offset(offset)
        return any(segment.transaction_index.exists for segment in segments)

    def upper_bound(self, read: LogRead, *, nowait: bool = False) -> int:
        """An offset that what was read ends below, without reading it."""
        part, end = read.slice, self.end_offset
        if part is None:
            return read.offset
        here, *after = self.segment_list.from_offset(read.base_offset)
        found = here.offset_index.upper_bound(part.position + part.size, mapped=nowait)
        if found is not None:
            return found
        return after[0].base_offset if after else end

    def aborted_transactions(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Those that overlap [start, end)."""

        def collect() -> list[AbortedTransaction]:
            found: list[AbortedTransaction] = []
            for segment in self.segment_list.from_offset(start):
                more, is_complete = segment.transaction_index.collect(start, end)
                found += more
                if is_complete:
                    break
            return found

        return self.retry_if_files_replaced(collect)

    def find_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record whose timestamp is at or after `timestamp` (KIP-79)."""
        return self.retry_if_files_replaced(
            lambda: timestamp_lookup.find_timestamp(self.segments, timestamp, self.log_start_offset)
        )

    def max_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp (KIP-734)."""
        return self.retry_if_files_replaced(
            lambda: timestamp_lookup.find_max_timestamp(self.segments)
        )

    # Appending

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
    ) -> Appended:
        """Validate, assign offsets in place (`records` must be writable), write, index.

        One batch, except from Raft. `transaction_version` (KIP-890) is that of a marker's
        coordinator, `guard` what `ProducerStates.begin_verification` gave for the first batch of a
        transaction. `at_once` raises ValidationTooSlow where validating takes a thread, with nothing done; and
        what was `checked` there (`check_produced`) is appended as it is. Raises what validation.py and
        `ProducerStates.check` do, DiskFull, NoDescriptors and LogFailed.
        """
        if self.failure is not None:
            raise self.offline()
        config = self.config
        if origin is AppendOrigin.RAFT:
            found = check_raft(records, config, leader_epoch, self.tip.end_offset)
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
                return self._as_before(kept)
        first_offset = self.tip.end_offset
        batch.stamp(first_offset, leader_epoch)
        self._append((batch,), batch.view, now_ms)
        if not from_client and batch.is_control and transaction_version < TRANSACTION_VERSION_2:
            self.producers.ended_in_epoch(batch)
        return Appended(
            first_offset,
            batch.last_offset,
            now_ms if config.log_append_time else -1,
            self.log_start_offset,
            False,
            batch.size,
            batch.view,
        )

    def find_committed_duplicate(self, records: memoryview) -> Appended | None:
        """What a client's batch got when it came before, where all of that is below the high watermark;
        None where it did not, as far as its producer's last batches tell. Raises LogFailed."""
        try:
            batch = Batch(records)
        except CorruptBatch:
            return None
        entry = self.producers.get(batch.producer_id)
        kept = None if entry is None or batch.is_control else entry.duplicate_of(batch)
        if kept is None or kept.last_offset >= self.high_watermark:
            return None
        return self._as_before(kept)

    def _as_before(self, kept: BatchMetadata) -> Appended:
        return Appended(
            kept.first_offset, kept.last_offset, kept.timestamp, self.log_start_offset, True, 0
        )

    def append_as_follower(
        self, records: memoryview, *, leader_epoch: int | None = None
    ) -> Appended:
        """Append what a leader's Fetch answer holds, as it is; a batch cut off at the end is left.

        Batches of an epoch later than `leader_epoch` are left too (KAFKA-18723). Raises CorruptBatch,
        CorruptRecords, UnexpectedOffset, DiskFull, NoDescriptors, LogFailed.
        """
        self.check_online()
        found = check_replicated(records, self.end_offset, leader_epoch)
        return self._append_given(found, records, self.clock.wall_ms())

    def _append_given(self, found: list[Batch], records: memoryview, now_ms: int) -> Appended:
        """Batches with offsets: at once if a segment that begins at the end can take them, else one by
        one."""
        start, end = self.log_start_offset, self.end_offset
        if not found:
            return Appended(end, end - 1, -1, start, False, 0)
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
        return Appended(first.base_offset, last.last_offset, -1, start, False, size)

    def _append(self, batches: Sequence[Batch], data: memoryview, now_ms: int) -> None:
        """Write `data`, which is exactly `batches`; then all that follows from them, the end last."""
        last = batches[-1]
        size_bytes = len(data)
        segment = self.tip.segment
        max_timestamp = last.max_timestamp
        if len(batches) > 1:
            max_timestamp = max(batch.max_timestamp for batch in batches)
        limits = self._roll_limits
        if not (
            limits.active is segment
            and limits.config is self.config
            and self.tip.position + size_bytes <= limits.position
            and max_timestamp <= limits.max_timestamp
            and last.last_offset <= limits.last_offset
        ):
            segment = self._roll_if_full(batches, size_bytes, max_timestamp, now_ms)
        if self._producers is None:
            self._load_producers()  # what that may raise is not to come between the write and the end
        try:
            position = segment.write(data, len(batches))
        except OSError as error:
            raise self.handle_io_error(error, undone=True) from error
        self.needs_clean_close = True
        try:
            segment.added(batches, position)
            _update_epochs_and_producers(self, segment, batches)
        except OutOfDescriptors as error:  # it is written: nothing may be appended behind it now
            self.take_offline_alone(
                LogFailed(f"{self.directory} lacks what belongs to its end: {error}")
            )
            raise self.offline() from error
        except OSError as error:
            raise self.handle_io_error(error) from error
        except Exception as error:  # ours: as above
            self.take_offline_alone(error)
            raise
        end_offset = last.last_offset + 1
        self.tip = Tip(end_offset, segment, position + size_bytes)
        if self.on_appended is not None:
            self.on_appended(data)
            self.check_online()
        due = end_offset - self.recovery_point >= self.config.flush_messages
        if due and self.on_flush_due is not None:
            self.on_flush_due(end_offset)

    def _roll_if_full(
        self, batches: Sequence[Batch], size_bytes: int, max_timestamp: int, now_ms: int
    ) -> Segment:
        """The segment that `batches` go to, which are `size_bytes`.

        A new one begins where the log ends, also where they begin behind a gap that compaction has left
        in the leader's log: so a gap between segments is a loss, to recovery. Only one that is too wide
        for the offsets of a segment lies between two.
        """
        segment = self.tip.segment
        last_offset = batches[-1].last_offset
        try:
            if not should_roll(
                segment, self.config, size_bytes, last_offset, max_timestamp, now_ms
            ):
                self._roll_limits = roll_limits(segment, self.config)
                return segment
        except OSError as error:  # the first batch's timestamp may have to be read
            raise self.handle_io_error(error) from error
        end_offset = self.tip.end_offset
        spans = last_offset - end_offset <= RELATIVE_MAX
        return roll(self, end_offset if spans else batches[0].base_offset)

    def roll(self) -> None:
        """Seal the active segment and begin a new one at the end; nothing if it is empty."""
        self.check_online()
        roll(self, self.end_offset)

    def flush(self, up_to: int | None = None) -> None:
        """Make all below `up_to` (default: the end as of now) durable, then move the recovery point.

        Through offload, beside appends (flush.py). Raises LogFailed; DiskFull if only the epochs'
        file found no room.
        """
        self.check_online()
        flush.flush(self, up_to)

    def assign_topic_id(self, topic_id: UUID) -> None:
        """Be of that topic, durably: for a log that does not say of which it is (`topic_id` is None). A crash
        has left it as it was made, or it is older than topic ids (KIP-516).

        Off the loop. Raises LogFailed, DiskFull; InconsistentTopicId if it is another topic's by now.
        """
        self.check_online()
        try:
            self.topic_id = ensure_topic_id(self.files, self.directory, topic_id)
        except OSError as error:
            raise self.handle_io_error(error, undone=True) from error

    # The high watermark, the start, the epoch

    def advance_high_watermark(self, offset: int) -> bool:
        """Never down; capped at the end. True if it moved."""
        if offset > self.tip.end_offset:
            offset = self.tip.end_offset
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        producers = self._producers
        if producers is not None:
            producers.replicated_to(offset)
        return True

    def advance_log_start(self, offset: int, reason: str) -> bool:
        """Forget what is below `offset` (DeleteRecords, a leader's start); True if it moved.

        The segments go with the next `delete_expired`. Raises OffsetOutOfRange past the high
        watermark, LogFailed.
        """
        self.check_online()
        return retention.advance_log_start(self, offset, reason)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Somebody leads in `epoch` from `start_offset` on (KIP-101)."""
        self.check_online()
        self.needs_clean_close = True
        self.epochs.assign(epoch, start_offset)

    # Retention

    def delete_expired(self, now_ms: int) -> int:
        """Retention: how many segments were renamed to `.deleted`; `remove_deleted` unlinks them.

        Raises NoDescriptors, LogFailed.
        """
        self.check_online()
        try:
            return retention.delete_expired(self, now_ms)
        except OSError as error:
            raise self.handle_io_error(error) from error

    def remove_deleted(self, now_ms: int) -> int:
        """Unlink what was renamed more than file.delete.delay.ms ago; how many segments."""
        self.check_online()
        try:
            return self.deletions.remove_due(now_ms)
        except OSError as error:
            raise self.handle_io_error(error) from error

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers idle for producer.id.expiration.ms; how many."""
        producers = self.producers_if_loaded
        return 0 if producers is None else producers.expire(now_ms)

    # Truncation

    def truncate_to(self, offset: int) -> bool:
        """Cut off all at or past `offset`; True if there was something (truncation.py).

        A batch goes whole: the log ends at or below `offset`. Slices handed out before stay what
        they were. Through offload. Raises DiskFull and NoDescriptors (nothing was cut), LogFailed.
        """
        self.check_online()
        if offset >= self.end_offset:
            self.epochs.truncate_from_end(self.end_offset)
            return False
        if offset < self.segment_list.first.base_offset:
            self.truncate_fully(self._cut_in_other_tier(offset))
            return True
        with self.flushing:
            try:
                truncation.truncate_to(self, offset)
            except OSError as error:
                raise self.handle_io_error(error, undone=True) from error
        return True

    def _cut_in_other_tier(self, offset: int) -> EmptyLogStart:
        """For a cut below the disk: what is known of the time before it stays known."""
        if not self.log_start_offset <= offset or not self.is_tiered:
            return EmptyLogStart.at(offset)
        return EmptyLogStart(offset, self.log_start_offset, self.epochs.entries_in(0, offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete everything; the log is empty at `offset` and starts there. As `truncate_fully`."""
        self.truncate_fully(EmptyLogStart.at(offset))

    def truncate_fully(self, beginning: EmptyLogStart) -> None:
        """Delete everything; the log is empty, and goes on from `beginning` (truncation.py).

        Through offload. Raises DiskFull and NoDescriptors (nothing was deleted), LogFailed.
        """
        self.check_online()
        with self.flushing:
            try:
                truncation.truncate_fully(self, beginning)
            except OSError as error:
                raise self.handle_io_error(error, undone=True) from error

    # Its end

    def close(self, clean: bool) -> None:
        """`clean`: what was written is durable, indexes trimmed, a producer snapshot at the end.

        Then every later call raises LogFailed. Raises LogFailed if it could not be closed cleanly:
        the directory must not be marked so. A log that was not touched writes nothing.
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
        """The directory gets another name, durably, and every file handle follows."""
        self.check_online()
        try:
            relocation.rename(self, new)
            self.files.sync_directory(new.parent)
        except OSError as error:
            raise self.handle_io_error(error) from error

    def delete(self) -> None:
        """Remove the directory and all in it. Slices that are pinned stay readable. OSError."""
        self.fail(LogFailed(f"{self.directory} was deleted"))
        self._close_files()
        self.files.remove_tree(self.directory)


def _unpin(read: LogRead) -> None:
    if read.slice is not None:
        read.slice.file.unpin()


def _update_epochs_and_producers(
    log: PartitionLog, segment: Segment, batches: Sequence[Batch]
) -> None:
    """Of `batches`, which `segment` has now. Raises OSError, LogFailed, NoDescriptors."""
    epochs, producers = log.epochs, log.producers
    for batch in batches:
        if batch.leader_epoch != epochs.latest and batch.leader_epoch >= 0:
            epochs.assign(batch.leader_epoch, batch.base_offset)
        if batch.producer_id >= 0:
            completed = producers.apply(batch)
            if completed is not None:
                if completed.is_aborted:
                    segment.transaction_index.append(
                        AbortedTransaction(
                            completed.producer_id,
                            completed.first_offset,
                            completed.last_offset,
                            producers.stable_offset_after(completed),
                        )
                    )
                    log.directory_needs_sync = True
                producers.complete(completed)
    producers.map_end = batches[-1].last_offset + 1
