"""`decode` on a broker's topic: typed columns of valid values, and errors of invalid ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

pytest.importorskip("fastavro")

from odradek.pipeline.jobs.decode import Decoding, decoded
from odradek.testing import Broker
from tests.pipeline.avro_records import FLIGHT, written
from tests.support.brokers import broker_fixture
from tests.support.spark_reading import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]


broker = broker_fixture(scope="function", topics={"flights": 1})


def test_values_are_decoded_with_their_schemas(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(FLIGHT))
    flight: dict[str, Any] = {
        "carrier": "AA",
        "delay": None,
        "tags": ["a", "b"],
        "counts": {"k": 1},
        "kind": "B",
        "at": datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC),
        "leg": {"km": 2.0},
    }
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in (written(7, FLIGHT, flight), b"nonsense", None):
        producer.produce("flights", value)
    producer.flush()
    frame = table(spark, {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "flights"})
    made = decoded(frame, Decoding(str(tmp_path)))
    rows = made.selectExpr(
        "decoded.*", "unix_millis(decoded.at) ms", "decoded is null nothing", "error"
    ).collect()
    first = rows[0].asDict(recursive=True)
    del first["at"]
    expected = {name: value for name, value in flight.items() if name != "at"}
    assert first == {
        **expected,
        "ms": int(flight["at"].timestamp() * 1000),
        "nothing": False,
        "error": None,
    }
    assert [row.nothing for row in rows] == [False, True, True]
    assert [row.error for row in rows[1:]] == [
        "it does not begin with the magic byte 0 and a schema id",
        None,
    ]
    with pytest.raises(
        Exception, match="flights-0, offset 1: it does not begin with the magic byte 0"
    ):
        decoded(frame, Decoding(str(tmp_path)), fail=True).collect()


def test_filter_after_decoding_is_pushed_to_the_source(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """A filter on other columns than the value reduces what is read, so `decode --where` is as fast as a filter
    before it.
    """
    (tmp_path / "7.avsc").write_text(json.dumps(FLIGHT))
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(5):
        producer.produce("flights", str(number).encode())
    producer.flush()
    source = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": "flights",
        "pushFilters": "true",
    }
    made = decoded(table(spark, source), Decoding(str(tmp_path))).where("offset >= 3")
    assert [row.value for row in made.select("value").collect()] == [b"3", b"4"]
    plan = made._jdf.queryExecution().executedPlan().toString()
    assert " Filter " not in plan
    assert " Filter " in made.where("error is null")._jdf.queryExecution().executedPlan().toString()
