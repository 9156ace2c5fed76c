"""Topics, records and reads of tests, with librdkafka."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.waiting import deadline

TIMEOUT_S = 30.0


def create_topic(
    bootstrap: str, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait for it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, partitions, 1, config=dict(config or {}))
    for future in admin.create_topics([topic]).values():
        future.result(TIMEOUT_S)
    wait_for_topic(bootstrap, name)


def wait_for_topic(bootstrap: str, name: str) -> None:
    """Wait until the broker returns the topic. Kafka's brokers apply metadata a little after the controller."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with deadline(TIMEOUT_S, f"topic {name}") as check:
        while True:
            found = admin.list_topics(timeout=TIMEOUT_S).topics.get(name)
            if found and all(part.leader >= 0 for part in found.partitions.values()):
                return
            check()


def deliver(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes | None],
    *,
    partition: int | Sequence[int] = -1,
    keys: Sequence[bytes | None] | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[tuple[KafkaError | None, Message]]:
    """Produce these values; return the delivery report of each, in their order.

    The values go to `partition`, or to several partitions in turn; -1 leaves the choice to the partitioner.
    """
    partitions = [partition] if isinstance(partition, int) else partition
    reports: list[tuple[KafkaError | None, Message] | None] = [None] * len(values)
    producer = Producer({"bootstrap.servers": bootstrap, **(config or {})})

    def report(number: int) -> Any:
        def delivered(error: KafkaError | None, message: Message) -> None:
            reports[number] = (error, message)

        return delivered

    for number, value in enumerate(values):
        key = keys[number] if keys else None
        to = partitions[number % len(partitions)]
        while True:
            try:
                producer.produce(topic, value, key, to, on_delivery=report(number))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert all(reports)
    return [each for each in reports if each is not None]


def produce(
    bootstrap: str, topic: str, values: Sequence[bytes | None], **more: Any
) -> list[Message]:
    """Produce these values as `deliver` does; return their messages. AssertionError if one was not delivered."""
    reports = deliver(bootstrap, topic, values, **more)
    assert all(error is None for error, _ in reports), reports
    return [message for _, message in reports]


def delivery_errors(
    bootstrap: str, topic: str, values: Sequence[bytes | None], **more: Any
) -> list[KafkaError | None]:
    """Produce these values as `deliver` does; return the error of each, None for one that was delivered."""
    return [error for error, _ in deliver(bootstrap, topic, values, **more)]


def produce_with_timestamps(bootstrap: str, topic: str, timestamps: Sequence[int]) -> None:
    """Produce a record for each timestamp (ms) to partition 0, each in a separate batch."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for timestamp in timestamps:
        producer.produce(topic, str(timestamp).encode(), partition=0, timestamp=timestamp)
        assert producer.flush(TIMEOUT_S) == 0


def read_all(
    bootstrap: str,
    topic: str,
    count: int,
    *,
    partitions: Sequence[int] = (0,),
    config: Mapping[str, Any] | None = None,
) -> list[Message]:
    """Read `count` records from the beginning of the partitions, without a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-without-committing",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **(config or {}),
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        return poll_until(consumer, count)
    finally:
        consumer.close()


def poll_until(consumer: Consumer, count: int) -> list[Message]:
    """Poll until there are `count` records. AssertionError for an error and after TIMEOUT_S."""
    found: list[Message] = []
    end = time.monotonic() + TIMEOUT_S
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} records"
        message = consumer.poll(0.2)
        if message is None:
            continue
        assert message.error() is None, message.error()
        found.append(message)
    return found


READING: Mapping[str, Any] = {
    "group.id": "reads-without-committing",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "check.crcs": True,
    "log_level": 0,
}


def read_to_end(
    bootstrap: str,
    *where: TopicPartition,
    timeout_s: float,
    config: Mapping[str, Any] | None = None,
    passing: Collection[int] = (),
) -> Iterator[Message]:
    """Read partitions from the given offsets to their ends.

    AssertionError after `timeout_s`, and for each error whose code is not in `passing`.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, **READING, **(config or {})})
    left = {(each.topic, each.partition) for each in where}
    try:
        consumer.assign(list(where))
        with deadline(timeout_s, f"the ends of {left}") as check:
            while left:
                check(0)
                message = consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic(), message.partition()))
                elif error.code() not in passing:
                    raise AssertionError(str(error))
    finally:
        consumer.close()
