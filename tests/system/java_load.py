"""Kafka's Java client, writing and reading while a cluster is broken under it: `interop/java/JavaLoad.java`.

It says what it does and sees on its standard output, a line each; here its ledger is kept.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading

from tests.support.broker_process import deadline
from tests.support.kafka_dist import kafka_dist
from tests.system.group_consumer import Sights
from tests.system.ledger import Outcome
from tests.system.load import PATIENCE_S, Load

HEAP_MB = 128
_ENDS = {
    "committed": Outcome.COMMITTED,
    "aborted": Outcome.ABORTED,
    "unknown": Outcome.UNKNOWN,
}


class JavaLoad(Load):
    """`kind` is idempotent or transactional. What its group's member sees is in `sights`."""

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
            self._heard(what, rest)
        if not self._settled.is_set():
            self._errors.seek(0)
            raise AssertionError(f"it has ended: {self._errors.read().decode()[-2000:]}")

    def _heard(self, what: str, rest: list[str]) -> None:
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
        """Write no more, and wait for what is under way; it goes on reading."""
        assert self._process.stdin is not None
        self._process.stdin.write("enough\n")
        self._process.stdin.flush()
        with deadline(PATIENCE_S, "what Java has sent to be settled") as check:
            while not self._settled.is_set():
                assert self._thread.is_alive(), f"the load has ended: {self.failure!r}"
                check()

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._thread.join(PATIENCE_S)
            self._errors.close()
