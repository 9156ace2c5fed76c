"""A client that writes a small record every few milliseconds, and knows when each was acknowledged.

What a fault costs is read from that: how long after it the next record that was sent was acknowledged,
and how long nothing was acknowledged at all. librdkafka with acks=all and idempotence, as an application
has it; its retries and its looking for another leader are part of what is measured.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from odradek.bench.model import WorkloadFailed

EVERY_S = 0.002
TIMEOUT_S = 120.0


class Pulse:
    """Beats in the first partition of a topic, on a thread of its own, while the block lasts.

    Times are of CLOCK_MONOTONIC, in seconds.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import Producer  # the one thing here that is not ours

        self.acknowledged_at: list[float] = []
        self._topic = topic
        self._producer: Any = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
                "log_level": 0,
            }
        )
        self._newest_sent_at = 0.0
        """When the newest record that is acknowledged was sent."""
        self._failure: str | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        self.wait_for_ack(time.monotonic())
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def wait_for_ack(self, sent_after: float) -> float:
        """When a record that was sent after that moment was acknowledged. Raises WorkloadFailed."""
        end = time.monotonic() + TIMEOUT_S
        while self._newest_sent_at <= sent_after:
            if self._failure is not None or time.monotonic() > end:
                raise WorkloadFailed(self._failure or f"nothing acknowledged in {TIMEOUT_S:g} s")
            time.sleep(EVERY_S / 2)
        return self.acknowledged_at[-1]

    def gaps(self, since: float) -> list[float]:
        """The seconds between two acknowledgements, from the last before `since` on."""
        times = list(self.acknowledged_at)
        return [after - before for before, after in itertools.pairwise(times) if after > since]

    def _beat(self) -> None:
        while not self._end.is_set():
            sent_at = time.monotonic()
            self._producer.produce(
                self._topic, b"beat", partition=0, on_delivery=self._delivered_of(sent_at)
            )
            self._producer.poll(EVERY_S)
        self._producer.flush(TIMEOUT_S)

    def _delivered_of(self, sent_at: float) -> Any:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self._failure = str(error)
                return
            self.acknowledged_at.append(time.monotonic())
            self._newest_sent_at = max(self._newest_sent_at, sent_at)

        return delivered
