"""`.kafka_cleanshutdown`: the mark that a directory's logs were all flushed, closed and checkpointed.

It is the last thing a node writes to a directory and the first it removes: while the node runs there
is no mark, and a crash at any moment leaves none. With the mark, no log is scanned at the next start.
Inside is JSON, `{"version":0,"brokerEpoch":N}`: N is what the node registered with (KIP-966), -1 if
it never did. That there is a file counts; what it says only if it can be read, as in Kafka.
"""

from __future__ import annotations

import json

from odradek.seams.values import value_class

FILE_NAME = ".kafka_cleanshutdown"
VERSION = 0


@value_class
class CleanShutdownFile:
    broker_epoch: int | None
    """None: there is a mark, but it does not say."""


def format(broker_epoch: int) -> bytes:
    return json.dumps(
        {"version": VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":")
    ).encode("ascii")


def parse(data: bytes) -> CleanShutdownFile:
    """Never fails: whatever is in it, the mark is there."""
    try:
        content = json.loads(data)
        epoch = content["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return CleanShutdownFile(None)
    return CleanShutdownFile(
        epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None
    )
