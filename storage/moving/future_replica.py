"""The `.move` directory: a copy of a log that is being written to, segment for segment.

The copy has the source's segments, with the same base offsets (so rolls need no alignment), each a
`SegmentCopy`. A round (`take`, in a thread) first makes the list follow the source's, then copies a
slice of the first segment that lacks something. So retention, DeleteRecords, truncation and
compaction reach the copy by reaching the source (J-12):

| the source                       | the copy, by the next round                                      |
|----------------------------------|------------------------------------------------------------------|
| has a new segment                | gets one                                                         |
| has a segment no longer          | removes its files                                                |
| was truncated within a segment   | keeps what is left (`SegmentCopy.cut`), makes the indexes anew   |
| has another one at an offset     | begins that segment anew                                         |

A sealed segment is finished with its indexes, and synced, before the next is begun. In between, the
copying waits for the disk every `PIECE_BYTES` (`advance`), with no more than two pieces on their way
to it. So a move leaves no writing to its end, and does not fill the disk's queue, in which all others
wait who sync something there.

All but the data (epochs, producers' snapshots, `partition.metadata`) is small and follows in
`complete`.

Nothing here is promised to a start but what `complete` made durable: after a restart every byte is
compared with the source before it counts (segment_copy.py).
"""

from __future__ import annotations

import itertools
from contextlib import closing

from odradek.seams.files import Files, Path
from odradek.storage.errors import LogFailed, SourceFailed
from odradek.storage.log.epochs import EpochStart, format_checkpoint
from odradek.storage.log.file_names import EPOCHS, LOG, METADATA, SNAPSHOT, file_name, offset_of
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.partition_metadata import format_metadata
from odradek.storage.log.producer_snapshots import ProducerSnapshots
from odradek.storage.log.read import Tip
from odradek.storage.log.segment import Segment
from odradek.storage.moving.segment_copy import SegmentCopy

PIECE_BYTES = 4 << 20
"""40 ms of a disk that writes 100 MB/s; enough at a time for one ten times as fast."""
CATCH_UP_BYTES = 64 << 20
"""What is copied in one call to a thread, where a round is to copy all there is."""


class FutureReplica:
    """See the module. `begin` first. One thread at a time, or the loop, except for `cut`."""

    def __init__(
        self, files: Files, log: PartitionLog, directory: Path, *, found: Path | None = None
    ) -> None:
        """`found`: the directory that a start has found, under whatever name."""
        self.log = log
        self.directory = directory
        self.current = found or directory
        """Where it is by now."""
        self.is_begun = False
        self.is_converted = found is not None and found != directory
        """Whether it is as a clean shutdown left it."""
        self._files = files
        self._copies: list[SegmentCopy] = []
        self._to_be_written = 0
        """Bytes that `advance` has not told the kernel to write yet."""
        self._completed_to = 0
        """Where the log ended when `complete` made durable what belongs to it."""
        self._epochs: tuple[EpochStart, ...] = ()
        self._snapshots: set[int] = set()
        self._truncated_to: list[int] = []
        """Where truncations have ended the log since snapshots were copied last."""

    # What there is

    @property
    def copied_bytes(self) -> int:
        return sum(copy.copied for copy in tuple(self._copies))

    @property
    def end_offset(self) -> int:
        """Where the copied part ends: all before is here, but for what retention took."""
        copies = tuple(self._copies)
        return copies[-1].end_offset if copies else self.log.local_log_start_offset

    @property
    def remaining_bytes(self) -> int:
        """What is to be copied yet, of the segments as they are now. Raises LogFailed, NoDescriptors."""
        known = {id(copy.source): copy.copied for copy in tuple(self._copies)}
        return self.log.retry_if_files_replaced(
            lambda: sum(max(0, each.size - known.get(id(each), 0)) for each in self.log.segments)
        )

    def is_nearly_caught_up(self, limit_bytes: int) -> bool:
        """Whether at most so much is left to copy, all of it to the end of the last segment."""
        copies = self._copies
        return (
            copies[-1].source is self.log.tip.segment
            and all(copy.is_finished for copy in copies[:-1])
            and self.remaining_bytes <= limit_bytes
        )

    # What a checkpoint of the destination says of it (`DirectoryLogs.incoming_logs`)

    @property
    def recovery_point(self) -> int:
        """All that the log has below this offset is durable here, and all that belongs to it."""
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
        """Make the directory, durably, or take over what is in one that is there. Raises OSError."""
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
        """`take` about `size` bytes, each piece of them written out while the next is copied."""
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
        """Follow the source, then copy about `size` bytes; how many. 0: nothing is left.

        Raises OSError of the destination, LogFailed where the source is offline.
        """
        generation = self.log.settled()
        try:
            tip = self._follow_segments()
            for number, copy in enumerate(self._copies):
                if copy.is_finished:
                    continue
                is_last = number + 1 == len(self._copies)
                next_base = None if is_last else self._copies[number + 1].base_offset
                copied = copy.copy_slice(size, tip, next_base)
                if copied:
                    return copied
                if not is_last and copy.copied == copy.source.size:
                    self._finish(copy)
            return 0
        except (SourceFailed, ValueError, FileNotFoundError):
            if self.log.failure is not None:
                raise LogFailed(f"{self.log.directory} is offline: {self.log.failure}") from None
            if self._is_source_unchanged() and generation == self.log.settled():
                raise
            return 1  # it was changed meanwhile: the next round sees how

    def _is_source_unchanged(self) -> bool:
        """Whether the source's segments are those that the copy knows."""
        now = self.log.segments
        return [copy.source for copy in self._copies] == list(now)

    def _follow_segments(self) -> Tip:
        """Make the list of copies that of the source's segments. Raises OSError."""
        segments = self.log.segments
        tip = self.log.tip
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
                # What was said of the producers there, and behind it, was of other records.
                self._snapshots = {each for each in self._snapshots if each < segment.base_offset}
            copies.append(copy)
        self._copies = copies
        return tip

    def _finish(self, copy: SegmentCopy) -> None:
        copy.finish()
        self._files.sync_directory(self.directory)

    # The end of it

    def complete(self) -> None:
        """In a thread, before the swap: all that is copied so far is durable, and all beside it.

        The source's `file_lock` is held: its segments stay, only appends and rolls go on. Order:
        data, indexes, snapshots, epochs, names; then the recovery point may move. Raises OSError.
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
        self._write_partition_metadata()  # it may have become known meanwhile
        files.sync_directory(self.directory)
        self._completed_to, self._epochs = end_offset, epochs

    def _write_partition_metadata(self) -> None:
        if self.log.topic_id is not None:
            self._files.write_new(self.directory / METADATA, format_metadata(self.log.topic_id))

    def _remove_stale_snapshots(self) -> None:
        """Those that the source has no more, or anew: a start would believe what they say of producers."""
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
        """Copy all there is: on the loop, where little is left, or in a thread, where appends go on
        meanwhile, `limit_bytes` at most. Errors as with `take`."""
        copied = 0
        while copied < limit_bytes and (more := self.copy_slice(limit_bytes)):
            copied += more

    def append(self, data: memoryview) -> None:
        """On the loop: `data` was just appended to the log. Raises OSError; the copy is a beginning of
        the log then, and can catch up again."""
        self._follow_roll()
        self._copies[-1].write(data, self.log.tip)

    def _follow_roll(self) -> None:
        active = self.log.tip.segment
        if active is not self._copies[-1].source:
            self._copies.append(SegmentCopy(self._files, self.directory, active))

    def source_truncated(self, old: Segment, new: Segment, tip: Tip) -> None:
        """In a truncation's thread."""
        for copy in tuple(self._copies):
            copy.source_truncated(old, new, tip)
        self._truncated_to.append(tip.end_offset)

    def complete_indexes(self) -> None:
        """On the loop, in the turn of the switch: the indexes of the active segment, and what rolled
        since `complete`, are brought up to date; a few entries. Raises OSError."""
        self._follow_roll()  # of an append that was refused in the end: `follow` has not heard of it
        self._copy_snapshots(sync=False)
        for copy in self._copies:
            if not copy.is_finished:
                copy.follow_indexes()
                if copy is not self._copies[-1]:
                    copy.trim()

    def log_parts(
        self, directory: Path
    ) -> tuple[list[Segment], ProducerSnapshots, tuple[EpochStart, ...], int]:
        """What the log goes on with in `directory`, which is this one's name now: segments,
        snapshots, what the epochs' file says, and the recovery point. Does not touch the disk."""
        self.directory = self.current = directory
        for copy in self._copies:
            copy.moved(directory)
        segments = [copy.in_place() for copy in self._copies]
        snapshots = ProducerSnapshots(self._files, directory, self.log.snapshots.offsets)
        return segments, snapshots, self._epochs, self.recovery_point

    def rename_moved_for_kafka(self) -> None:
        """In a thread: leave a cleanly closed log of the finished segments. Raises OSError."""
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
        """In a thread: as `rename_moved_for_kafka`, for one that a crash left and nobody has looked at yet: none of it
        is known to be right. Raises OSError."""
        for name in self._files.list(self.current):
            if name != METADATA:
                self._files.remove(self.current / name)
        self._files.sync_directory(self.current)

    def close(self) -> None:
        """Give up the handles."""
        for copy in self._copies:
            copy.close()
