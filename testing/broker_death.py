"""Why the broker of a test has ended: the error, how it describes causes, and the last log messages."""

from __future__ import annotations

import logging
import signal
from collections import deque
from collections.abc import Iterable

LOG_LINES = 20


class BrokerDied(RuntimeError):
    """The broker of a test has ended by itself. The message has the cause and its last log messages."""


def broker_died(what: str, cause: str, log_lines: Iterable[str]) -> BrokerDied:
    """`what` is the broker and its address; `cause` continues the sentence."""
    text = f"{what} has ended: {cause}"
    lines = [f"\n  {line}" for line in log_lines]
    return BrokerDied(text + "\nIts last log messages:" + "".join(lines) if lines else text)


def describe_error(error: BaseException) -> str:
    """Type and message; an exception group with one error is described by that error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def describe_exit(status: int) -> str:
    """Exit status or signal of a return code of `subprocess`."""
    if status >= 0:
        return f"its process exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process was killed by {name}"


class RecentMessages(logging.Handler):
    """Keeps the last log messages of the broker while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self.lines: deque[str] = deque(maxlen=LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += self.format(record).splitlines()

    def start(self) -> None:
        logging.getLogger("odradek").addHandler(self)

    def stop(self) -> None:
        logging.getLogger("odradek").removeHandler(self)
