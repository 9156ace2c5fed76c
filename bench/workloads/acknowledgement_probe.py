"""A producer that sends a small record every few milliseconds and notes the time of each acknowledgement.

The effect of a fault follows from these times: the time until the next record is acknowledged, and the longest
pause between acknowledgements. The producer is librdkafka with acks=all and idempotence. The measurement includes
its retries and its metadata refreshes.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from odradek.bench.model import WorkloadFailed

EVERY_S = 0.002
TIMEOUT_S = 120.0


class AcknowledgementProbe:
    """Produces to the first partition of a topic from a thread, inside the `with` block.

    Times are of CLOCK_MONOTONIC, in seconds.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import Producer  # only this workload needs it

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
        """Time at which the newest acknowledged record was sent."""
        self._failure: str | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> AcknowledgementProbe:
        self._thread.start()
        self.wait_for_ack(time.monotonic())
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def wait_for_ack(self, sent_after: float) -> float:
        """Return when a record that was sent after `sent_after` was acknowledged. Raises WorkloadFailed."""
        end = time.monotonic() + TIMEOUT_S
        while self._newest_sent_at <= sent_after:
            if self._failure is not None or time.monotonic() > end:
                raise WorkloadFailed(self._failure or f"no acknowledgement in {TIMEOUT_S:g} s")
            time.sleep(EVERY_S / 2)
        return self.acknowledged_at[-1]

    def gaps(self, since: float) -> list[float]:
        """Return the pauses between acknowledgements in seconds, beginning with the last one before `since`."""
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
