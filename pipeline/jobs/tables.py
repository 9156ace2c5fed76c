"""Where an export writes: Parquet or Delta, each with its own way to have a batch once.

A batch may be made again: its driver died before Spark noted that it was done. What an attempt has left need
not be what the next one makes: offsets may be gone meanwhile, or values have another schema. So all of it goes.
Parquet has files of a batch in directories of its own, into which the driver moves them once they are whole
(`attempts.py`). Delta replaces the rows in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.attempts import BatchAttempts, BatchKey, StagedFile
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.seams.clock import RealClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

PARTITIONINGS = {"none": (), "date": ("date",), "hour": ("date", "hour")}
"""By name, the directories between topic and export."""
OF_BATCH = ("export", "batch")
"""The columns that say whose rows they are: directories in Parquet, and in Delta of dead letters alone."""

CONCURRENT_WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
FILES_AT_ONCE = "40"
"""That a task has open, before it sorts what is left by directory. Spark sorts all of it by default."""

TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
MICROSECONDS = "TIMESTAMP_MICROS"
"""Spark's own choice is INT96, which costs most of what writing a record does, and by which no reader can leave out
what is of other times: such columns have no statistics."""
UNLESS_CHOSEN = {CONCURRENT_WRITERS: FILES_AT_ONCE, TIMESTAMPS: MICROSECONDS}
"""Settings of Parquet's files, which Spark takes from the session alone."""
WITHOUT_DICTIONARY = {
    f"parquet.enable.dictionary#{name}": "false" for name in ("offset", "timestamp")
}
"""Columns whose values hardly ever come twice."""


class Files(Protocol):
    """As `HadoopFiles`."""

    def exists(self, path: str) -> bool: ...


class Table(Protocol):
    """What batches are written to. `by` is one of PARTITIONINGS; None is for dead letters, which may be of
    several exports of the same topics."""

    def exists(self) -> bool: ...

    def read(self) -> DataFrame: ...

    def write(self, frame: DataFrame, batch: BatchKey) -> None:
        """The rows of a batch that was never tried."""
        ...

    def replace(self, frame: DataFrame, batch: BatchKey) -> None:
        """The rows of a batch, if it has any, in place of all that attempts at it have left, or would leave yet."""
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
        with self._attempts.begun(batch) as directory:
            self._attempts.place(self._staged(frame, batch, directory))

    def replace(self, frame: DataFrame, batch: BatchKey) -> None:
        self._attempts.end_former(batch)
        with self._attempts.begun(batch) as directory:
            self._attempts.replace(self._staged(frame, batch, directory), batch)

    def _staged(self, frame: DataFrame, batch: BatchKey, directory: str) -> list[StagedFile]:
        frame = _with_batch(_with_directories(frame, self._by), batch)
        writer = frame.write.mode("append").options(**WITHOUT_DICTIONARY)
        writer = writer.partitionBy(*_directories(self._by), *OF_BATCH)
        with _unless_chosen(frame.sparkSession, UNLESS_CHOSEN):
            writer.parquet(directory)
        return [
            StagedFile(f"{directory}/{path}", path.rpartition("/")[0])
            for path in self._files.below(directory)
        ]


VERSIONS_A_BATCH = 1 << 42
"""In Delta's log, of an export: more than there are ms from 1970 to 2109."""

WIDENING = {"mergeSchema": "true"}
"""Columns and fields that the table has not yet are added to it, as files of Parquet have them."""


class DeltaTable:
    """Records have no columns that say which batch they are of: a table may be there before, with its own.
    A batch's are those with its offsets, and `txnAppId` and `txnVersion` say that it was written. To make it again
    is a later version, by the time: taken before the driver makes sure that it has the turn, so that whoever takes
    over has a later one, unless its clock is slow by more than the other's silence (`lease.EXPIRE_SECONDS`). What a
    driver that stood still meanwhile writes after all is refused by Delta."""

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
            # what another driver would append is refused from here on
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
        """In SQL."""
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
"""Of packages that Spark has not by itself."""


def open_table(
    spark: SparkSession,
    format: str,
    out: str,
    by: str | None,
    confirm: Callable[[], None],
) -> Table:
    """`confirm` raises PipelineError if another driver has the turn. Raises BadOption where Spark has not what the
    format needs."""
    needed = NEEDED_CLASSES.get(format)
    if needed is not None and not _has_class(spark, needed):
        raise BadOption(
            f"Spark has no package for {format}: name one for this Spark with"
            " --conf spark.jars.packages=…, and its extension (docs/pipeline.md)"
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
def _unless_chosen(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Has them set, but for those that whoever owns the session has set, which stay as they are."""
    ours = [name for name in settings if spark.conf.get(name, None) is None]
    try:
        for name in ours:
            spark.conf.set(name, settings[name])
        yield
    finally:
        for name in ours:
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
