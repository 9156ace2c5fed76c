"""Writes one batch of an export: records to the table, the rest to the dead letters, each offset to one of them.

Most batches have no gaps and are read and written in one pass, which fails before the commit if a row reports
unreadable offsets. Such a batch, and one that may have been partly written by an earlier run, is written in two
steps: first the gaps are determined and written to the dead letters, then the records without these offsets, even
if they are readable again. If more offsets are unreadable in the second step, because retention deletes segments,
both steps are repeated. Both replace all earlier output of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from odradek.pipeline.decoding.schema import GAP
from odradek.pipeline.errors import GAP_FOUND, PipelineError
from odradek.pipeline.jobs.batch_attempts import BatchKey
from odradek.pipeline.jobs.decode import DECODED, ERROR
from odradek.pipeline.jobs.direct_export import DirectExport
from odradek.pipeline.jobs.export_checkpoint import Checkpoint
from odradek.pipeline.jobs.export_tables import ExportTable
from odradek.pipeline.jobs.export_values import ExportValues, columns_of_good
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

ATTEMPTS_MAX = 5
"""Maximum number of repetitions when more offsets become unreadable each time."""
GAP_ROWS = "topic string, partition int, offset long, lastOffset long, object string, reason string"


@value_class
class ExportBatch:
    """A written batch. `records` and `dead_letters` count records, `gaps` counts ranges of unreadable offsets,
    which are also dead letters, and `offsets` counts all offsets of the batch.
    """

    number: int
    records: int
    dead_letters: int
    gaps: int
    offsets: int


class BatchWriter:
    """Writes the batches of one run."""

    def __init__(
        self,
        spark: SparkSession,
        values: ExportValues,
        table: ExportTable,
        dead_letters: ExportTable,
        checkpoint: Checkpoint,
        direct: DirectExport | None = None,
    ) -> None:
        """`direct` writes first attempts if it is given."""
        self._spark = spark
        self._direct = direct
        self._values = values
        self._table = table
        self._dead_letters = dead_letters
        self._checkpoint = checkpoint
        self._pending = checkpoint.pending()
        self._unfinished = checkpoint.unfinished()

    def write(
        self,
        frame: DataFrame,
        number: int,
        offsets: Mapping[TopicPartition, tuple[int, int]],
    ) -> ExportBatch:
        """Write the batch with these offsets (low, exclusive high). Raises Spark's errors and PipelineError."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        if self._pending is not None and number > self._pending:
            raise PipelineError(
                f"batch {self._pending} was committed by a run that no longer had the lease,"
                " and is incomplete: run the export again"
            )
        self._pending = None
        self._checkpoint.sync_offsets(number)
        batch = BatchKey(self._checkpoint.query_id, number, offsets)
        if number not in self._unfinished:
            try:
                if self._direct is not None:
                    ids = self._checkpoint.ends(number).topic_ids
                    written = self._direct.write(frame.schema, batch, ids)
                    return _export_batch(batch, written, 0, 0)
                return self._write_in_one_pass(frame, batch)
            except (PySparkException, Py4JJavaError) as error:
                if GAP_FOUND not in str(error):
                    raise
        with self._checkpoint.marked_uncommitted(number):
            return self._write_in_two_steps(frame, batch)

    def _write_in_one_pass(self, frame: DataFrame, batch: BatchKey) -> ExportBatch:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        decoded = self._values.of(_without_gaps(frame, ()))
        counted = Observation()
        observed = decoded.observe(
            counted,
            f.count(f.lit(1)).alias("all"),
            f.count(ERROR).alias("dead"),
        )
        self._table.write(_good(observed), batch)
        dead = counted.get["dead"]
        if dead:
            self._dead_letters.write(self._dead(decoded, ()), batch)
        return _export_batch(batch, counted.get["all"], dead, 0)

    def _write_in_two_steps(self, frame: DataFrame, batch: BatchKey) -> ExportBatch:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return self._replace(frame, batch)
            except (PySparkException, Py4JJavaError) as error:
                if GAP_FOUND not in str(error):
                    raise
        return self._replace(frame, batch)

    def _replace(self, frame: DataFrame, batch: BatchKey) -> ExportBatch:
        """Write a batch in two steps. Raises Spark's errors, with GAP_FOUND if more offsets are unreadable than
        before.
        """
        from pyspark.sql import functions as f

        gaps = _gaps(frame)
        decoded = self._values.of(_without_gaps(frame, gaps))
        (counts,) = decoded.agg(
            f.count(f.lit(1)).alias("all"), f.count(ERROR).alias("dead")
        ).collect()
        dead = self._dead(decoded, gaps)
        if not counts["dead"] and not gaps:
            dead = dead.limit(0)  # avoids reading the batch for an empty result
        self._dead_letters.replace(dead, batch)
        self._table.replace(_good(decoded), batch)
        return _export_batch(batch, counts["all"], counts["dead"], len(gaps))

    def _dead(self, decoded: DataFrame, gaps: Sequence[Row]) -> DataFrame:
        from pyspark.sql import functions as f

        kept = [name for name in decoded.columns if name not in (ERROR, DECODED)]
        dead = decoded.where(f"{ERROR} is not null").select(
            *kept,
            f.col("offset").alias("lastOffset"),
            f.lit(None).cast("string").alias("object"),
            f.col(ERROR).alias("reason"),
        )
        if gaps:
            rows = self._spark.createDataFrame(list(gaps), GAP_ROWS)
            dead = dead.unionByName(rows, allowMissingColumns=True)
        return dead


def _good(decoded: DataFrame) -> DataFrame:
    return columns_of_good(decoded.where(f"{ERROR} is null"))


def _export_batch(batch: BatchKey, records: int, dead: int, gaps: int) -> ExportBatch:
    offsets = sum(max(0, high - low) for low, high in batch.offsets.values())
    return ExportBatch(batch.number, records - dead, dead, gaps, offsets)


def _gaps(frame: DataFrame) -> list[Row]:
    """Return the unreadable offset ranges of the batch, in the columns of GAP_ROWS."""
    if GAP not in frame.columns:
        return []
    rows = frame.where(f"{GAP} is not null")
    return rows.select("topic", "partition", "offset", f"{GAP}.*").collect()


def _without_gaps(frame: DataFrame, known: Sequence[Row]) -> DataFrame:
    """Return the records outside the `known` gaps. Reading them fails with GAP_FOUND at any other gap."""
    from pyspark.sql import functions as f

    if GAP not in frame.columns:
        return frame
    is_unknown = f.col(GAP).isNotNull()
    message = f.concat_ws(" ", f.lit(GAP_FOUND), f.col(f"{GAP}.reason"))
    keep: Any = f.when(is_unknown, f.raise_error(message).cast("boolean")).otherwise(True)
    if known:
        inside = reduce(lambda one, other: one | other, map(_inside, _joined(known)))
        keep = f.when(inside, False).otherwise(keep)
    return frame.where(keep).drop(GAP)


_OffsetRange = tuple[str, int, int, int]
"""Topic, partition, first and last offset."""


def _joined(gaps: Sequence[Row]) -> list[_OffsetRange]:
    """Join adjacent gaps, because two gaps may be one when they are read again."""
    found: list[_OffsetRange] = []
    for gap in sorted(gaps, key=lambda each: (each["topic"], each["partition"], each["offset"])):
        topic, partition, first, last = (
            gap["topic"],
            gap["partition"],
            gap["offset"],
            gap["lastOffset"],
        )
        if found and found[-1][:2] == (topic, partition) and first <= found[-1][3] + 1:
            first, last = found[-1][2], max(last, found[-1][3])
            found.pop()
        found.append((topic, partition, first, last))
    return found


def _inside(offset_range: _OffsetRange) -> Column:
    """Return the condition that a record, or a whole gap, is inside these offsets."""
    from pyspark.sql import functions as f

    topic, partition, first, last = offset_range
    ends = f.coalesce(f.col(f"{GAP}.lastOffset"), f.col("offset"))
    offsets = (f.col("offset") >= first) & (ends <= last)
    inside: Column = (f.col("topic") == topic) & (f.col("partition") == partition) & offsets
    return inside
