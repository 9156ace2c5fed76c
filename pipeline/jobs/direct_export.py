"""A batch of an export whose tasks write the files, where that makes the table that Spark would make.

That is: Parquet of values as they are, by dates in UTC, in a directory that driver and tasks share (what a URL of
Hadoop's means is only known to Spark), with no settings for Parquet but the codec. All else is Spark's to write.

    OUT/_staged-E/batch=N/part-….parquet                what tasks have written, and nobody reads
    OUT/topic=T/date=D/export=E/batch=N/part-….parquet  where the driver moves what counts

A driver that dies on the way leaves some files moved and some not; whoever makes the batch again removes both,
first the directory where they are staged. Only the driver makes that, and makes sure afterwards that it still has the
turn: so one that stood still, at whatever step, has no place to write to, and nothing to move.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.pipeline.errors import FilesUnavailable
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.pipeline.jobs.tables import (
    MICROSECONDS,
    PARTITIONINGS,
    TIMESTAMPS,
    Batch,
    directory_of,
    staged_of,
)
from odradek.pipeline.options import Options
from odradek.pipeline.stream_offsets import StreamOffsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from odradek.pipeline.jobs.parquet_files import Placed

CODEC = "spark.sql.parquet.compression.codec"
ZONE = "spark.sql.session.timeZone"
_OTHERS = ("spark.sql.parquet.", "spark.hadoop.parquet.", "parquet.", "spark.sql.files.maxRecords")
"""Settings that Spark's writer heeds begin so."""


class DirectExport:
    """See the module. `directory` is the table's, `codec` one of `parquet_files.CODECS`."""

    def __init__(
        self, spark: SparkSession, options: Options, directory: Path, by: str, codec: str
    ) -> None:
        self._context = spark.sparkContext
        self._options = options
        self._directory = directory
        self._by = PARTITIONINGS[by]
        self._codec = codec

    def write(
        self,
        schema: StructType,
        batch: Batch,
        topic_ids: Mapping[str, UUID],
        confirm: Callable[[], None],
    ) -> int:
        """The records of a batch that was never tried; how many. `confirm` raises if another driver has the turn.
        Raises what Spark raises (with GAP_FOUND in it where offsets cannot be read), PipelineError and OSError."""
        from odradek.pipeline.jobs.parquet_files import Staging, write_task
        from odradek.pipeline.stream import StreamReader

        reader = StreamReader(self._options, schema)
        begin = StreamOffsets({where: low for where, (low, _) in batch.offsets.items()}, topic_ids)
        end = StreamOffsets({where: high for where, (_, high) in batch.offsets.items()}, topic_ids)
        tasks = reader.partitions(begin.in_json(), end.in_json())
        if not tasks:
            return 0
        staged = self._directory / staged_of(batch)
        staged.mkdir(parents=True, exist_ok=True)
        try:
            confirm()
            work = partial(write_task, reader, staging=Staging(str(staged), self._by, self._codec))
            written = self._context.parallelize(tasks, len(tasks)).flatMap(work).collect()
            self._move(written, batch)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
            with suppress(OSError):
                staged.parent.rmdir()
        return sum(each.records for each in written)

    def _move(self, written: list[Placed], batch: Batch) -> None:
        for each in written:
            place = self._directory / each.directory / directory_of(batch)
            place.mkdir(parents=True, exist_ok=True)
            file = Path(each.file)
            try:
                file.rename(place / file.name)
            except FileNotFoundError as error:
                raise FilesUnavailable(
                    f"{file}, which a task has written, is not there: driver and tasks have to share"
                    " the directory, and only one run may write to it"
                ) from error


def direct_export(spark: SparkSession, options: Options, out: str, by: str) -> DirectExport | None:
    """None where Spark has to write."""
    from odradek.pipeline.jobs.parquet_files import CODECS, UTC

    files = HadoopFiles(spark)
    directory = files.local(out)
    codec = str(spark.conf.get(CODEC)).lower()
    chosen = files.settings("parquet.") | dict(spark.sparkContext.getConf().getAll())
    chosen |= spark.conf.getAll
    settings = {name: value for name, value in chosen.items() if name.startswith(_OTHERS)}
    settings.pop(CODEC, None)
    if settings.get(TIMESTAMPS) == MICROSECONDS:
        del settings[TIMESTAMPS]
    if directory is None or codec not in CODECS or settings or spark.conf.get(ZONE) not in UTC:
        return None
    return DirectExport(spark, options, Path(directory), by, codec)
