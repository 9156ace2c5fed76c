"""Spark's own Kafka connector, unmodified: batch, stream and sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.bench.model import PeerUnavailable
from tests.support.random_records import PARTITIONS, Ends, produce_varied
from tests.support.spark_connector import (
    ConnectorFailed,
    Options,
    Row,
    Sent,
    SparkConnector,
    spark_connector,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def connector() -> Iterator[SparkConnector]:
    try:
        yield spark_connector()
    except PeerUnavailable as unavailable:
        pytest.skip(f"Spark's connector {unavailable}")


@pytest.fixture
def topic(bootstrap: str, name: str) -> str:
    create(bootstrap, name)
    return name


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, len(PARTITIONS))])[topic].result(30)


def produce(
    bootstrap: str, topic: str, numbers: Sequence[int], ends: Ends = "", **config: Any
) -> None:
    config = {"batch.size": 1500, "linger.ms": 5, **config}
    if ends:
        config["transactional.id"] = f"{topic}-{ends}"
    produce_varied(bootstrap, topic, numbers, ends, **config)


def consumed(bootstrap: str, topic: str, isolation: str = "read_uncommitted") -> list[Row]:
    """Values that a client other than Spark consumes."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "beside-spark",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in PARTITIONS])
    rows: list[Row] = []
    ended: set[int] = set()
    while len(ended) < len(PARTITIONS):
        for message in consumer.consume(10_000, timeout=1):
            if message.error() is not None:
                ended.add(message.partition())
                continue
            kind, at_ms = message.timestamp()
            headers = message.headers()
            rows.append(
                (
                    topic,
                    message.partition(),
                    message.offset(),
                    at_ms,
                    kind - 1,
                    message.key(),
                    message.value(),
                    tuple(headers) if headers else None,
                )
            )
    consumer.close()
    return sorted(rows, key=lambda row: row[:3])


def options(bootstrap: str, topic: str, **more: Any) -> Options:
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        **more,
    }


def test_batch_has_same_records_as_consumer(
    connector: SparkConnector, bootstrap: str, topic: str
) -> None:
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        many = range(200 * number, 200 * (number + 1))
        produce(bootstrap, topic, many, **{"compression.type": codec})
    for number, ends in enumerate(("commit", "abort", "commit")):
        produce(bootstrap, topic, range(2000 + 100 * number, 2100 + 100 * number), ends)
    for isolation in ("read_uncommitted", "read_committed"):
        asked = options(bootstrap, topic, minPartitions=7, **{"kafka.isolation.level": isolation})
        rows = connector.read(asked)
        assert rows == consumed(bootstrap, topic, isolation)
        assert len(rows) == {"read_uncommitted": 1300, "read_committed": 1200}[isolation]


def test_batch_starts_and_ends_at_given_offsets(
    connector: SparkConnector, bootstrap: str, topic: str
) -> None:
    produce(bootstrap, topic, range(300))
    rows = consumed(bootstrap, topic)
    asked = options(
        bootstrap,
        topic,
        startingOffsets=f'{{"{topic}":{{"0":5,"1":-2,"2":10}}}}',
        endingOffsets=f'{{"{topic}":{{"0":15,"1":3,"2":-1}}}}',
    )
    limits = {0: (5, 15), 1: (0, 3), 2: (10, 1 << 62)}
    wanted = [row for row in rows if limits[row[1]][0] <= row[2] < limits[row[1]][1]]
    assert connector.read(asked) == wanted
    middle = sorted(row[3] for row in rows)[150]
    firsts = {
        partition: min(row[2] for row in rows if row[1] == partition and row[3] >= middle)
        for partition in PARTITIONS
    }
    late = connector.read(options(bootstrap, topic, startingTimestamp=middle))
    assert late == [row for row in rows if row[2] >= firsts[row[1]]]
    early = connector.read(options(bootstrap, topic, endingTimestamp=middle))
    assert early == [row for row in rows if row[2] < firsts[row[1]]]


def test_stream_has_each_record_once_over_restarts(
    connector: SparkConnector, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    produce(bootstrap, topic, range(300))
    asked = options(bootstrap, topic, maxOffsetsPerTrigger=100)
    batches = connector.stream(asked, tmp_path)
    assert len(batches) == 4  # the number of offsets per partition is rounded down
    assert max(map(len, batches)) <= 100
    produce(bootstrap, topic, range(300, 400), "commit")
    produce(bootstrap, topic, range(400, 500), "abort")
    asked = {**asked, "kafka.isolation.level": "read_committed"}
    batches += connector.stream(asked, tmp_path)
    rows = sorted((row for batch in batches for row in batch), key=lambda row: row[:3])
    assert rows == consumed(bootstrap, topic, "read_committed")


def test_sink_writes_records(
    connector: SparkConnector, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    sent: list[Sent] = [
        (
            topic,
            None if number % 5 == 0 else b"key %d" % number,
            None if number % 7 == 0 else b"value %d" % number,
            number % 3,
            (("h", b"%d" % number), ("none", None)) if number % 4 == 0 else None,
        )
        for number in range(500)
    ]
    sink = {"kafka.bootstrap.servers": bootstrap, "includeHeaders": "true"}
    connector.write({**sink, "kafka.compression.type": "zstd"}, sent)
    rows = consumed(bootstrap, topic)
    assert sorted(map(repr, sent)) == sorted(
        repr((row[0], row[5], row[6], row[1], row[7])) for row in rows
    )
    into = f"{topic}-piped"
    create(bootstrap, into)
    connector.pipe(
        options(bootstrap, topic, maxOffsetsPerTrigger=200), {**sink, "topic": into}, tmp_path
    )
    piped = consumed(bootstrap, into)
    assert sorted(repr(row[5:7]) for row in piped) == sorted(repr(row[5:7]) for row in rows)


def test_deleted_offsets_fail_query_or_are_skipped(
    connector: SparkConnector, bootstrap: str, topic: str
) -> None:
    produce(bootstrap, topic, range(300))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (gone,) = admin.delete_records([TopicPartition(topic, 0, 50)]).values()
    gone.result(30)
    asked = options(bootstrap, topic, startingOffsets=f'{{"{topic}":{{"0":10,"1":-2,"2":0}}}}')
    with pytest.raises(ConnectorFailed):
        connector.read({**asked, "failOnDataLoss": "true"})
    rows = connector.read({**asked, "failOnDataLoss": "false"})
    assert rows == consumed(bootstrap, topic)
