"""The Spark data source `odradek`: `spark.read.format("odradek")`.

    from odradek.pipeline import register

    register(spark)
    events = spark.read.format("odradek").option("subscribe", "events").option(…).load()

Spark plans in a separate process, and pickles the reader to each task. Planning is in `query.py` and `planning.py`;
this module implements Spark's interface. Spark starts a new process for each planning step, which imports this
module, so modules that only some steps use are imported there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from odradek.pipeline.filters import PushedFilters, push_down
from odradek.pipeline.options import REPORT, SourceOptions, parse_options
from odradek.pipeline.table_reader import TableReader
from odradek.pipeline.table_schema import usual_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.pipeline.stream_reader import StreamReader

NAME = "odradek"


class OdradekDataSource(DataSource):
    """The data source `odradek`; its options are those of `options.py`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return usual_schema(self.options)

    def reader(self, schema: StructType) -> BatchReader:
        options = parse_options(self.options, streaming=False)
        return (FilteringReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        from odradek.pipeline.stream_reader import StreamReader

        return StreamReader(parse_options(self.options, streaming=True), schema)


class BatchReader(DataSourceReader):
    """Reader of a batch query, whose offsets are fixed when it is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._table = TableReader(options, schema)
        self._filtered = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        from odradek.pipeline.query import Query

        query = Query(self._options, self._filtered)
        return self._table.tasks(query.plan(query.ranges()), self._filtered)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._table.read(partition, self._filtered)


class FilteringReader(BatchReader):
    """Reader of a batch query with filter push-down (`pushFilters`).

    Spark up to 4.3.0 caches the last such plan of a `load()` and uses it for other queries of the same DataFrame,
    also for those without a filter, or within one query. So it is used only on request.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        has_gaps = self._options.corrupt_segments == REPORT
        self._filtered, left = push_down(filters, has_gaps=has_gaps)
        return left


def register(spark: Any) -> None:
    """Register the format "odradek" in a session, and enable filter push-down (`pushFilters`)."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(OdradekDataSource)
