"""What of a log may go to the remote tier, and with which files (KIP-405).

A segment is copied once it is sealed and all of its records are decided: below the last stable offset
(T-28). With it go its indexes, the producers' snapshot at its end, and the leader epochs up to there
(T-21), so that a replica can go on behind it that has seen nothing of what lies before.

Which segments a partition's leader copies to the remote tier next, and from where on.

Logs are copied in order and without gaps: a segment that can't be copied holds up those after it, and
is tried again, for what was copied last is what local retention goes by, here and on the followers. So
much is copied as is closed and decided: below the last stable offset (T-28). A new leader finds by its
own lineage of epochs how far the leaders before have come (T-31, T-62):

| highest copied offset of the epoch, newest epoch first | copied so far |
|---|---|
| none | see the epoch before |
| below the epoch's end in this log | that |
| at or past it: an unclean leader copied what this log never had (E15) | the epoch's end |
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
from odradek.storage.log.epochs import EpochStart, format_checkpoint
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.producer_replay import replay
from odradek.storage.log.producer_snapshots import encode_snapshot
from odradek.storage.log.segment import Segment
from odradek.storage.tiered.remote_storage_manager import LogSegmentData


@value_class
class CandidateSegment:
    """One that may be copied. `end_offset` is inclusive: the next segment begins behind it, which it has
    done since `sealed_ms`, as far as this process knows."""

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
    """Those with `from_offset` or more that may be copied as of now, the oldest first (T-28)."""
    segments: Sequence[Segment] = log.segment_list.past(from_offset)
    stable = log.last_stable_offset
    return [
        CandidateSegment(each, following.base_offset - 1, following.created_ms)
        for each, following in pairwise(segments)
        if following.base_offset <= stable
    ]


class SegmentToCopy:
    """A segment that stays readable until `close`, whatever becomes of it in its log."""

    def __init__(
        self, data: LogSegmentData, max_timestamp_ms: int, epochs: tuple[EpochStart, ...]
    ) -> None:
        self.data = data
        self.max_timestamp_ms = max_timestamp_ms
        """Of its newest record; where none has a timestamp, when the segment was sealed: Kafka tells its
        file's last change, and its expiry takes -1 for very old."""
        self.epochs = epochs
        """Those of its records; the first begins where the segment does."""
        self._is_pinned = True

    @property
    def txn_index_empty(self) -> bool:
        return not self.data.transaction_index

    def close(self) -> None:
        """Idempotent."""
        if self._is_pinned:
            self._is_pinned = False
            assert isinstance(self.data.log, FileSlice)
            self.data.log.file.unpin()


def open_segment_to_copy(log: PartitionLog, sealed: CandidateSegment) -> SegmentToCopy:
    """Pin its data and read what goes with it. In a thread.

    Raises OffsetOutOfRange if the log has it no more, CorruptRecords or CorruptBatch if there are no batches
    behind the last that is indexed, LogFailed, NoDescriptors.
    """
    segment = sealed.segment
    while True:
        log.check_online()
        generation = log.settled()
        if segment not in log.segment_list.all:
            raise OffsetOutOfRange(f"{log.directory} has no segment {sealed.base_offset} any more")
        pinned: FileSlice | None = None
        try:
            pinned = FileSlice(segment.file, 0, segment.size)
            pinned.file.pin()
            opened = _open(log, sealed, pinned)
        except (OSError, ValueError, KafkaError) as error:
            if pinned is not None:
                pinned.file.unpin()
            if generation == log.generation:
                raise (log.io_failed(error) if isinstance(error, OSError) else error) from error
            continue
        if generation == log.generation:
            return opened
        opened.close()  # it may have been removed before it was pinned


def _open(log: PartitionLog, sealed: CandidateSegment, pinned: FileSlice) -> SegmentToCopy:
    segment, end = sealed.segment, sealed.end_offset + 1
    segment.next_offset()  # an index ends where its segment is damaged, and the rest may be whole elsewhere
    offsets, times = segment.offset_index, segment.time_index
    aborted = segment.transaction_index
    data = LogSegmentData(
        log=pinned,
        offset_index=offsets.file.read_at(0, offsets.count * offset_index.ENTRY.size),
        time_index=times.file.read_at(0, times.count * time_index.ENTRY.size),
        transaction_index=log.files.read(aborted.path) if aborted.exists else None,
        producer_snapshot=_snapshot(log, end),
        leader_epochs=format_checkpoint(log.epochs.entries_in(0, end)),
    )
    epochs = log.epochs.entries_in(sealed.base_offset, end)
    newest_ms = segment.max_timestamp
    return SegmentToCopy(data, newest_ms if newest_ms >= 0 else sealed.sealed_ms, epochs)


def _snapshot(log: PartitionLog, offset: int) -> bytes:
    """The producers as of `offset` (T-56): the file of the segment that begins there. Where there is
    none, or not a whole one (it was another broker's log, once), made from the last before it."""
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
"""As a copied offset."""


class SegmentOffsets(Protocol):
    """A segment that is not written to any more; offsets, the last one inclusive."""

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
    """The last offset of this log that is in the remote tier, or NOTHING; `epochs` is its whole cache,
    `highest_of` an epoch's highest copied offset."""
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
    """Where a new leader's log starts: at the first finished segment of its earliest epoch that has
    one (`first_of`), where the leader before may have deleted further than this replica knows; never
    past what it has on its own disks."""
    for each in epochs:
        first = first_of(each.epoch)
        if first is not None:
            return min(first, local_start_offset)
    return local_start_offset


def select_segments_to_copy(
    sealed: Iterable[S], *, copied_offset: int, log_start_offset: int, last_stable_offset: int
) -> list[S]:
    """Of the sealed segments, ascending, those to be copied now (T-28, E15).

    One that begins at or below `copied_offset` and ends past it is copied whole: another leader had
    closed its segment elsewhere.
    """
    first_wanted = max(copied_offset + 1, log_start_offset)
    return [
        each
        for each in sealed
        if each.end_offset >= first_wanted and each.end_offset < last_stable_offset
    ]
