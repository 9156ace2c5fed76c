"""A topic to a table, Parquet or Delta: each offset exactly once, however often the job dies on the way.

The topic is read as a stream up to where it ends now. Spark writes down which offsets a batch has before
it reads the first of them (the checkpoint's offset log), and that it is done after all is written; so a
batch that a crash cut short is made again with the same offsets, and how a table has it once all the same
is in `tables.py`. What can't be decoded, or not be read, is in the dead letters, or ends the job, by choice:
every offset is in one of them. When the job has ended, any reader of the table sees each record once.

    OUT/topic=T/date=D/export=E/batch=N/part-….parquet   the records, as Parquet
    OUT/_dead_letters/export=E/batch=N/…                 what could not be decoded, as it was; offsets that are gone
    OUT/_checkpoint                                      how far the export is: keep it with the records
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

from odradek.pipeline.brokers import EARLIEST, LATEST, TopicPartition
from odradek.pipeline.errors import (
    SKIP_HINT,
    BadOption,
    DataLoss,
    PipelineError,
    spark_error_message,
)
from odradek.pipeline.jobs.checkpoint import Checkpoint
from odradek.pipeline.jobs.direct_export import direct_export
from odradek.pipeline.jobs.export_batch import BatchWriter, ExportBatch
from odradek.pipeline.jobs.export_lease import ExportLease, export_lease
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.pipeline.jobs.progress import JobProgress
from odradek.pipeline.jobs.tables import FORMATS, PARTITIONINGS, Table, open_table
from odradek.pipeline.jobs.values import Values
from odradek.pipeline.options import REPORT, Options, Position, parse_options, without
from odradek.pipeline.query import Query
from odradek.pipeline.source import NAME, register
from odradek.pipeline.stream_offsets import StreamOffsets
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
OR_AS_DEAD_LETTERS = "--unreadable dead-letters notes it there, and goes on"


@value_class
class ExportJob:
    """What is exported and how. `source` are the options of the table that is read (docs/pipeline.md).
    `out` is a directory or URL. `unreadable` says what becomes of offsets that the store has lost or broken.
    Where the checkpoint or the dead letters have no place of their own, they are below `out`."""

    source: Mapping[str, str]
    out: str
    format: str = "parquet"
    by: str = "date"
    values: Values = Values()
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
        """Whether it means something, but for the values' schema; the registry is asked. Raises PipelineError."""
        if self.format not in FORMATS:
            raise BadOption(f"tables are {', '.join(FORMATS)}, not {self.format}")
        if self.by not in PARTITIONINGS:
            raise BadOption(f"directories are by {', '.join(PARTITIONINGS)}, not by {self.by}")
        if self.unreadable not in UNREADABLE:
            raise BadOption(f"what can't be read: {' or '.join(UNREADABLE)}, not {self.unreadable}")
        if any(name.lower() == "oncorruptsegment" for name in self.source):
            raise BadOption(
                "onCorruptSegment is not for an export, of which each offset has to be somewhere: --unreadable"
                f" {' or '.join(UNREADABLE)} (ExportJob.unreadable) says what becomes of what can't be read"
            )
        parse_options(self.options(), streaming=True)
        self.values.check()

    def options(self) -> dict[str, str]:
        """Of the stream."""
        unreadable = {"onCorruptSegment": REPORT} if self.unreadable == "dead-letters" else {}
        return {
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.offsets_a_batch),
            **self.source,
            **unreadable,
        }

    def identity(self) -> dict[str, str]:
        """What may not change while it goes on; "" is what is not given. Where brokers, store and registry
        are may: they move."""
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
    """Export what there is now, going on where an earlier run of the same job ended; the batches that
    were written. Raises BadOption, or PipelineError with what Spark said."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    job.check()
    job.values.check_schema()
    register(spark)
    try:
        return _export(spark, job, on_batch, on_progress)
    except (PySparkException, Py4JJavaError) as error:
        said = spark_error_message(error).replace(SKIP_HINT, OR_AS_DEAD_LETTERS)
        raise PipelineError(f"the export ended: {said}") from error


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
    if not checkpoint.exists:  # what is refused leaves nothing behind
        _check_begins(table, options, job, checkpoint)
    with lease.held():
        try:
            checkpoint.belongs_to(job.identity())
            checkpoint.take_back()
            checkpoint.has_dead_letters_at(job.dead_letters_path)
            direct = None
            if (job.format, job.values.kind) == ("parquet", "binary"):
                direct = direct_export(spark, options, job.out, job.by, lease.confirm)
            writer = BatchWriter(spark, job.values, table, dead_letters, checkpoint, direct)
            course = _ExportCourse(options, checkpoint)
            return _run(spark, job, lease, course, writer, on_batch, on_progress)
        except (PySparkException, Py4JJavaError):
            lease.confirm()  # if another run has it, all else that failed comes of that
            raise


def _run(
    spark: SparkSession,
    job: ExportJob,
    lease: ExportLease,
    course: _ExportCourse,
    writer: BatchWriter,
    on_batch: Callable[[ExportBatch], None],
    on_progress: Callable[[JobProgress], None],
) -> list[ExportBatch]:
    """Whose turn it is."""
    done: list[ExportBatch] = []

    @interruption_in_short()
    def write(frame: object, number: int) -> None:
        lease.confirm()
        offsets = course.offsets_of(number)
        batch = writer.write(frame, number, offsets)  # type: ignore[arg-type]
        done.append(batch)
        course.has(batch)
        on_batch(batch)
        lease.confirm()  # Spark notes that the batch is done once this returns

    query = (
        spark.readStream.format(NAME)
        .options(**course.options(job.options()))
        .load()
        .writeStream.option("checkpointLocation", job.checkpoint_path)
        .foreachBatch(write)
        .trigger(availableNow=True)
        .start()
    )
    try:
        while not query.awaitTermination(PROGRESS_SECONDS):  # type: ignore[arg-type]
            lease.check()
            on_progress(course.progress(_share_of_batch(spark, query), job.offsets_a_batch))
    finally:
        query.stop()
    return done


def _check_begins(table: Table, options: Options, job: ExportJob, checkpoint: Checkpoint) -> None:
    """An export that begins has a topic and a place to begin at, and would write again what one whose checkpoint was
    lost has written. Raises BadOption."""
    from pyspark.sql import functions as f

    query = Query(options)
    _starts(query, options)
    if not table.exists():
        return
    topics = {where.topic for where in query.partitions}
    has_some = table.read().where(f.col("topic").isin(topics)).limit(1).count()
    if has_some and not checkpoint.exists:  # another run of this export may have begun meanwhile
        raise BadOption(
            f"{job.out} has records of these topics already, and {job.checkpoint_path} does not say"
            " how far they go: name the checkpoint they were exported with, or another place"
        )


def _starts(query: Query, options: Options) -> Mapping[TopicPartition, int]:
    """Where the options have an export begin. Raises BadOption."""
    return query.resolve(list(query.partitions), options.starting or Position(everywhere=EARLIEST))


def _share_of_batch(spark: SparkSession, query: StreamingQuery) -> float:
    """How much of the batch that is being written is done, by its tasks."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    shares = [each.numCompletedTasks / max(1, each.numTasks) for each in stages if each is not None]
    return max(shares, default=0.0)


class _ExportCourse:
    """From where to where this run goes, in offsets, and how far it is. Where an export begins is asked before its first
    batch alone: later, what its options say of that may mean nothing any more."""

    def __init__(self, options: Options, checkpoint: Checkpoint) -> None:
        self._options = options
        self._query = Query(options)
        self._checkpoint = checkpoint
        self._check_topics(checkpoint.ends(checkpoint.last_begun()), self._query.topic_ids)
        begin = self._begin()
        target = self._query.resolve(list(self._query.partitions), Position(everywhere=LATEST))
        self._total = sum(max(0, target[where] - begin.get(where, 0)) for where in target)
        self._done = 0
        self._since = RealClock().monotonic()

    def offsets_of(self, batch: int) -> dict[TopicPartition, tuple[int, int]]:
        """Which offsets it has, from the first on, before the second. Partitions that came later begin at 0.
        Raises DataLoss."""
        before, ends = self._checkpoint.ends(batch - 1), self._checkpoint.ends(batch)
        self._check_topics(before, ends.topic_ids)
        begin = before.offsets if batch > 0 else self._first(ends)
        return {where: (begin.get(where, 0), end) for where, end in ends.offsets.items()}

    def _check_topics(self, known: StreamOffsets, now: Mapping[str, UUID]) -> None:
        """A topic that was made again has the offsets of the old one once more: in one table nobody could
        tell the two apart, whatever `failOnDataLoss` says. Raises DataLoss."""
        if again := known.recreated_topics(now):
            raise DataLoss(
                f"{'; '.join(again.values())}: leave {self._checkpoint.path} with what it has exported,"
                " and export that one to another place"
            )

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Of the stream, which Spark asks where it begins until its first batch is done: that is known, once the batch
        was begun."""
        if self._checkpoint.last_done() is not None:
            return dict(given)
        begin = self._checkpoint.ends(self._checkpoint.last_begun()).begin
        if begin is None:
            return dict(given)
        offsets: dict[str, dict[int, int]] = {}
        for where in self._query.partitions:
            offsets.setdefault(where.topic, {})[where.partition] = begin.get(where, 0)
        return {**without(given, "starting"), "startingoffsets": json.dumps(offsets)}

    def has(self, batch: ExportBatch) -> None:
        self._done += batch.offsets

    def progress(self, share: float, batch_offsets: int) -> JobProgress:
        """`share` of the batch under way is done."""
        under_way = int(share * min(batch_offsets, max(0, self._total - self._done)))
        seconds = RealClock().monotonic() - self._since
        return JobProgress(self._done + under_way, self._total, seconds)

    def _begin(self) -> Mapping[TopicPartition, int]:
        """Where what is not done yet begins."""
        done = self._checkpoint.last_done()
        if done is None:
            return self._first(self._checkpoint.ends(self._checkpoint.last_begun()))
        return self._checkpoint.ends(done).offsets

    def _first(self, ends: StreamOffsets) -> Mapping[TopicPartition, int]:
        """Where the first batch begins; `ends` is where it ends, once it was begun."""
        return self._starts if ends.begin is None else ends.begin

    @cached_property
    def _starts(self) -> Mapping[TopicPartition, int]:
        """As the options say; an earlier version's first batch says nothing of it. Raises BadOption."""
        return _starts(self._query, self._options)


INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
SAID_MAX = 200
"""So many characters of what failed are told."""


class Interrupted(Exception):
    """Spark has stopped the stream; or a call of Java's took longer than it may, as some of a store's say it so."""

    def __init__(self, of_java: str, error: Exception) -> None:
        said = (str(error).splitlines() or [""])[0][:SAID_MAX]
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling Spark:"
            f" {of_java[:SAID_MAX]} ({said})"
        )


@contextmanager
def interruption_in_short() -> Iterator[None]:
    """Raises Interrupted in place of an error that comes of an interruption."""
    try:
        yield
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        for name in INTERRUPTIONS:
            _, found, message = text.partition(name)
            if found:
                of_java = name + message.partition("\n")[0]
                raise Interrupted(of_java, error) from None
        raise
