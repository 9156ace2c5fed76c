"""Ctrl-C while a driver has Spark do something, and what a batch of a stream ends with then.

A call of Spark waits for its answer on a connection that its thread keeps for all of them. Were KeyboardInterrupt
raised while it waits, the next call would take that answer for its own, and the one after it the next one's. So another
thread, with a connection of its own, cancels what Spark does, and KeyboardInterrupt is raised once the call has had its
answer. While Spark starts, it is raised afterwards: half-way through, the JVM would stay for good. A second Ctrl-C is
not waited with.

A stream that is stopped interrupts the batch under way: whatever that waits for in Java ends with one of
`INTERRUPTIONS`. Spark knows such an error of Python's by its text (StreamExecution's PROXY_ERROR), by a regular
expression that goes a step deeper with each character: it overflows the stack where the text has Java's trace in it, and
that of the overflow is printed, too. So the error that Spark is given is a short one.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread, current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
LOOK_SECONDS = 0.02


@contextmanager
def interrupts_put_off() -> Iterator[None]:
    """A Ctrl-C is raised when this ends. In another thread than the main one there is none."""
    if current_thread() is not main_thread():
        yield
        return
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        raise KeyboardInterrupt


@contextmanager
def interrupts_cancel(spark: SparkSession) -> Iterator[None]:
    """See the module. Whatever this ends with after a Ctrl-C, it is told as KeyboardInterrupt: what was cancelled
    ends with an error of its own."""
    if current_thread() is not main_thread():
        yield
        return
    interrupt = _Interrupt(spark)
    before = signal.signal(signal.SIGINT, interrupt.come)
    try:
        yield
    finally:
        try:
            interrupt.end()
        finally:
            signal.signal(signal.SIGINT, before)


class _Interrupt:
    """See the module. `come` is the signal's handler."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._canceller: Thread | None = None
        self._is_again = False
        """Whether the next signal is the canceller's."""
        self._is_told = Event()

    def come(self, number: int, frame: FrameType | None) -> None:
        is_again, self._is_again = self._is_again, False
        is_second = self._canceller is not None and not is_again
        if is_second or not _waits_for_spark(frame):
            self._is_told.set()
            raise KeyboardInterrupt
        if self._canceller is None:
            self._canceller = Thread(target=self._cancel, daemon=True)
            self._canceller.start()

    def end(self) -> None:
        """Raises KeyboardInterrupt if there was one."""
        if self._canceller is None:
            return
        self._is_told.set()
        self._canceller.join()
        raise KeyboardInterrupt

    def _cancel(self) -> None:
        context = self._spark.sparkContext
        with suppress(Exception):  # all of it may have ended by now
            context.setLogLevel("OFF")
            for query in self._spark.streams.active:
                query.stop()
            context.cancelAllJobs()
        while not self._is_told.wait(LOOK_SECONDS):
            self._is_again = True
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)


def _waits_for_spark(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == "py4j":
            return True
        frame = frame.f_back
    return False


class Interrupted(Exception):
    """Spark has stopped the stream."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"py4j.protocol.Py4JJavaError: An error occurred while calling Spark: {name}"
        )


@contextmanager
def interruption_in_short() -> Iterator[None]:
    """Raises Interrupted in place of an error that comes of an interruption."""
    try:
        yield
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        for name in INTERRUPTIONS:
            if name in text:
                raise Interrupted(name) from None
        raise
