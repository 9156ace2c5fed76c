"""Output tables of an export, Parquet or Delta, which make each batch visible once.

A batch may be repeated if its driver died before Spark committed it. The output of an attempt may differ from that
of the next one: offsets may have been deleted, or values may have other schemas. So all output of earlier attempts
is removed. For Parquet, a batch's files are in directories of its own, into which the driver moves complete files
(`batch_attempts.py`). Delta replaces the rows in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.batch_attempts import BatchAttempts, BatchKey, StagedFile
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.seams.clock import RealClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

PARTITIONINGS = {"none": (), "date": ("date",), "hour": ("date", "hour")}
"""Partition columns between topic and export, by name."""
OF_BATCH = ("export", "batch")
"""Columns that identify the batch of a row: directories in Parquet; in Delta only of dead letters."""

CONCURRENT_WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
FILES_AT_ONCE = "40"
"""Maximum number of open files of a task; beyond it the rest is sorted by directory. Spark's default sorts
everything.
"""

TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
MICROSECONDS = "TIMESTAMP_MICROS"
"""Spark's default INT96 takes most of the time of writing a record, and has no statistics by which readers skip row
groups.
"""
UNLESS_CHOSEN = {CONCURRENT_WRITERS: FILES_AT_ONCE, TIMESTAMPS: MICROSECONDS}
"""Settings of Parquet files, which Spark takes only from the session, unless the user has set them."""
WITHOUT_DICTIONARY = {
    f"parquet.enable.dictionary#{name}": "false" for name in ("offset", "timestamp")
}
"""Columns with few repeated values."""


class Files(Protocol):
    """The part of `HadoopFiles` that tables use."""

    def exists(self, path: str) -> bool: ...


class ExportTable(Protocol):
    """Table to which batches are written. `by` is one of PARTITIONINGS; None is for dead letters, which several
    exports of the same topics may share.
    """

    def exists(self) -> bool: ...

    def read(self) -> DataFrame: ...

    def write(self, frame: DataFrame, batch: BatchKey) -> None:
        """Write the rows of a batch that was not attempted before."""
        ...

    def replace(self, frame: DataFrame, batch: BatchKey) -> None:
        """Write the rows of a batch, if any, in place of all output of earlier attempts, and prevent these from
        writing more.
        """
        ...


class ParquetTable:
    def __init__(
        self,
        spark: SparkSession,
        files: HadoopFiles,
        out: str,
        by: str | None,
        confirm: Callable[[], None],
    ) -> None:
        self._spark = spark
        self._files = files
        self._out = out
        self._by = by
        self._attempts = BatchAttempts(self._files, out, _directories(by), confirm)

    def exists(self) -> bool:
        return any(not name.startswith(("_", ".")) for name in self._files.names(self._out))

    def read(self) -> DataFrame:
        return self._spark.read.parquet(self._out)

    def write(self, frame: DataFrame, batch: BatchKey) -> None:
        with self._attempts.staging_directory(batch) as directory:
            self._attempts.place(self._staged(frame, batch, directory))

    def replace(self, frame: DataFrame, batch: BatchKey) -> None:
        self._attempts.remove_earlier_staging(batch)
        with self._attempts.staging_directory(batch) as directory:
            self._attempts.replace(self._staged(frame, batch, directory), batch)

    def _staged(self, frame: DataFrame, batch: BatchKey, directory: str) -> list[StagedFile]:
        frame = _with_batch(_with_directories(frame, self._by), batch)
        writer = frame.write.mode("append").options(**WITHOUT_DICTIONARY)
        writer = writer.partitionBy(*_directories(self._by), *OF_BATCH)
        with _default_settings(frame.sparkSession, UNLESS_CHOSEN):
            writer.parquet(directory)
        return [
            StagedFile(f"{directory}/{path}", path.rpartition("/")[0])
            for path in self._files.below(directory)
        ]


VERSIONS_A_BATCH = 1 << 42
"""Number of Delta transaction versions per batch: more than the ms from 1970 to 2109."""

WIDENING = {"mergeSchema": "true"}
"""Write option that adds missing columns and fields to the table, as Parquet files may have them."""


class DeltaTable:
    """Delta table. Records have no columns for the batch, because the table may exist with its own columns.

    A batch's rows are those with its offsets. `txnAppId` and `txnVersion` record that it was written. A repeated
    attempt has a later version, from the clock, which is read before the driver confirms its lease. So a driver
    that takes over has a later version, unless its clock is behind by more than the lease's expiry
    (`export_lease.EXPIRE_SECONDS`). Delta then rejects writes of a suspended driver.
    """

    def __init__(
        self,
        spark: SparkSession,
        files: Files,
        out: str,
        by: str | None,
        confirm: Callable[[], None],
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        self._spark = spark
        self._files = files
        self._out = out
        self._by = by
        self._confirm = confirm
        self._wall_ms = wall_ms or RealClock().wall_ms

    def exists(self) -> bool:
        return self._files.exists(f"{self._out}/_delta_log")

    def read(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._out)

    def write(self, frame: DataFrame, batch: BatchKey) -> None:
        self._confirm()
        self._append(frame, batch)

    def replace(self, frame: DataFrame, batch: BatchKey) -> None:
        attempt = self._wall_ms()
        self._confirm()
        if not batch.offsets or not self.exists():
            # from here on Delta rejects appends of an earlier driver
            self._append(frame.limit(0), batch)
        if not batch.offsets:
            return
        writer = self._writer(frame, batch, attempt).mode("overwrite")
        writer.option("replaceWhere", self._rows_of(batch)).save(self._out)

    def _append(self, frame: DataFrame, batch: BatchKey) -> None:
        writer = self._writer(frame, batch, 0).mode("append")
        if not self.exists():
            writer = writer.partitionBy(*_directories(self._by))
        writer.save(self._out)

    def _writer(self, frame: DataFrame, batch: BatchKey, attempt: int) -> DataFrameWriter:
        frame = _with_directories(frame, self._by)
        frame = _with_batch(frame, batch) if self._by is None else frame
        return frame.write.format("delta").options(**WIDENING, **_transaction(batch, attempt))

    def _rows_of(self, batch: BatchKey) -> str:
        """Return the SQL condition for the batch's rows."""
        if self._by is None:
            return f"export = '{batch.export}' AND batch = {batch.number}"
        each = (
            f"(topic = '{topic}' AND `partition` = {partition} AND offset >= {low} AND offset < {high})"
            for (topic, partition), (low, high) in batch.offsets.items()
        )
        return " OR ".join(each)


def _transaction(batch: BatchKey, attempt: int) -> dict[str, str]:
    version = batch.number * VERSIONS_A_BATCH + attempt
    return {"txnAppId": f"odradek-{batch.export}", "txnVersion": str(version)}


FORMATS: dict[str, type[ParquetTable | DeltaTable]] = {
    "parquet": ParquetTable,
    "delta": DeltaTable,
}
NEEDED_CLASSES = {"delta": "io.delta.tables.DeltaTable"}
"""Java classes of packages that Spark does not include, by format."""


def open_table(
    spark: SparkSession,
    format: str,
    out: str,
    by: str | None,
    confirm: Callable[[], None],
) -> ExportTable:
    """Open a table. `confirm` raises PipelineError if another driver has the lease. Raises BadOption if Spark does
    not have the format's package.
    """
    needed = NEEDED_CLASSES.get(format)
    if needed is not None and not _has_class(spark, needed):
        raise BadOption(
            f"Spark has no package for {format}: give one for this Spark version with --conf"
            " spark.jars.packages=…, and its extension (docs/pipeline.md)"
        )
    return FORMATS[format](spark, HadoopFiles(spark), out, by, confirm)


def _has_class(spark: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        spark._jvm.org.apache.spark.util.Utils.classForName(name, True, False)  # type: ignore[union-attr]
    except Py4JJavaError:
        return False
    return True


@contextmanager
def _default_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set session settings within the block, except those that are already set."""
    added = [name for name in settings if spark.conf.get(name, None) is None]
    try:
        for name in added:
            spark.conf.set(name, settings[name])
        yield
    finally:
        for name in added:
            spark.conf.unset(name)


def _directories(by: str | None) -> Sequence[str]:
    return () if by is None else ("topic", *PARTITIONINGS[by])


def _with_directories(frame: DataFrame, by: str | None) -> DataFrame:
    from pyspark.sql import functions as f

    parts = {"date": f.to_date, "hour": f.hour}
    return frame.withColumns({name: parts[name]("timestamp") for name in _directories(by)[1:]})


def _with_batch(frame: DataFrame, batch: BatchKey) -> DataFrame:
    from pyspark.sql import functions as f

    values = (batch.export, batch.number)
    return frame.withColumns(
        {name: f.lit(value) for name, value in zip(OF_BATCH, values, strict=True)}
    )
