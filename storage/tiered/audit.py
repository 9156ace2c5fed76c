"""Compares the objects of the remote tier with the metadata, and finds missing segments and
garbage.

The input is a listing of the store, each directory in key order, and the remote log segment
metadata. The result is a status per segment. There is no I/O, and little memory: complete segments
are only counted.

| metadata | objects | status |
|---|---|---|
| COPY_SEGMENT_FINISHED | all | WHOLE |
| COPY_SEGMENT_FINISHED | some missing | INCOMPLETE |
| COPY_SEGMENT_FINISHED | none | MISSING |
| COPY_SEGMENT_STARTED | any | COPYING: the leader completes or deletes it |
| DELETE_SEGMENT_STARTED | any | DELETING: the leader completes it |
| the partition, but not this segment | any | DANGLING if it is old enough, else YOUNG |
| the same, but brokers may have more metadata | any | UNCLEAR if it is old enough |
| not even the partition | any | FOREIGN: of another cluster, or the metadata is lost |
| | not a segment's object | STRAY |

The summary of a partition (`partition_summary.py`) is DANGLING if the partition was deleted and no segment
remains; otherwise it is not checked.

A copy is published before its first object is put. So an object that was listed and is in no
metadata read *after* the listing belongs to no segment: call `recheck` then, which also drops
findings that changed meanwhile. The minimum age allows for delayed listings and clock differences.

Without metadata, manifests are used instead: they are put last and deleted first. A partition
without any manifest is FOREIGN then, because Kafka's LocalTieredStorage writes none.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from odradek.seams.objects import ObjectInfo
from odradek.seams.values import value_class
from odradek.storage.tiered.custom_metadata import needs_manifest
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.object_names import (
    LOG_SUFFIX,
    MANIFEST_SUFFIX,
    SUFFIXES,
    parse_key,
    parse_summary,
)
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    RemoteEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

NEEDED = tuple(
    suffix for suffix in SUFFIXES if suffix not in (IndexType.TRANSACTION.value, MANIFEST_SUFFIX)
)
"""Suffixes that every complete segment has. Kafka's segments have no manifest."""


class SegmentStatus(Enum):
    """Result of the comparison for one segment or object; the module has the table."""

    WHOLE = "whole"
    INCOMPLETE = "incomplete"
    MISSING = "missing"
    COPYING = "copying"
    DELETING = "deleting"
    DANGLING = "dangling"
    YOUNG = "young"
    UNCLEAR = "unclear"
    FOREIGN = "foreign"
    STRAY = "stray"

    @property
    def is_loss(self) -> bool:
        """Whether records cannot be read."""
        return self in (SegmentStatus.INCOMPLETE, SegmentStatus.MISSING)

    @property
    def is_garbage(self) -> bool:
        return self is SegmentStatus.DANGLING


@value_class
class StoredSegment:
    """Objects of a segment in the store, by suffix."""

    id: RemoteLogSegmentId
    start_offset: int
    objects: Mapping[str, ObjectInfo]

    @property
    def size_bytes(self) -> int:
        return sum(each.size for each in self.objects.values())

    @property
    def newest_ms(self) -> int:
        return max(each.modified_ms for each in self.objects.values())

    def missing(self, metadata: RemoteLogSegmentMetadata | None = None) -> list[str]:
        """Missing suffixes, including the manifest if the log cannot be read without it."""
        has_form = metadata is not None and needs_manifest(metadata.custom_metadata)
        needed = (*NEEDED, MANIFEST_SUFFIX) if has_form else NEEDED
        return [suffix for suffix in needed if suffix not in self.objects]

    def removal_order(self) -> list[str]:
        """Keys in deletion order: the manifest first, so that it never outlives the objects that it
        describes."""
        suffixes = sorted(self.objects, key=lambda suffix: suffix != MANIFEST_SUFFIX)
        return [self.objects[suffix].key for suffix in suffixes]


@value_class
class AuditFinding:
    """Status of a segment or object. A MISSING segment has no `stored`; an object of no segment is
    `stray` and has only its key."""

    status: SegmentStatus
    stored: StoredSegment | None = None
    metadata: RemoteLogSegmentMetadata | None = None
    stray: ObjectInfo | None = None

    def removal_order(self) -> list[str]:
        """Keys of the existing objects, in deletion order."""
        if self.stored is not None:
            return self.stored.removal_order()
        return [] if self.stray is None else [self.stray.key]

    @property
    def partition(self) -> TopicIdPartition | None:
        if self.stored is not None:
            return self.stored.id.partition
        return None if self.metadata is None else self.metadata.partition


class KnownSegments:
    """Metadata of all partitions in the metadata topic."""

    def __init__(self) -> None:
        self._partitions: dict[TopicIdPartition, RemoteLogMetadataCache] = {}

    def apply(self, event: RemoteEvent) -> None:
        """Apply the next event. Invalid events are skipped, as by every reader."""
        partition = event.partition
        if partition not in self._partitions:
            self._partitions[partition] = RemoteLogMetadataCache(partition)
        try:
            self._partitions[partition].apply(event)
        except RemoteStorageError:
            return

    def __contains__(self, partition: TopicIdPartition) -> bool:
        return partition in self._partitions

    def partitions(self) -> list[TopicIdPartition]:
        return list(self._partitions)

    def is_deleted(self, partition: TopicIdPartition) -> bool:
        """Whether the deletion of the partition has started."""
        of = self._partitions.get(partition)
        return of is not None and of.deletion is not None

    def segment(self, id_: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        of = self._partitions.get(id_.partition)
        return None if of is None else of.segment(id_)

    def segments(self, partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        of = self._partitions.get(partition)
        return iter(()) if of is None else of.segments()


@dataclass(slots=True)
class StorageUsage:
    """Number and size of the objects of one partition, or of all."""

    segments: int = 0
    objects: int = 0
    size_bytes: int = 0
    log_bytes: int = 0

    def add(self, stored: StoredSegment) -> None:
        self.segments += 1
        self.objects += len(stored.objects)
        self.size_bytes += stored.size_bytes
        if LOG_SUFFIX in stored.objects:
            self.log_bytes += stored.objects[LOG_SUFFIX].size

    def add_object(self, info: ObjectInfo) -> None:
        self.objects += 1
        self.size_bytes += info.size


class RemoteStorageAudit:
    """Call `take` with every page of the listing, then `end`, then `recheck` after the metadata was
    read to its end again.

    `known` is None without metadata. Objects older than `old_before_ms` may be garbage.
    """

    def __init__(
        self,
        known: KnownSegments | None,
        *,
        old_before_ms: int,
        wanted: Callable[[TopicIdPartition], bool] = lambda partition: True,
        may_have_more_metadata: Callable[[TopicIdPartition], bool] = lambda partition: False,
    ) -> None:
        """`may_have_more_metadata`: whether brokers may have metadata of the partition that is not in `known`."""
        self._known = known
        self._old_before_ms = old_before_ms
        self._may_have_more_metadata = may_have_more_metadata
        self.is_wanted = wanted
        self._open: list[ObjectInfo] = []
        self._directory: _Directory | None = None
        self._done: set[TopicIdPartition] = set()
        self.usages: dict[TopicIdPartition, StorageUsage] = {}
        """Usage of each listed partition."""
        self.findings: list[AuditFinding] = []
        """All segments that are not WHOLE. Findings of a partition may change until its listing has
        ended."""
        self.objects = 0
        self.summaries: list[ObjectInfo] = []

    def take(self, page: Iterable[ObjectInfo]) -> list[AuditFinding]:
        """Add a page of the listing; returns the segments whose objects are all listed, including
        complete ones."""
        finished = []
        for info in page:
            self.objects += 1
            if self._open and _stem(self._open[0].key) != _stem(info.key):
                finished += self._close()
            self._open.append(info)
        return finished

    def part(self) -> RemoteStorageAudit:
        """Audit for the pages of other directories, which shares the findings; `join` it at their
        end."""
        part = RemoteStorageAudit(
            self._known,
            old_before_ms=self._old_before_ms,
            wanted=self.is_wanted,
            may_have_more_metadata=self._may_have_more_metadata,
        )
        part._done, part.usages = self._done, self.usages
        part.findings, part.summaries = self.findings, self.summaries
        return part

    def join(self, part: RemoteStorageAudit) -> list[AuditFinding]:
        """Finish the directories of a part."""
        self.objects += part.objects
        return [*part._close(), *part._leave_directory()]

    def end(self) -> list[AuditFinding]:
        """Finish the listing, and find segments without any object."""
        finished = self._close()
        finished += self._leave_directory()
        for partition in [] if self._known is None else self._known.partitions():
            if partition not in self._done and self.is_wanted(partition):
                finished += self._missing_of(partition, ())
        return finished

    def recheck(self) -> None:
        """Compare the findings again with the current metadata."""
        settled = []
        for finding in self.findings:
            again = self._classify_again(finding)
            if again is not None:
                settled.append(again)
        self.findings = settled

    def _close(self) -> list[AuditFinding]:
        objects, self._open = self._open, []
        if not objects:
            return []
        summary = parse_summary(objects[0].key)
        if summary is not None and len(objects) == 1:
            return self._close_summary(objects[0], summary[0])
        stem = _stem(objects[0].key)
        name = parse_key(stem + LOG_SUFFIX)
        by_suffix = {} if name is None else {each.key[len(stem) :]: each for each in objects}
        strays = [each for each in objects if each.key[len(stem) :] not in SUFFIXES or name is None]
        finished = self._found(AuditFinding(SegmentStatus.STRAY, stray=each) for each in strays)
        for each in strays:
            by_suffix.pop(each.key[len(stem) :], None)
        if name is None or not by_suffix:
            return finished
        partition = name.id.partition
        directory, left = self._enter(partition)
        finished += left
        if not self.is_wanted(partition):
            return finished
        stored = StoredSegment(name.id, name.start_offset, by_suffix)
        self.usages.setdefault(partition, StorageUsage()).add(stored)
        directory.saw(stored)
        return finished + self._found([self._classify(stored)])

    def _close_summary(self, info: ObjectInfo, partition: TopicIdPartition) -> list[AuditFinding]:
        directory, left = self._enter(partition)
        if self.is_wanted(partition):
            self.usages.setdefault(partition, StorageUsage()).add_object(info)
            directory.summaries.append(info)
            self.summaries.append(info)
        return left

    def _enter(self, partition: TopicIdPartition) -> tuple[_Directory, list[AuditFinding]]:
        """Directory of the partition, and the findings of the previous one."""
        if self._directory is not None and self._directory.partition == partition:
            return self._directory, []
        left = self._leave_directory()
        self._directory = _Directory(partition)
        return self._directory, left

    def _found(self, findings: Iterable[AuditFinding]) -> list[AuditFinding]:
        found = list(findings)
        self.findings += [each for each in found if each.status is not SegmentStatus.WHOLE]
        return found

    def _classify(self, stored: StoredSegment) -> AuditFinding:
        if self._known is None:
            return AuditFinding(self._by_manifest(stored), stored)
        metadata = self._known.segment(stored.id)
        if metadata is not None:
            return AuditFinding(_by_state(metadata, stored), stored, metadata)
        if stored.id.partition not in self._known:
            return AuditFinding(SegmentStatus.FOREIGN, stored)
        by_age = self._by_age(stored)
        if by_age is SegmentStatus.DANGLING and self._may_have_more_metadata(stored.id.partition):
            return AuditFinding(SegmentStatus.UNCLEAR, stored)
        return AuditFinding(by_age, stored)

    def _by_manifest(self, stored: StoredSegment) -> SegmentStatus:
        if MANIFEST_SUFFIX not in stored.objects:
            return self._by_age(stored)
        return SegmentStatus.INCOMPLETE if stored.missing() else SegmentStatus.WHOLE

    def _by_age(self, stored: StoredSegment) -> SegmentStatus:
        return (
            SegmentStatus.DANGLING
            if stored.newest_ms < self._old_before_ms
            else SegmentStatus.YOUNG
        )

    def _leave_directory(self) -> list[AuditFinding]:
        directory, self._directory = self._directory, None
        if directory is None or not self.is_wanted(directory.partition):
            return []
        self._done.add(directory.partition)
        if self._known is not None:
            missing = self._missing_of(directory.partition, directory.seen)
            return missing + self._left_summaries(self._known, directory)
        if not directory.has_manifests:
            self.findings[:] = [
                AuditFinding(SegmentStatus.FOREIGN, each.stored)
                if each.partition == directory.partition
                else each
                for each in self.findings
            ]
        return []

    def _left_summaries(self, known: KnownSegments, directory: _Directory) -> list[AuditFinding]:
        if directory.seen or not known.is_deleted(directory.partition):
            return []
        old = [each for each in directory.summaries if each.modified_ms < self._old_before_ms]
        return self._found(AuditFinding(SegmentStatus.DANGLING, stray=each) for each in old)

    def _missing_of(
        self, partition: TopicIdPartition, seen: Container[bytes]
    ) -> list[AuditFinding]:
        return self._found(
            AuditFinding(SegmentStatus.MISSING, metadata=each)
            for each in (() if self._known is None else self._known.segments(partition))
            if each.state is SegmentState.COPY_SEGMENT_FINISHED and each.id.id.bytes not in seen
        )

    def _classify_again(self, finding: AuditFinding) -> AuditFinding | None:
        if self._known is None or finding.stray is not None:
            return finding
        if finding.stored is not None:
            again = self._classify(finding.stored)
            if finding.metadata is not None and again.metadata is None:
                return None  # deleted since the listing; the next audit finds objects that remain
            if (
                again.status is SegmentStatus.INCOMPLETE
                and finding.status is not SegmentStatus.INCOMPLETE
            ):
                return None  # finished since the listing, which may lack the last objects
            return None if again.status is SegmentStatus.WHOLE else again
        assert finding.metadata is not None
        now = self._known.segment(finding.metadata.id)
        is_finished = now is not None and now.state is SegmentState.COPY_SEGMENT_FINISHED
        return finding if is_finished else None


class _Directory:
    """Partition whose objects are being listed."""

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self.seen: set[bytes] = set()
        """Segment ids as bytes, because there may be millions."""
        self.summaries: list[ObjectInfo] = []
        self.has_manifests = False

    def saw(self, stored: StoredSegment) -> None:
        self.seen.add(stored.id.id.bytes)
        self.has_manifests = self.has_manifests or MANIFEST_SUFFIX in stored.objects


def _by_state(metadata: RemoteLogSegmentMetadata, stored: StoredSegment) -> SegmentStatus:
    if metadata.state is SegmentState.COPY_SEGMENT_STARTED:
        return SegmentStatus.COPYING
    if metadata.state is SegmentState.DELETE_SEGMENT_STARTED:
        return SegmentStatus.DELETING
    return SegmentStatus.INCOMPLETE if stored.missing(metadata) else SegmentStatus.WHOLE


def _stem(key: str) -> str:
    """Key without its suffix, common to all objects of a segment."""
    dot = key.rfind(".", key.rfind("/") + 1)
    return key if dot < 0 else key[:dot]
