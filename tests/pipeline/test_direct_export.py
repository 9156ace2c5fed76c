"""Exports written by tasks and by Spark have the same table, with each record once, at whatever step the driver dies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.batch_attempts import BatchAttempts, BatchKey, StagedFile
from odradek.pipeline.jobs.direct_export import DirectExport, direct_export
from odradek.pipeline.jobs.export import ExportJob, export
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.pipeline.options import parse_options
from odradek.testing import Broker
from tests.pipeline.replaced_batches import has_the_lease

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]

DAY_MS = 86_400_000
BEGIN_MS = 20_000 * DAY_MS
BY_SPARK = {"spark.sql.files.maxRecordsPerFile": "1000000"}
"""A Spark setting that the tasks' Parquet writer does not support."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"events": 2}, configs={"log.retention.ms": "-1"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(300):
            producer.produce(
                "events",
                key=None if number % 7 == 0 else b"key %d" % number,
                value=None if number % 5 == 0 else b"value %d" % number,
                partition=number % 2,
                timestamp=BEGIN_MS + number * DAY_MS // 40,
                headers=[("h", b"%d" % number), ("none", None)] if number % 3 else None,
            )
        producer.flush()
        yield broker


def job(broker: Broker, out: Path, **more: object) -> ExportJob:
    source = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": "events",
        "includeHeaders": "true",
    }
    return ExportJob(source, str(out), offsets_a_batch=100, **more)  # type: ignore[arg-type]


@contextmanager
def settings(spark: SparkSession, given: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in given}
    try:
        for name, value in given.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


@pytest.fixture
def directly(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of records per batch that tasks have written."""
    found: list[int] = []
    write = DirectExport.write

    def counted(self: DirectExport, *given: object) -> int:
        found.append(write(self, *given))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(DirectExport, "write", counted)
    return found


def rows(spark: SparkSession, out: Path) -> list[tuple[object, ...]]:
    """Return the rows in order, without the columns that differ between exports."""
    frame = spark.read.parquet(str(out)).drop("export", "batch").orderBy("partition", "offset")
    return [tuple(row) for row in frame.collect()]


def offsets(spark: SparkSession, out: Path) -> list[tuple[int, int]]:
    found = spark.read.parquet(str(out)).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in found)


def directories(out: Path) -> set[str]:
    return {str(file.relative_to(out)).partition("/export=")[0] for file in out.rglob("*.parquet")}


@pytest.mark.parametrize("by", ["none", "date", "hour"])
def test_tasks_write_the_same_table_as_spark(
    spark: SparkSession, broker: Broker, tmp_path: Path, directly: list[int], by: str
) -> None:
    with settings(spark, {"spark.sql.session.timeZone": "UTC"}):
        by_tasks = export(spark, job(broker, tmp_path / "by_tasks", by=by))
        assert directly == [100, 100, 100]
        with settings(spark, BY_SPARK):
            by_spark = export(spark, job(broker, tmp_path / "by_spark", by=by))
        assert len(directly) == 3
        assert by_tasks == by_spark
        tables = [spark.read.parquet(str(tmp_path / name)) for name in ("by_tasks", "by_spark")]
        assert tables[0].schema == tables[1].schema
        assert rows(spark, tmp_path / "by_tasks") == rows(spark, tmp_path / "by_spark")
    assert directories(tmp_path / "by_tasks") == directories(tmp_path / "by_spark")


@pytest.mark.parametrize(
    "given",
    [
        BY_SPARK,
        {"parquet.block.size": "1000000"},
        {"spark.sql.session.timeZone": "America/New_York"},
        {"spark.sql.parquet.compression.codec": "lz4_raw"},
    ],
    ids=str,
)
def test_unsupported_settings_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, given: dict[str, str]
) -> None:
    options = parse_options(
        {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"}, streaming=True
    )
    with settings(spark, {"spark.sql.session.timeZone": "UTC"}):
        assert direct_export(spark, options, str(tmp_path), "date", has_the_lease) is not None
        with settings(spark, given):
            assert direct_export(spark, options, str(tmp_path), "date", has_the_lease) is None


@pytest.mark.parametrize("given", [{}, BY_SPARK], ids=["tasks write", "spark writes"])
def test_driver_killed_before_all_files_are_moved(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
) -> None:
    place, left = BatchAttempts.place, []

    def part(self: BatchAttempts, staged: Iterable[StagedFile]) -> None:
        files = list(staged)
        is_second = "/batch=1" in files[0].directory
        place(self, files[: len(files) // 2] if is_second else files)
        if is_second:
            left.extend((Path(each.file), b"") for each in files[len(files) // 2 :])
            raise OSError("the driver dies")

    with settings(spark, given):
        with monkeypatch.context() as patch:
            patch.setattr(BatchAttempts, "place", part)
            with pytest.raises(PipelineError):
                export(spark, job(broker, tmp_path))
        assert list(tmp_path.rglob("topic=*/**/batch=1/*.parquet"))
        assert left
        for file, data in left:  # the kernel would have refused its removal
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        assert [each.number for each in export(spark, job(broker, tmp_path))] == [1, 2]
    found = offsets(spark, tmp_path)
    assert found == [(partition, offset) for partition in (0, 1) for offset in range(150)]
    assert not list(tmp_path.glob("_staged-*"))


def test_move_of_a_missing_file_returns_false(spark: SparkSession, tmp_path: Path) -> None:
    files, to = HadoopFiles(spark), tmp_path / "a" / "b"
    files.make(str(to))
    files.make(str(to))
    (tmp_path / "file").write_text("x")
    assert files.move(str(tmp_path / "file"), str(to))
    assert (to / "file").read_text() == "x"
    assert not files.move(str(tmp_path / "file"), str(to))
    for hidden in (".file.crc", "_SUCCESS"):
        (to / hidden).touch()
    assert files.below(str(tmp_path)) == ["a/b/file"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("given", [{}, BY_SPARK], ids=["tasks write", "spark writes"])
def test_resumed_driver_adds_nothing(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
) -> None:
    """It was suspended before it moved the first file, and another driver has repeated the batch."""
    move, batches = HadoopFiles.move, []

    def after_other_driver(self: HadoopFiles, file: str, directory: str) -> bool:
        export, number = directory.rpartition("/export=")[2].split("/batch=")
        batches.append(int(number))
        other = BatchAttempts(self, str(tmp_path), ("topic", "date"), lambda: None)
        other.remove_earlier_staging(batch := BatchKey(export, int(number), {}))
        other.replace((), batch)
        return move(self, file, directory)

    monkeypatch.setattr(HadoopFiles, "move", after_other_driver)
    with (
        settings(spark, given),
        pytest.raises(PipelineError, match="only one run may write to this table"),
    ):
        export(spark, job(broker, tmp_path))
    assert set(batches) == {0}
    assert not list(tmp_path.rglob("*.parquet"))
