"""Loading of a log from its directory: incomplete file operations are finished or undone, then it is
opened or recovered.

A cleanly closed log is opened from its directory listing, two small files, and the end of its last
segment; the rest is loaded on demand. A log that was not closed cleanly is recovered (recovery.py), and
so is a tiered log whose epochs are lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from odradek.protocol.errors import KafkaError
from odradek.seams.files import Files, Path
from odradek.seams.values import state_class, value_class
from odradek.storage.errors import DamagedLog
from odradek.storage.log.file_names import (
    CLEANED,
    DELETED,
    INDEX_FILES,
    LOG,
    RAFT_SNAPSHOT_DELETED,
    SEGMENT_FILES,
    SNAPSHOT,
    SWAP,
    TRANSACTION_INDEX,
    file_name,
    offset_of,
)
from odradek.storage.log.leader_epoch_cache import CorruptEpochs, LeaderEpochCache
from odradek.storage.log.producer_snapshots import ProducerSnapshots
from odradek.storage.log.producer_state import ProducerStates
from odradek.storage.log.recovery import LogRecovery
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState

_logger = logging.getLogger("odradek.log")


def complete_interrupted_operations(files: Files, directory: Path) -> list[str]:
    """Finish or undo interrupted file operations; the remaining file names. Raises OSError."""
    names = files.list(directory)
    kept = _complete_or_undo(files, directory, names)
    if kept != names:
        files.sync_directory(directory)
    return kept


def _complete_or_undo(files: Files, directory: Path, names: list[str]) -> list[str]:
    to_delete = [
        name
        for name in names
        if name.endswith(DELETED) and not name.endswith(RAFT_SNAPSHOT_DELETED)
    ]
    cleaned = [name for name in names if name.endswith(CLEANED) and offset_of(name) is not None]
    swaps = [name for name in names if name.endswith(SWAP) and offset_of(name) is not None]
    first_cleaned = min((offset_of(name) or 0 for name in cleaned), default=None)
    if first_cleaned is not None:
        unfinished = [name for name in swaps if (offset_of(name) or 0) >= first_cleaned]
        # Removed before the `.cleaned` files: without those the next start would consider them complete.
        _remove(files, directory, unfinished)
        to_delete += unfinished
        swaps = [name for name in swaps if name not in unfinished]
    _remove(files, directory, [name for name in to_delete + cleaned if name not in swaps])
    kept = [name for name in names if name not in {*to_delete, *cleaned}]
    if swaps:
        kept = _complete_swaps(files, directory, kept, swaps)
    logs = {name.removesuffix(LOG) for name in kept if name.endswith(LOG)}
    orphans = [
        name for name in kept if name.endswith(INDEX_FILES) and name.partition(".")[0] not in logs
    ]
    _remove(files, directory, orphans)
    return [name for name in kept if name not in set(orphans)]


def _complete_swaps(files: Files, directory: Path, names: list[str], swaps: list[str]) -> list[str]:
    """Remove the segments that complete `.swap` segments replace, and rename these."""
    # A segment without records replaces only the segment at its own offset.
    replaced = [
        range(offset, max(_next_offset(files, directory, offset), offset + 1))
        for name in swaps
        if name.endswith(LOG + SWAP) and (offset := offset_of(name)) is not None
    ]
    covered = [
        name
        for name in names
        if name.endswith(SEGMENT_FILES) and any((offset_of(name) or 0) in each for each in replaced)
    ]
    # The data first: an index without its data is removed at the next start.
    _remove(files, directory, sorted(covered, key=lambda name: not name.endswith(LOG)))
    kept = [name for name in names if name not in {*covered, *swaps}]
    for name in sorted(swaps, key=lambda name: (offset_of(name), not name.endswith(LOG + SWAP))):
        final = name.removesuffix(SWAP)
        files.rename(directory / name, directory / final)
        kept.append(final)
    return sorted(set(kept))


def _next_offset(files: Files, directory: Path, offset: int) -> int:
    segment = Segment(
        files, directory, offset, index_interval_bytes=1 << 31, created_ms=0, suffix=SWAP
    )
    try:
        # From the data only: its index may have been renamed already.
        return segment.next_offset(indexed=False)
    except KafkaError:
        return offset
    finally:
        segment.close()


def _remove(files: Files, directory: Path, names: list[str]) -> None:
    for name in names:
        files.remove(directory / name, missing_ok=True)


@state_class
class LoadedLog:
    """Parts of a loaded log. `producers` is None if they are loaded on demand."""

    segments: list[Segment]
    epochs: LeaderEpochCache
    snapshots: ProducerSnapshots
    producers: ProducerStates | None
    log_start_offset: int
    end_offset: int
    recovery_point: int
    last_accepted_gap_end: int


@value_class
class RecoveryOptions:
    """Offsets of a log from the checkpoints of its directory, and how it was closed."""

    clean: bool
    """Whether the directory was shut down cleanly: then nothing is scanned."""
    recovery_point: int = 0
    """Log recovery scans everything from this offset on."""
    log_start_offset: int = 0
    accepted_gaps_end: int = 0
    """Gaps between segments below this offset, or below the recovery point, are not treated as losses."""
    required_end_offset: int = 0
    """Below this offset log recovery truncates nothing: it raises DamagedLog."""


class LogLoader:
    """Loads the segments, the epochs and the producer state of one log directory entry."""

    def __init__(
        self, log: LogState, new_segment: Callable[[int], Segment], options: RecoveryOptions
    ) -> None:
        self.files = log.files
        self.directory = log.directory
        self.config = log.config
        self.now_ms = log.clock.wall_ms()
        self.options = options
        self._log = log
        self._new_segment = new_segment

    def load(self) -> LoadedLog:
        """Load a cleanly closed log, or recover one. Raises OSError, DamagedLog."""
        options = self.options
        clean, recovery_point = options.clean, options.recovery_point
        log_start_offset = options.log_start_offset
        names = complete_interrupted_operations(self.files, self.directory)
        segments = self._find_segments(names)
        # The recovery point of the checkpoint, also if the scan below starts at 0.
        accepted_gaps_end = max(options.accepted_gaps_end, recovery_point)
        last_accepted_gap_end = 0
        snapshots = ProducerSnapshots(
            self.files,
            self.directory,
            (offset_of(name) or 0 for name in names if _is_of_offset(name, SNAPSHOT)),
        )
        epochs = self._load_epochs()
        producers: ProducerStates | None = None
        end: int | None = log_start_offset
        if segments:
            if not self._log.is_tiered:
                log_start_offset = max(log_start_offset, segments[0].base_offset)
            elif not epochs.entries:
                # Needed to read the remote tier: rebuild them from all local batches
                clean, recovery_point = False, 0
            end = self._clean_end(segments[-1]) if clean else None
            if end is None:
                segments = self._find_segments(names)
                producers = self._log.new_producers()
                recovery = LogRecovery(
                    self.files,
                    segments,
                    recovery_point,
                    log_start_offset,
                    self.now_ms,
                    accepted_gaps_end,
                    options.required_end_offset,
                    epochs,
                    producers,
                    snapshots,
                )
                end = recovery.run()
                last_accepted_gap_end = recovery.last_accepted_gap_end
            else:
                recovery_point = end
                snapshots.keep_only(segment.base_offset for segment in segments)
        assert end is not None
        if end < options.required_end_offset:
            raise DamagedLog(
                end,
                options.required_end_offset,
                f"the log end offset of {self.directory} is below the required offset",
            )
        if segments and end < log_start_offset:
            self._drop_all(segments, snapshots)
            producers = None
            end = log_start_offset
        if not segments:
            segments.append(self._new_segment(end))
        epochs.truncate_from_end(end)
        epochs.truncate_from_start(log_start_offset)
        recovery_point = min(recovery_point, end)
        return LoadedLog(
            segments,
            epochs,
            snapshots,
            producers,
            log_start_offset,
            end,
            recovery_point,
            last_accepted_gap_end,
        )

    def _clean_end(self, last: Segment) -> int | None:
        """Log end offset of a cleanly closed log; None if it was not closed cleanly."""
        try:
            return last.next_offset()
        except KafkaError as error:
            _logger.warning("%s was not closed cleanly: %s", last, error)
            last.close()
            return None

    def _find_segments(self, names: list[str]) -> list[Segment]:
        present = set(names)
        return [
            Segment(
                self.files,
                self.directory,
                offset,
                index_interval_bytes=self.config.index_interval_bytes,
                created_ms=self.now_ms,
                has_transaction_index=file_name(offset, TRANSACTION_INDEX) in present,
            )
            for name in names
            if _is_of_offset(name, LOG) and (offset := offset_of(name)) is not None
        ]

    def _end_offset(self) -> int:
        return self._log.log_end.end_offset

    def _load_epochs(self) -> LeaderEpochCache:
        try:
            return LeaderEpochCache.load(self.files, self.directory, self._end_offset)
        except CorruptEpochs as error:
            # Written by another program, because this file is replaced atomically. Recovery finds later epochs.
            _logger.warning(
                "ignoring corrupt leader epoch checkpoint in %s: %s", self.directory, error
            )
            return LeaderEpochCache(self.files, self.directory, self._end_offset)

    def _drop_all(self, segments: list[Segment], snapshots: ProducerSnapshots) -> None:
        """Delete the files of a log that ends before its start."""
        while segments:
            segments.pop().remove()
        for offset in snapshots.offsets:
            snapshots.remove(offset)


def _is_of_offset(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and len(name) == 20 + len(suffix)
