"""Export of a batch with more unreadable offsets at each read: each offset is in the table or in the dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from odradek.pipeline.decoding.arrow_columns import GAPS
from odradek.pipeline.errors import GAP_FOUND
from odradek.pipeline.jobs.export_batch import ATTEMPTS_MAX, BatchWriter
from odradek.pipeline.jobs.export_checkpoint import Checkpoint
from odradek.pipeline.jobs.export_tables import BatchKey
from odradek.pipeline.jobs.export_values import ExportValues
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SCHEMA = (
    "topic string, partition int, offset long, value binary,"
    " gap struct<lastOffset: bigint, object: string, reason: string>"
)
END = 10
OFFSETS = {TopicPartition("t", 0): (0, END)}


class PendingBatch(Checkpoint):
    """Checkpoint of an export that ended within its batch 0."""

    query_id = "e"

    def pending(self) -> int:
        return 0


@dataclass
class MemoryTable:
    """Table in memory; `after` is called after each write."""

    after: Callable[[], None] = lambda: None
    rows: list[Row] = field(default_factory=list)

    def replace(self, frame: DataFrame | None, batch: BatchKey) -> None:
        self.rows = [] if frame is None else frame.collect()
        self.after()

    def exists(self) -> bool:
        raise NotImplementedError

    def read(self) -> DataFrame:
        raise NotImplementedError

    def write(self, frame: DataFrame, batch: BatchKey) -> None:
        raise NotImplementedError


class GrowingGaps:
    """Offsets 0 to 9. A file determines at each read how many of the first ones are gaps."""

    def __init__(self, spark: SparkSession, file: Path, *gaps: int) -> None:
        self._spark = spark
        self._file = str(file)
        self.checkpoint = str(file.parent / "checkpoint")
        self.record_loss(*gaps)

    def record_loss(self, *gaps: int) -> None:
        """Set the end of each gap. The first gap starts at 0, each other one after the previous one."""
        Path(self._file).write_text(" ".join(map(str, gaps)))

    def frame(self) -> DataFrame:
        path = self._file

        def rows(batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
            list(batches)
            found, at = [], 0
            with open(path) as file:
                lasts = [int(each) for each in file.read().split()]
            for last in lasts:
                found.append((at, {"lastOffset": last, "object": None, "reason": "gone"}))
                at = last + 1
            found += [(offset, None) for offset in range(at, END)]
            columns = {
                "topic": pa.array(["t"] * len(found)),
                "partition": pa.array([0] * len(found), pa.int32()),
                "offset": pa.array([offset for offset, _ in found]),
                "value": pa.array([b"v"] * len(found)),
                "gap": pa.array([gap for _, gap in found], GAPS),
            }
            yield pa.RecordBatch.from_pydict(columns)

        return self._spark.range(1, numPartitions=1).mapInArrow(rows, SCHEMA)


def write(spark: SparkSession, going: GrowingGaps, table: MemoryTable, dead: MemoryTable) -> int:
    """Set the number of gaps in the file."""
    checkpoint = PendingBatch(HadoopFiles(spark), going.checkpoint)
    writer = BatchWriter(spark, ExportValues(), table, dead, checkpoint)
    return writer.write(going.frame(), 0, OFFSETS).gaps


def accounted_offsets(table: MemoryTable, dead: MemoryTable) -> list[int]:
    lost = [each for row in dead.rows for each in range(row["offset"], row["lastOffset"] + 1)]
    return sorted([row["offset"] for row in table.rows] + lost)


def test_offsets_lost_between_two_reads_are_dead_letters(
    spark: SparkSession, tmp_path: Path
) -> None:
    going = GrowingGaps(spark, tmp_path / "gaps", 2)
    table, dead = MemoryTable(), MemoryTable(lambda: going.record_loss(6))
    assert write(spark, going, table, dead) == 1
    assert [row["offset"] for row in table.rows] == [7, 8, 9]
    assert accounted_offsets(table, dead) == [*range(END)]


def test_two_gaps_may_be_one_or_none_in_the_next_read(spark: SparkSession, tmp_path: Path) -> None:
    going = GrowingGaps(spark, tmp_path / "gaps", 2, 6)
    for then in ((6,), (4, 6), (4,), ()):
        going.record_loss(2, 6)
        table, dead = MemoryTable(), MemoryTable(lambda then=then: going.record_loss(*then))  # type: ignore[misc]
        assert write(spark, going, table, dead) == 2
        assert accounted_offsets(table, dead) == [*range(END)]


def test_gaps_that_keep_growing_end_the_export(spark: SparkSession, tmp_path: Path) -> None:
    going, looks = GrowingGaps(spark, tmp_path / "gaps", 0), iter(range(1, END))
    table, dead = MemoryTable(), MemoryTable(lambda: going.record_loss(next(looks)))
    with pytest.raises(Exception, match=GAP_FOUND):
        write(spark, going, table, dead)
    assert next(looks) == ATTEMPTS_MAX + 1
    assert table.rows == []
