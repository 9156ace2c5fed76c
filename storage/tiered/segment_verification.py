"""Reads one remote log segment completely and compares it with its metadata.

With a manifest: every object has the size and CRC-32C of the manifest, there are no other objects,
and the manifest matches the metadata. Without one (Kafka's LocalTieredStorage): the log has the
metadata's size, its batches are contiguous, do not pass the segment's end offset, and have correct
checksums. Compaction may have removed the last batches. A summary must match the metadata of the
segments that still exist.

Problems are messages that name the object. A step reads at most `PIECE_BYTES` and blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE, LOG_OVERHEAD, Batch
from odradek.protocol.records.crc32c import crc32c
from odradek.seams.objects import ObjectMissing, Objects
from odradek.storage.tiered.audit import StoredSegment
from odradek.storage.tiered.errors import CorruptRemoteData
from odradek.storage.tiered.manifest import Manifest
from odradek.storage.tiered.object_names import LOG_SUFFIX, MANIFEST_SUFFIX, parse_summary
from odradek.storage.tiered.partition_summary import decode
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata

PIECE_BYTES = 4 << 20


class SegmentVerification:
    """Verification of one segment. `steps` yields the number of bytes that each step read;
    afterwards `problems` has all differences."""

    def __init__(
        self,
        objects: Objects,
        stored: StoredSegment,
        metadata: RemoteLogSegmentMetadata | None,
        seen: Callable[[str, bytes], None] = lambda suffix, piece: None,
    ) -> None:
        """`seen` receives each chunk of bytes of each object, in order, with the object's suffix."""
        self._objects = objects
        self._stored = stored
        self._metadata = metadata
        self._seen = seen
        self.manifest: Manifest | None = None
        """The segment's manifest, once it was read."""
        self.problems: list[str] = []

    def steps(self) -> Iterator[int]:
        """Raises ObjectsUnavailable. An object that is deleted meanwhile is a problem."""
        try:
            manifest = self._manifest()
            if manifest is not None:
                yield from self._by_manifest(manifest)
            elif MANIFEST_SUFFIX not in self._stored.objects:
                yield from self._by_batches()
        except ObjectMissing as error:
            self.problems.append(f"{error} was deleted")

    def _manifest(self) -> Manifest | None:
        info = self._stored.objects.get(MANIFEST_SUFFIX)
        if info is None:
            return None
        try:
            self.manifest = Manifest.parse(self._objects.get(info.key))
            return self.manifest
        except ValueError as error:
            self.problems.append(f"{info.key}: {error}")
            return None

    def _by_manifest(self, manifest: Manifest) -> Iterator[int]:
        self._compare(manifest.metadata)
        for suffix, wanted in manifest.objects.items():
            info = self._stored.objects.get(suffix)
            if info is None:
                self.problems.append(f"{self._name(suffix)} is missing")
            elif info.size != wanted.size:
                self.problems.append(f"{info.key} has {info.size} bytes, not {wanted.size}")
            else:
                crc = read = 0
                for piece in self._pieces(suffix):
                    crc, read = crc32c(piece, crc), read + len(piece)
                    yield len(piece)
                if (read, crc) != (wanted.size, wanted.crc32c):
                    what = "its CRC-32C is wrong" if read == wanted.size else f"ends at {read}"
                    self.problems.append(f"{info.key}: {what}")
        unnamed = self._stored.objects.keys() - manifest.objects.keys() - {MANIFEST_SUFFIX}
        for suffix in sorted(unnamed):
            self.problems.append(f"{self._stored.objects[suffix].key} is not in the manifest")

    def _compare(self, manifest: RemoteLogSegmentMetadata) -> None:
        name = self._name(MANIFEST_SUFFIX)
        if manifest.id != self._stored.id:
            self.problems.append(f"{name} has segment id {manifest.id}")
        if self._metadata is not None:
            self.problems += _differences(name, manifest, self._metadata)

    def _by_batches(self) -> Iterator[int]:
        info = self._stored.objects.get(LOG_SUFFIX)
        if info is None:
            return
        if self._metadata is not None and info.size != self._metadata.size_bytes:
            self.problems.append(
                f"{info.key} has {info.size} bytes, not {self._metadata.size_bytes}"
            )
        next_offset, at = self._stored.start_offset, 0
        rest = b""
        for piece in self._pieces(LOG_SUFFIX):
            yield len(piece)
            rest += bytes(piece)
            try:
                taken, next_offset = _check_batches(rest, next_offset)
            except CorruptBatch as error:
                self.problems.append(
                    f"{info.key}: in the batches from position {at}: {error.message}"
                )
                return
            rest, at = rest[taken:], at + taken
        if rest:
            self.problems.append(f"{info.key}: the last batch, at position {at}, is truncated")
        elif self._metadata is not None and next_offset > self._metadata.end_offset + 1:
            end = self._metadata.end_offset
            self.problems.append(f"{info.key} ends at offset {next_offset - 1}, not {end}")

    def _pieces(self, suffix: str) -> Iterator[bytes]:
        info = self._stored.objects[suffix]
        at = 0
        while at < info.size:
            piece = bytes(self._objects.get_range(info.key, at, min(PIECE_BYTES, info.size - at)))
            if not piece:
                return
            at += len(piece)
            self._seen(suffix, piece)
            yield piece

    def _name(self, suffix: str) -> str:
        any_key = next(iter(self._stored.objects.values())).key
        return f"{any_key[: any_key.rindex('.')]}{suffix}"


class SegmentLookup(Protocol):
    """Lookup of segment metadata by id, as in `KnownSegments`."""

    def segment(self, id_: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None: ...


def summary_problems(objects: Objects, key: str, known: SegmentLookup | None) -> list[str]:
    """Problems of a partition's summary. Raises ObjectsUnavailable. A missing summary was replaced
    and is no problem."""
    named = parse_summary(key)
    assert named is not None, key
    try:
        summary = decode(objects.get(key))
    except ObjectMissing:
        return []
    except CorruptRemoteData as error:
        return [f"{key}: {error.message}"]
    found = []
    for each in summary.segments(named[0]):
        metadata = None if known is None else known.segment(each.id)
        if metadata is not None:
            found += _differences(f"{key}: of {each.id}", each, metadata)
    return found


def _differences(
    name: str, stored: RemoteLogSegmentMetadata, known: RemoteLogSegmentMetadata
) -> list[str]:
    found = []
    for field in (
        "start_offset", "end_offset", "size_bytes", "max_timestamp_ms", "epochs", "txn_index_empty",
        "custom_metadata",
    ):  # fmt: skip
        actual, expected = getattr(stored, field), getattr(known, field)
        if actual != expected:
            found.append(f"{name}: {field} is {actual}, but {expected} in the metadata")
    return found


def _check_batches(data: bytes, next_offset: int) -> tuple[int, int]:
    """Number of bytes in whole batches, and the offset after them. Raises CorruptBatch."""
    view, at = memoryview(data), 0
    while len(data) - at >= HEADER_SIZE:
        size = LOG_OVERHEAD + int.from_bytes(view[at + 8 : at + 12], "big", signed=True)
        if size < HEADER_SIZE:
            raise CorruptBatch(f"invalid record batch size {size} at offset {next_offset}")
        if size > len(data) - at:
            break
        batch = Batch(view[at : at + size])
        batch.check()
        if batch.base_offset < next_offset:
            raise CorruptBatch(
                f"offset {batch.base_offset} does not follow offset {next_offset - 1}"
            )
        next_offset = batch.last_offset + 1
        at += size
    return at, next_offset
