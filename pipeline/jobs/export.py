"""Exports a topic to a Parquet or Delta table, each offset exactly once, even if runs are killed.

The topic is read as a stream up to its current end. Spark writes a batch's offsets to the checkpoint before it reads
the batch, and commits it after everything is written. A batch that a crash interrupted is repeated with the same
offsets; `export_tables.py` makes the result appear once. Values that cannot be decoded, and offsets that cannot be
read, go to the dead letters or end the job, by option: every offset is in the table or in the dead letters. After the
job has ended, any reader of the table sees each record once.

    OUT/topic=T/date=D/export=E/batch=N/part-….parquet   the records, as Parquet
    OUT/_dead_letters/export=E/batch=N/…                 undecoded values; unreadable offsets
    OUT/_checkpoint                                      the progress of the export: keep it with the records
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.pipeline.brokers import EARLIEST, LATEST
from odradek.pipeline.data_source import NAME, register
from odradek.pipeline.errors import (
    SKIP_HINT,
    BadOption,
    DataLoss,
    PipelineError,
    spark_error_message,
)
from odradek.pipeline.jobs.direct_export import direct_export
from odradek.pipeline.jobs.export_batch import BatchWriter, ExportBatch
from odradek.pipeline.jobs.export_checkpoint import Checkpoint
from odradek.pipeline.jobs.export_lease import ExportLease, export_lease
from odradek.pipeline.jobs.export_tables import FORMATS, PARTITIONINGS, ExportTable, open_table
from odradek.pipeline.jobs.export_values import ExportValues
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.pipeline.jobs.job_progress import JobProgress
from odradek.pipeline.options import (
    REPORT,
    OffsetSpec,
    SourceOptions,
    parse_options,
    without_prefixes,
)
from odradek.pipeline.query import Query
from odradek.pipeline.stream_offsets import StreamOffsets
from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import RealClock
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


__all__ = ["OFFSETS_A_BATCH", "ExportBatch", "ExportJob", "export"]

CHECKPOINT = "_checkpoint"
DEAD_LETTERS = "_dead_letters"
OFFSETS_A_BATCH = 10_000_000
PROGRESS_SECONDS = 1.0
UNREADABLE = ("fail", "dead-letters")
OR_AS_DEAD_LETTERS = (
    "--unreadable dead-letters writes such offsets to the dead letters and continues"
)


@value_class
class ExportJob:
    """Settings of an export. `source` are the options of the source (docs/pipeline.md). `out` is a directory or
    URL. `unreadable` selects whether lost or corrupt offsets fail the job or go to the dead letters. By default,
    the checkpoint and the dead letters are below `out`.
    """

    source: Mapping[str, str]
    out: str
    format: str = "parquet"
    by: str = "date"
    values: ExportValues = ExportValues()
    offsets_a_batch: int = OFFSETS_A_BATCH
    unreadable: str = "fail"
    checkpoint: str | None = None
    dead_letters: str | None = None

    @property
    def checkpoint_path(self) -> str:
        return self.checkpoint or f"{self.out}/{CHECKPOINT}"

    @property
    def dead_letters_path(self) -> str:
        return self.dead_letters or f"{self.out}/{DEAD_LETTERS}"

    def check(self) -> None:
        """Check the options, except the values' schema; this uses the schema registry. Raises PipelineError."""
        if self.format not in FORMATS:
            raise BadOption(f"the table format is {' or '.join(FORMATS)}, not {self.format}")
        if self.by not in PARTITIONINGS:
            raise BadOption(f"the partition columns are {', '.join(PARTITIONINGS)}, not {self.by}")
        if self.unreadable not in UNREADABLE:
            raise BadOption(f"--unreadable is {' or '.join(UNREADABLE)}, not {self.unreadable}")
        if any(name.lower() == "oncorruptsegment" for name in self.source):
            raise BadOption(
                "onCorruptSegment is not allowed for an export, which accounts for each"
                f" offset: use --unreadable {' or '.join(UNREADABLE)} (ExportJob.unreadable)"
            )
        parse_options(self.options(), streaming=True)
        self.values.check()

    def options(self) -> dict[str, str]:
        """Return the options of the stream."""
        unreadable = {"onCorruptSegment": REPORT} if self.unreadable == "dead-letters" else {}
        return {
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.offsets_a_batch),
            **self.source,
            **unreadable,
        }

    def identity(self) -> dict[str, str]:
        """Return what must not change between runs, with "" for options that are not given. Addresses of brokers,
        store and registry may change.
        """
        options = parse_options(self.options(), streaming=True)
        given = {name.lower(): value for name, value in self.source.items()}
        decoding = self.values.decoding
        subjects = None if decoding is None else {**asdict(decoding), "registry": None}
        return {
            "format": self.format,
            "by": self.by,
            "out": self.out,
            "subscribe": ",".join(options.subscribe),
            "subscribePattern": options.pattern or "",
            "assign": json.dumps(options.assign, sort_keys=True) if options.assign else "",
            "isolation": "read_committed" if options.read_committed else "read_uncommitted",
            "headers": given.get("includeheaders", "false").lower(),
            "values": self.values.kind,
            "schema": self.values.schema or "",
            "subjects": "" if subjects is None else json.dumps(subjects, sort_keys=True),
        }


def export(
    spark: SparkSession,
    job: ExportJob,
    on_batch: Callable[[ExportBatch], None] = lambda batch: None,
    on_progress: Callable[[JobProgress], None] = lambda progress: None,
) -> list[ExportBatch]:
    """Export the records up to the current end, from where an earlier run ended; return the written batches. Raises
    BadOption, and PipelineError with Spark's error.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    job.check()
    job.values.check_schema()
    register(spark)
    try:
        return _export(spark, job, on_batch, on_progress)
    except (PySparkException, Py4JJavaError) as error:
        message = spark_error_message(error).replace(SKIP_HINT, OR_AS_DEAD_LETTERS)
        raise PipelineError(f"the export failed: {message}") from error


def _export(
    spark: SparkSession,
    job: ExportJob,
    on_batch: Callable[[ExportBatch], None],
    on_progress: Callable[[JobProgress], None],
) -> list[ExportBatch]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    lease = export_lease(spark, job.checkpoint_path)
    table = open_table(spark, job.format, job.out, job.by, lease.confirm)
    dead_letters = open_table(spark, job.format, job.dead_letters_path, None, lease.confirm)
    checkpoint = Checkpoint(HadoopFiles(spark), job.checkpoint_path)
    options = parse_options(job.options(), streaming=True)
    if not checkpoint.exists:  # a refused job must not create files
        _check_begins(table, options, job, checkpoint)
    with lease.held():
        try:
            checkpoint.check_identity(job.identity())
            checkpoint.undo_incomplete_commit()
            checkpoint.check_dead_letters_path(job.dead_letters_path)
            direct = None
            if (job.format, job.values.kind) == ("parquet", "binary"):
                direct = direct_export(spark, options, job.out, job.by, lease.confirm)
            writer = BatchWriter(spark, job.values, table, dead_letters, checkpoint, direct)
            export_progress = _ExportProgress(options, checkpoint)
            return _run(spark, job, lease, export_progress, writer, on_batch, on_progress)
        except (PySparkException, Py4JJavaError):
            lease.confirm()  # if another run took over, that caused the failure
            raise


def _run(
    spark: SparkSession,
    job: ExportJob,
    lease: ExportLease,
    export_progress: _ExportProgress,
    writer: BatchWriter,
    on_batch: Callable[[ExportBatch], None],
    on_progress: Callable[[JobProgress], None],
) -> list[ExportBatch]:
    """Run the stream while the lease is held."""
    done: list[ExportBatch] = []

    @shorten_interruption_errors()
    def write(frame: object, number: int) -> None:
        lease.confirm()
        offsets = export_progress.offsets_of(number)
        batch = writer.write(frame, number, offsets)  # type: ignore[arg-type]
        done.append(batch)
        export_progress.has(batch)
        on_batch(batch)
        lease.confirm()  # Spark commits the batch after this returns

    query = (
        spark.readStream.format(NAME)
        .options(**export_progress.options(job.options()))
        .load()
        .writeStream.option("checkpointLocation", job.checkpoint_path)
        .foreachBatch(write)
        .trigger(availableNow=True)
        .start()
    )
    try:
        while not query.awaitTermination(PROGRESS_SECONDS):  # type: ignore[arg-type]
            lease.check()
            on_progress(
                export_progress.progress(_share_of_batch(spark, query), job.offsets_a_batch)
            )
    finally:
        query.stop()
    return done


def _check_begins(
    table: ExportTable, options: SourceOptions, job: ExportJob, checkpoint: Checkpoint
) -> None:
    """Check that a new export has topics and a start, and that the table has no records of these topics, which it
    would duplicate if its checkpoint was lost. Raises BadOption.
    """
    from pyspark.sql import functions as f

    query = Query(options)
    _starts(query, options)
    if not table.exists():
        return
    topics = {tp.topic for tp in query.partitions}
    has_some = table.read().where(f.col("topic").isin(topics)).limit(1).count()
    if has_some and not checkpoint.exists:  # another run of this export may have started meanwhile
        raise BadOption(
            f"{job.out} already has records of these topics, and {job.checkpoint_path} does"
            " not have their offsets: give the checkpoint of the export that wrote them, or"
            " another table"
        )


def _starts(query: Query, options: SourceOptions) -> Mapping[TopicPartition, int]:
    """Return the starting offsets by the options. Raises BadOption."""
    return query.resolve(
        list(query.partitions), options.starting or OffsetSpec(everywhere=EARLIEST)
    )


def _share_of_batch(spark: SparkSession, query: StreamingQuery) -> float:
    """Return the share of the current batch's tasks that are done."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    shares = [each.numCompletedTasks / max(1, each.numTasks) for each in stages if each is not None]
    return max(shares, default=0.0)


class _ExportProgress:
    """Offset range and progress of this run. The starting offsets are resolved only before the first batch; later
    the options may no longer be resolvable.
    """

    def __init__(self, options: SourceOptions, checkpoint: Checkpoint) -> None:
        self._options = options
        self._query = Query(options)
        self._checkpoint = checkpoint
        self._check_topics(checkpoint.ends(checkpoint.last_started()), self._query.topic_ids)
        begin = self._begin()
        target = self._query.resolve(list(self._query.partitions), OffsetSpec(everywhere=LATEST))
        self._total = sum(max(0, target[tp] - begin.get(tp, 0)) for tp in target)
        self._done = 0
        self._since = RealClock().monotonic()

    def offsets_of(self, batch: int) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offsets (low, exclusive high) of a batch. Partitions added later begin at 0. Raises DataLoss."""
        before, ends = self._checkpoint.ends(batch - 1), self._checkpoint.ends(batch)
        self._check_topics(before, ends.topic_ids)
        begin = before.offsets if batch > 0 else self._first(ends)
        return {tp: (begin.get(tp, 0), end) for tp, end in ends.offsets.items()}

    def _check_topics(self, known: StreamOffsets, now: Mapping[str, UUID]) -> None:
        """Check that no topic was recreated: its offsets would repeat those of the old topic in the same table, so
        this fails even with `failOnDataLoss=false`. Raises DataLoss.
        """
        if again := known.recreated_topics(now):
            raise DataLoss(
                f"{'; '.join(again.values())}: keep {self._checkpoint.path} for the old topic,"
                " and export the new one to another location"
            )

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options of the stream. Spark requests the initial offsets until the first batch is committed;
        once that batch has started, they are known.
        """
        if self._checkpoint.last_committed() is not None:
            return dict(given)
        begin = self._checkpoint.ends(self._checkpoint.last_started()).begin
        if begin is None:
            return dict(given)
        offsets: dict[str, dict[int, int]] = {}
        for tp in self._query.partitions:
            offsets.setdefault(tp.topic, {})[tp.partition] = begin.get(tp, 0)
        return {**without_prefixes(given, "starting"), "startingoffsets": json.dumps(offsets)}

    def has(self, batch: ExportBatch) -> None:
        self._done += batch.offsets

    def progress(self, share: float, batch_offsets: int) -> JobProgress:
        """Return the progress; `share` of the current batch is done."""
        under_way = int(share * min(batch_offsets, max(0, self._total - self._done)))
        seconds = RealClock().monotonic() - self._since
        return JobProgress(self._done + under_way, self._total, seconds)

    def _begin(self) -> Mapping[TopicPartition, int]:
        """Return the start offsets of the first uncommitted batch."""
        done = self._checkpoint.last_committed()
        if done is None:
            return self._first(self._checkpoint.ends(self._checkpoint.last_started()))
        return self._checkpoint.ends(done).offsets

    def _first(self, ends: StreamOffsets) -> Mapping[TopicPartition, int]:
        """Return the start offsets of the first batch; `ends` are its end offsets, once it has started."""
        return self._starts if ends.begin is None else ends.begin

    @cached_property
    def _starts(self) -> Mapping[TopicPartition, int]:
        """Starting offsets by the options, because checkpoints of earlier versions do not have them. Raises
        BadOption.
        """
        return _starts(self._query, self._options)


INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
MESSAGE_CHARS_MAX = 200
"""Maximum characters of an error's text."""


class Interrupted(Exception):
    """Spark stopped the stream, or a Java call timed out, which some stores report as an interruption."""

    def __init__(self, java_error: str, error: Exception) -> None:
        message = (str(error).splitlines() or [""])[0][:MESSAGE_CHARS_MAX]
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling Spark:"
            f" {java_error[:MESSAGE_CHARS_MAX]} ({message})"
        )


@contextmanager
def shorten_interruption_errors() -> Iterator[None]:
    """Raise Interrupted in place of an error that an interruption caused."""
    try:
        yield
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        for name in INTERRUPTIONS:
            _, found, message = text.partition(name)
            if found:
                java_error = name + message.partition("\n")[0]
                raise Interrupted(java_error, error) from None
        raise
