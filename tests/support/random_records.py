"""Records for three partitions, with and without keys, values and headers, in and outside transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from confluent_kafka import Producer

PARTITIONS = (0, 1, 2)
Ends = Literal["", "commit", "abort"]


@contextmanager
def transaction(producer: Producer, ends: str) -> Iterator[None]:
    """Flush the records that are produced in the context; `ends` is the end of their transaction, empty for none."""
    if ends:
        producer.init_transactions()
        producer.begin_transaction()
    yield
    producer.flush()
    if ends == "commit":
        producer.commit_transaction()
    elif ends:
        producer.abort_transaction()


def produce_varied(
    bootstrap: str,
    topic: str,
    numbers: Iterable[int],
    ends: Ends = "",
    timestamp_ms: Callable[[int], int] = lambda number: 0,
    **config: Any,
) -> None:
    """Produce a record for each number, and flush. `ends` is the end of their transaction, empty for none.

    A timestamp of 0 is the current time.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": 2000, **config})
    with transaction(producer, ends):
        for number in numbers:
            producer.produce(
                topic,
                key=None if number % 5 == 0 else b"key %d" % number,
                value=None if number % 7 == 0 else b"value %d" % number * (number % 40),
                partition=number % len(PARTITIONS),
                timestamp=timestamp_ms(number),
                headers=[("a", b"%d" % number), ("b", None)] if number % 4 == 0 else None,
            )
