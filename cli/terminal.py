"""The process's edge, as the commands see it: the environment, stdin, stdout.

Stdin is read without a thread: a pipe or a terminal is waited for by the event loop (so that Ctrl-C is
heard at once), a file is simply read.
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
    """Those at which a server ends cleanly, which are Kafka's; SIGHUP, of a terminal that is gone, unless
    `nohup` has it ignored."""
    hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    return [signal.SIGTERM, signal.SIGINT, *hangup]


def is_terminal() -> bool:
    """Whether a person types what we read and reads what we say."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def hint(text: str, *, end: str = "\n") -> None:
    """A line on stderr, for the person in front of it."""
    sys.stderr.write(text + end)
    sys.stderr.flush()


def write_bytes(parts: Iterable[bytes]) -> None:
    """Write to stdout and flush. BrokenPipeError once its reader has gone."""
    sys.stdout.buffer.writelines(parts)
    sys.stdout.buffer.flush()


def check_reader() -> None:
    """BrokenPipeError if whoever reads our stdout has gone, without having to write to find out."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        gone = any(events & select.POLLERR for _, events in poll.poll(0))
    except (OSError, ValueError):  # no such descriptor: then nobody can go away
        return
    if gone:
        raise BrokenPipeError(errno.EPIPE, "stdout's reader has gone")


async def stdin_chunks() -> AsyncIterator[bytes]:
    """What is on stdin, as it comes, to its end."""
    can_wait = True
    while True:
        if can_wait:
            try:
                await trio.lowlevel.wait_readable(STDIN)
            except OSError as error:  # a file, which is always readable
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
    """The parts between delimiters, as many at a time as a chunk completes.

    What follows the last delimiter is a part of its own, unless it is empty.
    """
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(delimiter)
        if whole:
            yield whole
    if rest:
        yield [rest]
