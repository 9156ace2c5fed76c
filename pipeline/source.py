"""Topics as a Spark data source: `spark.read.format("odradek")`.

    from odradek.pipeline import register

    register(spark)
    events = spark.read.format("odradek").option("subscribe", "events").option(…).load()

Spark calls the planning half in a process beside its driver, and pickles the reader to each task. What
the pieces are is decided in `query.py` and `planning.py`; here is what Spark wants to be told of it. It
does so in a new process for each question, which imports this module: what only one of them needs is
imported where it is.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from odradek.pipeline.decoding.schema import GAP, JSON, VALUE
from odradek.pipeline.filters import Filtered, push_down
from odradek.pipeline.options import REPORT, Options, parse_options
from odradek.pipeline.table_schema import check_schema, decoded_columns, usual_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.pipeline.decoding.wanted import Aborted, Wanted
    from odradek.pipeline.planning import SegmentRange
    from odradek.pipeline.query import Plan
    from odradek.pipeline.stream import StreamReader

NAME = "odradek"


@dataclass
class ReadTask(InputPartition):
    """What one task reads."""

    pieces: tuple[SegmentRange, ...]
    aborted: Mapping[tuple[str, int], Sequence[Aborted]]


class OdradekDataSource(DataSource):
    """See the module; its options are those of `options.py`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return usual_schema(self.options)

    def reader(self, schema: StructType) -> BatchReader:
        options = parse_options(self.options, streaming=False)
        return (FilteringReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        from odradek.pipeline.stream import StreamReader

        return StreamReader(parse_options(self.options, streaming=True), schema)


class Reads:
    """What readers of a batch and of a stream have in common."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        check_schema(schema, options)

    def _tasks(self, plan: Plan, filtered: Filtered = Filtered()) -> list[ReadTask]:  # noqa: B008
        from odradek.pipeline.aborted import AbortedByTask
        from odradek.pipeline.planning import (
            HEADERS_TASK_BYTES,
            LOOKED_INTO_MAX,
            TASK_BYTES,
            tasks_of,
        )
        from odradek.pipeline.segment_columns import PackedStretches

        options, wanted = self._options, self._wanted(filtered)
        usual = TASK_BYTES if wanted.needs_records else HEADERS_TASK_BYTES
        stored = [each for each in plan.pieces if isinstance(each, PackedStretches)]
        looked_into = sum(len(each) == 1 for each in stored) if wanted.is_timed else 0
        tasks = tasks_of(
            plan.pieces,
            task_bytes=options.task_bytes or usual,
            skips_dense=self._skips_dense(wanted),
            min_tasks=max(options.min_partitions or 1, -(-looked_into // LOOKED_INTO_MAX)),
            max_records=options.max_records_per_partition,
        )
        aborted = AbortedByTask(plan.aborted)
        return [ReadTask(pieces, aborted.of(pieces)) for pieces in tasks]

    def _wanted(self, filtered: Filtered) -> Wanted:
        """Of any partition."""
        from odradek.pipeline.decoding.wanted import Wanted

        columns = decoded_columns(self._schema)
        since_ms, until_ms, rows = filtered.since_ms, filtered.until_ms, self._options.rows
        return Wanted("", 0, columns, since_ms=since_ms, until_ms=until_ms, rows=rows)

    def _skips_dense(self, wanted: Wanted) -> bool:
        """Who is told what is broken reads all of it."""
        return wanted.needs_offsets_alone and self._options.corrupt_segments == "fail"

    def _read(self, task: InputPartition, filtered: Filtered) -> Iterator[pa.RecordBatch]:
        if not isinstance(task, ReadTask):
            return  # Spark has a task where there is nothing to read
        from pyspark.sql.pandas.types import to_arrow_schema

        from odradek.pipeline.reading import Reading, read_pieces, with_gap_column

        options, needed = self._options, self._wanted(filtered)
        reading = Reading(
            columns=needed.columns,
            bootstrap=options.bootstrap,
            tiered_url=options.tiered_url,
            store_options=options.store_options,
            read_committed=options.read_committed,
            request_timeout_ms=options.request_timeout_ms,
            fetch_max_bytes=options.fetch_max_bytes,
            fail_on_data_loss=options.fail_on_data_loss,
            unreadable=options.corrupt_segments,
            since_ms=filtered.since_ms,
            until_ms=filtered.until_ms,
            too_late_ms=filtered.too_late_ms(options.max_lateness_ms),
            rows=options.rows,
            skips_dense=self._skips_dense(needed),
        )
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        tables = read_pieces(reading, task.pieces, task.aborted)
        if GAP in wanted.names:
            tables = map(with_gap_column, tables)
        if options.value_format == JSON:
            from odradek.pipeline.json_values import JsonColumns

            parse = JsonColumns(wanted.field(VALUE).type).in_place_of_values
            tables = chain.from_iterable(map(parse, tables))
        for table in tables:
            table = table.select(wanted.names)
            yield table if table.schema.equals(wanted) else table.cast(wanted)
        _keep_what_is_imported()


@cache
def _keep_what_is_imported() -> None:
    """Spark's worker collects garbage after each task, and looks at all that was ever imported each time: 0.1 s
    of CPU, twice of what a small task takes otherwise. From the first task on it looks at what came since."""
    gc.freeze()


class BatchReader(Reads, DataSourceReader):
    """One query over offsets that are fixed when it is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._filtered = Filtered()

    def partitions(self) -> Sequence[InputPartition]:
        from odradek.pipeline.query import Query

        query = Query(self._options, self._filtered)
        return self._tasks(query.plan(query.ranges()), self._filtered)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition, self._filtered)


class FilteringReader(BatchReader):
    """One that leaves out what the query's filters do (`pushFilters`).

    Spark up to 4.3.0 keeps the last such plan of a `load()`, and reads by it whatever else is asked of the same
    DataFrame without a filter, or in one query with it: so nobody gets this who has not asked for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        has_gaps = self._options.corrupt_segments == REPORT
        self._filtered, left = push_down(filters, has_gaps=has_gaps)
        return left


def register(spark: Any) -> None:
    """Make the format "odradek" known to a session, and let it see filters (`pushFilters`)."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(OdradekDataSource)
