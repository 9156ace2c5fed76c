"""Partitions read by librdkafka, from some offset to where they end now."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.support.waiting import deadline

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
    """From where each of them is assigned. AssertionError for what goes wrong, but for the codes in
    `passing`, and if it takes longer than `timeout_s`."""
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
