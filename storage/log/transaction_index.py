"""Transaction index: the aborted transactions of a segment (Kafka's `.txnindex`, KIP-98).

An entry has 34 bytes: version i16 = 0, then i64 each: producer id, first offset, last offset (of the
marker), last stable offset when the entry was written. An entry is in the segment of its marker. Last
offsets increase, and last stable offsets do not decrease. The file is created by the first abort, so
most segments have none.

No checksum protects the file. Entries that this process wrote are right. Those that it read from the file
are compared with the batches of the log before their first use (transaction_index_check.py).

Entries are appended on the loop and read on any thread: the list only grows, and truncation and repair
replace it.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from operator import attrgetter

from odradek.seams.files import File, Files, Path
from odradek.seams.values import value_class
from odradek.storage.log.file_names import DELETED
from odradek.storage.log.index_file import replace_file

ENTRY = struct.Struct(">hqqqq")
VERSION = 0
UNVERIFIED = (1 << 63) - 1
"""`TransactionIndex.verified_from` of an index of which no entry was compared with the log."""

_REPAIRED = ".repaired" + DELETED

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

    __slots__ = (
        "_appended",
        "_base_offset",
        "_entries",
        "_file",
        "_files",
        "_is_replaced",
        "_lock",
        "_problem",
        "_replaced_files",
        "checking",
        "exists",
        "path",
        "verified_from",
    )

    def __init__(self, files: Files, path: Path, *, exists: bool, base_offset: int = 0) -> None:
        """`base_offset` is that of the segment: no marker is below it."""
        self._files = files
        self.path = path
        self.exists = exists
        """Whether the file exists; it may be empty."""
        self.verified_from = UNVERIFIED if exists else 0
        """Reads from this offset on find right entries: those were compared with the log, or written by this
        process."""
        self.checking = threading.Lock()
        """Held while the entries are compared with the log."""
        self._base_offset = base_offset
        self._file: File | None = None
        self._replaced_files: list[File | None] = []
        """Files before repairs, which a flush in another thread may still sync."""
        self._lock = threading.Lock()
        """Held while the file is read, appended to or replaced."""
        self._is_replaced = False
        """Whether another object uses the file, after a truncation."""
        self._entries: list[AbortedTransaction] | None = None if exists else []
        self._appended: list[AbortedTransaction] = []
        """Entries that were appended while earlier ones were unverified."""
        self._problem: str | None = None

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        """Entries of the index; without those after the first that is invalid in itself (`problem`)."""
        return tuple(self._loaded())

    @property
    def appended(self) -> Sequence[AbortedTransaction]:
        """Entries that were appended while earlier ones were unverified."""
        return tuple(self._appended)

    @property
    def problem(self) -> str | None:
        """Why the file cannot be right: incomplete entries, an unknown version, entries that are not in
        order. None if it may be."""
        self._loaded()
        return self._problem

    def _loaded(self) -> list[AbortedTransaction]:
        entries = self._entries
        if entries is None:
            with self._lock:  # a load in a reader's thread must not overwrite an append
                entries = self._entries
                if entries is None:
                    entries, self._problem = _parse(self._files.read(self.path), self._base_offset)
                    self._entries = entries
        return entries

    def append(self, aborted: AbortedTransaction) -> None:
        with self._lock:
            self._write(aborted)
            if self.verified_from > self._base_offset:
                self._appended.append(aborted)

    def _write(self, aborted: AbortedTransaction) -> None:
        if self._file is None:
            self._file = self._files.open(self.path, create=not self.exists, write=True)
            self.exists = True
        self._file.append_v((_pack(aborted),))
        if self._entries is not None:
            self._entries.append(aborted)

    def catch_up(self, other: TransactionIndex) -> None:
        """Copy the entries of `other` that this index does not have, or all if `other` was repaired."""
        theirs, mine = other.entries, self._loaded()
        self.verified_from, self._problem = other.verified_from, other._problem
        if [*theirs[: len(mine)]] != mine or (other.exists and not theirs and not self.exists):
            self._replace([*theirs], keep_empty=other.exists)
            return
        for each in theirs[len(mine) :]:
            self._write(each)

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
        fresh = TransactionIndex(
            self._files, self.path, exists=self.exists, base_offset=self._base_offset
        )
        with self._lock:
            self._is_replaced = True
            fresh._entries = kept = entries[: bisect_left(entries, offset, key=_last_offset)]
            fresh.verified_from = self.verified_from
            fresh._appended = [each for each in self._appended if each.last_offset < offset]
            fresh._problem = self._problem
            if len(kept) != len(entries):
                fresh._replace(kept, keep_empty=self._problem is not None)
        return fresh

    def reload(self, offset: int) -> None:
        """Load the index after a crash: keep complete entries below `offset`, without zeros.

        The caller appends the entries of the batches from `offset` on.
        """
        self._entries = []
        if self.exists:
            self.verified_from = offset
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
                # An empty file remains if it may have had entries below `offset`: they are searched.
                self._replace(kept, keep_empty=offset > self._base_offset)

    def repair(self, entries: Sequence[AbortedTransaction], end: int) -> None:
        """Write a file of `entries`, which have their markers below offset `end`, and of the entries that
        were appended meanwhile; it replaces the one at `path`. The index is then verified.

        The caller holds the lock against renames. Raises OSError, and ValueError if a truncation has
        replaced this object.
        """
        # Not `.cleaned`: compaction uses and removes files of that name. A start removes this one.
        fresh_path = self.path.with_name(self.path.name + _REPAIRED)
        self._files.remove(fresh_path, missing_ok=True)
        fresh = self._files.open(fresh_path, create=True)
        try:
            fresh.append_v((pack(entries),))
            fresh.sync()
            with self._lock:
                if self._is_replaced:
                    raise ValueError(f"{self.path} was truncated")
                later = [
                    each
                    for each in self._appended
                    if each.last_offset >= end and each not in entries
                ]
                if later:
                    fresh.append_v((pack(later),))
                    fresh.sync()
                self._files.rename(fresh_path, self.path)
                fresh.moved(self.path)
                self._replaced_files.append(self._file)
                self._file, self.exists = fresh, True
                self._entries = [*entries, *later]
                self._set_verified(self._base_offset)
        except BaseException:
            fresh.close()
            self._files.remove(fresh_path, missing_ok=True)
            raise

    def set_verified(self, start: int) -> None:
        """All entries that a read from offset `start` on uses are right."""
        with self._lock:
            self._set_verified(start)

    def _set_verified(self, start: int) -> None:
        self.verified_from, self._problem = start, None
        if start <= self._base_offset:
            self._appended = []

    def _replace(self, entries: list[AbortedTransaction], *, keep_empty: bool = False) -> None:
        """Atomically replace the file, or remove it if there are no entries."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if entries or keep_empty:
            self._file = replace_file(self._files, self.path, [_pack(each) for each in entries])
        else:
            self._files.remove(self.path, missing_ok=True)
        self._entries = entries
        self.exists = self._file is not None

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
        for file in (self._file, *self._replaced_files):
            if file is not None:
                file.close()
        self._file = None
        self._replaced_files.clear()


def pack(entries: Sequence[AbortedTransaction]) -> bytes:
    """Content of the file with these entries."""
    return b"".join(_pack(each) for each in entries)


def _pack(aborted: AbortedTransaction) -> bytes:
    return ENTRY.pack(
        VERSION,
        aborted.producer_id,
        aborted.first_offset,
        aborted.last_offset,
        aborted.last_stable_offset,
    )


def _parse(data: bytes, base_offset: int) -> tuple[list[AbortedTransaction], str | None]:
    """Entries up to the first invalid one, and what is wrong with that."""
    entries: list[AbortedTransaction] = []
    least, stable = base_offset, 0
    whole = len(data) // ENTRY.size * ENTRY.size
    for version, *fields in ENTRY.iter_unpack(memoryview(data)[:whole]):
        if version != VERSION:
            return entries, f"its transaction index has an entry with unknown version {version}"
        each = AbortedTransaction(*fields)
        if not (
            each.producer_id >= 0
            and 0 <= each.first_offset < each.last_offset
            and least <= each.last_offset
            and stable <= each.last_stable_offset <= each.last_offset + 1
        ):
            return entries, f"its transaction index has an invalid entry: {describe(each)}"
        entries.append(each)
        least, stable = each.last_offset + 1, each.last_stable_offset
    if whole != len(data):
        return entries, (
            f"its transaction index has {len(data)} bytes, which is not a multiple of {ENTRY.size}"
        )
    return entries, None


def describe(each: AbortedTransaction) -> str:
    """The entry in the words of log lines."""
    return (
        f"producer {each.producer_id}, offsets {each.first_offset} to {each.last_offset}, "
        f"last stable offset {each.last_stable_offset}"
    )
