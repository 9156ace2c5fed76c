"""Records of every kind in three partitions: with keys, values and headers, and without; in transactions, or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from confluent_kafka import Producer

PARTITIONS = (0, 1, 2)
Ends = Literal["", "commit", "abort"]


def produce_varied(
    bootstrap: str,
    topic: str,
    numbers: Iterable[int],
    ends: Ends = "",
    timestamp_ms: Callable[[int], int] = lambda number: 0,
    **config: Any,
) -> None:
    """A record for each number, flushed; `ends` says how their transaction does, if they are in one. A
    timestamp of 0 is now."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": 2000, **config})
    if ends:
        producer.init_transactions()
        producer.begin_transaction()
    for number in numbers:
        producer.produce(
            topic,
            key=None if number % 5 == 0 else b"key %d" % number,
            value=None if number % 7 == 0 else b"value %d" % number * (number % 40),
            partition=number % len(PARTITIONS),
            timestamp=timestamp_ms(number),
            headers=[("a", b"%d" % number), ("b", None)] if number % 4 == 0 else None,
        )
    producer.flush()
    if ends == "commit":
        producer.commit_transaction()
    elif ends:
        producer.abort_transaction()
