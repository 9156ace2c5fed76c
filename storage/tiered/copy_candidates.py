"""Selects the segments that a leader copies to the remote tier, and opens their files (KIP-405).

Segments are copied in order and without gaps: a segment that cannot be copied delays the following
ones and is retried, because local retention, here and on followers, depends on the highest copied
offset. An inactive segment is a candidate if it ends below the last stable offset (T-28). A copy
includes the indexes, the producer snapshot at its end and the leader epochs up to its end (T-21),
so that a replica without earlier records can continue behind it.

A new leader finds the highest copied offset by its own leader epochs (T-31, T-62):

| highest copied offset of the epoch, newest epoch first | highest copied offset of the log |
|---|---|
| none | see the epoch before |
| below the epoch's end in this log | that offset |
| at or past it: an unclean leader copied records that this log never had (E15) | the epoch's end |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

from odradek.protocol.errors import KafkaError
from odradek.seams.files import FileSlice
from odradek.seams.values import value_class
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log import offset_index, time_index
from odradek.storage.log.leader_epoch_cache import EpochStart, format_checkpoint
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.producer_replay import replay
from odradek.storage.log.producer_snapshots import encode_snapshot
from odradek.storage.log.segment import Segment
from odradek.storage.log.transaction_index import pack
from odradek.storage.log.transaction_index_check import verify_transaction_index
from odradek.storage.tiered.remote_storage_manager import LogSegmentData


@value_class
class CandidateSegment:
    """Inactive segment that may be copied. `end_offset` is inclusive. `sealed_ms` is when the next
    segment was created, as far as this process knows."""

    segment: Segment
    end_offset: int
    sealed_ms: int

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def size_bytes(self) -> int:
        return self.segment.size


def list_candidate_segments(log: PartitionLog, from_offset: int = 0) -> list[CandidateSegment]:
    """Inactive segments with offsets from `from_offset` on that end below the last stable offset,
    oldest first (T-28)."""
    segments: Sequence[Segment] = log.segment_list.past(from_offset)
    stable = log.last_stable_offset
    return [
        CandidateSegment(each, following.base_offset - 1, following.created_ms)
        for each, following in pairwise(segments)
        if following.base_offset <= stable
    ]


class SegmentToCopy:
    """Segment whose files stay readable until `close`, even if the log deletes it."""

    def __init__(
        self, data: LogSegmentData, max_timestamp_ms: int, epochs: tuple[EpochStart, ...]
    ) -> None:
        self.data = data
        self.max_timestamp_ms = max_timestamp_ms
        """Largest timestamp of its records, or when it became inactive if no record has one. Kafka
        uses the file's modification time there; its retention treats -1 as very old."""
        self.epochs = epochs
        """Leader epochs of its records; the first one starts at the segment's base offset."""
        self._is_pinned = True

    @property
    def txn_index_empty(self) -> bool:
        return not self.data.transaction_index

    def close(self) -> None:
        """Unpin the files. Idempotent."""
        if self._is_pinned:
            self._is_pinned = False
            assert isinstance(self.data.log, FileSlice)
            self.data.log.file.unpin()


def open_segment_to_copy(log: PartitionLog, candidate: CandidateSegment) -> SegmentToCopy:
    """Pin the log file and read its indexes, producer snapshot and leader epochs. Call it in a
    thread.

    Raises OffsetOutOfRange if the log has deleted the segment, CorruptRecords or CorruptBatch if
    the log file is damaged behind its last index entry, LogFailed, NoDescriptors.
    """
    segment = candidate.segment
    while True:
        log.check_online()
        generation = log.wait_until_settled()
        if segment not in log.segment_list.all:
            raise OffsetOutOfRange(
                f"segment {candidate.base_offset} of {log.directory} was deleted"
            )
        pinned: FileSlice | None = None
        try:
            pinned = FileSlice(segment.file, 0, segment.size)
            pinned.file.pin()
            opened = _open(log, candidate, pinned)
        except (OSError, ValueError, KafkaError) as error:
            if pinned is not None:
                pinned.file.unpin()
            if generation == log.generation:
                raise (
                    log.handle_io_error(error) if isinstance(error, OSError) else error
                ) from error
            continue
        if generation == log.generation:
            return opened
        opened.close()  # the log may have deleted it before it was pinned


def _open(log: PartitionLog, candidate: CandidateSegment, pinned: FileSlice) -> SegmentToCopy:
    segment, end = candidate.segment, candidate.end_offset + 1
    segment.next_offset()  # raises if the segment is damaged: another replica may have it intact
    offsets, times = segment.offset_index, segment.time_index
    aborted = segment.transaction_index
    if aborted.exists:
        verify_transaction_index(log, segment)
    data = LogSegmentData(
        log=pinned,
        offset_index=offsets.file.read_at(0, offsets.count * offset_index.ENTRY.size),
        time_index=times.file.read_at(0, times.count * time_index.ENTRY.size),
        transaction_index=pack(aborted.entries) if aborted.exists else None,
        producer_snapshot=_snapshot(log, end),
        leader_epochs=format_checkpoint(log.epochs.entries_in(0, end)),
    )
    epochs = log.epochs.entries_in(candidate.base_offset, end)
    newest_ms = segment.max_timestamp
    return SegmentToCopy(data, newest_ms if newest_ms >= 0 else candidate.sealed_ms, epochs)


def _snapshot(log: PartitionLog, offset: int) -> bytes:
    """Producer state at `offset` (T-56): the snapshot file of the segment that starts there. If it
    is missing or damaged, it is rebuilt from the last earlier one."""
    states = log.new_producers()
    now_ms = log.clock.wall_ms()
    for known in _descending(log.snapshots.offsets, offset):
        found = log.snapshots.read(known)
        if found is not None:
            data, entries = found
            if known == offset:
                return data
            states.reset(known, entries, now_ms=now_ms)
            break
    replay(states, log.segment_list.all, log.log_start_offset, offset)
    return encode_snapshot(states.active.values())


def _descending(offsets: Sequence[int], up_to: int) -> Iterator[int]:
    return (each for each in reversed(offsets) if each <= up_to)


NOTHING_COPIED = -1
"""Highest copied offset of a log without copies."""


class SegmentOffsets(Protocol):
    """Offsets of an inactive segment; the end offset is inclusive."""

    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


S = TypeVar("S", bound=SegmentOffsets)


def find_highest_copied_offset(
    epochs: Sequence[EpochStart],
    log_end_offset: int,
    highest_of: Callable[[int], int | None],
) -> int:
    """Highest offset of this log that is in the remote tier, or NOTHING_COPIED. `epochs` is the
    log's whole epoch cache; `highest_of` returns an epoch's highest copied offset."""
    end_offset = log_end_offset
    for each in reversed(epochs):
        highest = highest_of(each.epoch)
        if highest is not None:
            return min(highest, end_offset - 1)
        end_offset = each.start_offset
    return NOTHING_COPIED


def find_log_start_offset(
    epochs: Sequence[EpochStart],
    first_of: Callable[[int], int | None],
    local_start_offset: int,
) -> int:
    """Log start offset of a new leader: the first finished segment of its earliest epoch that has
    one (`first_of`), because the previous leader may have deleted more than this replica knows.
    At most the local log start offset."""
    for each in epochs:
        first = first_of(each.epoch)
        if first is not None:
            return min(first, local_start_offset)
    return local_start_offset


def select_segments_to_copy(
    candidates: Iterable[S], *, copied_offset: int, log_start_offset: int, last_stable_offset: int
) -> list[S]:
    """Segments to copy now, ascending (T-28, E15).

    A segment that starts at or below `copied_offset` and ends after it is copied whole: an earlier
    leader had other segment boundaries.
    """
    first_wanted = max(copied_offset + 1, log_start_offset)
    return [
        each
        for each in candidates
        if each.end_offset >= first_wanted and each.end_offset < last_stable_offset
    ]
