"""One batch of an export: records to the table, the others to the dead letters, each offset in one of them.

Most batches have no gaps and are written once: the batch is read and written in one pass, which ends
before anything is committed when a row says that offsets can't be read. Such a batch, and one that may have
been written before its driver died, is taken with care: what is missing is found first and written to the
dead letters, and the records after that, without any of those offsets, even if they have come back since. Where
more is missing by then than was found, as retention goes on, it is all done once more. Both replace what was
written before, of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from odradek.pipeline.brokers import TopicPartition
from odradek.pipeline.decoding.schema import GAP
from odradek.pipeline.errors import GAP_FOUND, PipelineError
from odradek.pipeline.jobs.attempts import BatchKey
from odradek.pipeline.jobs.checkpoint import Checkpoint
from odradek.pipeline.jobs.decode import DECODED, ERROR
from odradek.pipeline.jobs.direct_export import DirectExport
from odradek.pipeline.jobs.tables import Table
from odradek.pipeline.jobs.values import Values, columns_of_good
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

LOOKS_MAX = 5
"""So often it is looked for what is missing of one batch: each time more was missing than the time before."""
GAP_ROWS = "topic string, partition int, offset long, lastOffset long, object string, reason string"


@value_class
class ExportBatch:
    """One batch that is written. `records` and `dead_letters` are records; `gaps` stretches of offsets
    that could not be read, which are in the dead letters too; `offsets` all that the batch is about."""

    number: int
    records: int
    dead_letters: int
    gaps: int
    offsets: int


class BatchWriter:
    """See the module."""

    def __init__(
        self,
        spark: SparkSession,
        values: Values,
        table: Table,
        dead_letters: Table,
        checkpoint: Checkpoint,
        direct: DirectExport | None = None,
    ) -> None:
        """`direct` writes what is tried the first time, if it can."""
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
        """The batch with these offsets, from the first on, before the second. Raises what Spark raises, and
        PipelineError."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        if self._pending is not None and number > self._pending:
            raise PipelineError(
                f"batch {self._pending} was noted as done by a run that had lost its turn, and is not: run it again"
            )
        self._pending = None
        self._checkpoint.is_begun(number)
        batch = BatchKey(self._checkpoint.query_id, number, offsets)
        if number not in self._unfinished:
            try:
                if self._direct is not None:
                    ids = self._checkpoint.ends(number).topic_ids
                    written = self._direct.write(frame.schema, batch, ids)
                    return _told(batch, written, 0, 0)
                return self._at_once(frame, batch)
            except (PySparkException, Py4JJavaError) as error:
                if GAP_FOUND not in str(error):
                    raise
        with self._checkpoint.recreated_topics(number):
            return self._with_care(frame, batch)

    def _at_once(self, frame: DataFrame, batch: BatchKey) -> ExportBatch:
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
        return _told(batch, counted.get["all"], dead, 0)

    def _with_care(self, frame: DataFrame, batch: BatchKey) -> ExportBatch:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        for _ in range(LOOKS_MAX - 1):
            try:
                return self._replaced(frame, batch)
            except (PySparkException, Py4JJavaError) as error:
                if GAP_FOUND not in str(error):
                    raise
        return self._replaced(frame, batch)

    def _replaced(self, frame: DataFrame, batch: BatchKey) -> ExportBatch:
        """Raises what Spark raises, with GAP_FOUND in it where more is missing when it is read than was just before."""
        from pyspark.sql import functions as f

        gaps = _gaps(frame)
        decoded = self._values.of(_without_gaps(frame, gaps))
        (counts,) = decoded.agg(
            f.count(f.lit(1)).alias("all"), f.count(ERROR).alias("dead")
        ).collect()
        dead = self._dead(decoded, gaps)
        if not counts["dead"] and not gaps:
            dead = dead.limit(0)  # nothing is read for that
        self._dead_letters.replace(dead, batch)
        self._table.replace(_good(decoded), batch)
        return _told(batch, counts["all"], counts["dead"], len(gaps))

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


def _told(batch: BatchKey, records: int, dead: int, gaps: int) -> ExportBatch:
    offsets = sum(max(0, high - low) for low, high in batch.offsets.values())
    return ExportBatch(batch.number, records - dead, dead, gaps, offsets)


def _gaps(frame: DataFrame) -> list[Row]:
    """What can't be read of the batch, one row a stretch of offsets, as GAP_ROWS."""
    if GAP not in frame.columns:
        return []
    rows = frame.where(f"{GAP} is not null")
    return rows.select("topic", "partition", "offset", f"{GAP}.*").collect()


def _without_gaps(frame: DataFrame, known: Sequence[Row]) -> DataFrame:
    """The records without `known` offsets. Whoever reads it fails with GAP_FOUND at any gap that has others."""
    from pyspark.sql import functions as f

    if GAP not in frame.columns:
        return frame
    is_unknown = f.col(GAP).isNotNull()
    said = f.concat_ws(" ", f.lit(GAP_FOUND), f.col(f"{GAP}.reason"))
    keep: Any = f.when(is_unknown, f.raise_error(said).cast("boolean")).otherwise(True)
    if known:
        inside = reduce(lambda one, other: one | other, map(_inside, _joined(known)))
        keep = f.when(inside, False).otherwise(keep)
    return frame.where(keep).drop(GAP)


_Stretch = tuple[str, int, int, int]
"""Topic, partition, first and last offset."""


def _joined(gaps: Sequence[Row]) -> list[_Stretch]:
    """Neighbours as one: what was two gaps may be one when it is read again."""
    found: list[_Stretch] = []
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


def _inside(segment_slice: _Stretch) -> Column:
    """Of a record, or of a gap with all its offsets."""
    from pyspark.sql import functions as f

    topic, partition, first, last = segment_slice
    ends = f.coalesce(f.col(f"{GAP}.lastOffset"), f.col("offset"))
    offsets = (f.col("offset") >= first) & (ends <= last)
    inside: Column = (f.col("topic") == topic) & (f.col("partition") == partition) & offsets
    return inside
