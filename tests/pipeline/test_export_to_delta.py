"""`export` to Delta writes each record once, by means of Delta's commits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from odradek.bench.peers.spark_releases import DELTA_SPARK_VERSION, delta_jars, spark_environment
from odradek.pipeline.jobs.export_values import NO_JSON
from odradek.testing import Broker
from tests.pipeline.replaced_batches import DEAD_LETTERS, ONCE, RECORDS, WIDENED

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PROGRAM_SECONDS = 300.0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("delta")
    with Broker(topics={"events": 2}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(100):
            value = b"nonsense" if number == 7 else b'{"n": %d}' % number
            producer.produce("events", value=value, partition=number % 2)
        producer.flush()
        done = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.exported_delta",
             broker.bootstrap, str(directory), ",".join(delta_jars())],
            cwd=Path(__file__).parents[2],
            env=spark_environment(DELTA_SPARK_VERSION),
            capture_output=True,
            timeout=PROGRAM_SECONDS,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_each_record_is_exported_once_over_failing_runs(report: dict[str, Any]) -> None:
    assert report["runs"] == [[], [], [39, 40, 20], []]
    assert report["rows"] == sorted([n % 2, n // 2, n] for n in range(100) if n != 7)
    assert report["dead"] == [[1, 3, "nonsense", NO_JSON]]
    assert "already has records of these topics" in report["refused"]


def test_repeated_batch_replaces_its_earlier_rows(report: dict[str, Any]) -> None:
    assert [tuple(row) for row in report["replaced"]] == RECORDS
    assert [tuple(row) for row in report["replacedDead"]] == DEAD_LETTERS


def test_resumed_driver_adds_nothing(report: dict[str, Any]) -> None:
    assert [tuple(row) for row in report["cameBack"]] == ONCE
    assert report["deadCameBack"] == []


def test_new_columns_and_fields_are_added_to_the_table(report: dict[str, Any]) -> None:
    assert [tuple(row) for row in report["widened"]] == WIDENED
