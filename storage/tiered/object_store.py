"""RemoteStorageManager in an object store, over `Objects`.

A copy has these steps in order. A crash between two of them leaves objects that the next attempt
overwrites, or that are dangling because they have no manifest:

    delete the manifest of an earlier attempt → put indexes, producer snapshot, leader epochs → put log
    → put manifest

The size of every object is checked after its put, so that a store that loses objects is detected
while the segment is still on the broker's disk. A deletion removes the manifest first, so that the
rest is dangling after a crash, then the log, then the other objects: if the log exists and the
transaction index does not, the segment never had one.

A log that is stored unchanged (no compression, no encryption) is read without the manifest; Kafka's
LocalTieredStorage may have written it. The segment's custom metadata has a flag for other logs
(`custom_metadata.py`). The store retries single requests; callers retry whole calls (T-12).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from crc32c import crc32c

from odradek.seams.entropy import Entropy
from odradek.seams.files import Buffer, FileSlice
from odradek.seams.objects import ObjectDenied, ObjectMissing, Objects, ObjectsUnavailable
from odradek.seams.values import value_class
from odradek.storage.tiered.chunks import CHUNK_BYTES, Chunk, ChunkCodec, Compression
from odradek.storage.tiered.custom_metadata import (
    CHUNKED,
    DENSE,
    ENCRYPTED,
    DensityCheck,
    custom_metadata,
    flags_of,
)
from odradek.storage.tiered.encryption import KeyRing, SegmentCipher
from odradek.storage.tiered.errors import (
    CorruptChunk,
    CorruptRemoteData,
    RemoteAccessDenied,
    RemoteResourceNotFound,
    RemoteSegmentNotFound,
    RemoteStorageError,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.manifest import ChunkedLog, Manifest, StoredObject, WrappedKey
from odradek.storage.tiered.object_names import (
    LOG_SUFFIX,
    MANIFEST_SUFFIX,
    SUFFIXES,
    parse_summary,
    partition_directory,
    segment_key,
    summary_key,
)
from odradek.storage.tiered.remote_storage_manager import IndexType, LogSegmentData
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

PIECE_BYTES = 1 << 20
"""Bytes per read of a log that is stored unchanged."""
MANIFESTS_KEPT = 256
NOTHING_THERE = ".nothing"
"""Prefix that no key has: a listing of it is cheap and needs the usual permissions."""


@value_class
class StorageFormat:
    """Format of new copies; existing copies keep theirs."""

    compression: Compression = Compression.NONE
    chunk_bytes: int = CHUNK_BYTES
    keys: KeyRing | None = None
    encrypts: bool = False
    """Encrypt new copies; needs `keys`. Keys may also be configured only to decrypt older copies.
    """


class ObjectStoreStorage:
    """RemoteStorageManager over an object store."""

    def __init__(
        self,
        objects: Objects,
        entropy: Entropy,
        *,
        form: StorageFormat = StorageFormat(),  # noqa: B008 - a value
        cluster_id: str = "",
    ) -> None:
        self._objects = objects
        self._entropy = entropy
        self._form = form
        self._cluster_id = cluster_id
        self._manifests: dict[str, Manifest] = {}
        self._closed = False

    def copy_segment(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Copy all files of the segment. Raises OSError if the local disk fails."""
        self._forget_manifest(metadata)
        copy = _SegmentCopy(metadata, self._form, self._entropy)
        with _translated():
            self._objects.delete(segment_key(metadata, MANIFEST_SUFFIX))  # 1
            for kind, part in _indexes(data):  # 2
                self._put(copy, kind.value, copy.index(kind.value, part))
            self._put(copy, LOG_SUFFIX, copy.log(data.log))  # 3
            manifest = copy.manifest(self._cluster_id)
            self._put(copy, MANIFEST_SUFFIX, [manifest.render()])  # 4
        return manifest.metadata.custom_metadata

    def fetch_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> Buffer:
        if start < 0 or (end_inclusive is not None and end_inclusive < start):
            raise ValueError(f"invalid range of a log: {start} to {end_inclusive}")
        end = metadata.size_bytes
        if end_inclusive is not None:
            end = min(end, end_inclusive + 1)
        if start >= end:
            return b""
        if not flags_of(metadata) & CHUNKED:
            key = segment_key(metadata, LOG_SUFFIX)
            return self._read(key, start, end - start)
        return self._fetch_chunks(metadata, start, end)

    def fetch_segment_into(
        self, metadata: RemoteLogSegmentMetadata, start: int, into: memoryview
    ) -> int:
        into = into[: max(0, metadata.size_bytes - start)]
        if not len(into):
            return 0
        if flags_of(metadata) & CHUNKED:
            into[:] = memoryview(self._fetch_chunks(metadata, start, start + len(into)))
            return len(into)
        key = segment_key(metadata, LOG_SUFFIX)
        with _translated():
            read = self._objects.get_range_into(key, start, into)
        _check_size(key, start, read, len(into))
        return read

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        """Index of the segment. Raises CorruptRemoteData if it does not match the manifest. Copies
        of Kafka's LocalTieredStorage have no manifest and are not checked."""
        key = segment_key(metadata, kind.value)
        with _translated():
            try:
                stored = self._objects.get(key)
            except ObjectMissing:
                self._check_never_there(metadata, kind)
                raise
            try:
                manifest = self._manifest(metadata)
            except ObjectMissing:
                if flags_of(metadata) & ENCRYPTED:
                    raise
                return stored
        copied = manifest.objects.get(kind.value)
        if copied is not None and (len(stored), crc32c(stored)) != (copied.size, copied.crc32c):
            raise CorruptRemoteData(f"{key} does not match its manifest")
        if not flags_of(metadata) & ENCRYPTED:
            return stored
        codec = self._codec(manifest)
        with _named(key):
            return codec.decrypt(kind.value, 0, stored)

    def _check_never_there(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> None:
        """Return if a missing transaction index is correct because the segment has no aborted
        transactions. Raises CorruptRemoteData if the index was lost, RemoteSegmentNotFound if
        the segment was deleted."""
        if kind is not IndexType.TRANSACTION:
            return
        try:
            copied = self._manifest(metadata).objects
        except ObjectMissing as error:
            if flags_of(metadata) & CHUNKED or not self._has_log(metadata):
                raise RemoteSegmentNotFound(f"{metadata.id} was deleted: {error}") from error
            return  # a copy of Kafka's LocalTieredStorage
        if kind.value in copied:
            raise CorruptRemoteData(
                f"{segment_key(metadata, kind.value)} is missing, although it was copied"
            )

    def _has_log(self, metadata: RemoteLogSegmentMetadata) -> bool:
        try:
            self._objects.head(segment_key(metadata, LOG_SUFFIX))
        except ObjectMissing:
            return False
        return True

    def delete_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._forget_manifest(metadata)
        with _translated():
            self._objects.delete(segment_key(metadata, MANIFEST_SUFFIX))
            self._objects.delete(segment_key(metadata, LOG_SUFFIX))
            rest = (each for each in SUFFIXES if each not in (MANIFEST_SUFFIX, LOG_SUFFIX))
            self._objects.delete_all([segment_key(metadata, each) for each in rest])

    def has_any_of(self, partition: TopicIdPartition) -> bool:
        with _translated():
            return any(self._objects.pages(partition_directory(partition)))

    def check_access(self) -> None:
        with _translated():
            next(self._objects.pages(NOTHING_THERE), None)

    def put_summary(self, partition: TopicIdPartition, leader_epoch: int, data: bytes) -> None:
        with _translated():
            self._objects.put(summary_key(partition, leader_epoch), [data])
            self._remove_summaries(partition, leader_epoch)

    def remove_summaries(self, partition: TopicIdPartition) -> None:
        with _translated():
            self._remove_summaries(partition, None)

    def _remove_summaries(self, partition: TopicIdPartition, below: int | None) -> None:
        """Delete summaries, which come first in a listing."""
        page = next(self._objects.pages(partition_directory(partition)), ())
        for each in page:
            found = parse_summary(each.key)
            if found is not None and (below is None or found[1] < below):
                self._objects.delete(each.key)

    def close(self) -> None:
        self._closed = True

    def _put(self, copy: _SegmentCopy, suffix: str, pieces: Iterable[Buffer]) -> None:
        key = segment_key(copy.metadata, suffix)
        counted = _CountedObject(self._while_open(pieces))
        self._objects.put(key, counted)
        try:
            stored_bytes: int | None = self._objects.head(key).size
        except ObjectMissing:
            stored_bytes = None
        if stored_bytes != counted.size:
            raise RemoteStorageError(
                f"{key}: {counted.size} bytes were written, but the object has {stored_bytes}"
            )
        copy.objects[suffix] = StoredObject(counted.size, counted.crc32c)

    def _while_open(self, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
        for piece in pieces:
            if self._closed:
                raise RemoteStorageUnavailable("the broker is shutting down")
            yield piece

    def _fetch_chunks(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> Buffer:
        key = segment_key(metadata, LOG_SUFFIX)
        with _translated():
            manifest = self._manifest(metadata)
        with _named(segment_key(metadata, MANIFEST_SUFFIX)):
            table = manifest.chunk_table()
        if table is None:
            raise CorruptRemoteData(f"{key}: its manifest has no chunk sizes")
        chunks = table.chunks_of(start, end)
        first, last = chunks[0], chunks[-1]
        stored = self._read(key, first.position, last.position + last.stored_size - first.position)
        codec = self._codec(manifest)
        with _named(key):
            return _decode_range(codec, memoryview(stored), chunks, start, end)

    def _read(self, key: str, position: int, size: int) -> Buffer:
        """Exactly `size` bytes; raises CorruptRemoteData for fewer."""
        with _translated():
            data = self._objects.get_range(key, position, size)
        _check_size(key, position, len(data), size)
        return data

    def _manifest(self, metadata: RemoteLogSegmentMetadata) -> Manifest:
        key = segment_key(metadata, MANIFEST_SUFFIX)
        manifest = self._manifests.get(key)
        if manifest is None:
            data = self._objects.get(key)
            with _named(key):
                manifest = Manifest.parse(data)
            self._manifests[key] = manifest
            for oldest in list(self._manifests)[:-MANIFESTS_KEPT]:
                self._manifests.pop(oldest, None)  # another thread may have removed it
        return manifest

    def _forget_manifest(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._manifests.pop(segment_key(metadata, MANIFEST_SUFFIX), None)

    def _codec(self, manifest: Manifest) -> ChunkCodec:
        """Codec to read that segment."""
        compression = manifest.chunks.compression if manifest.chunks else Compression.NONE
        if manifest.key is None:
            return ChunkCodec(compression, None)
        return ChunkCodec(compression, self._cipher(manifest.metadata.id, manifest.key))

    def _cipher(self, segment: RemoteLogSegmentId, key: WrappedKey) -> SegmentCipher:
        keys = self._form.keys
        if keys is None or key.key_id not in keys:
            raise RemoteStorageError(
                f"{segment} is encrypted with key {key.key_id!r}, which is not in encryption.key.file"
            )
        with _named(str(segment)):
            return SegmentCipher(keys.unwrap(key.key_id, key.wrapped), segment)


class _SegmentCopy:
    """State of one copy in progress."""

    def __init__(
        self, metadata: RemoteLogSegmentMetadata, form: StorageFormat, entropy: Entropy
    ) -> None:
        self.metadata = metadata
        self.objects: dict[str, StoredObject] = {}
        self._key: WrappedKey | None = None
        cipher = None
        if form.encrypts:
            assert form.keys is not None, "encryption needs keys"
            data_key, wrapped = form.keys.new_data_key(entropy)
            self._key = WrappedKey(form.keys.current_id, wrapped)
            cipher = SegmentCipher(data_key, metadata.id)
        self._form = form
        self._codec = ChunkCodec(form.compression, cipher)
        self._chunked = form.encrypts or form.compression is not Compression.NONE
        self._stored_sizes: list[int] = []
        self._density = DensityCheck(metadata.start_offset, metadata.end_offset)

    def index(self, suffix: str, part: Buffer | FileSlice) -> Iterator[Buffer]:
        whole = part.read() if isinstance(part, FileSlice) else part
        _check_length(part, len(whole))
        yield self._codec.encrypt(suffix, 0, whole)

    def log(self, part: Buffer | FileSlice) -> Iterator[Buffer]:
        pieces = _pieces(part, self._form.chunk_bytes if self._chunked else PIECE_BYTES)
        for number, plain in enumerate(pieces):
            self._density.feed(plain)
            if not self._chunked:
                yield plain
                continue
            stored = self._codec.encode_chunk(LOG_SUFFIX, number, plain)
            self._stored_sizes.append(len(stored))
            yield stored

    def manifest(self, cluster_id: str) -> Manifest:
        form, chunks = self._form, None
        flags = DENSE if self._density.is_dense else 0
        if self._chunked:
            chunks = ChunkedLog(form.compression, form.chunk_bytes, tuple(self._stored_sizes))
            flags |= CHUNKED | (ENCRYPTED if self._key else 0)
        finished = replace(
            self.metadata,
            state=SegmentState.COPY_SEGMENT_FINISHED,
            custom_metadata=custom_metadata(flags),
        )
        return Manifest(finished, dict(self.objects), chunks, self._key, cluster_id)


class _CountedObject:
    """Counts the bytes of an object that is put, and computes their CRC-32C."""

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self._pieces = pieces
        self.size = 0
        self.crc32c = 0

    def __iter__(self) -> Iterator[Buffer]:
        for piece in self._pieces:
            self.size += len(piece)
            self.crc32c = crc32c(piece, self.crc32c)
            yield piece


def _indexes(data: LogSegmentData) -> Iterator[tuple[IndexType, Buffer | FileSlice]]:
    yield IndexType.OFFSET, data.offset_index
    yield IndexType.TIMESTAMP, data.time_index
    if data.transaction_index is not None and _length(data.transaction_index):
        yield IndexType.TRANSACTION, data.transaction_index
    yield IndexType.PRODUCER_SNAPSHOT, data.producer_snapshot
    yield IndexType.LEADER_EPOCH, data.leader_epochs


def _length(part: Buffer | FileSlice) -> int:
    return part.size if isinstance(part, FileSlice) else len(part)


def _pieces(part: Buffer | FileSlice, piece_bytes: int) -> Iterator[Buffer]:
    whole, done = _length(part), 0
    while done < whole:
        size = min(piece_bytes, whole - done)
        if isinstance(part, FileSlice):
            piece: Buffer = part.file.read_at(part.position + done, size)
        else:
            piece = memoryview(part)[done : done + size]
        if len(piece) < size:
            _check_length(part, done + len(piece))
        yield piece
        done += size


def _check_length(part: Buffer | FileSlice, found: int) -> None:
    if isinstance(part, FileSlice) and found < part.size:
        raise RemoteStorageError(
            f"{part.file.path} is truncated after {part.position + found} bytes: the segment cannot be copied"
        )


def _decode_range(
    codec: ChunkCodec, stored: memoryview, chunks: list[Chunk], start: int, end: int
) -> Buffer:
    read = memoryview(bytearray(end - start))
    # Chunks are copied one by one, because a join would hold the GIL for long.
    for chunk in chunks:
        at = chunk.position - chunks[0].position
        stored_chunk = stored[at : at + chunk.stored_size]
        try:
            plain = codec.decode_chunk(LOG_SUFFIX, chunk.number, stored_chunk, chunk.size)
        except CorruptChunk as error:
            raise CorruptChunk(f"chunk {chunk.number} at {chunk.position}: {error}") from error
        wanted = memoryview(plain)[max(start - chunk.start, 0) : end - chunk.start]
        to = max(chunk.start - start, 0)
        read[to : to + len(wanted)] = wanted
    return read


def _check_size(key: str, position: int, found: int, size: int) -> None:
    if found != size:
        raise CorruptRemoteData(
            f"{key}: expected {size} bytes from position {position}, but found {found}"
        )


@contextmanager
def _translated() -> Iterator[None]:
    """Convert errors of the store to errors of the remote tier."""
    try:
        yield
    except ObjectMissing as error:
        raise RemoteResourceNotFound(f"object not found: {error}") from error
    except ObjectDenied as error:
        raise RemoteAccessDenied(str(error)) from error
    except ObjectsUnavailable as error:
        raise RemoteStorageUnavailable(str(error)) from error


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Add the name of the object to errors about corrupt bytes."""
    try:
        yield
    except ValueError as error:
        raise CorruptRemoteData(f"{what}: {error}") from error
