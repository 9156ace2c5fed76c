"""Snapshots of a log's producer state (Kafka's `.snapshot` files).

The file name is the offset (exclusive) up to which the snapshot is valid. Format: version i16 = 1,
CRC-32C u32 of everything from byte 6 on, count i32, then 46 bytes per producer with its last batch only.
There is one for each of the latest segments, at its base offset, taken when the segment was created, and
one at the log end after a clean shutdown.

A snapshot is written without a sync (`flush` does that in a worker thread): one that is incomplete after
a crash has an invalid CRC, is removed, and an older one is used.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from contextlib import closing
from struct import Struct

from odradek.protocol.records.crc32c import crc32c
from odradek.seams.files import File, Files, Path
from odradek.storage.log.file_names import DELETED, SNAPSHOT, file_name
from odradek.storage.log.producer_state import BatchMetadata, ProducerEntry, ProducerStates

VERSION = 1
_HEADER = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")
_CRC_START = 6

_logger = logging.getLogger("odradek.log")


class CorruptSnapshot(Exception):
    """A snapshot file is truncated, has an invalid CRC, or an unknown version."""


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    body = bytearray()
    count = 0
    for entry in entries:
        last = entry.batches[-1] if entry.batches else BatchMetadata(-1, -1, 0, -1)
        body += _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_start,
        )
        count += 1
    data = bytearray(_HEADER.pack(VERSION, 0, count) + body)
    _HEADER.pack_into(data, 0, VERSION, crc32c(memoryview(data)[_CRC_START:]), count)
    return bytes(data)


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Producers in a snapshot file. Raises CorruptSnapshot."""
    if len(data) < _HEADER.size:
        raise CorruptSnapshot(f"snapshot is truncated: {len(data)} bytes")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshot(f"snapshot contained an unknown file version {version}")
    if crc32c(memoryview(data)[_CRC_START:]) != crc:
        raise CorruptSnapshot("snapshot is corrupt (CRC is no longer valid)")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"snapshot of {count} producers has {len(data)} bytes")
    return [_entry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :])]


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    transaction_start: int,
) -> ProducerEntry:
    batches = (
        [BatchMetadata(last_sequence, last_offset, offset_delta, timestamp)]
        if last_offset >= 0
        else []
    )
    return ProducerEntry(
        producer_id, epoch, coordinator_epoch, timestamp, max(transaction_start, -1), batches
    )


class ProducerSnapshots:
    """Snapshot files of one log, by offset."""

    def __init__(self, files: Files, directory: Path, offsets: Iterable[int]) -> None:
        self._files = files
        self.directory = directory
        self._offsets = sorted(offsets)
        self._unsynced: dict[int, File] = {}

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(self._offsets)

    @property
    def latest(self) -> int | None:
        return self._offsets[-1] if self._offsets else None

    def path(self, offset: int) -> Path:
        return self.directory / file_name(offset, SNAPSHOT)

    def take(self, states: ProducerStates) -> None:
        """Write a snapshot at `states.map_end_offset`, unless it exists or the offset is 0. Raises OSError."""
        offset = states.map_end_offset
        if not offset:
            return
        slot = bisect_left(self._offsets, offset)
        if slot < len(self._offsets) and self._offsets[slot] == offset:
            return
        path = self.path(offset)
        self._files.remove(path, missing_ok=True)
        file = self._files.open(path, create=True)
        try:
            file.append_v((encode_snapshot(states.active.values()),))
        except OSError:
            file.close()
            self._files.remove(path, missing_ok=True)
            raise
        self._unsynced[offset] = file
        insort(self._offsets, offset)

    def put(self, offset: int, entries: Iterable[ProducerEntry]) -> None:
        """Write a snapshot that was read from the remote tier, durably. Raises OSError."""
        self.remove(offset)
        with closing(self._files.open(self.path(offset), create=True)) as file:
            file.append_v((encode_snapshot(entries),))
            file.sync()
        insort(self._offsets, offset)

    def load(self, states: ProducerStates, *, up_to: int, start: int, now_ms: int) -> None:
        """Set `states` to the latest valid snapshot at or below `up_to`, or to an empty state at `start`.

        Snapshots past `up_to`, at or below the log start offset `start`, and corrupt ones are removed.
        """
        for offset in (*self._offsets[bisect_right(self._offsets, up_to) :],):
            self.remove(offset)
        for offset in (*self._offsets[: bisect_right(self._offsets, start)],):
            # A snapshot at the log start offset has only producers without batches in the log.
            self.remove(offset)
        while self._offsets:
            offset = self._offsets[-1]
            try:
                entries = decode_snapshot(self._files.read(self.path(offset)))
            except CorruptSnapshot as reason:
                _logger.warning(
                    "failed to load producer snapshot from %s: %s", self.path(offset), reason
                )
                self.remove(offset)
            else:
                states.reset(offset, entries, now_ms=now_ms)
                return
        states.reset(start)

    def read(self, offset: int) -> tuple[bytes, list[ProducerEntry]] | None:
        """Content of the snapshot at `offset`, encoded and decoded; None if it is missing or corrupt. From
        any thread. Raises OSError."""
        try:
            data = self._files.read(self.path(offset))
            return data, decode_snapshot(data)
        except FileNotFoundError:
            return None
        except CorruptSnapshot as reason:
            _logger.warning(
                "failed to load producer snapshot from %s: %s", self.path(offset), reason
            )
            return None

    def keep_only(self, base_offsets: Iterable[int]) -> None:
        """Remove snapshots that are not at a base offset, except the latest if it is past all of them."""
        bases = set(base_offsets)
        last = max(bases, default=-1)
        for offset in tuple(self._offsets):
            if offset not in bases and not (offset == self._offsets[-1] and offset > last):
                self.remove(offset)

    def sync(self) -> None:
        """Sync the snapshots that are not durable yet. Raises OSError."""
        for offset, file in tuple(self._unsynced.items()):
            try:
                file.sync()
            except (FileNotFoundError, ValueError):
                if offset in self._unsynced:
                    raise
                continue  # removed meanwhile
            file.close()
            self._unsynced.pop(offset, None)

    def remove(self, offset: int) -> None:
        self._forget(offset)
        self._files.remove(self.path(offset), missing_ok=True)

    def rename_to_deleted(self, offset: int) -> Path | None:
        """Rename the snapshot at `offset` to `.deleted`, and return its new path; None if there is none.
        Raises OSError with nothing changed."""
        slot = bisect_left(self._offsets, offset)
        if slot == len(self._offsets) or self._offsets[slot] != offset:
            return None
        self._forget(offset)
        path = self.path(offset)
        aside = path.with_name(path.name + DELETED)
        try:
            self._files.rename(path, aside)
        except OSError:
            insort(self._offsets, offset)
            raise
        return aside

    def undo_rename_to_deleted(self, offset: int, aside: Path) -> None:
        """Undo `rename_to_deleted`. Raises OSError (EIO): the directory goes offline, because no log has the
        file any more."""
        try:
            self._files.rename(aside, self.path(offset))
        except OSError as error:
            raise OSError(
                errno.EIO, f"the rename could not be undone ({error})", str(aside)
            ) from error
        insort(self._offsets, offset)

    def _forget(self, offset: int) -> None:
        slot = bisect_left(self._offsets, offset)
        if slot < len(self._offsets) and self._offsets[slot] == offset:
            del self._offsets[slot]
        file = self._unsynced.pop(offset, None)
        if file is not None:
            file.close()

    def move_to(self, directory: Path) -> None:
        self.directory = directory
        for offset, file in self._unsynced.items():
            file.moved(self.path(offset))

    def close(self) -> None:
        for file in self._unsynced.values():
            file.close()
        self._unsynced.clear()
