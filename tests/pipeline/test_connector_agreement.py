"""Spark's Kafka connector and this source return the same rows for the same query, except for the name of the format.

The connector runs on its own Spark version, in a separate process. `ODRADEK_INTEROP_BROKER` selects the broker that
both read, as for tests/interop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.bench.model import PeerUnavailable
from odradek.pipeline.brokers import brokers_at
from odradek.pipeline.options import parse_options
from odradek.pipeline.query import Query
from odradek.pipeline.segment_columns import PackedSlices
from odradek.protocol.topics import TopicPartition
from tests.pipeline.tiering import QUICK, TIERED
from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.random_records import transaction
from tests.support.real_kafka import start_kafka
from tests.support.spark_connector import ConnectorFailed, Row, SparkConnector, spark_connector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BROKERS = os.environ.get("ODRADEK_INTEROP_BROKER", "odradek").split(",")
STARTERS = {"odradek": start_odradek, "kafka": start_kafka}


@pytest.fixture(scope="module")
def connector() -> Iterator[SparkConnector]:
    try:
        yield spark_connector()
    except PeerUnavailable as unavailable:
        pytest.skip(f"Spark's connector {unavailable}")


@pytest.fixture(scope="module", params=BROKERS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp(f"agreement-{request.param}")
    with STARTERS[request.param](directory) as broker:
        _fill(broker)
        yield broker


@pytest.fixture(scope="module")
def tiered(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[BrokerProcess, dict[str, str]]]:
    """Broker with the same records, most of them only in the store; returns it with the source options."""
    if "odradek" not in BROKERS:
        pytest.skip("a store of odradek_rows is filled by a broker of odradek_rows")
    directory, tier = tmp_path_factory.mktemp("agreement-tiered"), tmp_path_factory.mktemp("tier")
    arguments = ("--tiered", str(tier))
    with start_odradek(directory, config=QUICK, arguments=arguments) as broker:
        _fill(broker, config={**TIERED, "internal.segment.bytes": "4000"})
        brokers = brokers_at(broker.bootstrap, 10_000)
        partitions = [TopicPartition("events", number) for number in range(3)]
        deadline = time.monotonic() + 60
        while min(brokers.local_log_start_offsets(partitions).values()) < 100:
            assert time.monotonic() < deadline, "nothing was tiered"
            time.sleep(0.1)
        yield broker, {"tiered.url": str(tier)}


def _fill(broker: BrokerProcess, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    named = {"events": 3, "other": 1, "back": 2}
    topics = [NewTopic(name, partitions, config=config or {}) for name, partitions in named.items()]
    for made in admin.create_topics(topics).values():
        made.result(30)
    random = Random(11)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        _produce(broker, random, 150, {"compression.type": codec})
        time.sleep(0.05)  # so that their timestamps differ
    for ends in ("commit", "abort", "commit", "abort"):
        _produce(broker, random, 60, {"transactional.id": ends}, ends)


def _produce(
    broker: BrokerProcess, random: Random, count: int, config: dict[str, Any], ends: str = ""
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 2000, **config})
    with transaction(producer, ends):
        for _ in range(count):
            headers = [
                ("h", random.choice((None, b"", b"x"))) for _ in range(random.choice((0, 0, 2)))
            ]
            topic, partitions = random.choice((("events", 3), ("events", 3), ("other", 1)))
            producer.produce(
                topic,
                key=random.choice((None, b"", b"key")),
                value=random.choice((None, b"", random.randbytes(100))),
                partition=random.randrange(partitions),
                headers=headers or None,
            )


def rows_of(frame: DataFrame) -> list[Row]:
    """Return rows in the format of the connector's process."""
    headers = "headers" if "headers" in frame.columns else "null headers"
    found = frame.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) ms", "timestampType",
        "key", "value", headers,
    ).collect()  # fmt: skip
    rows: list[Row] = [
        (
            row.topic,
            row.partition,
            row.offset,
            row.ms,
            row.timestampType,
            _bytes(row.key),
            _bytes(row.value),
            row.headers and tuple((each.key, _bytes(each.value)) for each in row.headers),
        )
        for row in found
    ]
    return sorted(rows, key=lambda row: row[:3])


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


QUERIES: dict[str, dict[str, Any]] = {
    "all": {"subscribe": "events,other", "includeHeaders": "true"},
    "without headers": {"subscribe": "events"},
    "committed": {
        "subscribe": "events",
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    },
    "a pattern": {"subscribePattern": "ev.*|oth.*", "minPartitions": 9},
    "some partitions": {"assign": '{"events":[0,2]}', "maxRecordsPerPartition": 50},
    "from and to offsets": {
        "subscribe": "events",
        "startingOffsets": '{"events":{"0":7,"1":-2,"2":20}}',
        "endingOffsets": '{"events":{"0":30,"1":20,"2":-1}}',
    },
    "from a time": {"subscribe": "events", "startingTimestamp": "MIDDLE"},
    "to a time": {"subscribe": "events", "endingTimestamp": "MIDDLE"},
    "from and to times": {
        "subscribe": "events",
        "startingOffsetsByTimestamp": '{"events":{"0":0,"1":MIDDLE,"2":MIDDLE}}',
        "endingOffsetsByTimestamp": '{"events":{"0":MIDDLE,"1":LATE,"2":9999999999999}}',
    },
    "from a time that never came": {
        "subscribe": "events",
        "startingTimestamp": "9999999999999",
        "startingOffsetsByTimestampStrategy": "latest",
    },
}
REFUSED: dict[str, dict[str, Any]] = {
    "no topic": {"subscribe": "nowhere"},
    "from a time that never came": {"subscribe": "events", "startingTimestamp": "9999999999999"},
    "offsets of some partitions": {"subscribe": "events", "startingOffsets": '{"events":{"0":1}}'},
    "two ways to name topics": {"subscribe": "events", "assign": '{"events":[0]}'},
    "from latest": {"subscribe": "events", "startingOffsets": "latest"},
}


@pytest.fixture(scope="module")
def times(connector: SparkConnector, broker: BrokerProcess) -> dict[str, str]:
    rows = connector.read({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events"})
    found = sorted({row[3] for row in rows})
    return {"MIDDLE": str(found[len(found) // 2]), "LATE": str(found[-2])}


def asked(query: dict[str, Any], broker: BrokerProcess, times: dict[str, str]) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    for name, value in query.items():
        text = str(value)
        for word, at in times.items():
            text = text.replace(word, at)
        options[name] = text
    return options


@pytest.mark.parametrize("query", QUERIES)
def test_rows_agree(
    spark: SparkSession,
    connector: SparkConnector,
    broker: BrokerProcess,
    times: dict[str, str],
    query: str,
) -> None:
    options = asked(QUERIES[query], broker, times)
    connector_rows = connector.read(options)
    assert rows_of(spark.read.format("odradek").options(**options).load()) == connector_rows
    assert bool(connector_rows) == (query != "from a time that never came")


@pytest.mark.parametrize(
    "condition",
    [
        "partition = 1 and offset >= 10 and offset < 30",
        "timestamp >= timestamp_millis(MIDDLE) and topic = 'events'",
        "key is null and timestampType = 0",
    ],
)
@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filtered_rows_agree(
    spark: SparkSession,
    connector: SparkConnector,
    broker: BrokerProcess,
    times: dict[str, str],
    condition: str,
    pushed: str,
) -> None:
    options = asked(QUERIES["all"], broker, times)
    condition = condition.replace("MIDDLE", times["MIDDLE"])
    connector_rows = connector.read(options, where=condition)
    odradek_rows = spark.read.format("odradek").options(**options, pushFilters=pushed).load()
    odradek_rows = odradek_rows.where(condition)
    assert rows_of(odradek_rows) == connector_rows
    assert connector_rows


@pytest.mark.parametrize("query", ["all", "committed", "from and to offsets"])
def test_rows_of_tiered_records_agree(
    spark: SparkSession,
    connector: SparkConnector,
    tiered: tuple[BrokerProcess, dict[str, str]],
    query: str,
) -> None:
    """The connector reads them through the broker, this source from the store."""
    broker, store = tiered
    options = asked(QUERIES[query], broker, {})
    plan = Query(parse_options({**options, **store}, streaming=False))
    pieces = plan.plan(plan.ranges()).pieces
    assert sum(isinstance(each, PackedSlices) for each in pieces) >= 3
    connector_rows = connector.read(options)
    assert (
        rows_of(spark.read.format("odradek").options(**options, **store).load()) == connector_rows
    )
    assert connector_rows


@pytest.mark.parametrize("query", REFUSED)
def test_refused_options_agree(
    spark: SparkSession, connector: SparkConnector, broker: BrokerProcess, query: str
) -> None:
    options = asked(REFUSED[query], broker, {})
    with pytest.raises(ConnectorFailed):
        connector.read(options)
    with pytest.raises(Exception, match=r"odradek|startingOffsets"):
        rows_of(spark.read.format("odradek").options(**options).load())


def test_micro_batches_of_streams_agree(
    spark: SparkSession, connector: SparkConnector, broker: BrokerProcess, tmp_path: Path
) -> None:
    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": "events",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "200",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
    batches: list[list[Row]] = []

    def take(frame: DataFrame, number: int) -> None:
        if rows := rows_of(frame):
            batches.append(rows)

    query = (
        spark.readStream.format("odradek")
        .options(**options)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "odradek_rows"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert batches == connector.stream(options, tmp_path / "connector_rows")


def test_records_written_by_the_connector_are_read(
    spark: SparkSession, connector: SparkConnector, broker: BrokerProcess
) -> None:
    sent = [
        (
            "back",
            b"key %d" % number,
            None if number % 7 == 0 else b"value %d" % number,
            number % 2,
            (("h", b"%d" % number), ("none", None)) if number % 4 == 0 else None,
        )
        for number in range(200)
    ]
    sink = {"kafka.bootstrap.servers": broker.bootstrap, "includeHeaders": "true"}
    connector.write({**sink, "kafka.compression.type": "lz4"}, sent)
    rows = rows_of(spark.read.format("odradek").options(**sink, subscribe="back").load())
    assert sorted((row[5], row[6], row[1], row[7]) for row in rows) == sorted(
        each[1:] for each in sent
    )
