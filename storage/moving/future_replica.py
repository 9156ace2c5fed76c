"""The future replica: a `.move` directory with a copy of a log that is being written to, segment by segment.

The future replica has segments with the same base offsets as the current replica, so rolls need no alignment. Each
of them is a `SegmentCopy`. A round (`copy_slice`, in a thread) first adapts the list to the source's segments, then
copies a slice of the first incomplete segment. So retention, DeleteRecords, truncation and compaction of the
current replica apply to the future replica (J-12):

| current replica                    | future replica, by the next round                                      |
|------------------------------------|------------------------------------------------------------------------|
| has a new segment                  | creates one                                                            |
| no longer has a segment            | removes its files                                                      |
| was truncated within a segment     | keeps the rest (`SegmentCopy.source_truncated`), rebuilds the indexes  |
| has another segment at that offset | copies that segment from the start                                     |

An inactive segment is completed with its indexes and synced before the next one is started. Within a segment,
`advance` starts writeback after every `PIECE_BYTES` and waits for the piece before it, so at most two pieces are
waiting to be written. A move therefore does not accumulate dirty pages, and does not fill the disk's queue, which
would delay the syncs of other logs.

Everything except the data (epochs, producer snapshots, `partition.metadata`) is small and copied in `complete`.

A start relies only on what `complete` made durable: after a restart, every byte is compared with the source before
it counts as copied (segment_copy.py).
"""

from __future__ import annotations

import itertools
from contextlib import closing

from odradek.seams.files import Files, Path
from odradek.storage.errors import LogFailed, SourceFailed
from odradek.storage.log.file_names import EPOCHS, LOG, METADATA, SNAPSHOT, file_name, offset_of
from odradek.storage.log.leader_epoch_cache import EpochStart, format_checkpoint
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.partition_metadata import format_metadata
from odradek.storage.log.producer_snapshots import ProducerSnapshots
from odradek.storage.log.read import LogEnd
from odradek.storage.log.segment import Segment
from odradek.storage.moving.segment_copy import SegmentCopy

PIECE_BYTES = 4 << 20
"""40 ms at 100 MB/s; also large enough for a disk that is ten times as fast."""
CATCH_UP_BYTES = 64 << 20
"""Maximum number of bytes that one call of `catch_up` copies."""


class FutureReplica:
    """Future replica of one move. Call `begin` first.

    Only one thread, or the event loop, uses it at a time, except for `source_truncated`.
    """

    def __init__(
        self, files: Files, log: PartitionLog, directory: Path, *, found: Path | None = None
    ) -> None:
        """`found`: the directory that a start found, as `.move` or `-future`."""
        self.log = log
        self.directory = directory
        self.current = found or directory
        """Current path: `directory`, or `found` until `begin` renames it."""
        self.is_begun = False
        self.is_converted = found is not None and found != directory
        """Whether the directory was found as `-future` and must still be renamed to `.move`."""
        self._files = files
        self._copies: list[SegmentCopy] = []
        self._to_be_written = 0
        """Copied bytes for which `advance` has not started writeback."""
        self._completed_to = 0
        """Log end offset of the last `complete`."""
        self._epochs: tuple[EpochStart, ...] = ()
        self._snapshots: set[int] = set()
        self._truncated_to: list[int] = []
        """End offsets of truncations since producer snapshots were last copied."""

    # Progress

    @property
    def copied_bytes(self) -> int:
        return sum(copy.copied for copy in tuple(self._copies))

    @property
    def end_offset(self) -> int:
        """End offset of the copied part, which is complete except for deleted segments."""
        copies = tuple(self._copies)
        return copies[-1].end_offset if copies else self.log.local_log_start_offset

    @property
    def remaining_bytes(self) -> int:
        """Bytes of the current segments that are not copied yet. Raises LogFailed, NoDescriptors."""
        known = {id(copy.source): copy.copied for copy in tuple(self._copies)}
        return self.log.retry_if_files_replaced(
            lambda: sum(max(0, each.size - known.get(id(each), 0)) for each in self.log.segments)
        )

    def is_nearly_caught_up(self, limit_bytes: int) -> bool:
        """Return whether at most `limit_bytes` are left to copy, all of them in the active segment."""
        copies = self._copies
        return (
            copies[-1].source is self.log.log_end.segment
            and all(copy.is_finished for copy in copies[:-1])
            and self.remaining_bytes <= limit_bytes
        )

    # Entries of the destination's checkpoints (`DirectoryLogs.incoming_logs`)

    @property
    def recovery_point(self) -> int:
        """Offset below which records, epochs and producer snapshots of the log are durable here."""
        synced_to = 0
        for copy in tuple(self._copies):
            synced_to = copy.synced_offset
            if not copy.is_durable:
                break
        return min(synced_to, self._completed_to)

    @property
    def last_accepted_gap_end(self) -> int:
        return self.log.last_accepted_gap_end

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def cleaned_to(self) -> int | None:
        return self.log.cleaned_to

    # Copying, in a thread

    def begin(self) -> None:
        """Create the directory durably, or reuse an existing one with its segments. Raises OSError."""
        if self.is_begun:
            return
        files, directory = self._files, self.directory
        if self.current != directory:
            files.rename(self.current, directory)
            self.current, self.is_converted = directory, False
        if not files.is_directory(directory):
            files.make_directory(directory)
        bases = {segment.base_offset for segment in self.log.segments}
        for name in files.list(directory):
            is_data = name.endswith(LOG) and offset_of(name) in bases
            if not is_data:
                files.remove(directory / name)
        self._write_partition_metadata()
        files.sync_directory(directory)
        files.sync_directory(directory.parent)
        self.is_begun = True

    def advance(self, size: int) -> int:
        """Copy about `size` bytes in pieces, with writeback of each piece while the next one is copied.

        Returns the number of copied bytes. Raises the errors of `copy_slice`.
        """
        done = 0
        for _ in range(max(1, size // PIECE_BYTES)):
            copied = self.copy_slice(min(size, PIECE_BYTES))
            if not copied:
                break
            done += copied
            self._to_be_written += copied
            if self._to_be_written >= PIECE_BYTES:
                self._write_out()
        return done

    def _write_out(self) -> None:
        self._to_be_written = 0
        for copy in self._copies:
            if copy.copied and not copy.is_finished:
                copy.write_out()

    def copy_slice(self, size: int) -> int:
        """Adapt the list of segments, then copy about `size` bytes.

        Returns the number of copied bytes; 0: nothing is left. Raises OSError of the destination, SourceFailed, and
        LogFailed if the source is offline.
        """
        generation = self.log.wait_until_settled()
        try:
            log_end = self._follow_segments()
            for number, copy in enumerate(self._copies):
                if copy.is_finished:
                    continue
                is_last = number + 1 == len(self._copies)
                next_base = None if is_last else self._copies[number + 1].base_offset
                copied = copy.copy_slice(size, log_end, next_base)
                if copied:
                    return copied
                if not is_last and copy.copied == copy.source.size:
                    self._finish(copy)
            return 0
        except (SourceFailed, ValueError, FileNotFoundError):
            if self.log.failure is not None:
                raise LogFailed(f"{self.log.directory} is offline: {self.log.failure}") from None
            if self._is_source_unchanged() and generation == self.log.wait_until_settled():
                raise
            return 1  # the source was changed: the next round adapts to it

    def _is_source_unchanged(self) -> bool:
        """Return whether the source still has the segments of the last round."""
        now = self.log.segments
        return [copy.source for copy in self._copies] == list(now)

    def _follow_segments(self) -> LogEnd:
        """Adapt the list of copies to the source's segments. Raises OSError."""
        segments = self.log.segments
        log_end = self.log.log_end
        there = {segment.base_offset for segment in segments}
        known = {copy.base_offset: copy for copy in self._copies}
        for copy in self._copies:
            if copy.base_offset not in there:
                copy.remove()
                self._snapshots.discard(copy.base_offset)
        copies = []
        for segment in segments:
            copy = known.get(segment.base_offset) or SegmentCopy(
                self._files, self.directory, segment
            )
            if copy.source is not segment:
                copy.source_replaced(segment)
                # Snapshots from this segment on are of the records that it replaces.
                self._snapshots = {each for each in self._snapshots if each < segment.base_offset}
            copies.append(copy)
        self._copies = copies
        return log_end

    def _finish(self, copy: SegmentCopy) -> None:
        copy.finish()
        self._files.sync_directory(self.directory)

    # Completion

    def complete(self) -> None:
        """Make everything that was copied durable, with epochs and producer snapshots. Runs in a thread.

        The caller holds the source's `file_lock`, so the source only appends and rolls meanwhile. Order: snapshots,
        data with indexes, epochs, names; the recovery point increases last. Raises OSError.
        """
        log, files = self.log, self._files
        end_offset, epochs = log.end_offset, log.epochs.entries
        self._remove_stale_snapshots()
        self._copy_snapshots(sync=True)
        for copy in self._copies:
            if not copy.is_finished:
                copy.follow_indexes()
                copy.sync()
        files.write_new(self.directory / EPOCHS, format_checkpoint(epochs))
        self._write_partition_metadata()  # the topic id may have become known after `begin`
        files.sync_directory(self.directory)
        self._completed_to, self._epochs = end_offset, epochs

    def _write_partition_metadata(self) -> None:
        if self.log.topic_id is not None:
            self._files.write_new(self.directory / METADATA, format_metadata(self.log.topic_id))

    def _remove_stale_snapshots(self) -> None:
        """Remove snapshots that the source no longer has or has replaced: a start would load them."""
        self._snapshots &= set(self.log.snapshots.offsets)
        while self._truncated_to:
            end_offset = self._truncated_to.pop()
            self._snapshots = {each for each in self._snapshots if each <= end_offset}
        for name in self._files.list(self.directory):
            if name.endswith(SNAPSHOT) and offset_of(name) not in self._snapshots:
                self._files.remove(self.directory / name)

    def _copy_snapshots(self, *, sync: bool) -> None:
        log, files = self.log, self._files
        for offset in log.snapshots.offsets:
            if offset in self._snapshots:
                continue
            path = self.directory / file_name(offset, SNAPSHOT)
            files.remove(path, missing_ok=True)
            with closing(files.open(path, create=True)) as file:
                try:
                    content = files.read(log.snapshots.path(offset))
                except OSError as error:
                    raise SourceFailed(log.snapshots.path(offset), error) from error
                file.append_v((content,))
                if sync:
                    file.sync()
            self._snapshots.add(offset)

    def catch_up(self, limit_bytes: int = CATCH_UP_BYTES) -> None:
        """Copy everything, but at most about `limit_bytes`: on the event loop if little is left, otherwise in a thread.

        Raises the errors of `copy_slice`.
        """
        copied = 0
        while copied < limit_bytes and (more := self.copy_slice(limit_bytes)):
            copied += more

    def append(self, data: memoryview) -> None:
        """Append `data`, which was just appended to the log. Runs on the event loop.

        Raises OSError. After an error, the future replica is still a prefix of the log and can catch up again.
        """
        self._follow_roll()
        self._copies[-1].write(data, self.log.log_end)

    def _follow_roll(self) -> None:
        active = self.log.log_end.segment
        if active is not self._copies[-1].source:
            self._copies.append(SegmentCopy(self._files, self.directory, active))

    def source_truncated(self, old: Segment, new: Segment, log_end: LogEnd) -> None:
        """Apply a truncation of the source from `old` to `new`, which ends at `log_end`. Runs in its thread."""
        for copy in tuple(self._copies):
            copy.source_truncated(old, new, log_end)
        self._truncated_to.append(log_end.end_offset)

    def complete_indexes(self) -> None:
        """Add the index entries since `complete`, and the snapshots and segments of rolls. Raises OSError.

        Runs on the event loop in the turn of the switch; only a few entries are missing.
        """
        self._follow_roll()  # the append after the roll may have failed, without a call of `append`
        self._copy_snapshots(sync=False)
        for copy in self._copies:
            if not copy.is_finished:
                copy.follow_indexes()
                if copy is not self._copies[-1]:
                    copy.trim()

    def log_parts(
        self, directory: Path
    ) -> tuple[list[Segment], ProducerSnapshots, tuple[EpochStart, ...], int]:
        """Return the parts of the log in `directory`, the new name of this directory.

        These are the segments, the producer snapshots, the entries of the epoch checkpoint, and the recovery point. No
        disk access.
        """
        self.directory = self.current = directory
        for copy in self._copies:
            copy.moved(directory)
        segments = [copy.in_place() for copy in self._copies]
        snapshots = ProducerSnapshots(self._files, directory, self.log.snapshots.offsets)
        return segments, snapshots, self._epochs, self.recovery_point

    def convert_for_kafka(self) -> None:
        """Reduce the directory to a cleanly closed log of the finished segments, in a thread. Raises OSError."""
        finished = list(itertools.takewhile(lambda copy: copy.is_finished, self._copies))
        for copy in self._copies[len(finished) :]:
            copy.remove()
        end = finished[-1].end_offset if finished else 0
        bases = {copy.base_offset for copy in finished}
        self._remove_stale_snapshots()
        self._copy_snapshots(sync=True)
        for offset in self._snapshots - bases:
            self._files.remove(self.directory / file_name(offset, SNAPSHOT), missing_ok=True)
        epochs = [each for each in self.log.epochs.entries if each.start_offset < end]
        self._files.write_new(self.directory / EPOCHS, format_checkpoint(epochs))
        self._write_partition_metadata()
        self._files.sync_directory(self.directory)

    def convert_unchecked_copy(self) -> None:
        """Remove all files except `partition.metadata`, in a thread. Raises OSError.

        Used for a future replica that was left by a crash and not compared with the source since the start.
        """
        for name in self._files.list(self.current):
            if name != METADATA:
                self._files.remove(self.current / name)
        self._files.sync_directory(self.current)

    def close(self) -> None:
        """Close the files of all segments."""
        for copy in self._copies:
            copy.close()
