"""Transaction index: the aborted transactions of a segment (Kafka's `.txnindex`, KIP-98).

An entry has 34 bytes: version i16 = 0, then i64 each: producer id, first offset, last offset (of the
marker), last stable offset when the entry was written. An entry is in the segment of its marker. Last
offsets increase, and last stable offsets do not decrease. The file is created by the first abort, so
most segments have none.

Entries are appended on the loop and read on any thread: the list only grows, and truncation replaces it.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left
from contextlib import closing
from operator import attrgetter

from odradek.seams.files import File, Files, Path
from odradek.seams.values import value_class
from odradek.storage.errors import CorruptRecords
from odradek.storage.log.index_file import replace_file

ENTRY = struct.Struct(">hqqqq")
VERSION = 0

_last_offset = attrgetter("last_offset")


@value_class
class AbortedTransaction:
    """An entry of the index. Offsets are inclusive, except `last_stable_offset`, which is exclusive."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Transaction index of one segment; its file is read at first use."""

    __slots__ = ("_entries", "_file", "_files", "_loading", "exists", "path")

    def __init__(self, files: Files, path: Path, *, exists: bool) -> None:
        self._files = files
        self.path = path
        self.exists = exists
        """Whether the file exists; it may be empty."""
        self._file: File | None = None
        self._loading = threading.Lock()
        self._entries: list[AbortedTransaction] | None = None if exists else []

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        """Entries of the index. Raises CorruptRecords for incomplete entries or an unknown version."""
        return tuple(self._loaded())

    def _loaded(self) -> list[AbortedTransaction]:
        if self._entries is None:
            with self._loading:  # a load in a reader's thread must not overwrite an append
                if self._entries is None:
                    self._entries = _parse(self._files.read(self.path), self.path)
        return self._entries

    def append(self, aborted: AbortedTransaction) -> None:
        entries = self._loaded()
        if self._file is None:
            self._file = self._files.open(self.path, create=not self.exists, write=True)
            self.exists = True
        self._file.append_v((_pack(aborted),))
        entries.append(aborted)

    def catch_up(self, other: TransactionIndex) -> None:
        """Add the entries that `other` has in addition; this index is a prefix of it."""
        for each in other.entries[len(self._loaded()) :]:
            self.append(each)

    def collect(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Entries that overlap [start, end), and whether later segments cannot have more of them."""
        entries, found = self._loaded(), []
        for position in range(bisect_left(entries, start, key=_last_offset), len(entries)):
            each = entries[position]
            if each.first_offset < end:
                found.append(each)
            if each.last_stable_offset >= end:
                return found, True
        return found, False

    def truncated(self, offset: int) -> TransactionIndex:
        """A new index of the transactions whose marker is below `offset`; its file replaces this one."""
        entries = self._loaded()
        fresh = TransactionIndex(self._files, self.path, exists=self.exists)
        fresh._entries = kept = entries[: bisect_left(entries, offset, key=_last_offset)]
        if len(kept) != len(entries):
            fresh._replace(kept)
        return fresh

    def reload(self, offset: int) -> None:
        """Load the index after a crash: keep complete entries below `offset`, without zeros."""
        self._entries = []
        if self.exists:
            data = self._files.read(self.path)
            whole = memoryview(data)[: len(data) // ENTRY.size * ENTRY.size]
            kept: list[AbortedTransaction] = []
            for version, *fields in ENTRY.iter_unpack(whole):
                each = AbortedTransaction(*fields)
                least = kept[-1].last_offset if kept else -1
                if version != VERSION or not (
                    each.first_offset < each.last_offset and least < each.last_offset < offset
                ):
                    break
                kept.append(each)
            self._entries = kept
            if len(kept) * ENTRY.size != len(data):
                self._replace(kept)

    def _replace(self, entries: list[AbortedTransaction]) -> None:
        """Atomically replace the file, or remove it if there are no entries."""
        self.close()
        if entries:
            self._file = replace_file(self._files, self.path, [_pack(each) for each in entries])
        else:
            self._files.remove(self.path, missing_ok=True)
        self._entries = entries
        self.exists = bool(entries)

    def sync(self) -> None:
        """Sync the file, including writes before it was closed. Raises OSError, and ValueError if it
        is closed meanwhile."""
        file = self._file  # which may be closed from another thread meanwhile: that is ValueError
        if file is not None:
            file.sync()
        elif self.exists:
            with closing(self._files.open(self.path, write=True)) as file:
                file.sync()

    def moved(self, path: Path) -> None:
        self.path = path
        if self._file is not None:
            self._file.moved(path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _pack(aborted: AbortedTransaction) -> bytes:
    return ENTRY.pack(
        VERSION,
        aborted.producer_id,
        aborted.first_offset,
        aborted.last_offset,
        aborted.last_stable_offset,
    )


def _parse(data: bytes, path: Path) -> list[AbortedTransaction]:
    if len(data) % ENTRY.size:
        raise CorruptRecords(
            f"transaction index {path} has {len(data)} bytes, which is not a multiple of its entry size"
        )
    entries = []
    for version, *fields in ENTRY.iter_unpack(data):
        if version != VERSION:
            raise CorruptRecords(
                f"unexpected aborted transaction version {version} in transaction index {path}"
            )
        entries.append(AbortedTransaction(*fields))
    return entries
