"""Tasks of `audit`: check a segment's objects against its metadata, and a partition's segments against its offsets.

A segment: each object has the size and CRC of the manifest, the manifest matches the metadata
(`storage.tiered.segment_verification`), and the log matches both (`segment_log_check.py`). The bytes of a log that is
neither compressed nor encrypted are fetched once for both checks.

A partition: the segments that cover its offsets are selected by the leader's epochs (`leader_epoch_lineage.py`);
offsets without a segment are gaps. A segment from which nothing is read is dead: a deposed leader finished its copy,
or another copy has the same offsets. The summaries must match the metadata, and the latest one must list all segments
that readers would not find otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from odradek.pipeline.brokers import EARLIEST, brokers_at
from odradek.pipeline.errors import BrokersUnavailable, CorruptSegment, MissingSegment, error_text
from odradek.pipeline.jobs.segment_log_check import SegmentLogChecker
from odradek.pipeline.leader_epoch_lineage import select_slices
from odradek.pipeline.segment_columns import Segments, SegmentSlices
from odradek.pipeline.store import Store, store_at
from odradek.pipeline.store_errors import object_error
from odradek.protocol.topics import TopicPartition
from odradek.seams.objects import ObjectMissing, Objects, ObjectsUnavailable
from odradek.seams.values import value_class
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.audit import StoredSegment
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteStorageError,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.object_names import LOG_SUFFIX, MANIFEST_SUFFIX, segment_key
from odradek.storage.tiered.partition_summary import decode
from odradek.storage.tiered.remote_index_lookup import check_index
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from odradek.storage.tiered.segment_verification import SegmentVerification, summary_problems

PIECE_BYTES = 8 << 20


@value_class
class AuditSource:
    """Addresses of the store and the brokers, for a task."""

    tiered_url: str
    store_options: Mapping[str, str]
    bootstrap: str | None
    timeout_ms: int

    def store(self) -> Store:
        return store_at(self.tiered_url, tuple(sorted(self.store_options.items())))


@value_class
class SegmentReport:
    """Contents and problems of a segment."""

    id: RemoteLogSegmentId
    batches: int
    records: int
    size_bytes: int
    """Bytes that were read."""
    problems: Sequence[str]
    manifest: RemoteLogSegmentMetadata | None = None
    """Metadata from the manifest, if there is no other."""


@value_class
class PartitionReport:
    """State of a partition in the store. Upper offset bounds are exclusive."""

    partition: TopicIdPartition
    segments: int
    offsets: tuple[int, int] | None
    """None if there are no segments."""
    gaps: Sequence[tuple[int, int]]
    overlapping: int
    """Number of offsets that are in more than one segment."""
    dead: Sequence[str]
    """Keys of segments from which no offset is read."""
    problems: Sequence[str]


def check_segment(
    source: AuditSource, stored: StoredSegment, metadata: RemoteLogSegmentMetadata | None
) -> SegmentReport:
    """Read and check all objects of a segment. Raises StoreUnavailable, DeniedSegment."""
    check = _SegmentCheck(source.store(), stored, metadata)
    try:
        check.run()
    except ObjectsUnavailable as error:
        raise object_error(str(stored.id), error) from error
    log_checker = check.log_checker
    return SegmentReport(
        stored.id,
        log_checker.batches if log_checker else 0,
        log_checker.records if log_checker else 0,
        check.size_bytes,
        check.problems,
        check.known if metadata is None else None,
    )


class _SegmentCheck:
    """State of one call of `check_segment`."""

    def __init__(
        self, store: Store, stored: StoredSegment, metadata: RemoteLogSegmentMetadata | None
    ) -> None:
        self._store = store
        self._stored = stored
        self._metadata = metadata
        self._verification = SegmentVerification(store.objects, stored, metadata, self._see)
        self.log_checker: SegmentLogChecker | None = None
        self.size_bytes = 0
        self.problems: list[str] = []

    @property
    def known(self) -> RemoteLogSegmentMetadata | None:
        manifest = self._verification.manifest
        return self._metadata or (None if manifest is None else manifest.metadata)

    def run(self) -> None:
        for size in self._verification.steps():
            self.size_bytes += size
        self.problems += self._verification.problems
        known = self.known
        if known is None:
            return
        try:
            self._end_log(known)
            self._check_indexes(known)
        except (
            RemoteStorageUnavailable
        ) as error:  # does not mean that an object is missing or corrupt
            raise object_error(segment_key(known, ""), error) from error
        except RemoteStorageError as error:
            self.problems.append(f"{segment_key(known, '')}: {error_text(error)}")
        if self.log_checker is not None:
            already_reported = {*self.problems}
            self.problems += [
                each for each in self.log_checker.problems if each not in already_reported
            ]

    def _see(self, suffix: str, piece: bytes) -> None:
        """Check a piece of an object: log records, if the log is stored as it is."""
        manifest, known = self._verification.manifest, self.known
        is_plain = manifest is None or not (manifest.chunks or manifest.key)
        if suffix == LOG_SUFFIX and is_plain and known is not None:
            self._walk(known).feed(piece)

    def _walk(self, known: RemoteLogSegmentMetadata) -> SegmentLogChecker:
        if self.log_checker is None:
            self.log_checker = SegmentLogChecker(known, segment_key(known, LOG_SUFFIX))
        return self.log_checker

    def _end_log(self, known: RemoteLogSegmentMetadata) -> None:
        if self.log_checker is None:
            for at in range(0, known.size_bytes, PIECE_BYTES):
                piece = self._store.storage.fetch_segment(known, at, at + PIECE_BYTES - 1)
                self.size_bytes += len(piece)
                self._walk(known).feed(piece)
        self._walk(known).end()

    def _check_indexes(self, known: RemoteLogSegmentMetadata) -> None:
        kinds = [IndexType.TIMESTAMP, IndexType.OFFSET]
        if not known.txn_index_empty:
            kinds.append(IndexType.TRANSACTION)
        for kind in kinds:
            index = self._store.storage.fetch_index(known, kind)
            check_index(index, kind, known)
            if kind is IndexType.OFFSET:
                self._walk(known).check_offset_index(index)


def check_partition(
    source: AuditSource,
    partition: TopicIdPartition,
    known: Sequence[RemoteLogSegmentMetadata],
    local_start: int | None,
    summaries: Sequence[str] = (),
) -> PartitionReport | None:
    """Check a partition by its finished segments `known`.

    With brokers, all offsets below `local_start`, which was requested before `known` was read, must be in the
    store; None if the topic was deleted. `summaries` are the keys of the listed summaries. Raises PipelineError.
    """
    where = TopicPartition(partition.topic, partition.partition)
    segments = Segments.of(partition, known)
    problems: list[str] = []
    low = high = None
    lineage = []
    if source.bootstrap is not None and local_start is not None:
        brokers = brokers_at(source.bootstrap, source.timeout_ms)
        try:
            lineage = brokers.lineage(where, segments.epochs())
            low, high = brokers.offsets({where: EARLIEST})[where], local_start
        except BrokersUnavailable:
            topic = brokers.topics().get(partition.topic)
            if topic is None or topic.topic_id != partition.topic_id:
                return None
            raise
    elif len(segments):
        try:
            lineage = source.store().lineage(segments)
        except (MissingSegment, CorruptSegment) as error:
            problems.append(str(error))
            lineage = list(segments.latest().epochs)
    slices = select_slices(segments, lineage, 0, 1 << 62)
    if len(slices):
        low = slices.low if low is None else low
        high = max(slices.high, high or 0)
    gaps = _gaps(slices, low, high)
    if summaries:
        problems += _check_summaries(source, partition, known, summaries, lineage, gaps, low, high)
    used = {each.segment.id.id for each in slices}
    return PartitionReport(
        partition,
        len(segments),
        (slices.low, slices.high) if len(slices) else None,
        gaps,
        _overlapping(known),
        [segment_key(each, "") for each in segments if each.id.id not in used],
        problems,
    )


def _check_summaries(
    source: AuditSource,
    partition: TopicIdPartition,
    known: Sequence[RemoteLogSegmentMetadata],
    summaries: Sequence[str],
    lineage: Sequence[EpochStart],
    gaps: Sequence[tuple[int, int]],
    low: int | None,
    high: int | None,
) -> list[str]:
    """Return the problems of the summaries, and the segments that the last one lacks. `gaps`: offsets of the
    partition from `low` to `high` without a segment."""
    objects = source.store().objects
    problems = _summary_problems(objects, summaries, known)
    seen = _seen_by_summary(objects, max(summaries), partition, known)
    if len(seen) < len(known):
        left = select_slices(Segments.of(partition, seen), lineage, 0, 1 << 62)
        problems += [
            (
                f"{max(summaries)} lacks the segment with offsets {begin} to {end - 1}, which"
                " readers of the summary would not find"
            )
            for begin, end in sorted({*_gaps(left, low, high)}.difference(gaps))
        ]
    return problems


def _gaps(slices: SegmentSlices, low: int | None, high: int | None) -> list[tuple[int, int]]:
    """Return the offset ranges without a segment from `low` up to `high`."""
    if high is None:
        return []
    within = slices.between(low or 0, high)
    return [(begin, end) for begin, end, _ in within.gaps(low or 0, high)]


class _Known:
    def __init__(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        self._segments = {each.id: each for each in segments}

    def segment(self, id_: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self._segments.get(id_)


def _summary_problems(
    objects: Objects, keys: Iterable[str], known: Iterable[RemoteLogSegmentMetadata]
) -> list[str]:
    segments = _Known(known)
    found = []
    for key in keys:
        with _translate_store_errors(key):
            found += summary_problems(objects, key, segments)
    return found


def _seen_by_summary(
    objects: Objects,
    key: str,
    partition: TopicIdPartition,
    known: Sequence[RemoteLogSegmentMetadata],
) -> Sequence[RemoteLogSegmentMetadata]:
    """Return the segments that a reader finds with this summary: those that it lists, and those that begin where its
    last one begins, or later, which the reader lists itself. With an unreadable or empty summary the reader finds all
    segments. Segments deleted meanwhile are included, so that they are not reported.
    """
    with _translate_store_errors(key):
        try:
            summary = decode(objects.get(key))
        except (ObjectMissing, CorruptRemoteData):
            return known
        segments = list(summary.segments(partition))
        ids = {each.id for each in segments}
        last = max((each.start_offset for each in segments), default=0)
        return [
            each
            for each in known
            if each.id in ids or each.start_offset >= last or not _exists(objects, each)
        ]


def _exists(objects: Objects, segment: RemoteLogSegmentMetadata) -> bool:
    """Whether the segment still exists: its manifest is deleted first."""
    try:
        objects.head(segment_key(segment, MANIFEST_SUFFIX))
    except ObjectMissing:
        return False
    return True


@contextmanager
def _translate_store_errors(key: str) -> Iterator[None]:
    """Translate errors of the store. Raises StoreUnavailable, DeniedSegment."""
    try:
        yield
    except ObjectsUnavailable as error:
        raise object_error(key, error) from error


def _overlapping(segments: Sequence[RemoteLogSegmentMetadata]) -> int:
    found, cursor = 0, -1
    for each in sorted(segments, key=lambda one: one.start_offset):
        end = each.end_offset + 1
        found += max(0, min(cursor, end) - each.start_offset)
        cursor = max(cursor, end)
    return found
