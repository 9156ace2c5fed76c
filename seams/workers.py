"""Workers seam: long Python computations outside the serving process. `processes.py` implements it.

A worker is a separate process with its own interpreter lock. A thread of pure Python would increase a round trip of
the event loop from microseconds to milliseconds. Work is a generator whose short steps (about 100 ms) are requested
one by one, so that it can be cancelled or throttled between two steps. Arguments and steps are pickled, so work is a
module-level function with plain data.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from odradek.seams.files import Files

A = TypeVar("A")
T = TypeVar("T")


class WorkerDied(Exception):
    """The worker process ended or could not be started; its work is lost and must be repeatable."""


class Worker(Protocol):
    def run(self, work: Callable[[Files, A], Iterator[T]], argument: A) -> AsyncGenerator[T, None]:
        """Yield the steps of `work(files, argument)`; `files` is the worker's own files seam.

        A worker runs one work at a time. A caller that stops early closes the generator, which closes
        the work's generator. Raises the errors of the work, and WorkerDied.
        """
        ...


class Workers(Protocol):
    def open(self) -> AbstractAsyncContextManager[Worker]:
        """Start a worker for the duration of the block. The start takes several hundred ms."""
        ...
