"""`export` writes each offset once, over runs, restarts and failures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from odradek.pipeline.errors import BadOption, DataLoss, JobRunning, PipelineError
from odradek.pipeline.jobs.batch_attempts import BatchAttempts, BatchKey, StagedFile
from odradek.pipeline.jobs.decode import Decoding
from odradek.pipeline.jobs.export import ExportBatch, ExportJob, export
from odradek.pipeline.jobs.export_values import ExportValues
from odradek.testing import Broker
from tests.pipeline.avro_records import written
from tests.pipeline.recreated_topics import recreate_topic
from tests.support.brokers import broker_fixture
from tests.support.librdkafka_clients import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]


broker = broker_fixture(scope="function", topics={"events": 2, "others": 1})


def _produce(broker: Broker, values: list[bytes]) -> None:
    produce(broker.bootstrap, "events", values, partition=(0, 1))


def job(broker: Broker, out: Path, **more: object) -> ExportJob:
    source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events"}
    return ExportJob(source, str(out), **more)  # type: ignore[arg-type]


def exported(spark: SparkSession, out: Path) -> list[tuple[int, int, bytes]]:
    rows = spark.read.parquet(str(out)).select("partition", "offset", "value").collect()
    return sorted((row.partition, row.offset, bytes(row.value)) for row in rows)


def test_each_record_is_exported_once_over_failing_runs(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    _produce(broker, [b"%d" % number for number in range(100)])
    given = job(broker, tmp_path, offsets_a_batch=30)

    class CommitFailure(Exception):
        pass

    def fail(batch: object) -> None:
        """Fail after the batch is written and before Spark commits it."""
        raise CommitFailure

    with pytest.raises(PipelineError):
        export(spark, given, fail)
    assert [batch.records for batch in export(spark, given)] == [30, 30, 30, 10]
    assert export(spark, given) == []
    _produce(broker, [b"%d" % number for number in range(100, 120)])
    assert [batch.records for batch in export(spark, given)] == [20]
    expected = sorted((n % 2, n // 2, b"%d" % n) for n in range(120))
    assert exported(spark, tmp_path) == expected
    with pytest.raises(BadOption, match="to an export with by date, not none"):
        export(spark, job(broker, tmp_path, by="none"))
    rmtree(tmp_path / "_checkpoint")
    with pytest.raises(BadOption, match="already has records of these topics"):
        export(spark, given)


def test_concurrent_run_with_the_same_checkpoint_is_refused(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """As when a run takes longer than its schedule's interval."""
    _produce(broker, [b"%d" % number for number in range(20)])
    given, broker_error = job(broker, tmp_path), []

    def again(batch: object) -> None:
        with pytest.raises(JobRunning, match=r"another run of the export .* \(process") as message:
            export(spark, given)
        # Its arguments are valid, so the exit code is 1
        assert not isinstance(message.value, BadOption)
        broker_error.append(message)

    assert [batch.records for batch in export(spark, given, again)] == [20]
    assert len(broker_error) == 1
    assert export(spark, given) == []
    assert len(exported(spark, tmp_path)) == 20


def test_values_that_are_not_json_are_dead_letters(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    _produce(broker, [b'{"a": 1, "b": "x"}', b"nonsense", b'{"a": 2}', b'{"a": "no number"}'])
    (batch,) = export(spark, job(broker, tmp_path, values=ExportValues("json", "a int, b string")))
    assert (batch.records, batch.dead_letters) == (2, 2)
    rows = spark.read.parquet(str(tmp_path)).select("a", "b").orderBy("a").collect()
    assert [tuple(row) for row in rows] == [(1, "x"), (2, None)]
    dead = spark.read.parquet(str(tmp_path / "_dead_letters")).collect()
    assert {bytes(row.value) for row in dead} == {b"nonsense", b'{"a": "no number"}'}
    assert all(row.offset == row.lastOffset and "not a JSON object" in row.reason for row in dead)


def test_recreated_topic_is_not_exported_to_the_same_table(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """It was recreated between two runs, and has more records than before. This is an error also with
    failOnDataLoss=false."""
    _produce(broker, [b"%d" % number for number in range(20)])
    given = job(broker, tmp_path)
    lenient = replace(given, source={**given.source, "failOnDataLoss": "false"})
    assert [batch.records for batch in export(spark, given)] == [20]
    old, new = recreate_topic(broker, "events", 2)
    _produce(broker, [b"new %d" % number for number in range(60)])
    for each in (given, lenient):
        with pytest.raises(DataLoss, match=f"events was deleted and recreated: .* {old} .* {new}"):
            export(spark, each)
    assert len(exported(spark, tmp_path)) == 20
    assert [batch.records for batch in export(spark, job(broker, tmp_path / "new"))] == [60]


def test_run_without_the_lease_commits_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The run with the lease repeats what this run has written."""
    _produce(broker, [b"%d" % number for number in range(20)])
    given, taken = job(broker, tmp_path), tmp_path / "_checkpoint" / "odradek-run-2"

    def take_over(batch: ExportBatch) -> None:
        taken.write_text("{}")

    with pytest.raises(PipelineError, match="another run of this export has taken over"):
        export(spark, given, take_over)
    assert not list((tmp_path / "_checkpoint" / "commits").glob("[0-9]*"))
    taken.unlink()
    assert [batch.records for batch in export(spark, given)] == [20]
    assert len(exported(spark, tmp_path)) == 20


def test_batch_being_repeated_is_incomplete_even_if_committed(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver is suspended before Spark's commit of the batch. It resumes after another driver, which repeated the
    batch, was killed between removing and moving files. It starts the next batch, and finds that it has lost the
    lease.
    """
    _produce(broker, [b"%d" % number for number in range(40)])
    given, replace = job(broker, tmp_path, offsets_a_batch=20), BatchAttempts.replace

    def suspend(batch: ExportBatch) -> None:
        raise OSError

    def is_killed(self: BatchAttempts, staged: Iterable[StagedFile], batch: BatchKey) -> None:
        replace(self, (), batch)
        if list(staged):
            raise OSError

    with pytest.raises(PipelineError):
        export(spark, given, suspend)
    assert len(exported(spark, tmp_path)) == 20
    with monkeypatch.context() as patch:
        patch.setattr(BatchAttempts, "replace", is_killed)
        with pytest.raises(PipelineError):
            export(spark, given)
    assert not list(tmp_path.rglob("*.parquet"))
    checkpoint = tmp_path / "_checkpoint"
    (checkpoint / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    begun = (checkpoint / "offsets" / "0").read_text().splitlines()
    ends = {**json.loads(begun[-1])["events"], "0": 20, "1": 20}
    del ends["begin"]
    (checkpoint / "offsets" / "1").write_text(
        "\n".join([*begun[:-1], json.dumps({"events": ends})])
    )
    assert [batch.records for batch in export(spark, given)] == [20, 20]
    assert len(exported(spark, tmp_path)) == 40
    assert export(spark, given) == []
    assert not list((tmp_path / "_checkpoint").glob("odradek-again-*"))


def test_location_that_cannot_be_written_is_named(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        PipelineError, match=r"odradek-run-.* Spark's driver needs read and write access to it"
    ):
        export(spark, job(broker, tmp_path / "out", checkpoint=str(tmp_path / "file")))
    with pytest.raises(PipelineError, match=r"nowhere:/x.* --conf spark.hadoop.*No FileSystem"):
        export(spark, job(broker, Path("nowhere:/x")))


def test_two_exports_share_one_table(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    _produce(broker, [b'{"a": 1}', b"nonsense"])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in (b'{"a": 3}', b"no sense"):
        producer.produce("others", value)
    producer.flush()
    for topic in ("events", "others"):
        given = job(broker, tmp_path, values=ExportValues("json", "a int"))
        given = replace(
            given,
            source={**given.source, "subscribe": topic},
            checkpoint=str(tmp_path / "_checkpoints" / topic),
        )
        (batch,) = export(spark, given)
        assert (batch.number, batch.records, batch.dead_letters) == (0, 1, 1)
    rows = spark.read.parquet(str(tmp_path)).select("topic", "a").collect()
    assert sorted(map(tuple, rows)) == [("events", 1), ("others", 3)]
    dead = spark.read.parquet(str(tmp_path / "_dead_letters")).collect()
    assert {bytes(row.value) for row in dead} == {b"nonsense", b"no sense"}


def test_values_of_a_registry_are_columns_after_schema_changes(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    schemas, out = tmp_path / "schemas", tmp_path / "out"
    schemas.mkdir()
    first = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}
    second = {**first, "fields": [*first["fields"], {"name": "b", "type": "string"}]}
    given = job(broker, out, values=ExportValues("registry", decoding=Decoding(str(schemas))))
    (schemas / "1.avsc").write_text(json.dumps(first))
    _produce(broker, [written(1, first, {"a": 1}), b"nonsense"])
    (batch,) = export(spark, given)
    assert (batch.records, batch.dead_letters) == (1, 1)
    (schemas / "2.avsc").write_text(json.dumps(second))
    _produce(broker, [written(2, second, {"a": 2, "b": "x"})])
    (batch,) = export(spark, given)
    assert (batch.records, batch.dead_letters) == (1, 0)
    table = spark.read.option("mergeSchema", "true").parquet(str(out))
    assert sorted(map(tuple, table.select("a", "b").collect())) == [(1, None), (2, "x")]
    (dead,) = spark.read.parquet(str(out / "_dead_letters")).collect()
    assert bytes(dead.value) == b"nonsense"


def test_invalid_arguments_are_refused(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="the partition columns are none, date, hour, not year"):
        export(spark, job(broker, tmp_path, by="year"))
    with pytest.raises(BadOption, match="the table format is parquet or delta, not hudi"):
        export(spark, job(broker, tmp_path, format="hudi"))
    with pytest.raises(BadOption, match="no package for delta"):
        export(spark, job(broker, tmp_path, format="delta"))
    with pytest.raises(
        BadOption, match="--schema is required with --value json and not allowed otherwise"
    ):
        export(spark, job(broker, tmp_path, values=ExportValues("json")))
    with pytest.raises(
        BadOption, match="--registry is required with --value registry and not allowed otherwise"
    ):
        export(spark, job(broker, tmp_path, values=ExportValues("registry")))
