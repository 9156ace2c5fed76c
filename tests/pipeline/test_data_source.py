"""`spark.read.format("odradek")` with a broker: the rows that a consumer receives, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.pipeline.decoding.schema import SPARK_TYPES
from odradek.pipeline.errors import PipelineError, spark_error_message
from odradek.pipeline.table_schema import NEVER_NULL
from odradek.testing import Broker
from tests.support.random_records import PARTITIONS, Ends, produce_varied
from tests.support.spark_reading import by_consumer, by_spark, by_tasks, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"events": 3, "other": 1}) as broker:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            _produce(broker, 400, **{"compression.type": codec})
        _produce(broker, 300, "commit", **{"transactional.id": "kept"})
        _produce(broker, 300, "abort", **{"transactional.id": "given up"})
        _produce(broker, 300, "commit", **{"transactional.id": "kept"})
        yield broker


def _produce(broker: Broker, count: int, ends: Ends = "", **config: Any) -> None:
    produce_varied(broker.bootstrap, "events", range(count), ends, **{"linger.ms": 2, **config})


def options(broker: Broker, **more: Any) -> dict[str, Any]:
    return {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events", **more}


ISOLATIONS = ("read_uncommitted", "read_committed")
SPLITS = ({}, {"minPartitions": 20}, {"maxRecordsPerPartition": 97})


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_rows_equal_those_of_a_consumer_for_any_split(
    broker: Broker, isolation: str, split: dict[str, int]
) -> None:
    expected = by_consumer(broker.bootstrap, "events", PARTITIONS, isolation=isolation)
    found = by_tasks(options(broker, **split, **{"kafka.isolation.level": isolation}))
    assert found == expected


@pytest.mark.parametrize(
    ("isolation", "split"),
    [
        ("read_committed", {"minPartitions": 5}),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in product(ISOLATIONS, SPLITS)),
    ],
    ids=str,
)
def test_rows_in_spark_equal_those_of_a_consumer(
    spark: SparkSession, broker: Broker, isolation: str, split: dict[str, int]
) -> None:
    expected = by_consumer(broker.bootstrap, "events", PARTITIONS, isolation=isolation)
    found = by_spark(spark, options(broker, **split, **{"kafka.isolation.level": isolation}))
    assert found == expected


def test_offsets_timestamps_and_columns_are_selected(spark: SparkSession, broker: Broker) -> None:
    rows = by_consumer(broker.bootstrap, "events", PARTITIONS)
    filtering = options(broker, pushFilters="true")

    def offsets(condition: str) -> list[tuple[int, int]]:
        frame = table(spark, filtering).where(condition)
        found = frame.select("partition", "offset").collect()
        return sorted(tuple(each) for each in found)

    assert offsets("partition = 1 and offset >= 100 and offset < 120") == [
        row[:2] for row in rows if row[0] == 1 and 100 <= row[1] < 120
    ]
    assert offsets("partition in (0, 2) and offset = 7") == [(0, 7), (2, 7)]
    assert offsets("topic = 'other'") == []
    middle = sorted(row[2] for row in rows)[len(rows) // 2]
    at = f"timestamp_millis({middle})"
    assert offsets(f"timestamp >= {at}") == [row[:2] for row in rows if row[2] >= middle]
    assert offsets(f"timestamp < {at}") == [row[:2] for row in rows if row[2] < middle]
    plan = (
        table(spark, filtering)
        .where("partition = 1 and offset >= 100")
        ._jdf.queryExecution()
        .executedPlan()
        .toString()
    )
    assert " Filter " not in plan
    narrow = (
        spark.read.format("odradek")
        .options(**options(broker))
        .schema("partition int, offset long")
        .load()
    )
    assert sorted(tuple(row) for row in narrow.collect()) == [row[:2] for row in rows]


def test_frame_can_be_queried_repeatedly(spark: SparkSession, broker: Broker) -> None:
    """A filter of one query does not affect the next one, or the rest of the same query."""
    rows = by_consumer(broker.bootstrap, "events", PARTITIONS)
    count = Counter(row[0] for row in rows)
    frame = table(spark, options(broker))
    assert frame.where("partition = 1").count() == count[1]
    assert frame.count() == len(rows)
    assert frame.where("partition = 2 or offset < 0").count() == count[2]
    both = frame.where("partition = 0").union(frame.where("partition = 1"))
    assert {row.partition: row["count"] for row in both.groupBy("partition").count().collect()} == {
        0: count[0],
        1: count[1],
    }
    assert frame.where("partition = 1").union(frame).count() == count[1] + len(rows)
    frame.createOrReplaceTempView("asked_again")
    some, whole = (
        f"(select count(*) from asked_again {each})" for each in ("where partition = 0", "")
    )
    (row,) = spark.sql(f"select {some}, {whole}").collect()
    assert tuple(row) == (count[0], len(rows))


def test_schema_may_have_not_null_columns(spark: SparkSession, broker: Broker) -> None:
    schema = ", ".join(f"{name} {SPARK_TYPES[name]} NOT NULL" for name in NEVER_NULL)
    frame = spark.read.format("odradek").options(**options(broker)).schema(schema).load()
    assert frame.count() == len(by_consumer(broker.bootstrap, "events", PARTITIONS))
    assert not any(field.nullable for field in frame.schema)


def test_starting_and_ending_offsets(broker: Broker) -> None:
    rows = by_consumer(broker.bootstrap, "events", PARTITIONS)
    ranges = options(
        broker,
        startingOffsets='{"events":{"0":5,"1":-2,"2":10}}',
        endingOffsets='{"events":{"0":15,"1":3,"2":-1}}',
    )
    limits = {0: (5, 15), 1: (0, 3), 2: (10, 1 << 62)}
    assert by_tasks(ranges) == [
        row for row in rows if limits[row[0]][0] <= row[1] < limits[row[0]][1]
    ]
    middle = sorted(row[2] for row in rows)[len(rows) // 2]
    late = by_tasks(options(broker, startingTimestamp=middle))
    firsts = {
        number: min(row[1] for row in rows if row[0] == number and row[2] >= middle)
        for number in PARTITIONS
    }
    assert late == [row for row in rows if row[1] >= firsts[row[0]]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "nowhere"}, "there is no topic nowhere"),
        ({"assign": '{"events":[0]}'}, "one of subscribe, subscribePattern and assign"),
        ({"startingOffsets": "sometime"}, "startingOffsets=sometime"),
        ({"minPartitions": "0"}, "minPartitions=0: must be a whole number of at least 1"),
        ({"kafka.security.protocol": "SASL_SSL"}, "is not supported by this source: only PLAINTEXT is supported"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": "500"}, "127.0.0.1:1"),
        ({"startingOffsets": '{"events":{"0":1}}'}, "an offset is missing for events-1"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(broker: Broker, given: dict[str, str], message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        by_tasks({**options(broker), **given})
    assert message in str(caught.value)


def test_errors_in_spark_name_the_problem(spark: SparkSession, broker: Broker) -> None:
    for given in ({"minPartitions": "0"}, {"subscribe": "nowhere"}):
        with pytest.raises(PipelineError) as caught:
            by_tasks({**options(broker), **given})
        with pytest.raises(Exception, match="odradek") as by_way_of_spark:
            by_spark(spark, {**options(broker), **given})
        assert spark_error_message(by_way_of_spark.value) == str(caught.value)


def test_gap_is_a_row_of_queries_with_timestamp_filters(spark: SparkSession) -> None:
    """Ten records, the first four of which are lost; their timestamps are unknown."""
    with Broker(topics={"short": 1}, configs={"log.retention.ms": "-1"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(10):
            producer.produce("short", value=b"v", timestamp=1_700_000_000_000 + number * 1000)
        assert producer.flush(30) == 0
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for done in admin.delete_records([TopicPartition("short", 0, 4)]).values():
            done.result(30)
        given = {"startingOffsets": '{"short":{"0":0}}', "failOnDataLoss": "false"}
        given |= {"subscribe": "short", "onCorruptSegment": "report"}
        filtering = options(broker, **given, pushFilters="true")

        def found(where: str) -> tuple[int, int]:
            """Return the gap rows and the record rows."""
            rows = table(spark, filtering).where(where).select("gap").collect()
            gaps = sum(row.gap is not None for row in rows)
            return gaps, len(rows) - gaps

        late = "timestamp >= timestamp_millis(1700000008000)"
        early = "timestamp < timestamp_millis(1700000008000)"
        assert (found(late), found(early)) == ((1, 2), (1, 4))
        assert found(f"{late} and gap is null") == (0, 2)
        assert found("timestamp is not null") == (0, 6)
        assert found("offset >= 2 and offset < 6") == (1, 2)
