"""Containment of unexpected errors in the work of one partition, group, log or connection.

The tasks of a node share nurseries, so an exception that leaves one task cancels all others and ends the node.
Work that concerns one subject runs through a `Containment` instead: an exception that the work does not expect
is logged once with the subject and the traceback, the subject is marked as failed where its owner provides for it, and
all other subjects continue. Cancellation passes. Expected errors (KafkaError, OSError of a disk) are handled by the work
itself, which knows what they mean: an OSError takes the log directory offline there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import trio

S = TypeVar("S")
T = TypeVar("T")

RESTART_SECONDS: Final = 1.0
"""Pause before a task that failed runs again; it doubles while the task fails."""
RESTART_SECONDS_MAX: Final = 60.0
STARTED_AGAIN: Final = "it is started again after a pause"
"""Consequence of an error in a task that `keep_running` runs."""
REPORTED_MAX: Final = 10_000
"""Subjects whose last error is remembered."""

log = logging.getLogger("odradek.tasks")


class Containment(Generic[S]):
    """Runs the work of one kind of task for many subjects."""

    def __init__(
        self,
        task: str,
        on_failed: Callable[[S, Exception], None] = lambda subject, error: None,
        *,
        name: Callable[[S], str] = str,
        consequence: str,
        expected: tuple[type[Exception], ...] = (),
    ) -> None:
        """`task`, the `name` of a subject and the `consequence` of an error are written to the log, as
        "Unexpected error in TASK (NAME); CONSEQUENCE"; `consequence` is what happens to the subject then. `on_failed`
        marks a subject as failed. `expected` errors are left to the caller."""
        self._task = task
        self._on_failed = on_failed
        self._name = name
        self._consequence = consequence
        self._expected = expected
        self._reported: dict[str, str] = {}
        """Subjects whose last run failed, with the error."""

    def call(self, subject: S, work: Callable[..., T], *args: object) -> T | None:
        """Call `work`; returns its result, or None if it raised an unexpected error."""
        try:
            result = work(*args)
        except Exception as error:
            self._take(subject, error)
            return None
        if self._reported:
            self._reported.pop(self._name(subject), None)
        return result

    async def run(self, subject: S, work: Callable[..., Awaitable[T]], *args: object) -> T | None:
        """Await `work`; returns its result, or None if it raised an unexpected error."""
        try:
            result = await work(*args)
        except BaseException as error:
            self._take(subject, error)
            return None
        if self._reported:
            self._reported.pop(self._name(subject), None)
        return result

    async def keep_running(
        self, subject: S, work: Callable[..., Awaitable[object]], *args: object
    ) -> None:
        """Run a long task until it returns or is cancelled; after an unexpected error it is started again."""
        pause = RESTART_SECONDS
        while True:
            began = trio.current_time()
            try:
                await work(*args)
                return
            except BaseException as error:
                self._take(subject, error)
            if trio.current_time() - began > RESTART_SECONDS_MAX:
                pause = RESTART_SECONDS
            await trio.sleep(pause)
            pause = min(2 * pause, RESTART_SECONDS_MAX)

    def failed(self, subject: S, error: Exception) -> None:
        """Handle an unexpected error of a subject: log it unless its last run failed in the same way, and mark it."""
        name, reason = self._name(subject), repr(error)
        if self._reported.get(name) != reason:
            if len(self._reported) >= REPORTED_MAX:
                del self._reported[next(iter(self._reported))]
            self._reported[name] = reason
            log.error(
                "Unexpected error in %s (%s); %s",
                self._task,
                name,
                self._consequence,
                exc_info=error,
            )
        try:
            self._on_failed(subject, error)
        except Exception:
            log.exception("%s could not be marked as failed after an error in %s", name, self._task)

    def _take(self, subject: S, error: BaseException) -> None:
        """Handle the unexpected exceptions in `error`, and raise the rest, such as a cancellation."""
        if isinstance(error, Exception) and not isinstance(error, self._expected):
            self.failed(subject, error)
            return
        if isinstance(error, BaseExceptionGroup):
            unexpected, rest = error.split(Exception)
            if unexpected is not None:
                self.failed(subject, unexpected)
            if rest is not None:
                raise rest
            return
        raise error
