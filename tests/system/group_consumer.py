"""Consumer group members that read during faults of a cluster, with librdkafka or another client."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, Message

from tests.support.waiting import deadline
from tests.system.ledger import Row
from tests.system.load import COMMON, TIMEOUT_S

SILENT_S = 20.0
"""A consumer that has read nothing for this time is replaced by another one."""


class Sights:
    """Records that a consumer read; it may have read some of them several times.

    `changed` has the offsets at which it read different values.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], bytes] = {}
        self.changed: list[str] = []

    def see(self, place: tuple[int, int], value: bytes) -> None:
        """Add a record; `place` is its partition and offset."""
        if self.seen.setdefault(place, value) != value:
            self.changed.append(f"{place}: {self.seen[place]!r}, later {value!r}")
            self.seen[place] = value

    def wait_for(self, partitions: Mapping[int, Sequence[Row]]) -> None:
        """Wait until the consumer has read all of these records; AssertionError at the timeout."""
        wanted = _by_place(partitions)
        with deadline(TIMEOUT_S, "the group to read everything") as check:
            while not wanted.items() <= self.seen.items():
                check()

    def anomalies(self, partitions: Mapping[int, Sequence[Row]]) -> list[str]:
        """Records that the consumer read and that are missing or different in the log."""
        there = {
            (part, offset): value for part, rows in partitions.items() for offset, value in rows
        }
        return self.changed + [
            f"{value!r} was read at {place}, where {there.get(place)!r} is now"
            for place, value in self.seen.items()
            if there.get(place) != value
        ]


class Watcher(Sights):
    """Member of a group that reads committed records during faults."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._topic = topic
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _consumer(self) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"watches-{self._topic}",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "session.timeout.ms": 10_000,
                "isolation.level": "read_committed",
                "check.crcs": True,
                **COMMON,
            }
        )
        consumer.subscribe([self._topic])
        return consumer

    def _read(self) -> None:
        consumer, read_at = self._consumer(), time.monotonic()
        while not self._enough.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                read_at = time.monotonic()
                self._see(message)
            elif time.monotonic() > read_at + SILENT_S:
                # librdkafka drops brokers that are not in the newest metadata; when all have been
                # restarted it may have no brokers left, and sends no requests any more (2.16).
                consumer.close()
                consumer, read_at = self._consumer(), time.monotonic()
        consumer.close()

    def _see(self, message: Message) -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        self.see((partition, offset), value)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._enough.set()
        self._thread.join(TIMEOUT_S)


def _by_place(partitions: Mapping[int, Sequence[Row]]) -> dict[tuple[int, int], bytes]:
    return {(part, offset): value for part, rows in partitions.items() for offset, value in rows}
