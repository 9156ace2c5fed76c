"""A background stream of records, whose latencies can be read for any interval."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from odradek.bench.load import FILL_RECORD_BYTES, Load, run_load
from odradek.bench.model import Target, WorkloadFailed
from odradek.bench.workloads.latency import WARM_UP_S, check_all_came, read_output


class TimedStream:
    """Latencies of a stream's records, and the times at which they were due."""

    def __init__(self, load: Load, latencies_ns: Sequence[int], rate: int) -> None:
        self._began = load.report["began_ns"] / 1e9
        self._latencies_ns = latencies_ns
        self._rate = rate

    def between(self, start: float, end: float) -> Sequence[int]:
        """Return the latencies in ns of the records that were due between two times of CLOCK_MONOTONIC, in s."""
        first, last = (max(0, int((moment - self._began) * self._rate)) for moment in (start, end))
        found = self._latencies_ns[first:last]
        if not found:
            raise WorkloadFailed("no record was due during the measurement")
        return found


class RunningStream:
    """A running stream. `result` is available when it has ended."""

    def __init__(self) -> None:
        self._result: TimedStream | Exception | None = None
        self._program: subprocess.Popen[str] | None = None
        self._changed = threading.Event()

    def begun(self, program: subprocess.Popen[str]) -> None:
        self._program = program
        self._changed.set()

    def ended(self, result: TimedStream | Exception) -> None:
        self._result = result
        self._changed.set()

    def wait_until_begun(self) -> None:
        self._changed.wait()
        if isinstance(self._result, Exception):
            raise self._result

    def end(self) -> None:
        if self._program is not None:
            self._program.send_signal(signal.SIGINT)

    def result(self) -> TimedStream:
        """Return the result of the stream. Raises the error that ended it."""
        assert self._result is not None
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


@contextmanager
def background_stream(
    target: Target, topic: str, rate: int, *, longest_s: float, words: Sequence[str] = ()
) -> Iterator[RunningStream]:
    """Produce `rate` records of 1 KiB per second with acks=all during the `with` block.

    The stream ends after `longest_s` seconds at the latest. `words` are additional arguments of the load program.
    """
    running = RunningStream()
    with tempfile.TemporaryDirectory(prefix="odradek-stream-") as directory:
        output = Path(directory) / "latencies"
        command = [
            "latency", "--bootstrap", target.bootstrap, "--topic", topic,
            "--size", str(FILL_RECORD_BYTES),
            "--rate", str(rate),
            "--seconds", str(longest_s),
            "--warm-up", str(WARM_UP_S),
            "--from-end", "1",
            "--output", str(output),
            "-X", "acks=all",
            "-X", "message.send.max.retries=0",
            *words,
        ]  # fmt: skip

        def work() -> None:
            try:
                load = run_load(
                    command, target.process, timeout_s=longest_s + 90, begun=running.begun
                )
                check_all_came(load)
                running.ended(TimedStream(load, read_output(output)[0], rate))
            except Exception as failure:
                running.ended(failure)

        thread = threading.Thread(target=work, name="stream")
        thread.start()
        try:
            running.wait_until_begun()
            yield running
        finally:
            running.end()
            thread.join()
