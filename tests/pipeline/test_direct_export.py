"""Exports whose tasks write the files, and those whose Spark does: one table, once, wherever the driver dies."""

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
from tests.pipeline.replaced_batches import has_the_turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]

DAY_MS = 86_400_000
BEGIN_MS = 20_000 * DAY_MS
BY_SPARK = {"spark.sql.files.maxRecordsPerFile": "1000000"}
"""A setting that tasks do not heed."""


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
    """How many records were written by tasks, of each batch."""
    found: list[int] = []
    write = DirectExport.write

    def counted(self: DirectExport, *given: object) -> int:
        found.append(write(self, *given))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(DirectExport, "write", counted)
    return found


def rows(spark: SparkSession, out: Path) -> list[tuple[object, ...]]:
    """In order, without what differs from export to export."""
    frame = spark.read.parquet(str(out)).drop("export", "batch").orderBy("partition", "offset")
    return [tuple(row) for row in frame.collect()]


def offsets(spark: SparkSession, out: Path) -> list[tuple[int, int]]:
    found = spark.read.parquet(str(out)).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in found)


def directories(out: Path) -> set[str]:
    return {str(file.relative_to(out)).partition("/export=")[0] for file in out.rglob("*.parquet")}


@pytest.mark.parametrize("by", ["none", "date", "hour"])
def test_the_table_is_what_spark_makes(
    spark: SparkSession, broker: Broker, tmp_path: Path, directly: list[int], by: str
) -> None:
    with settings(spark, {"spark.sql.session.timeZone": "UTC"}):
        ours = export(spark, job(broker, tmp_path / "ours", by=by))
        assert directly == [100, 100, 100]
        with settings(spark, BY_SPARK):
            theirs = export(spark, job(broker, tmp_path / "theirs", by=by))
        assert len(directly) == 3
        assert ours == theirs
        tables = [spark.read.parquet(str(tmp_path / name)) for name in ("ours", "theirs")]
        assert tables[0].schema == tables[1].schema
        assert rows(spark, tmp_path / "ours") == rows(spark, tmp_path / "theirs")
    assert directories(tmp_path / "ours") == directories(tmp_path / "theirs")


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
def test_what_tasks_do_not_heed_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, given: dict[str, str]
) -> None:
    options = parse_options(
        {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"}, streaming=True
    )
    with settings(spark, {"spark.sql.session.timeZone": "UTC"}):
        assert direct_export(spark, options, str(tmp_path), "date", has_the_turn) is not None
        with settings(spark, given):
            assert direct_export(spark, options, str(tmp_path), "date", has_the_turn) is None


@pytest.mark.parametrize("given", [{}, BY_SPARK], ids=["tasks write", "spark writes"])
def test_where_the_driver_dies_before_all_files_are_moved(
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
        for file, data in left:  # which the kernel would not have let it remove
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        assert [each.number for each in export(spark, job(broker, tmp_path))] == [1, 2]
    found = offsets(spark, tmp_path)
    assert found == [(partition, offset) for partition in (0, 1) for offset in range(150)]
    assert not list(tmp_path.glob("_staged-*"))


def test_a_move_finds_its_file_or_says_that_it_is_gone(spark: SparkSession, tmp_path: Path) -> None:
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
def test_a_driver_that_comes_back_adds_nothing(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
) -> None:
    """It stood still before it moved the first file, and another has made the batch again meanwhile."""
    move, batches = HadoopFiles.move, []

    def after_others_turn(self: HadoopFiles, file: str, directory: str) -> bool:
        export, number = directory.rpartition("/export=")[2].split("/batch=")
        batches.append(int(number))
        other = BatchAttempts(self, str(tmp_path), ("topic", "date"), lambda: None)
        other.remove_earlier_staging(batch := BatchKey(export, int(number), {}))
        other.replace((), batch)
        return move(self, file, directory)

    monkeypatch.setattr(HadoopFiles, "move", after_others_turn)
    with settings(spark, given), pytest.raises(PipelineError, match="only one run may write to it"):
        export(spark, job(broker, tmp_path))
    assert set(batches) == {0}
    assert not list(tmp_path.rglob("*.parquet"))
