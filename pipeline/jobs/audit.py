"""Audits the remote tier: checks every remote log segment against its metadata, and finds lost and orphaned
objects.

    1. The partitions with remote segments are read from the metadata topic. Then the local log start offsets
       are requested, and the topic is read to its end again.
    2. The store is listed, many partitions concurrently. Every object is classified (`storage.tiered.audit`).
       Complete segments are read by tasks during the listing (`audit_tasks.py`).
    3. For each partition, the coverage of its offsets and its summaries are checked.
    4. The metadata is read to its end again: segments deleted meanwhile are not lost, and segments finished
       meanwhile are not orphans.

A topic may be deleted at any time, and another created with its name. Remaining metadata of a deleted topic is
reported as that, and its segments are neither read nor missed.

Reading takes nearly all of the time. With `resume`, results of the segments that were read are kept
(`audit_results.py`), and a later run repeats only the rest.

Without brokers, the manifests replace the metadata. The driver keeps only findings and sums, and the metadata if
there are brokers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from odradek.pipeline.brokers import Brokers, brokers_at
from odradek.pipeline.errors import (
    BadOption,
    BrokersUnavailable,
    PipelineError,
    spark_error_message,
)
from odradek.pipeline.jobs.audit_results import AuditResultsFile, open_audit_results
from odradek.pipeline.jobs.audit_tasks import (
    AuditSource,
    PartitionReport,
    SegmentReport,
    check_partition,
    check_segment,
)
from odradek.pipeline.jobs.job_progress import JobProgress
from odradek.pipeline.options import store_url
from odradek.pipeline.store import list_directories
from odradek.pipeline.store_errors import object_error
from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import RealClock
from odradek.seams.objects import ObjectsUnavailable
from odradek.seams.values import value_class
from odradek.storage.tiered.audit import (
    AuditFinding,
    KnownSegments,
    RemoteStorageAudit,
    SegmentStatus,
    StorageUsage,
    StoredSegment,
)
from odradek.storage.tiered.object_names import parse_directory, parse_summary, segment_key
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
RunTasks = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]

YOUNG_MS, YOUNG_WITHOUT_BROKERS_MS = 3_600_000, 86_400_000
"""Objects without a segment that are younger may be part of a copy in progress."""
SEGMENTS_A_TASK = 8
TASKS_A_ROUND = 50
"""Tasks per Spark core in one round, which limits the driver's memory."""


@value_class
class AuditJob:
    """Settings of an audit. Without `bootstrap`, the manifests are the only metadata."""

    tiered_url: str
    bootstrap: str | None = None
    store_options: Mapping[str, str] = field(default_factory=dict)
    topics: Sequence[str] = ()
    """All topics if empty."""
    timeout_ms: int = 30_000
    young_ms: int | None = None
    resume: str | None = None
    """File on the driver's machine with the results so far, with which a run continues after an interrupted one."""


@value_class
class DeletedPartition:
    """A partition of a deleted topic for which the metadata still has segments."""

    partition: TopicIdPartition
    segments: int
    """Number of segments in any state."""
    is_marked: bool
    """Whether the metadata has DELETE_PARTITION_MARKED or a later state (KIP-405)."""
    followed_by: UUID | None
    """Id of the topic that has the same name now."""


@dataclass
class AuditReport:
    """Result of an audit. `problems` name objects, or partitions and their offsets."""

    usages: Mapping[TopicIdPartition, StorageUsage]
    partitions: Sequence[PartitionReport]
    findings: Sequence[AuditFinding]
    """Incomplete segments, and objects without a segment."""
    problems: Sequence[str]
    records: Mapping[TopicIdPartition, int]
    size_bytes: int
    """Total bytes that were read."""
    deleted: Sequence[DeletedPartition] = ()
    """Partitions of deleted topics; not a problem, because the cluster will delete them."""

    @property
    def has_no_problems(self) -> bool:
        return not (
            self.problems
            or any(each.gaps or each.problems for each in self.partitions)
            or any(each.status.is_loss or each.status.is_garbage for each in self.findings)
        )


def audit(
    spark: SparkSession,
    job: AuditJob,
    on_progress: Callable[[JobProgress], None] = lambda progress: None,
) -> AuditReport:
    """Audit the store, reading every segment. Raises BadOption, and PipelineError if the store or the brokers do
    not respond.
    """
    slots = max(1, spark.sparkContext.defaultParallelism)

    def on_spark(act: Callable[[T], R], items: Sequence[T]) -> list[R]:
        return _on_spark(spark, act, items)

    return run_audit(job, on_spark, slots, on_progress)


def run_audit(
    job: AuditJob,
    run_tasks: RunTasks,
    slots: int,
    on_progress: Callable[[JobProgress], None] = lambda progress: None,
) -> AuditReport:
    """Audit the store; `run_tasks` applies a function to many items, `slots` at a time."""
    if job.resume is None:
        return _run_audit(job, run_tasks, slots, on_progress, None)
    with open_audit_results(
        job.resume, _source(job).store().url, has_brokers=job.bootstrap is not None
    ) as results_file:
        report = _run_audit(job, run_tasks, slots, on_progress, results_file)
        results_file.remove()
        return report


def _source(job: AuditJob) -> AuditSource:
    try:
        url = store_url(job.tiered_url)
    except ValueError as error:
        raise BadOption(f"the object store: {error}") from None
    return AuditSource(url, job.store_options, job.bootstrap, job.timeout_ms)


def _run_audit(
    job: AuditJob,
    run_tasks: RunTasks,
    slots: int,
    on_progress: Callable[[JobProgress], None],
    results_file: AuditResultsFile | None,
) -> AuditReport:
    clock = RealClock()
    begun_at = clock.monotonic()
    source = _source(job)
    brokers = None if job.bootstrap is None else brokers_at(job.bootstrap, job.timeout_ms)
    cluster_view = None if brokers is None else _ClusterView(brokers, job.topics)
    young = YOUNG_MS if cluster_view else YOUNG_WITHOUT_BROKERS_MS
    young = young if job.young_ms is None else job.young_ms
    listed = RemoteStorageAudit(
        None if cluster_view is None else cluster_view.known,
        old_before_ms=clock.wall_ms() - young,
        wanted=partial(_is_wanted, job.topics),
    )
    totals = _SegmentTotals()
    resumed = 0
    whole = (
        each
        for each in _complete_segments(listed, source)
        if cluster_view is None or each.partition is None or cluster_view.exists(each.partition)
    )
    while some := list(islice(whole, SEGMENTS_A_TASK * TASKS_A_ROUND * slots)):
        reports = _earlier_reports(results_file, some)
        resumed += len(reports)
        read = _read(source, [each for each in some if _id(each) not in reports], run_tasks)
        if results_file is not None and read:
            results_file.append(read)
        for report in (*reports.values(), *(report for _, report in read)):
            totals.add(report)
        on_progress(JobProgress(totals.segments, 0, clock.monotonic() - begun_at, resumed))
    if cluster_view is not None:
        cluster_view.refresh()
    _check_topics_exist(job, source.store().url, listed, cluster_view)
    checked = run_tasks(
        _check_partition, _partition_checks(listed, source, cluster_view, totals.manifests)
    )
    partitions = [each for each in checked if each is not None]
    deleted: list[DeletedPartition] = []
    if cluster_view is not None:
        cluster_view.read_to_end()
        cluster_view.refresh()
        listed.recheck()
        deleted = [each for each in cluster_view.deleted() if listed.is_wanted(each.partition)]
        partitions = [each for each in partitions if cluster_view.exists(each.partition)]
        totals.broken = [each for each in totals.broken if cluster_view.is_finished(each)]
    on_progress(
        JobProgress(totals.segments, totals.segments, clock.monotonic() - begun_at, resumed)
    )
    return _report(listed, totals, partitions, deleted)


class _SegmentTotals:
    """Sums over the segments that were read."""

    def __init__(self) -> None:
        self.segments = 0
        self.size_bytes = 0
        self.records: dict[TopicIdPartition, int] = defaultdict(int)
        self.manifests: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = defaultdict(list)
        self.broken: list[SegmentReport] = []
        """Segments with problems."""

    def add(self, report: SegmentReport) -> None:
        self.segments += 1
        self.size_bytes += report.size_bytes
        self.records[report.id.partition] += report.records
        if report.manifest is not None:
            self.manifests[report.id.partition].append(report.manifest)
        if report.problems:
            self.broken.append(report)


def _report(
    listed: RemoteStorageAudit,
    totals: _SegmentTotals,
    partitions: Sequence[PartitionReport],
    deleted: Sequence[DeletedPartition],
) -> AuditReport:
    left = {each.partition for each in deleted}
    findings = [
        each
        for each in listed.findings
        if each.status is not SegmentStatus.WHOLE
        and not (each.status.is_loss and each.partition in left)
    ]
    broken = sorted(totals.broken, key=lambda each: each.problems[0])
    return AuditReport(
        usages=listed.usages,
        partitions=sorted(partitions, key=lambda each: _order(each.partition)),
        findings=sorted(findings, key=_key),
        problems=[text for each in broken for text in each.problems],
        records=totals.records,
        size_bytes=totals.size_bytes,
        deleted=deleted,
    )


def _is_wanted(topics: Sequence[str], partition: TopicIdPartition) -> bool:
    return not topics or partition.topic in topics


def _check_topics_exist(
    job: AuditJob, url: str, listed: RemoteStorageAudit, cluster_view: _ClusterView | None
) -> None:
    """Check that the topics exist and that the directory is a remote tier, so that a misspelt name is not reported
    as a clean audit. Raises BadOption.
    """
    known = {each.topic for each in listed.usages} | (
        set() if cluster_view is None else cluster_view.topics
    )
    missing = sorted(set(job.topics) - known)
    if missing:
        raise BadOption(f"{url} has no objects of topic {', '.join(missing)}")
    if cluster_view is None and not listed.usages:
        raise BadOption(
            f"{url} has no remote log segments: check that it is the location that the brokers use"
        )


class _ClusterView:
    """The brokers' view: topics, local log start offsets, and remote segment metadata."""

    def __init__(self, brokers: Brokers, topics: Sequence[str]) -> None:
        """Read the metadata and the local log start offsets of `topics`, or of all if empty."""
        self._brokers = brokers
        self._metadata = brokers.remote_metadata()
        self.read_to_end()
        self.refresh()
        wanted = [each for each in self.known.partitions() if _is_wanted(topics, each)]
        self._local_starts = self._fetch_local_log_start_offsets(wanted)
        self.read_to_end()

    @property
    def known(self) -> KnownSegments:
        return self._metadata.known

    def read_to_end(self) -> None:
        self._brokers.read_remote_metadata(self._metadata)

    def refresh(self) -> None:
        """Request the current topics."""
        self._ids = {name: topic.topic_id for name, topic in self._brokers.topics().items()}

    def _fetch_local_log_start_offsets(
        self, wanted: Sequence[TopicIdPartition]
    ) -> Mapping[TopicPartition, int]:
        """Request the local log start offsets of partitions that exist, also after a deletion meanwhile."""
        there = [each for each in wanted if self.exists(each)]
        try:
            return self._brokers.local_log_start_offsets(_where(each) for each in there)
        except BrokersUnavailable:
            self.refresh()
            if all(map(self.exists, there)):
                raise
            return self._fetch_local_log_start_offsets(there)

    @property
    def topics(self) -> set[str]:
        """Names of current topics, tiered or not, and of deleted topics that still have metadata."""
        return {*self._ids, *(each.partition.topic for each in self.deleted())}

    def exists(self, partition: TopicIdPartition) -> bool:
        """Whether the topic still exists with the same id."""
        return self._ids.get(partition.topic) == partition.topic_id

    def deleted(self) -> list[DeletedPartition]:
        """Return deleted partitions that still have segments."""
        deleted = [each for each in self.known.partitions() if not self.exists(each)]
        found = [
            DeletedPartition(
                each,
                sum(1 for _ in self.known.segments(each)),
                self.known.is_deleted(each),
                self._ids.get(each.topic),
            )
            for each in sorted(deleted, key=_order)
        ]
        return [each for each in found if each.segments]

    def local_start(self, partition: TopicIdPartition) -> int | None:
        return self._local_starts.get(_where(partition))

    def finished(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return [
            each
            for each in self.known.segments(partition)
            if each.state is SegmentState.COPY_SEGMENT_FINISHED
        ]

    def is_finished(self, report: SegmentReport) -> bool:
        """Whether the segment is still finished, and neither it nor its topic was deleted while it was read."""
        now = self.known.segment(report.id)
        is_known = now is not None and now.state is SegmentState.COPY_SEGMENT_FINISHED
        return is_known and self.exists(report.id.partition)


def _where(partition: TopicIdPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _complete_segments(listed: RemoteStorageAudit, source: AuditSource) -> Iterator[AuditFinding]:
    """Yield complete segments while the store is listed, except those of excluded partitions."""
    parts: dict[str, RemoteStorageAudit] = defaultdict(listed.part)
    try:
        objects = source.store().objects
        yield from _to_read(listed.take(objects.outside_directories("")))
        directories = [
            each
            for each in objects.directories("")
            if (of := parse_directory(each)) is None or listed.is_wanted(of)
        ]
        for directory, page in list_directories(objects, directories):
            if page is not None:
                yield from _to_read(parts[directory].take(page))
            else:
                yield from _to_read(listed.join(parts.pop(directory, listed.part())))
    except ObjectsUnavailable as error:
        raise object_error("the store", error, "listed") from error
    yield from _to_read(listed.end())


def _to_read(findings: Iterable[AuditFinding]) -> Iterator[AuditFinding]:
    return (each for each in findings if each.status is SegmentStatus.WHOLE)


_ReadSegments = list[tuple[StoredSegment, SegmentReport]]


def _earlier_reports(
    results_file: AuditResultsFile | None, findings: Sequence[AuditFinding]
) -> dict[RemoteLogSegmentId, SegmentReport]:
    """Return the results of earlier runs for these segments."""
    if results_file is None:
        return {}
    stored = (each.stored for each in findings if each.stored is not None)
    found = ((each.id, results_file.find(each)) for each in stored)
    return {id: report for id, report in found if report is not None}


def _id(finding: AuditFinding) -> RemoteLogSegmentId | None:
    return None if finding.stored is None else finding.stored.id


def _read(
    source: AuditSource, findings: Sequence[AuditFinding], run_tasks: RunTasks
) -> _ReadSegments:
    tasks = [
        (source, findings[at : at + SEGMENTS_A_TASK])
        for at in range(0, len(findings), SEGMENTS_A_TASK)
    ]
    reports = run_tasks(_check_segments, tasks) if tasks else []
    stored = {each.stored.id: each.stored for each in findings if each.stored is not None}
    return [(stored[each.id], each) for found in reports for each in found]


def _check_segments(task: tuple[AuditSource, Sequence[AuditFinding]]) -> list[SegmentReport]:
    source, findings = task
    return [
        check_segment(source, each.stored, each.metadata)
        for each in findings
        if each.stored is not None
    ]


_PartitionCheck = tuple[
    AuditSource,
    TopicIdPartition,
    Sequence[RemoteLogSegmentMetadata],
    int | None,
    Sequence[str],
]


def _partition_checks(
    listed: RemoteStorageAudit,
    source: AuditSource,
    cluster_view: _ClusterView | None,
    manifests: Mapping[TopicIdPartition, Sequence[RemoteLogSegmentMetadata]],
) -> list[_PartitionCheck]:
    summaries: dict[TopicIdPartition, list[str]] = defaultdict(list)
    for each in listed.summaries:
        named = parse_summary(each.key)
        assert named is not None, "it was listed as existing"
        summaries[named[0]].append(each.key)
    if cluster_view is None:
        return [
            (source, partition, manifests[partition], None, summaries[partition])
            for partition in listed.usages
        ]
    return [
        (
            source,
            partition,
            cluster_view.finished(partition),
            cluster_view.local_start(partition),
            summaries[partition],
        )
        for partition in cluster_view.known.partitions()
        if cluster_view.exists(partition) and listed.is_wanted(partition)
    ]


def _check_partition(task: _PartitionCheck) -> PartitionReport | None:
    return check_partition(*task)


def _order(partition: TopicIdPartition) -> tuple[str, int, bytes]:
    return partition.topic, partition.partition, partition.topic_id.bytes


def _key(finding: AuditFinding) -> str:
    """Return the first key of its objects, or of the segment if it has none."""
    known = finding.metadata
    keys = finding.removal_order() or ["" if known is None else segment_key(known, "")]
    return min(keys)


def _on_spark(spark: SparkSession, act: Callable[[T], R], items: Sequence[T]) -> list[R]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if not items:
        return []
    try:
        return spark.sparkContext.parallelize(items, len(items)).map(act).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise PipelineError(f"the audit failed: {spark_error_message(error)}") from error
