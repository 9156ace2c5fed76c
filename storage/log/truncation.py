"""Truncation of a log without changing bytes that a pinned slice covers.

`File.truncate` zeroes the rest of the last page in place, and later appends reuse the removed range: a
slice pinned before would send corrupt data. So if the data file is pinned, its first part is copied to a
new file with the same name, and the pinned slices keep the old file. Otherwise the file is truncated in
place. Truncation follows a change of leader, and the copy of a large segment, which may take a second,
is rare; therefore truncation runs in a worker thread.

A failure before the first removal leaves the log unchanged; a later one takes it offline, because the
log would contain offsets of two histories.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.protocol.errors import KafkaError
from odradek.seams.files import File, Files
from odradek.seams.values import value_class
from odradek.storage.errors import CorruptRecords
from odradek.storage.log.batch_scan import headers
from odradek.storage.log.file_names import CLEANED, LOG
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.producer_replay import rebuild_producers_at
from odradek.storage.log.producer_state import ProducerEntry
from odradek.storage.log.read import LogEnd
from odradek.storage.log.roll import new_segment
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState, offline_on_failure

_CHUNK_BYTES = 1 << 20


@value_class
class EmptyLogStart:
    """Start of an empty log: its offset, and the epochs and producers of the earlier records in the
    remote tier (KIP-405) from `log_start_offset` on. `producers` None: no producer state."""

    offset: int
    log_start_offset: int
    epochs: tuple[EpochStart, ...] = ()
    producers: Sequence[ProducerEntry] | None = None

    @classmethod
    def at(cls, offset: int) -> EmptyLogStart:
        """Start at `offset`, without earlier records."""
        return cls(offset, offset)


def truncate_to(log: LogState, offset: int) -> None:
    """Truncate to `offset`, which is between the first segment and the log end.

    A batch that contains `offset` is removed completely, and the log ends after the last remaining
    batch, as the next start would find it. (Kafka would leave a gap that no leader could fill.)

    1. The recovery point is lowered to `offset`, durably, so that later appends do not count as synced.
       After a crash the log is unchanged, and the replica truncates again.
    2. Later epochs are removed, durably. After a crash recovery finds them in the batches. A full disk
       still leaves everything unchanged.
    3. The log end is lowered for readers: no new slice is past it.
    4. Later segments and snapshots are removed, the newest first. After a crash there are fewer of them.
    5. The segment that contains `offset` is truncated: indexes, then data. After a crash recovery
       rebuilds the indexes.
    6. Data and directory are synced before the next append.

    Raises OSError, DiskFull and NoDescriptors up to step 2 with nothing changed; LogFailed from step 3
    on.
    """
    now_ms = log.clock.wall_ms()
    producers = log.producers
    segments = log.segment_list.all
    number = len(segments) - 1
    while segments[number].base_offset > offset:
        number -= 1
    segment = segments[number]
    found = segment.locate(offset)
    position = segment.size if found is None else found.position
    # Not below the log start offset, which may be inside a batch.
    offset = max(_end_before(segment, position), min(offset, log.log_start_offset))
    _lower_recovery_point(log, offset)
    _forget_epochs(log, offset)
    with offline_on_failure(log):
        log.log_end = LogEnd(offset, segment, position)
        with log.replacing():
            log.high_watermark = min(log.high_watermark, offset)
            log.highest_copied_offset = min(log.highest_copied_offset, offset - 1)
            log.segment_list.replace(segments[: number + 1])
            log.set_log_start(min(log.log_start_offset, offset))
            _set_aside(log, segments[number + 1 :], now_ms)
            for snapshot_offset in log.snapshots.offsets:
                if snapshot_offset > offset:
                    log.snapshots.remove(snapshot_offset)
            if found is not None:
                whole, segment = segment, _cut(log.files, segment, offset, position, now_ms)
                log.segment_list.replace((*segments[:number], segment))
                log.log_end = LogEnd(offset, segment, position)
                if log.on_truncated is not None:
                    log.on_truncated(whole, segment, log.log_end)
        segment.sync()
        log.files.sync_directory(log.directory)
        if producers.active:
            rebuild_producers_at(log, producers, offset)
        else:
            producers.reset(offset)


def _end_before(segment: Segment, position: int) -> int:
    """Offset after the last batch before `position`; the base offset if there is none."""
    last = segment.base_offset
    try:
        start = segment.offset_index.floor_of_position(position - 1)
        for batch in headers(segment.file, start, position):
            last = batch.last_offset + 1
    except KafkaError:  # the index is corrupt
        for batch in headers(segment.file, 0, position):
            last = batch.last_offset + 1
    return last


def truncate_fully(log: LogState, beginning: EmptyLogStart) -> None:
    """Delete all records; the empty log continues from `beginning`.

    1. The recovery point is lowered to at most its offset and the old start, durably.
    2. All segments and snapshots are removed, the newest first. After a crash the log is shorter, or
       empty at the checkpointed start; the replica is out of range and repeats this.
    3. The epochs and the producer snapshot of the remote records are written, durably. After a crash the
       log ends before them, and they are removed.
    4. The new segment is created and the directory synced. After a crash a tiered log has the
       checkpointed start until it learns a better one from its leader; the caller writes the checkpoint
       after this.

    Raises OSError and NoDescriptors before step 2 with nothing changed; LogFailed from there on.
    """
    offset = beginning.offset
    now_ms = log.clock.wall_ms()
    producers = log.producers
    _lower_recovery_point(log, min(offset, log.log_start_offset))
    with offline_on_failure(log):
        with log.replacing():
            _set_aside(log, log.segment_list.all, now_ms)
            for snapshot_offset in log.snapshots.offsets:
                log.snapshots.remove(snapshot_offset)
            log.epochs.restore(beginning.epochs)
            log.epochs.save()
            if beginning.producers is not None:
                log.snapshots.put(offset, beginning.producers)
            fresh = new_segment(log, offset)
            log.segment_list.replace((fresh,))
            log.log_end = LogEnd(offset, fresh, 0)
            log.set_log_start(beginning.log_start_offset)
            log.reset_highest_copied_offset()
            log.high_watermark = offset
        log.files.sync_directory(log.directory)
        producers.reset(offset, beginning.producers or (), now_ms=now_ms)


def _forget_epochs(log: LogState, offset: int) -> None:
    before = log.epochs.entries
    try:
        log.epochs.truncate_from_end(offset)
        log.epochs.save()
    except OSError as error:
        log.epochs.restore(before)
        raise log.handle_io_error(error, files_unchanged=True) from error


def _lower_recovery_point(log: LogState, offset: int) -> None:
    """Lower the recovery point durably or not at all: a retry must find the old value, or it would
    not write the new one."""
    log.needs_clean_close = True
    before = log.cleaned_to, log.recovery_point
    if log.cleaned_to is not None:
        log.cleaned_to = min(log.cleaned_to, offset)
    if offset < log.recovery_point:
        log.recovery_point = offset
        if log.on_checkpoint_due is not None:
            try:
                log.on_checkpoint_due()
            except OSError:
                log.cleaned_to, log.recovery_point = before
                raise


def _set_aside(log: LogState, segments: Sequence[Segment], now_ms: int) -> None:
    at_ms = now_ms + log.config.file_delete_delay_ms
    for segment in reversed(segments):
        log.deletions.add(segment, log.snapshots, at_ms)


def _cut(files: Files, segment: Segment, offset: int, position: int, now_ms: int) -> Segment:
    """The remaining part of `segment` below `offset`, which is at `position`; `segment` must not be
    used afterwards."""
    file = segment.file
    if file.pins:
        part = _copy(files, segment, position)
        fresh = segment.truncated(offset, position, part, now_ms)
        files.rename(part.path, segment.path(LOG))
        part.moved(segment.path(LOG))
    else:
        fresh = segment.truncated(offset, position, file, now_ms)
        file.truncate(position)
        segment.disown_file()
    segment.close()
    return fresh


def _copy(files: Files, segment: Segment, size: int) -> File:
    path = segment.path(LOG)
    part_path = path.with_name(path.name + CLEANED)
    files.remove(part_path, missing_ok=True)
    part = files.open(part_path, create=True)
    copied = 0
    while copied < size:
        chunk = segment.file.read_at(copied, min(_CHUNK_BYTES, size - copied))
        if not chunk:
            raise CorruptRecords(f"{path} ends at position {copied}, expected {size}")
        part.append_v((chunk,))
        copied += len(chunk)
    part.sync()
    return part


def start_below_local_log(log: LogState, offset: int) -> EmptyLogStart:
    """Start of the empty log after a truncation below the local log: a tiered log keeps its epochs."""
    if not log.log_start_offset <= offset or not log.is_tiered:
        return EmptyLogStart.at(offset)
    return EmptyLogStart(offset, log.log_start_offset, log.epochs.entries_in(0, offset))
