"""Disk cache for the indexes of remote log segments (T-10), Kafka's RemoteIndexCache.

The directory `remote-log-index-cache` is in a log directory. Files are named
`<start offset>_<segment id>` with `.index`, `.timeindex` or `.txnindex`, like Kafka's. An index is
fetched on its first use. The least recently used indexes are deleted when the limit is exceeded,
unused ones after a TTL, and those of deleted segments at once.

    fetched → checked → `.tmp` written, synced → renamed

So a file with its final name is complete after any crash, and `open` deletes the rest. The
directory is not synced, because a lost file is only fetched again. A full or failed disk only costs
fetches.

No stored checksum protects a file, so a disk may change it silently:

- Each read compares the file with the checksum that it had when it was fetched, or at its first read
  after a start. A file that differs is deleted and fetched again.
- Files that `open` finds are checked against their segment before their first use (`check_index`).
  `open` deletes transaction indexes and empty files, because no check finds what they lack.
- Readers check each entry that they use against the batches, and call `refuse` if it is wrong. The file
  is deleted and fetched again. If the index was just fetched, the object in the remote tier is wrong:
  `fetch` raises UnusableRemoteIndex for `REFETCH_SECONDS`, and readers read the segment from its start.

Concurrent requests for an index share one fetch. It runs in its own nursery and continues if the
requests are cancelled, because a call in a thread cannot be cancelled and others may wait for it.
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

from odradek.protocol.records.crc32c import crc32c
from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.seams.files import Buffer, Files, Path
from odradek.seams.offload import OBJECTS_LANE, Offload
from odradek.storage.directories.names import REMOTE_INDEX_CACHE
from odradek.storage.log.file_names import DELETED
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteResourceNotFound,
    RemoteSegmentNotFound,
    UnusableRemoteIndex,
)
from odradek.storage.tiered.remote_index_lookup import ENTRY_BYTES, check_index
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition

_logger = logging.getLogger("odradek.tiered")

TMP = ".tmp"
NO_TTL = -1
REFETCH_SECONDS = 60.0
"""Time until an index is fetched again that was wrong when it was fetched."""

Key = tuple[UUID, IndexType]
"""Segment id and index type."""
_KINDS = {kind.value: kind for kind in ENTRY_BYTES}


@dataclass(slots=True)
class _CachedIndexFile:
    """File of the cache."""

    name: str
    size_bytes: int
    used_at: float
    partition: TopicIdPartition | None = None
    """Partition of the segment; None until a file of an earlier run was checked."""
    crc: int | None = None
    """Checksum (CRC-32C) of the content; None until a file of an earlier run was checked."""
    is_fetched: bool = False
    """Whether this process fetched the file."""


class RemoteIndexCache:
    """Call `open` first. Runs on the event loop."""

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
        """`nursery` runs the fetches. `limit_bytes` is the current limit. `ttl_ms` is how long an
        unused index is kept."""
        self._files = files
        self._directory = log_directory / REMOTE_INDEX_CACHE
        self._lane = str(log_directory)
        self._offload = offload
        self._storage = storage
        self._monotonic = monotonic
        self._limit_bytes = limit_bytes
        self._ttl_seconds = ttl_ms / 1000 if ttl_ms > 0 else None
        self._files_by_key: dict[Key, _CachedIndexFile] = {}  # least recently used first
        self._calls: SharedCalls[Key, Buffer] = SharedCalls(nursery)
        self._being_deleted: dict[str, trio.Event] = {}
        """Files that are being deleted; a new file of that name waits."""
        self._unusable: dict[Key, float] = {}
        """Indexes that were wrong when they were fetched, and the time of their next fetch."""
        self._is_disk_writable = True
        self.total_bytes = 0
        self.fetches = 0
        """Number of fetches from the remote tier."""

    def has(self, segment_id: UUID) -> bool:
        """Whether the cache has an index of that segment."""
        return any((segment_id, kind) in self._files_by_key for kind in ENTRY_BYTES)

    # Files of an earlier run

    async def open(self) -> None:
        """Load the existing files and delete invalid ones. A failed disk counts as empty."""
        try:
            found = await self._offload.run(self._look, lane=self._lane)
        except OSError as error:
            self._disk_failed(error)
            return
        now = self._monotonic()
        for key, name, size_bytes in found:
            self._keep(key, _CachedIndexFile(name, size_bytes, now))
        await self._evict()

    def _look(self) -> list[tuple[Key, str, int]]:
        """List the files, in a thread."""
        files, directory = self._files, self._directory
        files.make_directory(directory)
        found = []
        for name in files.list(directory):
            key = _key_of(name)
            size_bytes = 0 if key is None else files.file_size(directory / name)
            if key is not None and _may_be_kept(key[1], size_bytes):
                found.append((key, name, size_bytes))
            elif key is not None or name.endswith((TMP, DELETED)):
                files.remove(directory / name, missing_ok=True)
        return found

    # Lookup

    async def fetch(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        """The index, from the disk or from the remote tier. A missing transaction index is returned
        as empty.

        Raises RemoteStorageError: CorruptRemoteIndex if it contradicts the segment, CorruptRemoteData
        if its object is damaged, RemoteResourceNotFound if the index or the segment does not exist.
        """
        key = segment.id.id, kind
        return await self._calls.result(key, partial(self._fetch, key, segment))

    async def _fetch(self, key: Key, segment: RemoteLogSegmentMetadata) -> Buffer:
        kept = self._files_by_key.get(key)
        if kept is not None:
            cached = await self._read(key, kept, segment)
            if cached is not None:
                return cached
        kind = key[1]
        if self._monotonic() < self._unusable.get(key, 0.0):
            raise UnusableRemoteIndex(f"the {kind.value} of remote segment {segment.id} is wrong")
        self.fetches += 1
        try:
            data, crc = await self._offload.run(
                self._fetch_from_store, segment, kind, lane=OBJECTS_LANE
            )
        except CorruptRemoteData as error:
            self._set_unusable(key, segment, error)
            raise
        await self._store(key, segment, data, crc)
        return data

    def _fetch_from_store(
        self, segment: RemoteLogSegmentMetadata, kind: IndexType
    ) -> tuple[Buffer, int]:
        """Fetch and check an index, in a thread; the index and its checksum."""
        try:
            data = self._storage.fetch_index(segment, kind)
        except RemoteResourceNotFound as error:
            if kind is not IndexType.TRANSACTION or isinstance(error, RemoteSegmentNotFound):
                raise
            data = b""  # as in Kafka: for older copies it is not known whether one exists
        check_index(data, kind, segment)
        return data, crc32c(data)

    def _set_unusable(
        self, key: Key, segment: RemoteLogSegmentMetadata, error: CorruptRemoteData
    ) -> None:
        """Do not fetch the index again for REFETCH_SECONDS. Log the first time only."""
        if key not in self._unusable:
            _logger.warning(
                "the %s of remote log segment %s is wrong in the remote storage, %s: %s",
                key[1].value,
                segment.id,
                "read_committed fetches that need it fail"
                if key[1] is IndexType.TRANSACTION
                else "reading the segment without it",
                error,
            )
        self._unusable[key] = self._monotonic() + REFETCH_SECONDS

    async def _read(
        self, key: Key, kept: _CachedIndexFile, segment: RemoteLogSegmentMetadata
    ) -> Buffer | None:
        """Index from the disk; None if the file is unusable, which is then deleted."""
        path = self._directory / kept.name
        try:
            data, kept.crc = await self._offload.run(
                self._read_checked, path, kept, key[1], segment, lane=self._lane
            )
            kept.partition = segment.id.partition
        except (OSError, CorruptRemoteData) as error:
            if not isinstance(error, FileNotFoundError):
                _logger.warning(
                    "cached remote index %s is corrupt, fetching it again: %s", path, error
                )
            await self._drop([key])
            return None
        if self._files_by_key.get(key) is kept:
            del self._files_by_key[key]
            self._files_by_key[key] = kept
            kept.used_at = self._monotonic()
        return data

    def _read_checked(
        self, path: Path, kept: _CachedIndexFile, kind: IndexType, segment: RemoteLogSegmentMetadata
    ) -> tuple[Buffer, int]:
        """Read and check a file, in a thread; its content and its checksum."""
        data = self._files.read(path)
        if len(data) != kept.size_bytes:
            raise CorruptRemoteData(f"expected {kept.size_bytes} bytes, but found {len(data)}")
        crc = crc32c(data)
        if kept.crc is None:
            check_index(data, kind, segment)
        elif crc != kept.crc:
            raise CorruptRemoteData("its content has changed")
        return data, crc

    async def refuse(
        self, segment: RemoteLogSegmentMetadata, kind: IndexType, error: CorruptRemoteData
    ) -> None:
        """Delete an index of which a reader used a wrong entry, so that it is fetched again.

        An index that this process has fetched is wrong in the remote tier, too: it is not used for
        REFETCH_SECONDS.
        """
        key = segment.id.id, kind
        kept = self._files_by_key.get(key)
        if kept is None or kept.is_fetched:
            self._set_unusable(key, segment, error)
        else:
            _logger.warning(
                "cached remote index %s is corrupt, fetching it again: %s",
                self._directory / kept.name,
                error,
            )
        await self._drop([key])

    def segments_of(self, topic: str, index: int) -> list[UUID]:
        """Segments of a partition that have used indexes in the cache."""
        return [
            segment_id
            for (segment_id, _), kept in self._files_by_key.items()
            if kept.partition is not None
            and (kept.partition.topic, kept.partition.partition) == (topic, index)
        ]

    async def forget(self, segment_ids: Iterable[UUID]) -> None:
        """Delete the indexes of segments that are deleted or not needed any more."""
        keys = [(each, kind) for each in segment_ids for kind in ENTRY_BYTES]
        for key in keys:
            self._unusable.pop(key, None)
        await self._drop(keys)

    # Disk

    async def _store(
        self, key: Key, segment: RemoteLogSegmentMetadata, data: Buffer, crc: int
    ) -> None:
        name = f"{segment.start_offset}_{uuid_to_text(segment.id.id)}{key[1].value}"
        while (deletion := self._being_deleted.get(name)) is not None:
            await deletion.wait()
        if len(data) > self._limit_bytes():
            return
        try:
            await self._offload.run(self._write, name, data, lane=self._lane)
        except OSError as error:
            self._disk_failed(error)
            return
        self._is_disk_writable = True
        partition, now = segment.id.partition, self._monotonic()
        self._keep(key, _CachedIndexFile(name, len(data), now, partition, crc, is_fetched=True))
        await self._evict()

    def _write(self, name: str, data: Buffer) -> None:
        """Write a file, in a thread."""
        files, path = self._files, self._directory / name
        temporary = path.with_name(name + TMP)
        files.remove(temporary, missing_ok=True)
        try:
            with closing(files.open(temporary, create=True)) as file:
                file.append_v([data])
                file.sync()
            files.rename(temporary, path)
        except OSError:
            with suppress(OSError):  # free the space on a full disk
                files.remove(temporary, missing_ok=True)
            raise

    def _keep(self, key: Key, kept: _CachedIndexFile) -> None:
        before = self._files_by_key.pop(key, None)
        self.total_bytes += kept.size_bytes - (0 if before is None else before.size_bytes)
        self._files_by_key[key] = kept

    async def _evict(self) -> None:
        """Delete indexes that were unused for too long, and the least recently used ones above the
        limit."""
        limit, going, total = self._limit_bytes(), [], self.total_bytes
        idle_since = -1.0 if self._ttl_seconds is None else self._monotonic() - self._ttl_seconds
        for key, kept in self._files_by_key.items():
            if total <= limit and kept.used_at >= idle_since:
                break
            total -= kept.size_bytes
            going.append(key)
        await self._drop(going)

    async def _drop(self, keys: Iterable[Key]) -> None:
        names = []
        for key in keys:
            kept = self._files_by_key.pop(key, None)
            if kept is not None:
                self.total_bytes -= kept.size_bytes
                names.append(kept.name)
                self._being_deleted[kept.name] = trio.Event()
        if not names:
            return
        try:
            await self._offload.run(self._remove, names, lane=self._lane)
        except OSError as error:
            self._disk_failed(error)
        finally:
            for name in names:
                self._being_deleted.pop(name).set()

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._files.remove(self._directory / name, missing_ok=True)

    def _disk_failed(self, error: OSError) -> None:
        """Log the first failure until a write succeeds."""
        if self._is_disk_writable:
            _logger.warning(
                "cannot cache indexes of remote log segments in %s: %s", self._directory, error
            )
        self._is_disk_writable = False


def _may_be_kept(kind: IndexType, size_bytes: int) -> bool:
    """Whether a file of an earlier run may be used, after the checks of its first read."""
    return (
        kind is not IndexType.TRANSACTION and size_bytes > 0 and size_bytes % ENTRY_BYTES[kind] == 0
    )


def _key_of(name: str) -> Key | None:
    """Key of a file name, or None if it is not an index of a segment."""
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


class _SharedCall(Generic[T]):
    def __init__(self) -> None:
        self.done = trio.Event()
        self.returned: list[T] = []
        self.raised: Exception | None = trio.ClosedResourceError("the call was cancelled")

    def outcome(self) -> T:
        if self.raised is not None:
            raise self.raised
        return self.returned[0]


class SharedCalls(Generic[K, T]):
    """Calls in progress by key. Results are not kept."""

    def __init__(self, nursery: Callable[[], trio.Nursery]) -> None:
        """`nursery` is called when a call starts."""
        self._nursery = nursery
        self._under_way: dict[K, _SharedCall[T]] = {}

    async def result(self, key: K, make: Callable[[], Awaitable[T]]) -> T:
        """Result of `make`, or of the call for `key` that is already in progress. All callers get
        the same exception."""
        call = self._under_way.get(key)
        if call is None:
            call = self._under_way[key] = _SharedCall()
            self._nursery().start_soon(self._run, key, call, make)
        await call.done.wait()
        return call.outcome()

    async def _run(self, key: K, call: _SharedCall[T], make: Callable[[], Awaitable[T]]) -> None:
        try:
            call.returned.append(await make())
            call.raised = None
        except Exception as error:  # raised in `outcome`
            call.raised = error
        finally:
            del self._under_way[key]
            call.done.set()
