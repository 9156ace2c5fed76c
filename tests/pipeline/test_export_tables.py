"""Tables have the last attempt's rows of a batch, and keep the rows of other exports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from odradek.pipeline.jobs.export_tables import CONCURRENT_WRITERS, TIMESTAMPS, open_table
from tests.pipeline.replaced_batches import (
    DEAD_LETTERS,
    RECORDS,
    WIDENED,
    batch_of,
    dead_letters,
    frame_of,
    has_the_lease,
    records,
    widened,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_repeated_batch_replaces_its_earlier_rows(spark: SparkSession, tmp_path: Path) -> None:
    assert records(spark, "parquet", str(tmp_path)) == RECORDS


def test_several_exports_share_one_location_for_dead_letters(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert dead_letters(spark, "parquet", str(tmp_path)) == DEAD_LETTERS
    assert {path.name for path in tmp_path.iterdir()} == {"export=one", "export=two"}
    assert not list(tmp_path.glob("export=one/**/*.parquet"))


def test_columns_and_fields_are_added_later(spark: SparkSession, tmp_path: Path) -> None:
    assert widened(spark, "parquet", str(tmp_path)) == WIDENED


def test_readers_skip_files_by_timestamp(spark: SparkSession, tmp_path: Path) -> None:
    records(spark, "parquet", str(tmp_path / "own"))
    spark.conf.set(TIMESTAMPS, "INT96")
    try:
        records(spark, "parquet", str(tmp_path / "asked"))
    finally:
        spark.conf.unset(TIMESTAMPS)
    own, asked = _column(tmp_path / "own", "timestamp"), _column(tmp_path / "asked", "timestamp")
    assert (own.physical_type, own.is_stats_set) == ("INT64", True)
    assert asked.physical_type == "INT96"


def test_settings_of_the_session_are_restored(spark: SparkSession, tmp_path: Path) -> None:
    """After a successful and a failed write, for settings with and without a value."""
    taken = tmp_path / "a file"
    taken.touch()
    for chosen in (None, "7"):
        if chosen is not None:
            spark.conf.set(CONCURRENT_WRITERS, chosen)
        try:
            records(spark, "parquet", str(tmp_path / str(chosen)))
            with pytest.raises(Exception, match="a file"):
                records(spark, "parquet", str(taken))
            left = [spark.conf.get(name, None) for name in (CONCURRENT_WRITERS, TIMESTAMPS)]
        finally:
            spark.conf.unset(CONCURRENT_WRITERS)
        assert left == [chosen, None]


def test_mostly_distinct_columns_have_no_dictionary(spark: SparkSession, tmp_path: Path) -> None:
    """Also if their values repeat."""
    table = open_table(spark, "parquet", str(tmp_path), "date", has_the_lease)
    table.write(frame_of(spark, "a", *[1] * 1000), batch_of("one", "a", 0))
    has_dictionary = {
        name: _column(tmp_path, name).has_dictionary_page
        for name in ("offset", "timestamp", "partition")
    }
    assert has_dictionary == {"offset": False, "timestamp": False, "partition": True}


def _column(out: Path, name: str) -> Any:
    """Return Parquet's metadata of that column in the first file."""
    path = min(out.rglob("*.parquet"))
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = (group.column(number) for number in range(group.num_columns))
    return next(column for column in columns if column.path_in_schema == name)
