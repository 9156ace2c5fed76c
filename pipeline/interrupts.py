"""Ctrl-C while a driver has Spark do something.

A call of Spark waits for its answer on a connection that its thread keeps for all of them. Were KeyboardInterrupt
raised while it waits, the next call would take that answer for its own, and the one after it the next one's. So another
thread, with a connection of its own, cancels what Spark does, and again until nothing is begun any more, and
KeyboardInterrupt is raised once the call has had its answer. While Spark starts, it is raised afterwards: half-way
through, the JVM would stay for good. (But for the end of that: PySpark has a handler of its own by then.) A second
Ctrl-C is not waited with. Who has SIGINT ignored, or seen to otherwise, keeps it so.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread, current_thread, get_ident, main_thread
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.05
NUDGE = signal.SIGUSR1
"""To the thread that has called Spark: it may have had its answer."""


@contextmanager
def interrupts_put_off() -> Iterator[None]:
    """A Ctrl-C is raised when this ends, however it does, and its handler is the one that it was. In another thread than
    the main one there is none."""
    if current_thread() is not main_thread():
        yield
        return
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.getsignal(signal.SIGINT)
    if _is_ours():
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if before is not None:  # as of a handler that is none of Python's
            signal.signal(signal.SIGINT, before)
        if noted:
            raise KeyboardInterrupt


@contextmanager
def interrupts_cancel(spark: SparkSession) -> Iterator[None]:
    """See the module. Whatever this ends with after a Ctrl-C, it is told as KeyboardInterrupt: what was cancelled
    ends with an error of its own."""
    if not _is_ours():
        yield
        return
    interrupt = _Interrupt(spark)
    nudged = signal.signal(NUDGE, interrupt.on_nudge)
    interrupted = signal.signal(signal.SIGINT, interrupt.on_interrupt)
    try:
        yield
    finally:
        try:
            interrupt.finish()
        finally:
            signal.signal(signal.SIGINT, interrupted)
            # What is left of a canceller that was not waited for may nudge still, and by default that kills.
            signal.signal(NUDGE, signal.SIG_IGN if interrupt.is_cancelling else nudged)


def _is_ours() -> bool:
    """Whether a Ctrl-C raises KeyboardInterrupt here."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return is_default and current_thread() is main_thread()


class _Interrupt:
    """See the module."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._thread_id = get_ident()
        self._canceller: Thread | None = None
        self._is_second = False
        self._is_raised = False
        """Not an Event: a handler that came while its own thread sets one would wait for ever."""

    @property
    def is_cancelling(self) -> bool:
        return self._canceller is not None and self._canceller.is_alive()

    def on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self._is_second = self._is_raised or self._canceller is not None
        if self._is_second or not _waits_for_spark(frame):
            self._is_raised = True
            raise KeyboardInterrupt
        self._canceller = Thread(target=self._cancel, daemon=True)
        self._canceller.start()

    def on_nudge(self, number: int, frame: FrameType | None) -> None:
        if not self._is_raised and not _waits_for_spark(frame):
            self._is_raised = True
            raise KeyboardInterrupt

    def finish(self) -> None:
        """Raises KeyboardInterrupt if there was one."""
        was_raised, self._is_raised = self._is_raised, True
        if self._canceller is not None and not self._is_second:
            self._canceller.join()
        if was_raised or self._canceller is not None:
            raise KeyboardInterrupt

    def _cancel(self) -> None:
        context = self._spark.sparkContext
        with suppress(Exception):
            context.setLogLevel("OFF")
        while not self._is_raised:
            with suppress(Exception):
                context.cancelAllJobs()
            with suppress(Exception):
                for query in self._spark.streams.active:
                    query.stop()
            Event().wait(LOOK_SECONDS)
            if not self._is_raised:
                signal.pthread_kill(self._thread_id, NUDGE)


def _waits_for_spark(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == "py4j":
            return True
        frame = frame.f_back
    return False
