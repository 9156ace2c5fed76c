"""Log recovery after an unclean shutdown: everything past the recovery point is read and checked.

Data below the recovery point was synced before the point was written (see `flush.py`) and is trusted.

| segment                                   | action                                                |
|-------------------------------------------|-------------------------------------------------------|
| ends at or below the recovery point       | none                                                  |
| contains the recovery point, or is the    | index entries below the point are kept if they match  |
| last one                                  | the data, and the rest is scanned from the point on;  |
|                                           | otherwise it is scanned from its start                |
| begins at or past the recovery point      | scanned from its start                                |

| result of a scan                          | action                                                |
|-------------------------------------------|-------------------------------------------------------|
| valid batches to the end                  | indexed; epochs, producers and transactions updated   |
| an incomplete batch, an invalid CRC,      | the segment is truncated there, all later segments    |
| magic or length, or decreasing offsets    | are removed                                           |
| the next segment begins past the end of   | the end of this one was lost: all later segments are  |
| this one                                  | removed, unless the next one begins at or below       |
|                                           | `accepted_gaps_end` or the log start offset           |

Compaction leaves gaps only below the recovery point (`compaction/compaction_pass.py`). A gap that a follower
replicates from its leader is inside a segment, because a new segment begins at the log end offset
(`roll.py`). If no segment spans it, the recovery point is raised past it at once. So `accepted_gaps_end` is
the recovery point, where that is known.

The recovered log is a prefix of what was written and contains everything that was synced. The indexes of a
segment are rewritten after the kept entries; the producer state starts from the latest snapshot at or below
the recovery point and follows the headers from there. The recovery point stays, or falls to the log end
offset, so a crash during recovery leaves the same work. Recovery syncs only what the next one must not see
again: truncations, removed segments, and rebuilt index entries below the recovery point.

Data is read with `read_at`, never through a map; only the records of transaction markers are decoded.
"""

from __future__ import annotations

import logging

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    Batch,
)
from odradek.protocol.records.crc32c import crc32c
from odradek.seams.files import Files
from odradek.seams.values import state_class, value_class
from odradek.storage.directories.io_errors import takes_offline
from odradek.storage.errors import DamagedLog
from odradek.storage.log import offset_index, time_index
from odradek.storage.log.batch_scan import headers
from odradek.storage.log.file_names import LOG
from odradek.storage.log.index_builder import IndexBuilder
from odradek.storage.log.leader_epoch_cache import LeaderEpochCache
from odradek.storage.log.offset_index import RELATIVE_MAX
from odradek.storage.log.producer_replay import apply_leniently, replay
from odradek.storage.log.producer_snapshots import ProducerSnapshots
from odradek.storage.log.producer_state import ProducerStates
from odradek.storage.log.segment import Segment
from odradek.storage.log.transaction_index import AbortedTransaction

_logger = logging.getLogger("odradek.log")


@value_class
class ScanStart:
    """Start of a scan: the batch at `position` is the first to check and is at or past `offset`;
    `builder` has the kept index entries of the batches before."""

    position: int
    offset: int
    builder: IndexBuilder


def untrusted(segment: Segment) -> ScanStart:
    """Scan from the start of the segment, without index entries."""
    segment.open_raw_indexes()
    return ScanStart(0, segment.base_offset, _new_builder(segment))


def trusted_prefix(segment: Segment, recovery_point: int) -> ScanStart:
    """Keep the index entries below `recovery_point` if they match the batches, and read the headers
    from the last of them to the recovery point."""
    if recovery_point <= segment.base_offset:
        return untrusted(segment)
    segment.open_raw_indexes()
    builder = _new_builder(segment)
    last_offset = _keep_offsets(segment, builder, recovery_point)
    _keep_times(segment, builder, last_offset)
    position, offset = builder.last_position, segment.base_offset
    try:
        for batch in headers(segment.file, position, segment.size):
            is_indexed = builder.kept_offsets and batch.position == builder.last_position
            if is_indexed and batch.last_offset != last_offset:
                return untrusted(segment)
            if batch.last_offset >= recovery_point:
                break
            if batch.base_offset < offset:
                return untrusted(segment)
            builder.add(batch.last_offset, batch.max_timestamp, batch.position)
            position, offset = batch.position + batch.size, batch.last_offset + 1
    except KafkaError:
        return untrusted(segment)
    return ScanStart(position, offset, builder)


def _new_builder(segment: Segment) -> IndexBuilder:
    return IndexBuilder(segment.base_offset, segment.index_interval_bytes)


def _keep_offsets(segment: Segment, builder: IndexBuilder, recovery_point: int) -> int:
    """Count the offset index entries to keep; the offset of the last."""
    file = segment.offset_index.file
    size = offset_index.ENTRY.size
    data = file.read_at(0, file.size // size * size)
    bound = recovery_point - segment.base_offset
    relative = -1
    for entry_offset, position in offset_index.ENTRY.iter_unpack(data):
        if not (
            relative < entry_offset < bound and builder.last_position < position < segment.size
        ):
            break
        relative, builder.last_position = entry_offset, position
        builder.kept_offsets += 1
    return segment.base_offset + relative


def _keep_times(segment: Segment, builder: IndexBuilder, last_offset: int) -> None:
    """Count the time index entries to keep: at or before the last kept offset index entry."""
    file = segment.time_index.file
    size = time_index.ENTRY.size
    data = file.read_at(0, file.size // size * size)
    relative = -1
    for timestamp, entry_offset in time_index.ENTRY.iter_unpack(data):
        if not (
            timestamp > builder.last_timestamp
            and relative < entry_offset <= last_offset - segment.base_offset
        ):
            break
        relative, builder.last_timestamp = entry_offset, timestamp
        builder.kept_times += 1
    builder.max_timestamp = builder.last_timestamp
    if builder.kept_times:
        builder.offset_of_max_timestamp = segment.base_offset + relative


CHUNK_BYTES = 4 << 20


@state_class
class LogRecovery:
    """Recovery of one log. `run` leaves the remaining segments in `segments`."""

    files: Files
    segments: list[Segment]
    recovery_point: int
    log_start_offset: int
    now_ms: int
    accepted_gaps_end: int
    """A segment that begins at or below this offset may begin past the end of the previous one."""
    required_end_offset: int
    """If recovery would remove records below this offset, it raises DamagedLog, and the caller decides."""
    epochs: LeaderEpochCache
    producers: ProducerStates
    snapshots: ProducerSnapshots
    bytes_scanned: int = 0
    bytes_cut: int = 0
    segments_removed: int = 0
    last_accepted_gap_end: int = 0
    """End of the last accepted gap between segments past the recovery point."""

    def run(self) -> int:
        """Recover the log; its log end offset. Raises OSError, and DamagedLog before anything is
        removed."""
        if not self.segments:
            return self.log_start_offset
        first = self._first_to_scan()
        start = trusted_prefix(self.segments[first], self.recovery_point)
        self._load_producers(start.offset)
        end_offset = start.offset
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            if number > first:
                if self._is_lost(segment, end_offset):
                    self._refuse_loss(
                        end_offset,
                        f"{segment.path(LOG)} does not start at the end of the previous segment",
                    )
                    self._remove_from(number)
                    break
                start = untrusted(segment)
            is_last = number == len(self.segments) - 1
            is_whole, end_offset = self._recover(segment, start, is_last=is_last)
            if not is_whole:
                self._remove_from(number + 1)
                break
        if self.segments_removed:
            self.files.sync_directory(self.snapshots.directory)
        self.producers.map_end_offset = end_offset
        self.snapshots.keep_only(segment.base_offset for segment in self.segments)
        self._take_snapshot()
        return end_offset

    def _load_producers(self, offset: int) -> None:
        """Producer state when the log ended at `offset`."""
        self.snapshots.load(
            self.producers, up_to=offset, start=self.log_start_offset, now_ms=self.now_ms
        )
        replay(self.producers, self.segments, self.log_start_offset, offset)

    def _take_snapshot(self) -> None:
        """Write a producer snapshot, which only saves time later: a full disk does not prevent the
        start."""
        try:
            self.snapshots.take(self.producers)
        except OSError as error:
            if takes_offline(error, files_unchanged=True):
                raise

    def _first_to_scan(self) -> int:
        number = len(self.segments) - 1
        while number and self.segments[number].base_offset > self.recovery_point:
            number -= 1
        return number

    def _is_lost(self, segment: Segment, end_offset: int) -> bool:
        """Whether a loss precedes `segment`: it does not follow `end_offset`."""
        begins_at = segment.base_offset
        if begins_at == end_offset:
            return False
        if begins_at < end_offset or begins_at > max(self.accepted_gaps_end, self.log_start_offset):
            return True
        if begins_at > self.recovery_point:
            self.last_accepted_gap_end = begins_at
        return False

    def _refuse_loss(self, end_offset: int, why: str) -> None:
        if end_offset < self.required_end_offset:
            raise DamagedLog(end_offset, self.required_end_offset, why)

    def _remove_from(self, number: int) -> None:
        """Remove segments, the newest first, so that the log is consistent after a crash."""
        for segment in reversed(self.segments[number:]):
            _logger.warning(
                "deleting segment %s in log recovery: records before it are missing", segment
            )
            segment.remove()
            self.snapshots.remove(segment.base_offset)
            self.segments_removed += 1
        del self.segments[number:]

    def _recover(self, segment: Segment, start: ScanStart, *, is_last: bool) -> tuple[bool, int]:
        """Scan one segment from `start`: whether it was completely valid, and its end offset."""
        offset = start.offset
        if offset == segment.base_offset:
            self.producers.map_end_offset = offset
            self._take_snapshot()
        self.epochs.truncate_from_end(offset)
        segment.transaction_index.reload(offset)
        end, end_offset = self._scan(segment, start.position, offset, start.builder)
        cut_bytes = segment.size - end
        if cut_bytes:
            self._refuse_loss(
                end_offset, f"corruption found in segment {segment.path(LOG)} at byte {end}"
            )
            _logger.warning(
                "truncating %d invalid bytes at the end of segment %s, from position %d on",
                cut_bytes,
                segment,
                end,
            )
            segment.cut_file(end)
            segment.file.sync()
            self.bytes_cut += cut_bytes
        segment.restore_indexes(start.builder, sealed=not (cut_bytes or is_last))
        if start.offset == segment.base_offset < self.recovery_point:
            segment.sync_indexes()
        return not cut_bytes, end_offset

    def _scan(
        self, segment: Segment, position: int, offset: int, builder: IndexBuilder
    ) -> tuple[int, int]:
        """Check every batch from `position` on; the position and the offset after the last valid one."""
        file, size, base_offset = segment.file, segment.size, segment.base_offset
        latest_epoch = self._latest_epoch()
        unpack, add = HEADER.unpack_from, builder.add
        wanted = CHUNK_BYTES
        while position < size:
            chunk = memoryview(file.read_at(position, min(wanted, size - position)))
            available, at, wanted = len(chunk), 0, CHUNK_BYTES
            self.bytes_scanned += available
            while at + HEADER_SIZE <= available:
                (
                    first,
                    length,
                    epoch,
                    magic,
                    crc,
                    _,
                    delta,
                    _,
                    max_timestamp,
                    producer,
                    _,
                    _,
                    _,
                ) = unpack(chunk, at)
                end = at + length + LOG_OVERHEAD
                last = first + delta
                if (
                    magic != MAGIC
                    or length < HEADER_SIZE - LOG_OVERHEAD
                    or delta < 0
                    or first < offset
                    or last - base_offset > RELATIVE_MAX
                    or position + end > size
                ):
                    return position + at, offset
                if end > available:
                    wanted = max(CHUNK_BYTES, end - at)  # a batch larger than a chunk
                    break
                if crc32c(chunk[at + CRC_START : end]) != crc:
                    return position + at, offset
                add(last, max_timestamp, position + at)
                if epoch > latest_epoch:
                    self.epochs.assign(epoch, first)
                    latest_epoch = epoch
                if producer >= 0:
                    self._apply_to_producers(segment, Batch(chunk, at))
                offset = last + 1
                at = end
            if at == 0 and (available < HEADER_SIZE or wanted <= available):
                return position, offset
            position += at
        return position, offset

    def _latest_epoch(self) -> int:
        latest = self.epochs.latest
        return -1 if latest is None else latest

    def _apply_to_producers(self, segment: Segment, batch: Batch) -> None:
        completed = apply_leniently(self.producers, batch, segment)
        if completed is not None:
            if completed.is_aborted:
                segment.transaction_index.append(
                    AbortedTransaction(
                        completed.producer_id,
                        completed.first_offset,
                        completed.last_offset,
                        self.producers.stable_offset_after(completed),
                    )
                )
            self.producers.complete(completed)
