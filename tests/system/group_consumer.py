"""Who reads along while a cluster is broken: a member of a group, of librdkafka's or another client's."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, Message

from tests.support.broker_process import deadline
from tests.system.ledger import Row
from tests.system.load import COMMON, PATIENCE_S

SILENT_S = 20.0
"""A consumer that has read nothing for so long is given up for another one."""


class Sights:
    """What somebody saw, who may have read some again.

    `changed` has what was seen at an offset where something else had been seen before.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], bytes] = {}
        self.changed: list[str] = []

    def see(self, place: tuple[int, int], value: bytes) -> None:
        """`place`: partition and offset."""
        if self.seen.setdefault(place, value) != value:
            self.changed.append(f"{place}: {self.seen[place]!r}, later {value!r}")
            self.seen[place] = value

    def wait_for(self, partitions: Mapping[int, Sequence[Row]]) -> None:
        """Until it has seen all of these; AssertionError if it does not."""
        wanted = _by_place(partitions)
        with deadline(PATIENCE_S, "the group to read everything") as check:
            while not wanted.items() <= self.seen.items():
                check()

    def anomalies(self, partitions: Mapping[int, Sequence[Row]]) -> list[str]:
        """What it read and is not there now, or is another there."""
        there = {
            (part, offset): value for part, rows in partitions.items() for offset, value in rows
        }
        return self.changed + [
            f"{value!r} was read at {place}, where {there.get(place)!r} is now"
            for place, value in self.seen.items()
            if there.get(place) != value
        ]


class Watcher(Sights):
    """A member of a group that reads committed records while things happen."""

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
        consumer, heard_at = self._consumer(), time.monotonic()
        while not self._enough.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                heard_at = time.monotonic()
                self._see(message)
            elif time.monotonic() > heard_at + SILENT_S:
                # librdkafka drops brokers that are not in the newest metadata; when all have been
                # restarted it may have none left, and asks nobody any more (2.16).
                consumer.close()
                consumer, heard_at = self._consumer(), time.monotonic()
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
        self._thread.join(PATIENCE_S)


def _by_place(partitions: Mapping[int, Sequence[Row]]) -> dict[tuple[int, int], bytes]:
    return {(part, offset): value for part, rows in partitions.items() for offset, value in rows}
