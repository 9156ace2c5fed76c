"""Ctrl-C (SIGINT) in a driver during calls to Spark.

A Py4J call waits for its response on a connection that its thread reuses. If KeyboardInterrupt were raised during
the wait, the next call would read the response of the interrupted one. So another thread, with its own connection,
cancels Spark's jobs until no more are started, and KeyboardInterrupt is raised when the call has returned. During
the start of Spark it is raised afterwards, since an interrupted start would leave the JVM running. (At the end of
the start, PySpark installs its own handler.) A second Ctrl-C raises at once. If SIGINT is ignored or handled by
another handler, nothing changes.
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
"""Signal to the thread that called Spark: its call may have returned."""


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay a Ctrl-C until the end of the block, then restore the handler and raise KeyboardInterrupt. Does nothing
    outside the main thread.
    """
    if current_thread() is not main_thread():
        yield
        return
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.getsignal(signal.SIGINT)
    if _raises_keyboard_interrupt():
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if before is not None:  # None for a handler that was not installed from Python
            signal.signal(signal.SIGINT, before)
        if noted:
            raise KeyboardInterrupt


@contextmanager
def cancel_jobs_on_interrupt(spark: SparkSession) -> Iterator[None]:
    """Let a Ctrl-C within the block cancel Spark's jobs. Raises KeyboardInterrupt in place of the errors that the
    cancellation causes.
    """
    if not _raises_keyboard_interrupt():
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
            # A canceller that was not joined may still send the signal, whose default action kills the process.
            signal.signal(NUDGE, signal.SIG_IGN if interrupt.is_cancelling else nudged)


def _raises_keyboard_interrupt() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt in this thread."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return is_default and current_thread() is main_thread()


class _Interrupt:
    """State of one call that a Ctrl-C can cancel."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._thread_id = get_ident()
        self._canceller: Thread | None = None
        self._is_second = False
        self._is_raised = False
        """Not an Event: a signal handler that runs while its own thread sets one would deadlock."""

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
        """Raise KeyboardInterrupt if there was a Ctrl-C."""
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
