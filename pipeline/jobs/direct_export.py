"""Writes a batch of an export from Python tasks, if the result is the same table as Spark would write.

The conditions are: Parquet with undecoded values, dates in UTC, a directory that driver and tasks share (the
meaning of a Hadoop URL is only known to Spark), and no Parquet settings but the codec. Otherwise Spark writes. The
files are staged and moved like Spark's (`batch_attempts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.pipeline.errors import FilesUnavailable
from odradek.pipeline.jobs.batch_attempts import (
    BatchAttempts,
    BatchKey,
    StagedFile,
    batch_directory,
)
from odradek.pipeline.jobs.export_tables import MICROSECONDS, PARTITIONINGS, TIMESTAMPS
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.pipeline.options import SourceOptions
from odradek.pipeline.stream_offsets import StreamOffsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

CODEC = "spark.sql.parquet.compression.codec"
ZONE = "spark.sql.session.timeZone"
_OTHERS = ("spark.sql.parquet.", "spark.hadoop.parquet.", "parquet.", "spark.sql.files.maxRecords")
"""Prefixes of settings that only Spark's writer supports."""


class DirectExport:
    """Writes batches with `parquet_writer`; `codec` is one of its CODECS."""

    def __init__(
        self,
        spark: SparkSession,
        options: SourceOptions,
        attempts: BatchAttempts,
        by: str,
        codec: str,
    ) -> None:
        self._context = spark.sparkContext
        self._files = HadoopFiles(spark)
        self._options = options
        self._attempts = attempts
        self._by = PARTITIONINGS[by]
        self._codec = codec

    def write(
        self,
        schema: StructType,
        batch: BatchKey,
        topic_ids: Mapping[str, UUID],
    ) -> int:
        """Write the records of a batch that was not attempted before; return how many. Raises Spark's errors (with
        GAP_FOUND if offsets are unreadable) and PipelineError.
        """
        from odradek.pipeline.jobs.parquet_writer import StagingSettings, write_task
        from odradek.pipeline.stream_reader import StreamReader

        reader = StreamReader(self._options, schema)
        begin = StreamOffsets({where: low for where, (low, _) in batch.offsets.items()}, topic_ids)
        end = StreamOffsets({where: high for where, (_, high) in batch.offsets.items()}, topic_ids)
        tasks = reader.partitions(begin.to_json(), end.to_json())
        if not tasks:
            return 0
        with self._attempts.staging_directory(batch) as directory:
            local = self._files.local(directory)
            staging = StagingSettings(str(local), self._by, self._codec)
            work = partial(write_task, reader, staging=staging)
            written = self._context.parallelize(tasks, len(tasks)).flatMap(work).collect()
            names = {each.file: Path(each.file).name for each in written}
            if missing := set(names.values()).difference(self._files.below(directory)):
                raise FilesUnavailable(
                    f"{directory}/{min(missing)}, which a task has written, does not exist:"
                    " the driver and all tasks must share the directory, and only one run may"
                    " write to it"
                )
            self._attempts.place(
                StagedFile(
                    f"{directory}/{names[each.file]}", f"{each.directory}/{batch_directory(batch)}"
                )
                for each in written
            )
        return sum(each.records for each in written)


def direct_export(
    spark: SparkSession,
    options: SourceOptions,
    out: str,
    by: str,
    confirm: Callable[[], None],
) -> DirectExport | None:
    """Return a writer; None if Spark must write. `confirm` raises PipelineError if another driver has the lease."""
    from odradek.pipeline.jobs.parquet_writer import CODECS, UTC

    files = HadoopFiles(spark)
    codec = str(spark.conf.get(CODEC)).lower()
    chosen = files.settings("parquet.") | dict(spark.sparkContext.getConf().getAll())
    chosen |= spark.conf.getAll
    settings = {name: value for name, value in chosen.items() if name.startswith(_OTHERS)}
    settings.pop(CODEC, None)
    if settings.get(TIMESTAMPS) == MICROSECONDS:
        del settings[TIMESTAMPS]
    if (
        files.local(out) is None
        or codec not in CODECS
        or settings
        or spark.conf.get(ZONE) not in UTC
    ):
        return None
    attempts = BatchAttempts(files, out, ("topic", *PARTITIONINGS[by]), confirm)
    return DirectExport(spark, options, attempts, by, codec)
