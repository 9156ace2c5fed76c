"""What brokers log of themselves: an error that is theirs is an anomaly of the run.

A bug in a handler closes a connection, one in a round of work ends the round: the node goes on, says so in
its log, and clients that try again never notice. So every record of level ERROR is an anomaly, but for
those listed here, which speak of a fault that the node had met in the same life.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Protocol

from odradek.testing.simulation.history import Anomaly

ROOT = "odradek"


class Cause(Enum):
    DISK = "a call of its disk failed or found no room, or bits of it had flipped"
    STORE = "the object store was at fault"


class Life(Protocol):
    """A node from a start to its end."""

    name: str

    @property
    def is_dead(self) -> bool:
        """Its power is off: nobody hears what it says on its way down."""
        ...

    def has_met(self, cause: Cause) -> bool: ...


LIFE: ContextVar[Life | None] = ContextVar("LIFE", default=None)
"""Whose task it is that runs."""

EXPECTED: Mapping[tuple[str, str], Cause] = {
    ("odradek.storage.log.state", "%s is offline: "): Cause.DISK,
    ("odradek.storage.log_manager.loading", "%s is offline: "): Cause.DISK,
    ("odradek.storage.directories.directory", "log directory %s is offline: "): Cause.DISK,
    ("odradek.storage.directories.disk_space", "log directory %s is full"): Cause.DISK,
    ("odradek.storage.log_manager.shutdown", "%s is not closed cleanly: "): Cause.DISK,
    (
        "odradek.storage.log_manager.log_manager",
        "%s was the last log directory or the metadata directory: ",
    ): Cause.DISK,
    ("odradek.storage.moving.mover", "the move of %s failed (%s): "): Cause.DISK,
    ("odradek.coordination", "Failed to load %s-%d, "): Cause.DISK,
    ("odradek.node", "Log directory %s failed: %d partitions are offline; "): Cause.DISK,
    ("odradek.node", "Log directory %s is full: "): Cause.DISK,
    ("odradek.node", "%s"): Cause.DISK,  # that its storage is lost
    ("odradek.metadata", "the metadata log in %s failed: "): Cause.DISK,
    ("odradek.metadata", "%s; they are fetched from the leader again"): Cause.DISK,
    ("odradek.metadata", "the metadata log cannot be flushed: "): Cause.DISK,
    ("odradek.metadata", "fetched records cannot be appended to %s: "): Cause.DISK,
    ("odradek.metadata", "%s cannot be written, retrying: "): Cause.DISK,
    (
        "odradek.metadata",
        "resigning, because the leader cannot write the metadata log: ",
    ): Cause.DISK,
    (
        "odradek.metadata",
        "this node leads the quorum but cannot become the active controller: ",
    ): Cause.DISK,
    ("odradek.metadata", "cannot append the voter change: "): Cause.DISK,
    ("odradek.metadata", "could not write a metadata snapshot in %s: "): Cause.DISK,
    ("odradek.tiered", "%s"): Cause.STORE,  # that it is away
}
"""Loggers, and how messages begin, as they stand in the code."""


class LogWatch(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.anomalies: list[Anomaly] = []
        self._known: set[object] = set()

    def emit(self, record: logging.LogRecord) -> None:
        life = LIFE.get()
        if life is not None and (life.is_dead or _is_expected(record, life)):
            return
        error = record.exc_info[1] if record.exc_info else None
        which = (life and life.name, record.pathname, record.lineno, type(error))
        if which in self._known:  # a bug that is met again and again is one
            return
        self._known.add(which)
        text = f"{life.name if life else 'nobody'} says: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self.anomalies.append(Anomaly("an error of its own", text))


def _is_expected(record: logging.LogRecord, life: Life) -> bool:
    if record.exc_info:
        return False
    return any(
        record.name == logger and str(record.msg).startswith(begins) and life.has_met(cause)
        for (logger, begins), cause in EXPECTED.items()
    )


@contextmanager
def watching() -> Iterator[LogWatch]:
    """Hears every record from ERROR on, whatever else is switched off; lesser ones are not made at all."""
    watch, logger = LogWatch(), logging.getLogger(ROOT)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    logger.addHandler(watch)
    try:
        yield watch
    finally:
        logger.removeHandler(watch)
        logging.disable(before)
