"""Tables have a batch as it was made last, and leave those of other exports alone."""

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
    has_the_turn,
    records,
    widened,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_nothing_is_left_of_a_batch_that_was_made_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert records(spark, "parquet", str(tmp_path)) == RECORDS


def test_dead_letters_of_several_exports_in_one_place(spark: SparkSession, tmp_path: Path) -> None:
    assert dead_letters(spark, "parquet", str(tmp_path)) == DEAD_LETTERS
    assert {path.name for path in tmp_path.iterdir()} == {"export=one", "export=two"}
    assert not list(tmp_path.glob("export=one/**/*.parquet"))


def test_columns_and_fields_come_later(spark: SparkSession, tmp_path: Path) -> None:
    assert widened(spark, "parquet", str(tmp_path)) == WIDENED


def test_readers_can_leave_out_files_by_times(spark: SparkSession, tmp_path: Path) -> None:
    records(spark, "parquet", str(tmp_path / "ours"))
    spark.conf.set(TIMESTAMPS, "INT96")
    try:
        records(spark, "parquet", str(tmp_path / "asked"))
    finally:
        spark.conf.unset(TIMESTAMPS)
    ours, asked = _column(tmp_path / "ours", "timestamp"), _column(tmp_path / "asked", "timestamp")
    assert (ours.physical_type, ours.is_stats_set) == ("INT64", True)
    assert asked.physical_type == "INT96"


def test_settings_of_the_session_stay_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """After a write, and after one that failed, whether they were chosen or not."""
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


def test_no_dictionary_is_made_of_what_hardly_ever_comes_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Not even where it did."""
    table = open_table(spark, "parquet", str(tmp_path), "date", has_the_turn)
    table.write(frame_of(spark, "a", *[1] * 1000), batch_of("one", "a", 0))
    has_dictionary = {
        name: _column(tmp_path, name).has_dictionary_page
        for name in ("offset", "timestamp", "partition")
    }
    assert has_dictionary == {"offset": False, "timestamp": False, "partition": True}


def _column(out: Path, name: str) -> Any:
    """What Parquet says of that column of the first file."""
    path = min(out.rglob("*.parquet"))
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = (group.column(number) for number in range(group.num_columns))
    return next(column for column in columns if column.path_in_schema == name)
