"""Modules that Spark's Python processes import before the first rows; Spark starts such processes repeatedly."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyarrow")

COUNT = """
import sys
from odradek.pipeline import store
from odradek.pipeline import range_reader
from odradek.pipeline import segment_reader
from odradek.pipeline import data_source
from odradek.pipeline.decoding.batch_decoder import decoder_of
from odradek.pipeline.decoding.record_selection import RecordSelection
from odradek.protocol.records.records import Record, build_batch

log = bytes(build_batch([Record(-1, 1, None, b"v")] * 3))
(table,) = decoder_of(RecordSelection("t", 0, ("partition", "offset")), "a log").feed(log)
print(table.num_rows, [each for each in ("trio", "numba", "lz4", "pandas") if each in sys.modules])
"""


MADE = """
import sys
from odradek.pipeline.data_source import OdradekDataSource

OdradekDataSource({"rows": "batches"}).schema()
print([each for each in ("pyarrow", "numpy", "trio") if each in sys.modules])
"""
PLANNED = """
import sys
from odradek.pipeline import query
from odradek.pipeline import segment_reader

print([each for each in ("trio", "numba", "lz4", "pandas") if each in sys.modules])
"""


@pytest.mark.parametrize("program", [MADE, PLANNED], ids=["made", "planned"])
def test_schema_imports_no_arrow_and_planning_no_client(program: str) -> None:
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr


def test_count_imports_no_client_compiler_or_codec() -> None:
    """Also not pandas, which pyarrow imports for some functions."""
    found = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True)
    assert found.stdout.strip() == "3 []", found.stderr
