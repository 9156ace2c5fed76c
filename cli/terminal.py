"""Environment variables, stdin, stdout and signals of the process.

Stdin is read without a thread: the event loop waits for a pipe or a terminal, so that Ctrl-C interrupts
at once. A file is read directly.
"""

from __future__ import annotations

import errno
import os  # noqa: TID251 - this module is the process's edge
import select
import signal
import sys
from collections.abc import AsyncIterator, Iterable

import trio

READ_BYTES = 256 << 10
STDIN = 0


def environment(name: str, default: str) -> str:
    """The value of an environment variable, or the default where it is unset or empty."""
    return os.environ.get(name) or default


def ending_signals() -> list[signal.Signals]:
    """Signals that stop a server cleanly, as in Kafka: SIGTERM, SIGINT, and SIGHUP unless it is ignored (nohup)."""
    hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    return [signal.SIGTERM, signal.SIGINT, *hangup]


def is_terminal() -> bool:
    """Whether stdin and stderr are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def hint(text: str, *, end: str = "\n") -> None:
    """Print a line to stderr."""
    sys.stderr.write(text + end)
    sys.stderr.flush()


def write_bytes(parts: Iterable[bytes]) -> None:
    """Write to stdout and flush. Raises BrokenPipeError if the reader has closed it."""
    sys.stdout.buffer.writelines(parts)
    sys.stdout.buffer.flush()


def check_reader() -> None:
    """Raise BrokenPipeError if the reader of stdout has closed it, without writing."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)  # macOS reports nothing without an event
        gone = any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    except (OSError, ValueError):  # stdout is not a descriptor
        return
    if gone:
        raise BrokenPipeError(errno.EPIPE, "the reader of stdout has closed it")


async def stdin_chunks() -> AsyncIterator[bytes]:
    """Yield the bytes of stdin as they arrive, up to its end."""
    can_wait = True
    while True:
        if can_wait:
            try:
                await trio.lowlevel.wait_readable(STDIN)
            except OSError as error:  # a regular file, which is always readable
                if error.errno != errno.EPERM:
                    raise
                can_wait = False
        else:
            await trio.lowlevel.checkpoint()
        chunk = os.read(STDIN, READ_BYTES)
        if not chunk:
            return
        yield chunk


async def split_stream(
    chunks: AsyncIterator[bytes], delimiter: bytes
) -> AsyncIterator[list[bytes]]:
    """Yield lists of the parts between delimiters.

    The rest after the last delimiter is the last part, unless it is empty.
    """
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(delimiter)
        if whole:
            yield whole
    if rest:
        yield [rest]
