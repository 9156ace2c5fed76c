"""Where an export writes: Parquet or Delta, each with its own way to have a batch once.

A batch may be written again: its driver died before Spark noted that it was done. Parquet has files of a
batch in directories of its own, which are replaced as a whole. Delta is told which export and which batch it
is (`txnAppId`, `txnVersion`), and passes over what it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONINGS = {"none": (), "date": ("date",), "hour": ("date", "hour")}
"""By name, the directories between topic and batch."""


class Table(Protocol):
    """What batches are written to. `by` is one of PARTITIONINGS, or None where a table is small."""

    def exists(self) -> bool: ...

    def read(self) -> DataFrame: ...

    def write(self, frame: DataFrame, export: str, batch: int) -> None:
        """The rows of a batch, once, however often it is written."""
        ...

    def clear(self, batch: int) -> None:
        """An attempt at the batch had rows for this table; this one has none."""
        ...


class ParquetTable:
    def __init__(self, spark: SparkSession, out: str, by: str | None) -> None:
        self._spark = spark
        self._files = HadoopFiles(spark)
        self._out = out
        self._by = by

    def exists(self) -> bool:
        return any(not name.startswith(("_", ".")) for name in self._files.names(self._out))

    def read(self) -> DataFrame:
        return self._spark.read.parquet(self._out)

    def write(self, frame: DataFrame, export: str, batch: int) -> None:
        from pyspark.sql import functions as f

        frame, directories = _with_directories(frame, self._by)
        (
            frame.withColumn("batch", f.lit(batch))
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy(*directories, "batch")
            .parquet(self._out)
        )

    def clear(self, batch: int) -> None:
        self._files.remove(f"{self._out}/batch={batch}")


class DeltaTable:
    def __init__(self, spark: SparkSession, out: str, by: str | None) -> None:
        self._spark = spark
        self._files = HadoopFiles(spark)
        self._out = out
        self._by = by

    def exists(self) -> bool:
        return self._files.exists(f"{self._out}/_delta_log")

    def read(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._out)

    def write(self, frame: DataFrame, export: str, batch: int) -> None:
        frame, directories = _with_directories(frame, self._by)
        writer = (
            frame.write.format("delta")
            .mode("append")
            .option("txnAppId", f"odradek-{export}")
            .option("txnVersion", batch)
        )
        if not self.exists():
            writer = writer.partitionBy(*directories)
        writer.save(self._out)

    def clear(self, batch: int) -> None:
        pass  # what is committed was meant


FORMATS: dict[str, type[ParquetTable | DeltaTable]] = {
    "parquet": ParquetTable,
    "delta": DeltaTable,
}
NEEDED_CLASSES = {"delta": "io.delta.tables.DeltaTable"}
"""Of packages that Spark has not by itself."""


def open_table(spark: SparkSession, format: str, out: str, by: str | None) -> Table:
    """Raises BadOption where Spark has not what the format needs."""
    needed = NEEDED_CLASSES.get(format)
    if needed is not None and not _has_class(spark, needed):
        raise BadOption(
            f"Spark has no package for {format}: name one for this Spark with"
            " --conf spark.jars.packages=…, and its extension (docs/pipeline.md)"
        )
    return FORMATS[format](spark, out, by)


def _has_class(spark: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        spark._jvm.org.apache.spark.util.Utils.classForName(name, True, False)  # type: ignore[union-attr]
    except Py4JJavaError:
        return False
    return True


def _with_directories(frame: DataFrame, by: str | None) -> tuple[DataFrame, Sequence[str]]:
    from pyspark.sql import functions as f

    if by is None:
        return frame, ()
    columns = {"date": f.to_date("timestamp"), "hour": f.hour("timestamp")}
    names = PARTITIONINGS[by]
    return frame.withColumns({name: columns[name] for name in names}), ("topic", *names)
