"""Verification of files with `odradek dump --verify`.

| file | verified |
|---|---|
| segment | batches are complete, CRCs match, offsets increase from the base offset, leader epochs do not decrease; with --deep every record is decoded |
| segments of a partition | each starts after the last offset of the previous one |
| offset index | entries increase, and each has the last offset of a batch and the batch's position |
| time index | entries increase, and each has the last offset of a batch and the largest timestamp up to it |
| transaction index | entries increase, and each ends with the abort marker of its producer |
| leader epochs | entries increase and match the batches of the log |
| metadata snapshot | as a segment; starts with a header and ends with a footer |
| other files | checksums, counts and versions are valid |

Preallocated zeros at the end of an active segment's indexes are valid. The layout of a segment is cached for the
verification of its indexes, so that each segment is read once.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing

from odradek.cli import dump_indexes_and_checkpoints, dump_segments
from odradek.cli.dump_files import DumpFile, FileKind
from odradek.cli.dump_output import FileProblem
from odradek.protocol.errors import CorruptBatch, KafkaError
from odradek.protocol.records.batch import Batch
from odradek.protocol.records.control import ControlType, control_type
from odradek.protocol.records.records import decode
from odradek.seams.files import Files, Path
from odradek.storage.log import file_names as names
from odradek.storage.log.leader_epoch_cache import CorruptEpochs, EpochStart, parse_checkpoint

Problems = Iterator[FileProblem]
INT32_MAX = 2**31 - 1


class SegmentLayout:
    """Positions, offsets, timestamps and epochs of a segment's batches, one array entry per batch."""

    def __init__(self) -> None:
        self.positions = array("q")
        self.base_offsets = array("q")
        self.last_offsets = array("q")
        self.max_timestamps = array("q")
        self.epochs = array("q")
        self.aborts: dict[int, int] = {}
        """Producer ids of abort markers, by the last offset of their batch."""

    def add(self, batch: Batch) -> None:
        self.positions.append(batch.position)
        self.base_offsets.append(batch.base_offset)
        self.last_offsets.append(batch.last_offset)
        self.max_timestamps.append(batch.max_timestamp)
        self.epochs.append(batch.leader_epoch)

    def at_position(self, position: int) -> int | None:
        slot = bisect_left(self.positions, position)
        return slot if slot < len(self.positions) and self.positions[slot] == position else None

    def ending_at(self, offset: int) -> int | None:
        slot = bisect_left(self.last_offsets, offset)
        found = slot < len(self.last_offsets) and self.last_offsets[slot] == offset
        return slot if found else None


class FileVerifier:
    """Verifies files, and caches the segments of the current directory for their indexes."""

    def __init__(self, files: Files, *, deep: bool) -> None:
        self._files = files
        self._deep = deep
        self._layouts: dict[Path, tuple[SegmentLayout, list[FileProblem]]] = {}
        self._directory = Path()
        self._before: tuple[Path, int] | None = None
        self.entries = 0
        """Number of entries of the last file."""

    def verify(self, found: DumpFile) -> Problems:
        """Yield the problems of a file. Raises OSError if it cannot be read."""
        if found.path.parent != self._directory:
            self._directory = found.path.parent
            self._layouts.clear()
            self._before = None
        self.entries = 0
        match found.kind:
            case FileKind.SEGMENT:
                yield from self._segment(found)
            case FileKind.RAFT_SNAPSHOT:
                yield from self._raft_snapshot(found)
            case _:
                yield from self._small(found)

    # Segments

    def _layout(self, path: Path, base_offset: int) -> tuple[SegmentLayout, list[FileProblem]]:
        known = self._layouts.get(path)
        if known is None:
            layout = SegmentLayout()
            known = self._layouts[path] = (layout, list(self._scan(path, base_offset, layout)))
        return known

    def _scan(self, path: Path, base_offset: int, layout: SegmentLayout) -> Problems:
        with closing(self._files.open(path)) as file:
            previous: Batch | None = None
            for batch in dump_segments.batches(file, file.size):
                if isinstance(batch, FileProblem):
                    yield batch
                    return
                yield from self._batch(batch, base_offset, previous)
                layout.add(batch)
                if batch.is_control and batch.is_transactional:
                    self._note_marker(batch, layout)
                previous = batch

    def _batch(self, batch: Batch, base_offset: int, previous: Batch | None) -> Problems:
        at = batch.position
        min_offset = base_offset if previous is None else previous.last_offset + 1
        if batch.base_offset < min_offset:
            before = "the segment starts at" if previous is None else "the previous one ends at"
            number = base_offset if previous is None else min_offset - 1
            yield FileProblem(f"batch at offset {batch.base_offset}, but {before} {number}", at)
        if batch.last_offset < batch.base_offset:
            yield FileProblem(
                f"batch at offset {batch.base_offset} ends at {batch.last_offset}", at
            )
        if batch.last_offset - base_offset > INT32_MAX:
            yield FileProblem(
                f"offset {batch.last_offset} is more than 2^31-1 after the base offset", at
            )
        if previous is not None and -1 < batch.leader_epoch < previous.leader_epoch:
            yield FileProblem(
                f"leader epoch {batch.leader_epoch} after {previous.leader_epoch}", at
            )
        try:
            batch.check()
            if self._deep:
                decode(batch)
        except (CorruptBatch, ValueError) as error:
            yield FileProblem(getattr(error, "message", "") or str(error), at)

    def _note_marker(self, batch: Batch, layout: SegmentLayout) -> None:
        try:
            records = decode(batch)
            if records and control_type(records[0].key) is ControlType.ABORT:
                layout.aborts[batch.last_offset] = batch.producer_id
        except (KafkaError, ValueError):
            return  # a problem of the batch, which is already reported

    def _segment(self, found: DumpFile) -> Problems:
        layout, problems = self._layout(found.path, found.offset)
        self.entries = len(layout.positions)
        yield from problems
        if found.path.suffix != names.LOG:
            return  # a temporary file, which may overlap with other segments
        if self._before is not None and layout.base_offsets:
            path, last = self._before
            if layout.base_offsets[0] <= last:
                yield FileProblem(
                    f"starts at offset {layout.base_offsets[0]}, but {path.name} ends at {last}"
                )
        if layout.last_offsets:
            self._before = (found.path, layout.last_offsets[-1])

    def _raft_snapshot(self, found: DumpFile) -> Problems:
        layout, problems = self._layout(found.path, 0)
        self.entries = len(layout.positions)
        yield from problems
        if problems:
            return
        ends = [(0, ControlType.SNAPSHOT_HEADER), (-1, ControlType.SNAPSHOT_FOOTER)]
        if found.path.name.startswith("bootstrap"):
            ends = []  # older versions of `kafka-storage format` write neither
        for at, wanted in ends:
            if not layout.positions or self._control(found.path, layout.positions[at]) != wanted:
                yield FileProblem(f"{wanted.name} is missing: the snapshot is incomplete")

    def _control(self, path: Path, position: int) -> ControlType | None:
        file = self._files.open(path)
        try:
            header = Batch(memoryview(file.read_at(position, 61)))
            batch = Batch(memoryview(file.read_at(position, header.size)))
            records = decode(batch) if batch.is_control else []
            return control_type(records[0].key) if records else None
        except (KafkaError, ValueError):
            return None
        finally:
            file.close()

    # Other files

    def _small(self, found: DumpFile) -> Problems:
        data = self._files.read(found.path)
        for item in dump_indexes_and_checkpoints.rows(found, data):
            if isinstance(item, FileProblem):
                yield item
            else:
                self.entries += 1
        segment = self._indexed_segment(found)
        match found.kind:
            case FileKind.OFFSET_INDEX:
                yield from _offset_index(found, data, segment)
            case FileKind.TIME_INDEX:
                yield from _time_index(found, data, segment)
            case FileKind.TRANSACTION_INDEX:
                yield from _transaction_index(data, segment)
            case FileKind.EPOCHS:
                yield from self._epochs(found, data)

    def _indexed_segment(self, found: DumpFile) -> SegmentLayout | None:
        """SegmentLayout of the segment of an index; None for other files and missing segments."""
        if found.path.suffix not in names.INDEX_FILES:
            return None
        path = found.same_segment_file(names.LOG)
        if not self._files.exists(path):
            return None
        return self._layout(path, found.offset)[0]

    def _epochs(self, found: DumpFile, data: bytes) -> Problems:
        try:
            entries = parse_checkpoint(data)
        except CorruptEpochs:
            return  # already reported
        for before, after in itertools.pairwise(entries):
            if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
                yield FileProblem(f"{_epoch(after)} after {_epoch(before)}")
                return
        for name in self._files.list(found.path.parent):
            offset = names.offset_of(name)
            if offset is not None and name.endswith(names.LOG):
                layout, _ = self._layout(found.path.parent / name, offset)
                yield from _epochs_of(entries, layout)


def _epoch(entry: EpochStart) -> str:
    return f"epoch {entry.epoch} from offset {entry.start_offset}"


def _epochs_of(entries: list[EpochStart], layout: SegmentLayout) -> Problems:
    """Compare epochs with the batches, except later epochs, which log recovery adds to the file."""
    latest = entries[-1].epoch if entries else -1
    slot = -1
    for offset, epoch in zip(layout.base_offsets, layout.epochs, strict=True):
        while slot + 1 < len(entries) and entries[slot + 1].start_offset <= offset:
            slot += 1
        cached_epoch = entries[slot].epoch if slot >= 0 else None
        if epoch > latest or epoch < 0 or cached_epoch in (None, epoch):
            continue
        yield FileProblem(
            f"offset {offset} has epoch {epoch} in the log, but epoch {cached_epoch} in this file"
        )
        return


def _offset_index(found: DumpFile, data: bytes, segment: SegmentLayout | None) -> Problems:
    previous = (found.offset - 1, -1)
    for offset, position in dump_indexes_and_checkpoints.offset_entries(found.offset, data):
        if offset <= previous[0] or position <= previous[1]:
            yield FileProblem(
                f"offset {offset} at {position} after offset {previous[0]} at {previous[1]}"
            )
            return
        previous = (offset, position)
        if segment is None:
            continue
        slot = segment.at_position(position)
        if slot is None:
            yield FileProblem(f"offset {offset}: no batch starts at position {position} of the log")
        elif segment.last_offsets[slot] != offset:
            yield FileProblem(
                f"offset {offset}: the batch at position {position} of the log ends at offset "
                f"{segment.last_offsets[slot]}"
            )


def _time_index(found: DumpFile, data: bytes, segment: SegmentLayout | None) -> Problems:
    previous = (-1, found.offset - 1)
    highest = -1
    checked = 0
    for timestamp, offset in dump_indexes_and_checkpoints.time_entries(found.offset, data):
        if timestamp <= previous[0] or offset <= previous[1]:
            yield FileProblem(
                f"timestamp {timestamp} of offset {offset} after timestamp {previous[0]} of offset "
                f"{previous[1]}"
            )
            return
        previous = (timestamp, offset)
        if segment is None:
            continue
        slot = segment.ending_at(offset)
        if slot is None:
            yield FileProblem(f"timestamp {timestamp}: no batch of the log ends at offset {offset}")
            continue
        while checked <= slot:
            highest = max(highest, segment.max_timestamps[checked])
            checked += 1
        if highest != timestamp:
            yield FileProblem(
                f"timestamp {timestamp}: the largest in the log up to offset {offset} is {highest}"
            )


def _transaction_index(data: bytes, segment: SegmentLayout | None) -> Problems:
    previous = -1
    for version, producer_id, first, last, _ in dump_indexes_and_checkpoints.aborted_entries(data):
        if version != 0:
            yield FileProblem(f"unknown version {version} of an entry")
            return
        if not first <= last or last <= previous:
            yield FileProblem(
                f"aborted transaction {first}..{last} after one that ends at {previous}"
            )
        previous = last
        if segment is not None and segment.aborts.get(last) != producer_id:
            yield FileProblem(
                f"aborted transaction {first}..{last} of producer {producer_id}: the log has no "
                f"abort marker of this producer at offset {last}"
            )
