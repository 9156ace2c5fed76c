"""Load of Kafka's Java client (`interop/java/JavaLoad.java`), which produces and consumes during faults of
the cluster.

The program prints one line for each event; this module records the events in a ledger.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading

from tests.support.kafka_dist import kafka_dist
from tests.support.waiting import deadline
from tests.system.group_consumer import Sights
from tests.system.ledger import Outcome
from tests.system.load import TIMEOUT_S, Load

HEAP_MB = 128
_ENDS = {
    "committed": Outcome.COMMITTED,
    "aborted": Outcome.ABORTED,
    "unknown": Outcome.UNKNOWN,
}


class JavaLoad(Load):
    """A running Java client. `kind` is idempotent or transactional. `sights` has the records that the
    member of its group consumed.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, *, kind: str, padding_bytes: int = 0
    ) -> None:
        super().__init__(bootstrap, topic, partitions, padding_bytes=padding_bytes)
        self.sights = Sights()
        self._settled = threading.Event()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        words = (kind, bootstrap, topic, str(partitions), self.ledger.producer, str(padding_bytes))
        self._process = subprocess.Popen(
            kafka_dist().command("JavaLoad", *words, heap_mb=HEAP_MB),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def _write(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, *rest = line.split()
            self._record_event(what, rest)
        if not self._settled.is_set():
            self._errors.seek(0)
            raise AssertionError(
                f"the Java client has exited: {self._errors.read().decode()[-2000:]}"
            )

    def _record_event(self, what: str, rest: list[str]) -> None:
        ledger = self.ledger
        match what, rest:
            case "begin", [count]:
                self._values(ledger.begin(), int(count))
            case "placed", [number, partition, offset]:
                value = f"{ledger.producer}:{number}".encode()
                ledger.places[value] = (int(partition), int(offset))
                ledger.transactions[int(number) - 1].outcome = Outcome.COMMITTED
            case "seen", [partition, offset, value]:
                self.sights.see((int(partition), int(offset)), value.encode())
            case "settled", []:
                self._settled.set()
            case (("committed" | "aborted" | "unknown"), []):
                ledger.transactions[-1].outcome = _ENDS[what]
            case _:
                raise AssertionError(f"the Java client: {what} {rest}")

    def finish(self) -> None:
        """Stop producing and wait until all requests are completed. The consumer continues."""
        assert self._process.stdin is not None
        self._process.stdin.write("enough\n")
        self._process.stdin.flush()
        with deadline(TIMEOUT_S, "the Java client's requests to be completed") as check:
            while not self._settled.is_set():
                assert self._thread.is_alive(), f"the load has ended: {self.failure!r}"
                check()

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._thread.join(TIMEOUT_S)
            self._errors.close()
