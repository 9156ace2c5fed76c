"""Indexes of remote segments, kept on a disk so that a read need not fetch them again (T-10).

The directory `remote-log-index-cache` lies in a log directory; a file is named
`<start offset>_<segment id>` and `.index`, `.timeindex` or `.txnindex`, as Kafka's are. An index is fetched
when it is first wanted. The least recently used go when there are more bytes than allowed, and those
that nobody has used for a while; those of deleted segments go at once.

    fetched → checked → `.tmp` written, synced → renamed

So a file under its own name is whole, whenever the node crashes; what else a crash leaves is removed by
`open`. A name that a crash takes back is no loss, and the directory is not synced. Files found by `open`
are checked against their segment before their first use. The cache is never needed: a disk that is
full, or fails, costs the fetch of an index that would have been here.

One call for all who want the same thing at once, which goes on when they have left.

A reader whose time is up must not take with it what others wait for, nor throw away what it has paid
for; and a call in a thread can't be given up anyway. So calls run in a nursery of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar
from uuid import UUID

import trio

from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.seams.files import Buffer, Files, Path
from odradek.seams.offload import OBJECTS_LANE, Offload
from odradek.storage.directories.names import REMOTE_INDEX_CACHE
from odradek.storage.log.names import DELETED
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteResourceNotFound,
    RemoteSegmentNotFound,
)
from odradek.storage.tiered.index_lookup import ENTRY_BYTES, check_index
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata, TopicIdPartition
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager

log = logging.getLogger("odradek.remote")

TMP = ".tmp"
NO_TTL = -1

Key = tuple[UUID, IndexType]
"""Of a segment, and which index."""
_KINDS = {kind.value: kind for kind in ENTRY_BYTES}


@dataclass(slots=True)
class _Kept:
    """A file of the cache."""

    name: str
    size_bytes: int
    used_at: float
    partition: TopicIdPartition | None = None
    """Whose it is, once it was checked against its segment: of what an earlier run left it is not known
    before."""


class RemoteIndexCache:
    """See the module. `open` comes first; all is called on the loop."""

    def __init__(
        self,
        files: Files,
        log_directory: Path,
        offload: Offload,
        storage: RemoteStorageManager,
        nursery: Callable[[], trio.Nursery],
        monotonic: Callable[[], float],
        *,
        limit_bytes: Callable[[], int],
        ttl_ms: int = NO_TTL,
    ) -> None:
        """`nursery` has the fetches; `limit_bytes` is asked for whenever there is more; `ttl_ms`: how
        long an index stays that nobody uses."""
        self._files = files
        self._directory = log_directory / REMOTE_INDEX_CACHE
        self._lane = str(log_directory)
        self._offload = offload
        self._storage = storage
        self._monotonic = monotonic
        self._limit_bytes = limit_bytes
        self._ttl_seconds = ttl_ms / 1000 if ttl_ms > 0 else None
        self._kept: dict[Key, _Kept] = {}  # least recently used first
        self._calls: SharedCalls[Key, Buffer] = SharedCalls(nursery)
        self._leaving: dict[str, trio.Event] = {}
        """Files that are being removed: a new one of that name waits."""
        self._is_disk_well = True
        self.total_bytes = 0
        self.fetches = 0
        """How many indexes were fetched from the remote tier."""

    def has(self, segment_id: UUID) -> bool:
        """Whether an index of that segment is here."""
        return any((segment_id, kind) in self._kept for kind in ENTRY_BYTES)

    # What an earlier run left

    async def open(self) -> None:
        """Take over what is there, and remove what is no index. A disk that fails is as an empty
        one."""
        try:
            found = await self._offload.run(self._look, lane=self._lane)
        except OSError as error:
            self._disk_failed(error)
            return
        now = self._monotonic()
        for key, name, size_bytes in found:
            self._keep(key, _Kept(name, size_bytes, now))
        await self._make_room()

    def _look(self) -> list[tuple[Key, str, int]]:
        """In a thread."""
        files, directory = self._files, self._directory
        files.make_directory(directory)
        found = []
        for name in files.list(directory):
            key = _key_of(name)
            size_bytes = 0 if key is None else files.file_size(directory / name)
            if key is None or size_bytes % ENTRY_BYTES[key[1]]:
                if key is not None or name.endswith((TMP, DELETED)):
                    files.remove(directory / name, missing_ok=True)
            else:
                found.append((key, name, size_bytes))
        return found

    # Asking

    async def fetch(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        """The index, from the disk or from the remote tier; for all who ask at once it is fetched
        once, and goes on when they leave. That of transactions is empty where there is none.

        Raises RemoteStorageError and its kinds: CorruptRemoteData for one that contradicts the
        segment, RemoteResourceNotFound where there is no such index, or no such segment any more.
        """
        key = segment.id.id, kind
        return await self._calls.result(key, partial(self._fetch, key, segment))

    async def _fetch(self, key: Key, segment: RemoteLogSegmentMetadata) -> Buffer:
        kept = self._kept.get(key)
        if kept is not None:
            data = await self._read(key, kept, segment)
            if data is not None:
                return data
        kind = key[1]
        self.fetches += 1
        try:
            data = await self._offload.run(
                self._storage.fetch_index, segment, kind, lane=OBJECTS_LANE
            )
        except RemoteResourceNotFound as error:
            if kind is not IndexType.TRANSACTION or isinstance(error, RemoteSegmentNotFound):
                raise
            data = b""  # as Kafka has it: of older copies it is not known whether there is one
        check_index(data, kind, segment)
        await self._store(key, segment, data)
        return data

    async def _read(
        self, key: Key, kept: _Kept, segment: RemoteLogSegmentMetadata
    ) -> Buffer | None:
        """From the disk; None if that is of no use, and then it is no longer there."""
        path = self._directory / kept.name
        try:
            data = await self._offload.run(self._files.read, path, lane=self._lane)
            if kept.partition is None:
                check_index(data, key[1], segment)
                kept.partition = segment.id.partition
            if len(data) != kept.size_bytes:
                raise CorruptRemoteData(f"{len(data)} bytes, not {kept.size_bytes}")
        except (OSError, CorruptRemoteData) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("%s is fetched again: %s", path, error)
            await self._drop([key])
            return None
        if self._kept.get(key) is kept:
            del self._kept[key]
            self._kept[key] = kept
            kept.used_at = self._monotonic()
        return data

    async def refuse(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> None:
        """What was handed out turned out to be wrong: let it be fetched again."""
        await self._drop([(segment.id.id, kind)])

    def segments_of(self, topic: str, index: int) -> list[UUID]:
        """Those of a partition of which there is an index here that somebody has used."""
        return [
            segment_id
            for (segment_id, _), kept in self._kept.items()
            if kept.partition is not None
            and (kept.partition.topic, kept.partition.partition) == (topic, index)
        ]

    async def forget(self, segment_ids: Iterable[UUID]) -> None:
        """These segments are deleted, or of no use here."""
        await self._drop([(each, kind) for each in segment_ids for kind in ENTRY_BYTES])

    # The disk

    async def _store(self, key: Key, segment: RemoteLogSegmentMetadata, data: Buffer) -> None:
        name = f"{segment.start_offset}_{uuid_to_text(segment.id.id)}{key[1].value}"
        while (leaving := self._leaving.get(name)) is not None:
            await leaving.wait()
        if len(data) > self._limit_bytes():
            return
        try:
            await self._offload.run(self._write, name, data, lane=self._lane)
        except OSError as error:
            self._disk_failed(error)
            return
        self._is_disk_well = True
        self._keep(key, _Kept(name, len(data), self._monotonic(), segment.id.partition))
        await self._make_room()

    def _write(self, name: str, data: Buffer) -> None:
        """In a thread; see the module for what a crash leaves."""
        files, path = self._files, self._directory / name
        beside = path.with_name(name + TMP)
        files.remove(beside, missing_ok=True)
        try:
            with closing(files.open(beside, create=True)) as file:
                file.append_v([data])
                file.sync()
            files.rename(beside, path)
        except OSError:
            with suppress(OSError):  # a full disk gets its room back
                files.remove(beside, missing_ok=True)
            raise

    def _keep(self, key: Key, kept: _Kept) -> None:
        before = self._kept.pop(key, None)
        self.total_bytes += kept.size_bytes - (0 if before is None else before.size_bytes)
        self._kept[key] = kept

    async def _make_room(self) -> None:
        """Let go of what was not used for too long, and of the least recently used."""
        limit, going, total = self._limit_bytes(), [], self.total_bytes
        idle_since = -1.0 if self._ttl_seconds is None else self._monotonic() - self._ttl_seconds
        for key, kept in self._kept.items():
            if total <= limit and kept.used_at >= idle_since:
                break
            total -= kept.size_bytes
            going.append(key)
        await self._drop(going)

    async def _drop(self, keys: Iterable[Key]) -> None:
        names = []
        for key in keys:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self.total_bytes -= kept.size_bytes
                names.append(kept.name)
                self._leaving[kept.name] = trio.Event()
        if not names:
            return
        try:
            await self._offload.run(self._remove, names, lane=self._lane)
        except OSError as error:
            self._disk_failed(error)
        finally:
            for name in names:
                self._leaving.pop(name).set()

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._files.remove(self._directory / name, missing_ok=True)

    def _disk_failed(self, error: OSError) -> None:
        """Say so once, until it works again."""
        if self._is_disk_well:
            log.warning("indexes of remote segments are not kept in %s: %s", self._directory, error)
        self._is_disk_well = False


def _key_of(name: str) -> Key | None:
    """Whose file it is; None for one that is no index of a segment."""
    offset, _, rest = name.partition("_")
    text, dot, suffix = rest.partition(".")
    kind = _KINDS.get(dot + suffix)
    if kind is None or not (offset.isascii() and offset.isdigit()):
        return None
    try:
        return uuid_from_text(text), kind
    except ValueError:
        return None


K = TypeVar("K")
T = TypeVar("T")


class _Call(Generic[T]):
    def __init__(self) -> None:
        self.done = trio.Event()
        self.returned: list[T] = []
        self.raised: Exception | None = trio.ClosedResourceError("the call was given up")

    def outcome(self) -> T:
        if self.raised is not None:
            raise self.raised
        return self.returned[0]


class SharedCalls(Generic[K, T]):
    """Calls under way, by what they are for. Nothing is kept of one that is over."""

    def __init__(self, nursery: Callable[[], trio.Nursery]) -> None:
        """`nursery` is asked for when a call begins."""
        self._nursery = nursery
        self._under_way: dict[K, _Call[T]] = {}

    async def result(self, key: K, make: Callable[[], Awaitable[T]]) -> T:
        """What `make` returns or raises, or the call for `key` that is under way. Each of several
        gets the same exception."""
        call = self._under_way.get(key)
        if call is None:
            call = self._under_way[key] = _Call()
            self._nursery().start_soon(self._run, key, call, make)
        await call.done.wait()
        return call.outcome()

    async def _run(self, key: K, call: _Call[T], make: Callable[[], Awaitable[T]]) -> None:
        try:
            call.returned.append(await make())
            call.raised = None
        except Exception as error:  # raised where it is awaited
            call.raised = error
        finally:
            del self._under_way[key]
            call.done.set()
