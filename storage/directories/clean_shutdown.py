"""`.kafka_cleanshutdown`, the clean shutdown file: all logs of the directory were flushed, closed and checkpointed.

It is the last file that a node writes to a directory and the first one that a start removes, so a crash never leaves
it. If it exists, no log is recovered at the next start. It contains JSON, `{"version":0,"brokerEpoch":N}`: N is the
broker epoch (KIP-966), or -1 if the broker never registered. The file counts even if its content is invalid, as in
Kafka.
"""

from __future__ import annotations

import json

from odradek.seams.values import value_class

FILE_NAME = ".kafka_cleanshutdown"
VERSION = 0


@value_class
class CleanShutdownFile:
    """Content of a clean shutdown file."""

    broker_epoch: int | None
    """None: the file exists, but its content is invalid."""


def format(broker_epoch: int) -> bytes:
    """Return the content of the file in Kafka's format."""
    return json.dumps(
        {"version": VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":")
    ).encode("ascii")


def parse(data: bytes) -> CleanShutdownFile:
    """Parse the content of the file; never fails, because any content counts."""
    try:
        content = json.loads(data)
        epoch = content["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return CleanShutdownFile(None)
    return CleanShutdownFile(
        epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None
    )
