"""Treats the errors that brokers log as anomalies of the run.

A bug in a handler closes a connection, and one in a periodic task ends that iteration: the node
continues and logs an error, and clients that retry never notice. Every record of level ERROR is
therefore an anomaly, except those in `EXPECTED`, which result from a fault of the
node since its last start.
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


class ErrorCause(Enum):
    DISK = "a disk call failed, the disk was full, or bits of it had flipped"
    STORE = "a request to the object store failed"


class NodeRun(Protocol):
    """One run of a node, from start to end."""

    name: str

    @property
    def is_dead(self) -> bool:
        """Whether the power is off; log records of the node are ignored then."""
        ...

    def is_affected_by(self, cause: ErrorCause) -> bool: ...


CURRENT_NODE_RUN: ContextVar[NodeRun | None] = ContextVar("CURRENT_NODE_RUN", default=None)
"""The run of the node that the current task belongs to."""

EXPECTED: Mapping[tuple[str, str], ErrorCause] = {
    ("odradek.log", "log %s is offline: "): ErrorCause.DISK,
    ("odradek.log_manager", "log %s is offline: "): ErrorCause.DISK,
    ("odradek.log_directories", "log directory %s is offline: "): ErrorCause.DISK,
    ("odradek.log_directories", "no space left in log directory %s"): ErrorCause.DISK,
    ("odradek.log_manager", "log %s was not closed cleanly: "): ErrorCause.DISK,
    ("odradek.replica_moves", "the move of %s failed (%s): "): ErrorCause.DISK,
    ("odradek.coordination", "Failed to load %s-%d at offset %d: "): ErrorCause.DISK,
    ("odradek.node", "%s"): ErrorCause.DISK,  # lost storage
    ("odradek.metadata", "the metadata log in %s failed: "): ErrorCause.DISK,
    ("odradek.metadata", "%s; they are fetched from the leader again"): ErrorCause.DISK,
    (
        "odradek.metadata",
        "%s ends at offset %d, but this node had synced it up to offset %d (epoch %d): ",
    ): ErrorCause.DISK,
    ("odradek.metadata", "the metadata log cannot be flushed: "): ErrorCause.DISK,
    ("odradek.metadata", "fetched records cannot be appended to %s: "): ErrorCause.DISK,
    ("odradek.metadata", "%s cannot be written, retrying: "): ErrorCause.DISK,
    (
        "odradek.metadata",
        "resigning, because the leader cannot write the metadata log: ",
    ): ErrorCause.DISK,
    (
        "odradek.metadata",
        "this node leads the quorum but cannot become the active controller: ",
    ): ErrorCause.DISK,
    ("odradek.metadata", "cannot append the voter change: "): ErrorCause.DISK,
    ("odradek.metadata", "could not write a metadata snapshot in %s: "): ErrorCause.DISK,
    ("odradek.tiered", "%s"): ErrorCause.STORE,  # an unavailable store
    ("odradek.diskless", "%s Diskless topics cannot be written or read"): ErrorCause.STORE,
    ("odradek.diskless", "The batch with offsets %d to %d of %s-%d cannot be read from "): (
        ErrorCause.STORE  # a half executed read
    ),
    ("odradek.diskless", "The state of %s cannot be used, retrying: "): ErrorCause.DISK,
    ("odradek.diskless", "The snapshot of %s was not written: "): ErrorCause.DISK,
}
"""Loggers and the beginnings of their message formats, as they are in the code."""


class LogWatch(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.anomalies: list[Anomaly] = []
        self._known: set[object] = set()

    def emit(self, record: logging.LogRecord) -> None:
        node_run = CURRENT_NODE_RUN.get()
        if node_run is not None and (node_run.is_dead or _is_expected(record, node_run)):
            return
        error = record.exc_info[1] if record.exc_info else None
        which = (node_run and node_run.name, record.pathname, record.lineno, type(error))
        if which in self._known:  # report a repeated error once
            return
        self._known.add(which)
        text = f"{node_run.name if node_run else 'no node'} logged: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self.anomalies.append(Anomaly("logged error", text))


def _is_expected(record: logging.LogRecord, node_run: NodeRun) -> bool:
    if record.exc_info:
        return False
    return any(
        record.name == logger
        and str(record.msg).startswith(begins)
        and node_run.is_affected_by(cause)
        for (logger, begins), cause in EXPECTED.items()
    )


@contextmanager
def watch_log() -> Iterator[LogWatch]:
    """Handle every record of level ERROR or higher, even if logging is disabled.

    Records of lower levels are not created.
    """
    watch, logger = LogWatch(), logging.getLogger(ROOT)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    logger.addHandler(watch)
    try:
        yield watch
    finally:
        logger.removeHandler(watch)
        logging.disable(before)
