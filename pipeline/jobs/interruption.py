"""What ends a batch that Spark interrupts, in few words.

A stream that is stopped interrupts the batch under way: whatever that waits for in Java ends with one of
`INTERRUPTIONS`. Spark knows such an error of Python's by its text (StreamExecution's PROXY_ERROR), by a regular
expression that goes a step deeper with each character: it overflows the stack where the text has Java's trace in it, and
that of the overflow is printed, too. So the error that Spark is given is a short one.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
SAID_MAX = 200
"""So many characters of what failed are told."""


class Interrupted(Exception):
    """Spark has stopped the stream; or a call of Java's took longer than it may, as some of a store's say it so."""

    def __init__(self, of_java: str, error: Exception) -> None:
        said = (str(error).splitlines() or [""])[0][:SAID_MAX]
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling Spark:"
            f" {of_java[:SAID_MAX]} ({said})"
        )


@contextmanager
def interruption_in_short() -> Iterator[None]:
    """Raises Interrupted in place of an error that comes of an interruption."""
    try:
        yield
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        for name in INTERRUPTIONS:
            _, found, message = text.partition(name)
            if found:
                of_java = name + message.partition("\n")[0]
                raise Interrupted(of_java, error) from None
        raise
