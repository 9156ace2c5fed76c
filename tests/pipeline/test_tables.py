"""Tables have a batch as it was made last, and leave those of other exports alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from tests.pipeline.replaced_batches import DEAD_LETTERS, RECORDS, dead_letters, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_nothing_is_left_of_a_batch_that_was_made_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert records(spark, "parquet", str(tmp_path)) == RECORDS


def test_dead_letters_of_several_exports_in_one_place(spark: SparkSession, tmp_path: Path) -> None:
    assert dead_letters(spark, "parquet", str(tmp_path)) == DEAD_LETTERS
