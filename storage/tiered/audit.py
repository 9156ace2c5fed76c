"""Every object of the remote tier accounted for: what of it is whole, what is missing, what is garbage.

A listing of the store comes in, each directory in the order of keys, beside what the metadata says; what stands how
comes out. No I/O, and little memory: of segments with which all is well only their number and bytes
are kept.

| the metadata says | its objects | it stands |
|---|---|---|
| COPY_SEGMENT_FINISHED | all there | WHOLE |
| COPY_SEGMENT_FINISHED | some missing | INCOMPLETE |
| COPY_SEGMENT_FINISHED | none | MISSING |
| COPY_SEGMENT_STARTED | any | COPYING: its leader goes on, or removes it |
| DELETE_SEGMENT_STARTED | any | DELETING: its leader goes on |
| not this segment, but its partition | any | DANGLING, once it is old enough; before YOUNG |
| the same, but brokers may know more | any | UNCLEAR, once it is old enough |
| nothing of the partition | any | FOREIGN: another cluster's, or the metadata is lost |
| | no segment's | STRAY |

The summary of a partition's segments (`summary.py`) belongs to the partition: it is DANGLING where that was
deleted and nothing is left but the summary, and else is not looked at.

A copy is announced before its first object is put. So what was listed and is in no metadata that was read
*after* the listing is nobody's: `recheck` is called then, and takes back what has changed meanwhile. The
age is there for stores that list what they have late, and for clocks.

Without metadata, a manifest stands for it: it is put last and removed first. A partition without a
single one is FOREIGN then: Kafka's LocalTieredStorage writes none.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from odradek.seams.objects import ObjectInfo
from odradek.seams.values import value_class
from odradek.storage.tiered.custom_metadata import needs_manifest
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata import (
    RemoteEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.storage.tiered.object_names import (
    LOG_SUFFIX,
    MANIFEST_SUFFIX,
    SUFFIXES,
    parse_key,
    parse_summary,
)
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.remote_storage_manager import IndexType

NEEDED = tuple(
    suffix for suffix in SUFFIXES if suffix not in (IndexType.TRANSACTION.value, MANIFEST_SUFFIX)
)
"""What every whole segment has. Kafka's have no manifest."""


class SegmentStatus(Enum):
    """See the module."""

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
        """Records cannot be read."""
        return self in (SegmentStatus.INCOMPLETE, SegmentStatus.MISSING)

    @property
    def is_garbage(self) -> bool:
        return self is SegmentStatus.DANGLING


@value_class
class StoredSegment:
    """What there is of a segment in the store; `objects` are by suffix."""

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
        """Suffixes; the manifest's where the log cannot be read without."""
        has_form = metadata is not None and needs_manifest(metadata.custom_metadata)
        needed = (*NEEDED, MANIFEST_SUFFIX) if has_form else NEEDED
        return [suffix for suffix in needed if suffix not in self.objects]

    def removal_order(self) -> list[str]:
        """The keys, the manifest first: it never outlives what it describes."""
        suffixes = sorted(self.objects, key=lambda suffix: suffix != MANIFEST_SUFFIX)
        return [self.objects[suffix].key for suffix in suffixes]


@value_class
class AuditFinding:
    """How something stands. A MISSING segment has no `stored`; an object that is no segment's is `stray`,
    and has nothing but its key."""

    status: SegmentStatus
    stored: StoredSegment | None = None
    metadata: RemoteLogSegmentMetadata | None = None
    stray: ObjectInfo | None = None

    def removal_order(self) -> list[str]:
        """The keys of what there is."""
        if self.stored is not None:
            return self.stored.removal_order()
        return [] if self.stray is None else [self.stray.key]

    @property
    def partition(self) -> TopicIdPartition | None:
        if self.stored is not None:
            return self.stored.id.partition
        return None if self.metadata is None else self.metadata.partition


class KnownSegments:
    """What the metadata topic says, of all partitions that it ever spoke of."""

    def __init__(self) -> None:
        self._partitions: dict[TopicIdPartition, RemoteLogMetadataCache] = {}

    def apply(self, event: RemoteEvent) -> None:
        """The next record. What does not follow is passed over, as by every reader."""
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
        """Whether the metadata speaks of the partition's deletion."""
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
    """Of one partition, or of all: what there is, and of it how much is garbage."""

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
    """See the module. `take` every page of the listing, then `end`; then, once the metadata has been read
    to its end again, `recheck`.

    `known` is None without metadata. Garbage is what was put before `old_before_ms`.
    """

    def __init__(
        self,
        known: KnownSegments | None,
        *,
        old_before_ms: int,
        wanted: Callable[[TopicIdPartition], bool] = lambda partition: True,
        is_doubtful: Callable[[TopicIdPartition], bool] = lambda partition: False,
    ) -> None:
        """`is_doubtful`: whether brokers may know segments of the partition that are not in `known`."""
        self._known = known
        self._old_before_ms = old_before_ms
        self._is_doubtful = is_doubtful
        self.is_wanted = wanted
        self._open: list[ObjectInfo] = []
        self._directory: _Directory | None = None
        self._done: set[TopicIdPartition] = set()
        self.usages: dict[TopicIdPartition, StorageUsage] = {}
        """Of everything that was listed, partition by partition."""
        self.findings: list[AuditFinding] = []
        """All that is not WHOLE. What is said of a partition may change until its listing has ended."""
        self.objects = 0
        self.summaries: list[ObjectInfo] = []

    def take(self, page: Iterable[ObjectInfo]) -> list[AuditFinding]:
        """How the segments stand whose objects are all listed by now, whole ones too."""
        judged = []
        for info in page:
            self.objects += 1
            if self._open and _stem(self._open[0].key) != _stem(info.key):
                judged += self._close()
            self._open.append(info)
        return judged

    def part(self) -> RemoteStorageAudit:
        """Takes the pages of other directories, meanwhile, and tells of them here: `join` it when they have
        no more."""
        part = RemoteStorageAudit(
            self._known,
            old_before_ms=self._old_before_ms,
            wanted=self.is_wanted,
            is_doubtful=self._is_doubtful,
        )
        part._done, part.usages = self._done, self.usages
        part.findings, part.summaries = self.findings, self.summaries
        return part

    def join(self, part: RemoteStorageAudit) -> list[AuditFinding]:
        """The directories of a part have ended."""
        self.objects += part.objects
        return [*part._close(), *part._leave_directory()]

    def end(self) -> list[AuditFinding]:
        """The listing is over: now it is known as well which segments are not in it."""
        judged = self._close()
        judged += self._leave_directory()
        for partition in [] if self._known is None else self._known.partitions():
            if partition not in self._done and self.is_wanted(partition):
                judged += self._missing_of(partition, ())
        return judged

    def recheck(self) -> None:
        """Judge again what was not whole, by what the metadata says now."""
        settled = []
        for finding in self.findings:
            again = self._judge_again(finding)
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
        judged = self._found(AuditFinding(SegmentStatus.STRAY, stray=each) for each in strays)
        for each in strays:
            by_suffix.pop(each.key[len(stem) :], None)
        if name is None or not by_suffix:
            return judged
        partition = name.id.partition
        directory, left = self._enter(partition)
        judged += left
        if not self.is_wanted(partition):
            return judged
        stored = StoredSegment(name.id, name.start_offset, by_suffix)
        self.usages.setdefault(partition, StorageUsage()).add(stored)
        directory.saw(stored)
        return judged + self._found([self._judge(stored)])

    def _close_summary(self, info: ObjectInfo, partition: TopicIdPartition) -> list[AuditFinding]:
        directory, left = self._enter(partition)
        if self.is_wanted(partition):
            self.usages.setdefault(partition, StorageUsage()).add_object(info)
            directory.summaries.append(info)
            self.summaries.append(info)
        return left

    def _enter(self, partition: TopicIdPartition) -> tuple[_Directory, list[AuditFinding]]:
        """The partition's directory, and what is said of the one before."""
        if self._directory is not None and self._directory.partition == partition:
            return self._directory, []
        left = self._leave_directory()
        self._directory = _Directory(partition)
        return self._directory, left

    def _found(self, findings: Iterable[AuditFinding]) -> list[AuditFinding]:
        found = list(findings)
        self.findings += [each for each in found if each.status is not SegmentStatus.WHOLE]
        return found

    def _judge(self, stored: StoredSegment) -> AuditFinding:
        if self._known is None:
            return AuditFinding(self._by_manifest(stored), stored)
        metadata = self._known.segment(stored.id)
        if metadata is not None:
            return AuditFinding(_by_state(metadata, stored), stored, metadata)
        if stored.id.partition not in self._known:
            return AuditFinding(SegmentStatus.FOREIGN, stored)
        by_age = self._by_age(stored)
        if by_age is SegmentStatus.DANGLING and self._is_doubtful(stored.id.partition):
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

    def _judge_again(self, finding: AuditFinding) -> AuditFinding | None:
        if self._known is None or finding.stray is not None:
            return finding
        if finding.stored is not None:
            again = self._judge(finding.stored)
            if finding.metadata is not None and again.metadata is None:
                return None  # deleted since it was listed; if not all of it is gone, the next look tells
            if (
                again.status is SegmentStatus.INCOMPLETE
                and finding.status is not SegmentStatus.INCOMPLETE
            ):
                return None  # finished since: what is missing may have been put since it was listed
            return None if again.status is SegmentStatus.WHOLE else again
        assert finding.metadata is not None
        now = self._known.segment(finding.metadata.id)
        is_finished = now is not None and now.state is SegmentState.COPY_SEGMENT_FINISHED
        return finding if is_finished else None


class _Directory:
    """The partition whose objects are being listed."""

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self.seen: set[bytes] = set()
        """The ids of the segments, as bytes: there may be millions."""
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
    """All but the suffix: what the objects of a segment have in common."""
    dot = key.rfind(".", key.rfind("/") + 1)
    return key if dot < 0 else key[:dot]
