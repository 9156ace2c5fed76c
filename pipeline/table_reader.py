"""Spark tasks of a table: how a plan is divided into tasks, and what each task reads.

Batch queries and streams both use it. Spark pickles the reader to each task, and imports this module in every
planning process; whatever only one of these needs is imported where it is used.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from odradek.pipeline.decoding.schema import GAP, JSON, VALUE
from odradek.pipeline.filters import PushedFilters
from odradek.pipeline.options import SourceOptions
from odradek.pipeline.table_schema import check_schema, decoded_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.pipeline.decoding.record_selection import AbortedTransaction, RecordSelection
    from odradek.pipeline.planning import PlannedRange
    from odradek.pipeline.query import QueryPlan


@dataclass
class ReadTask(InputPartition):
    """One Spark task: the ranges that it reads, and the aborted transactions in them by partition."""

    pieces: tuple[PlannedRange, ...]
    aborted: Mapping[tuple[str, int], Sequence[AbortedTransaction]]


class TableReader:
    """Plans and reads the tasks of one table; `schema` names the columns. Raises BadOption."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        check_schema(schema, options)

    def tasks(self, plan: QueryPlan, filtered: PushedFilters = PushedFilters()) -> list[ReadTask]:  # noqa: B008
        from odradek.pipeline.planning import (
            HEADERS_TASK_BYTES,
            LOOKED_INTO_MAX,
            TASK_BYTES,
            AbortedTransactions,
            tasks_of,
        )
        from odradek.pipeline.segment_columns import PackedSlices

        options, wanted = self._options, self._wanted(filtered)
        usual = TASK_BYTES if wanted.needs_records else HEADERS_TASK_BYTES
        stored = [each for each in plan.pieces if isinstance(each, PackedSlices)]
        looked_into = sum(len(each) == 1 for each in stored) if wanted.is_timed else 0
        tasks = tasks_of(
            plan.pieces,
            task_bytes=options.task_bytes or usual,
            skips_dense=self._skips_dense(wanted),
            min_tasks=max(options.min_partitions or 1, -(-looked_into // LOOKED_INTO_MAX)),
            max_records=options.max_records_per_partition,
        )
        aborted = AbortedTransactions(plan.aborted)
        return [ReadTask(pieces, aborted.of(pieces)) for pieces in tasks]

    def _wanted(self, filtered: PushedFilters) -> RecordSelection:
        """Columns, times and row type to read; the partition is filled in for each range."""
        from odradek.pipeline.decoding.record_selection import RecordSelection

        columns = decoded_columns(self._schema)
        since_ms, until_ms, rows = filtered.since_ms, filtered.until_ms, self._options.rows
        return RecordSelection("", 0, columns, since_ms=since_ms, until_ms=until_ms, rows=rows)

    def _skips_dense(self, wanted: RecordSelection) -> bool:
        """Whether dense segments need not be read; gap reports need every byte checked."""
        return wanted.needs_offsets_alone and self._options.corrupt_segments == "fail"

    def read(self, task: InputPartition, filtered: PushedFilters) -> Iterator[pa.RecordBatch]:
        if not isinstance(task, ReadTask):
            return  # Spark runs one task even for an empty plan
        from pyspark.sql.pandas.types import to_arrow_schema

        from odradek.pipeline.range_reader import ReadSettings, read_pieces, with_gap_column

        options, needed = self._options, self._wanted(filtered)
        reading = ReadSettings(
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

            parse = JsonColumns(wanted.field(VALUE).type).replace_values
            tables = chain.from_iterable(map(parse, tables))
        for table in tables:
            table = table.select(wanted.names)
            yield table if table.schema.equals(wanted) else table.cast(wanted)
        _freeze_imports()


@cache
def _freeze_imports() -> None:
    """Exclude imported modules from garbage collection, once per process.

    A Spark worker collects garbage after each task, which takes 0.1 s of CPU with the modules: more than a small
    task.
    """
    gc.freeze()
