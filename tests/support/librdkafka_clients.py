"""What several interop tests do with librdkafka to prepare or to look."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
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
    """Wait until the broker shows the topic: Kafka's learn of it a little after the controller."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with deadline(TIMEOUT_S, f"topic {name}") as check:
        while True:
            found = admin.list_topics(timeout=TIMEOUT_S).topics.get(name)
            if found and all(part.leader >= 0 for part in found.partitions.values()):
                return
            check()


def produce(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes | None],
    *,
    partition: int = -1,
    keys: Sequence[bytes | None] | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[Message]:
    """Produce these values; each one's delivery report, in their order. AssertionError for a failure."""
    reports: list[Message | None] = [None] * len(values)
    producer = Producer({"bootstrap.servers": bootstrap, **(config or {})})

    def report(number: int) -> Any:
        def delivered(error: Any, message: Message) -> None:
            assert error is None, error
            reports[number] = message

        return delivered

    for number, value in enumerate(values):
        key = keys[number] if keys else None
        while True:
            try:
                producer.produce(topic, value, key, partition, on_delivery=report(number))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert all(reports)
    return [message for message in reports if message is not None]


def produce_with_timestamps(bootstrap: str, topic: str, timestamps: Sequence[int]) -> None:
    """One record at each timestamp (ms), in partition 0, each in a batch of its own."""
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
    """Poll until there are `count` records; AssertionError for an error or when time is up."""
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
