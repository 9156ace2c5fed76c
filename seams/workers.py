"""Python that computes for long, outside of the serving process: interface. The real one is
`processes.py`.

A worker is a process of its own, with an interpreter lock of its own: a thread of pure Python beside
the loop takes a round trip from microseconds to milliseconds. Work is a generator, and its steps
(short ones, a tenth of a second or so) are asked for one by one: between two of them it can be given
up, throttled, or answered by what the loop does. What goes in and comes out is pickled, so work is a
function of a module, and its values are plain data.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from odradek.seams.files import Files

A = TypeVar("A")
T = TypeVar("T")


class WorkerDied(Exception):
    """The process ended, or could not be started: the work is lost, and must not have mattered."""


class Worker(Protocol):
    def run(self, work: Callable[[Files, A], Iterator[T]], argument: A) -> AsyncGenerator[T, None]:
        """The steps of `work(files, argument)`, whose `files` are a door of the worker's own.

        One work at a time. Whoever leaves before the end closes the generator (`aclosing`), which
        closes work's own. Raises what the work raises, and WorkerDied.
        """
        ...


class Workers(Protocol):
    def open(self) -> AbstractAsyncContextManager[Worker]:
        """A worker, until the block is left: a few hundred ms to start, gone without a trace."""
        ...
