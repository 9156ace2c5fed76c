"""`spark.readStream.format("odradek")`: each offset once over restarts, in batches of the configured size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as PartitionOffset
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException

from odradek.protocol.topics import TopicPartition
from odradek.testing import Broker
from tests.pipeline.recreated_topics import recreate_topic
from tests.support.brokers import broker_fixture
from tests.support.librdkafka_clients import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.interop, pytest.mark.slow]


broker = broker_fixture(scope="function", topics={"events": 2, "others": 2})


def _produce(broker: Broker, first: int, count: int, topic: str = "events") -> None:
    numbers = range(first, first + count)
    values = [b"%d" % number for number in numbers]
    produce(broker.bootstrap, topic, values, partition=[number % 2 for number in numbers])


def _run(
    spark: SparkSession,
    broker: Broker,
    directory: Path,
    act: Callable[[Any, int], None] | None = None,
    **options: Any,
) -> list[list[int]]:
    """Run a stream; return the numbers in each micro-batch until there is nothing more, or pass each batch to a
    function.
    """
    batches: list[list[int]] = []

    def take(frame: Any, number: int) -> None:
        values = [int(bytes(row.value)) for row in frame.select("value").collect()]
        if values:
            batches.append(sorted(values))

    query = (
        spark.readStream.format("odradek")
        .options(
            **{
                "kafka.bootstrap.servers": broker.bootstrap,
                "subscribe": "events",
                "startingOffsets": "earliest",
                **options,
            }
        )
        .load()
        .writeStream.option("checkpointLocation", str(directory))
        .foreachBatch(act or take)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)  # raises the error that ended it
    assert not query.isActive
    return batches


def test_each_record_is_read_once_over_restarts_in_batches_of_a_size(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    _produce(broker, 0, 100)
    batches = _run(spark, broker, tmp_path, maxOffsetsPerTrigger=30)
    assert [len(each) for each in batches] == [30, 30, 30, 10]
    assert sorted(number for each in batches for number in each) == list(range(100))
    assert _run(spark, broker, tmp_path, maxOffsetsPerTrigger=30) == []
    _produce(broker, 100, 50)
    batches = _run(spark, broker, tmp_path)
    assert sorted(number for each in batches for number in each) == list(range(100, 150))


@contextmanager
def _being_written_to(broker: Broker) -> Iterator[Callable[[], int]]:
    """Produce consecutive numbers to one partition; return how many there are at any time."""
    done, count = Event(), 0

    def write() -> None:
        nonlocal count
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1})
        while not done.wait(0.001):
            producer.produce("events", value=b"%d" % count, partition=0)
            producer.poll(0)
            count += 1
        producer.flush()

    thread = Thread(target=write)
    thread.start()
    try:
        yield lambda: count
    finally:
        done.set()
        thread.join()


def test_stream_from_latest_has_all_later_records(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """This is the default start. Also if the driver dies in its first batch."""
    found: list[int] = []
    is_to_fail = True

    def take(frame: Any, number: int) -> None:
        if is_to_fail:
            raise ValueError("as if killed")
        found.extend(sorted(int(bytes(row.value)) for row in frame.select("value").collect()))

    def start() -> StreamingQuery:
        return (
            spark.readStream.format("odradek")
            .options(**{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events"})
            .load()
            .writeStream.option("checkpointLocation", str(tmp_path))
            .foreachBatch(take)
            .trigger(processingTime="0 seconds")
            .start()
        )

    with _being_written_to(broker) as count:
        first = start()
        with pytest.raises(Exception, match="as if killed"):
            first.awaitTermination(120)
        is_to_fail, written = False, count()
        second = start()
        deadline = time.monotonic() + 120
        while second.isActive and len(found) < 2000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second.stop()
        assert second.exception() is None
    assert found[0] <= written
    assert found == list(range(found[0], found[0] + len(found)))


def test_offsets_lost_before_the_first_batch_is_repeated_are_data_loss(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    _produce(broker, 0, 20)

    def die(frame: Any, number: int) -> None:
        raise ValueError("as if killed")

    with pytest.raises(StreamingQueryException, match="as if killed"):
        _run(spark, broker, tmp_path, die)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.delete_records([PartitionOffset("events", 0, 4)]).values():
        done.result(30)
    with pytest.raises(StreamingQueryException, match="events-0 now starts at offset 4"):
        _run(spark, broker, tmp_path)
    left = sorted({*range(20)} - {0, 2, 4, 6})
    assert _run(spark, broker, tmp_path, failOnDataLoss="false") == [left]


def test_topic_recreated_between_two_runs_is_data_loss(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """It has more records than before, so the offsets are valid in the new topic."""
    _produce(broker, 0, 20)
    assert _run(spark, broker, tmp_path) == [list(range(20))]
    old, new = recreate_topic(broker, "events", 2)
    _produce(broker, 100, 50)
    message = f"events was deleted and recreated: .* {old} .* {new} "
    with pytest.raises(StreamingQueryException, match=message):
        _run(spark, broker, tmp_path)
    lenient = _run(spark, broker, tmp_path, failOnDataLoss="false")
    assert lenient == [list(range(100, 150))]
    assert _run(spark, broker, tmp_path) == []


def test_topic_removed_from_the_options_is_not_reported_as_deleted(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    _produce(broker, 0, 20)
    assert _run(spark, broker, tmp_path) == [list(range(20))]
    _produce(broker, 7, 1, topic="others")
    message = "the stream has read events-0, which is no longer part of its options"
    with pytest.raises(StreamingQueryException, match=message):
        _run(spark, broker, tmp_path, subscribe="others")
    assert _run(spark, broker, tmp_path, subscribe="others", failOnDataLoss="false") == [[7]]


def test_max_offsets_are_distributed_among_partitions() -> None:
    from odradek.pipeline.stream_reader import limit_offsets

    one, two, idle = (TopicPartition("t", number) for number in range(3))
    begin = {one: 0, two: 100, idle: 7}
    latest = {one: 900, two: 200, idle: 7}
    assert limit_offsets(begin, latest, 100) == {one: 90, two: 110, idle: 7}
    assert limit_offsets(begin, latest, 1000) == latest
    assert limit_offsets(begin, latest, 1) == {one: 1, two: 101, idle: 7}
