"""Parquet files that a task of `export` writes: their directories and contents."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from odradek.pipeline.decoding.arrow_columns import GAPS, arrow_schema  # noqa: E402
from odradek.pipeline.decoding.batch_decoder import decoder_of  # noqa: E402
from odradek.pipeline.decoding.record_selection import RecordSelection  # noqa: E402
from odradek.pipeline.decoding.schema import COLUMNS, GAP  # noqa: E402
from odradek.pipeline.errors import GAP_FOUND, FilesUnavailable, PipelineError  # noqa: E402
from odradek.pipeline.jobs import parquet_writer  # noqa: E402
from odradek.pipeline.jobs.parquet_writer import (  # noqa: E402
    StagedFiles,
    StagingSettings,
    WrittenFile,
    write_task,
)
from odradek.protocol.records.records import Record, build_batch  # noqa: E402

HOUR = 3_600_000
MIDNIGHT = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)


def table(*times_ms: int, first: int = 0) -> Any:
    rows = range(first, first + len(times_ms))
    columns = {
        "key": [None if each % 3 == 0 else b"k%d" % each for each in rows],
        "value": [b"v" * each for each in rows],
        "topic": ["events" for _ in rows],
        "partition": [7 for _ in rows],
        "offset": list(rows),
        "timestamp": [each * 1000 for each in times_ms],
        "timestampType": [0 for _ in rows],
    }
    schema = arrow_schema(COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )


def written(directory: Path, *tables: Any, **how: Any) -> list[WrittenFile]:
    given = {"partitioning": ("date",), "codec": "snappy", **how}
    files = StagedFiles(StagingSettings(str(directory), **given))
    for each in tables:
        files.add(each)
    return files.end()


def offsets(placed: list[WrittenFile]) -> dict[str, list[int]]:
    found = {}
    for each in placed:
        read = pq.ParquetFile(each.file).read()
        assert read.num_rows == each.records
        assert "topic" not in read.column_names
        found[each.directory] = read.column("offset").to_pylist()
    return found


@pytest.mark.parametrize(
    ("partitioning", "expected"),
    [
        ((), {"": [0, 1, 2, 3, 4, 5]}),
        (("date",), {"/date=2026-02-28": [0, 3], "/date=2026-03-01": [1, 2, 4, 5]}),
        (
            ("date", "hour"),
            {
                "/date=2026-02-28/hour=23": [0, 3],
                "/date=2026-03-01/hour=0": [1, 4],
                "/date=2026-03-01/hour=12": [2, 5],
            },
        ),
    ],
)
def test_records_are_in_the_directory_of_their_timestamp(
    partitioning: tuple[str, ...], expected: dict[str, list[int]], tmp_path: Path
) -> None:
    times = (MIDNIGHT - 1, MIDNIGHT, MIDNIGHT + 12 * HOUR)
    placed = written(tmp_path, table(*times), table(*times, first=3), partitioning=partitioning)
    assert offsets(placed) == {f"topic=events{name}": rows for name, rows in expected.items()}


def test_all_columns_are_unchanged(tmp_path: Path) -> None:
    given = table(*range(10))
    (placed,) = written(tmp_path, given, codec="zstd")
    file = pq.ParquetFile(placed.file)
    assert file.read().to_pylist() == given.drop_columns(["topic"]).to_pylist()
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(
    ("time_ms", "directory"),
    [
        (-1, "/date=1969-12-31"),
        (253_402_300_800_000, "/date=+10000-01-01"),
        (-62_135_596_800_001, "/date=0000-12-31"),
        (-62_167_219_200_001, "/date=-0001-12-31"),
    ],
)
def test_date_directories_are_named_as_by_spark(
    time_ms: int, directory: str, tmp_path: Path
) -> None:
    assert offsets(written(tmp_path, table(time_ms))) == {f"topic=events{directory}": [0]}


def test_buffered_bytes_of_all_directories_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 20_000)
    monkeypatch.setattr(parquet_writer, "HEADROOM_BYTES", 2_000)
    files = StagedFiles(StagingSettings(str(tmp_path), ("date",), "snappy"))
    for day in range(200):
        times = [MIDNIGHT + (day % 40) * 24 * HOUR] * 10
        files.add(table(*times, first=day * 10))
        assert sum(each.waiting_bytes for each in files._files.values()) <= 2_000
    placed = files.end()
    assert len(placed) == 40
    assert sorted(each for rows in offsets(placed).values() for each in rows) == [*range(2000)]
    assert max(pq.ParquetFile(each.file).num_row_groups for each in placed) > 1


@pytest.mark.parametrize("partitioning", [(), ("date",)])
def test_buffered_rows_do_not_keep_larger_tables(
    tmp_path: Path, partitioning: tuple[str, ...]
) -> None:
    """Few rows of a large table are of another day, or the decoder has returned few rows of its memory."""
    staging = StagingSettings(str(tmp_path), partitioning, "snappy")
    with StagedFiles(staging) as files:
        before = pa.total_allocated_bytes()
        for number in range(20):
            if partitioning:
                large = table(*[MIDNIGHT] * 99, MIDNIGHT - 1, first=900)
                files.add(large)
                files._files["topic=events/date=2026-03-01"].flush()
                del large
            else:
                for each in _few_of_many(number):
                    files.add(each)
        waiting = sum(each.waiting_bytes for each in files._files.values())
        assert 0 < waiting < 50_000
        assert pa.total_allocated_bytes() - before < 2 * waiting + 500_000
        files.end()


def _few_of_many(number: int) -> Any:
    """Return a decoded table with two records of a log of a hundred."""
    records = [Record(-1, MIDNIGHT, b"k", b"v" * 1000) for _ in range(100)]
    log = bytes(build_batch(records, base_offset=100 * number))
    low = 100 * number + 50
    return decoder_of(RecordSelection("events", 7, COLUMNS, low, low + 2), "it").feed(log)


def test_number_of_open_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records may be of any number of days, in any order."""
    monkeypatch.setattr(parquet_writer, "FILES_AT_ONCE", 3)
    files = StagedFiles(StagingSettings(str(tmp_path), ("date",), "snappy"))
    days = [at * 7 % 10 for at in range(100)]
    for first in range(0, 100, 20):
        times = [MIDNIGHT + day * 24 * HOUR for day in days[first : first + 20]]
        files.add(table(*times, first=first))
        assert len(files._files) == 3
    found: dict[str, list[int]] = {}
    for each in files.end():
        rows = pq.ParquetFile(each.file).read().column("offset").to_pylist()
        found.setdefault(each.directory, []).extend(rows)
    assert found == {
        f"topic=events/date=2026-03-{day + 1:02}": [at for at in range(100) if days[at] == day]
        for day in range(10)
    }


class FakeReader:
    """Reader whose only task has these tables."""

    def __init__(self, *tables: Any) -> None:
        self._tables = tables

    def read(self, task: Any) -> Any:
        return iter(self._tables)


def test_gap_fails_the_attempt(tmp_path: Path) -> None:
    good = table(1, 2).append_column(GAP, pa.nulls(2, GAPS))
    gap = [{"lastOffset": 9, "object": "x.log", "reason": "x.log is gone"}]
    bad = table(3).append_column(GAP, pa.array(gap, GAPS))
    staging = StagingSettings(str(tmp_path), ("date",), "snappy")
    placed = write_task(FakeReader(good), None, staging)  # type: ignore[arg-type]
    assert list(offsets(placed).values()) == [[0, 1]]
    left = set(tmp_path.iterdir())
    with pytest.raises(PipelineError, match=f"{GAP_FOUND} x.log is gone"):
        write_task(FakeReader(good, bad), None, staging)  # type: ignore[arg-type]
    assert set(tmp_path.iterdir()) == left


def test_missing_directory_is_named(tmp_path: Path) -> None:
    """Only the driver creates the directory."""
    staging = StagingSettings(str(tmp_path / "gone"), ("date",), "snappy")
    with pytest.raises(FilesUnavailable, match="gone could not be written"):
        write_task(FakeReader(table(1)), None, staging)  # type: ignore[arg-type]


def test_no_file_is_written_without_records(tmp_path: Path) -> None:
    assert written(tmp_path / "none", table()) == []
    assert not (tmp_path / "none").exists()
