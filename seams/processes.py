"""Workers as processes: `python -m odradek.seams.worker_process`, spoken to over its stdin and stdout.

A message is a pickle behind its length. The broker asks (`Begin`, `Next`, `End`), the worker answers
each `Next` and `End` (worker_process.py). A worker that does not keep to that is taken for dead. When
the broker ends, in whatever way, its end of the pipe closes, and the worker ends after the step it is
in. It runs at a lower priority than the broker, and keeps away from its signals.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from struct import Struct
from typing import Any, TypeVar

import trio

from odradek.seams.files import Files
from odradek.seams.workers import WorkerDied

A = TypeVar("A")
T = TypeVar("T")

LENGTH = Struct(">I")
LINGER_SECONDS = 5.0
"""How long a worker that is let go of may take to tidy up, before it is killed."""


@dataclass(frozen=True, slots=True)
class Begin:
    work: Callable[[Files, Any], Iterator[Any]]
    argument: Any


@dataclass(frozen=True, slots=True)
class Next:
    """Answered by a Step, Done or Raised."""


@dataclass(frozen=True, slots=True)
class End:
    """Answered by Done."""


@dataclass(frozen=True, slots=True)
class Step:
    value: Any


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class Raised:
    error: Exception


def packed(message: object) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


class ProcessWorkers:
    """Nothing is started before a worker is opened."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ProcessWorker]:
        command = [sys.executable, "-P", "-m", "odradek.seams.worker_process"]
        # It finds what this process finds, however that was set up (as multiprocessing does).
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        try:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
            )
        except OSError as error:
            raise WorkerDied(f"no worker process can be started: {error}") from error
        try:
            yield ProcessWorker(process)
        finally:
            with trio.CancelScope(shield=True):
                await _end(process)


async def _end(process: trio.Process) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.aclose()
    with trio.move_on_after(LINGER_SECONDS):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    await process.stdout.aclose()


class ProcessWorker:
    def __init__(self, process: trio.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(
        self, work: Callable[[Files, A], Iterator[T]], argument: A
    ) -> AsyncGenerator[T, None]:
        await self._send(Begin(work, argument))
        is_idle = True  # whether it waits for us: one that was left in a step is ended, not asked
        try:
            while True:
                is_idle = False
                answer = await self._ask(Next())
                is_idle = True
                if isinstance(answer, Step):
                    yield answer.value
                elif isinstance(answer, Raised):
                    raise answer.error
                else:
                    return
        finally:
            if is_idle:
                # One that does not answer is killed by whoever owns it.
                with trio.move_on_after(LINGER_SECONDS, shield=True):
                    await self._ask(End())

    async def _ask(self, question: object) -> object:
        await self._send(question)
        (size,) = LENGTH.unpack(await self._receive(LENGTH.size))
        answer: object = pickle.loads(await self._receive(size))
        return answer

    async def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(packed(message))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self._died() from error

    async def _receive(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = bytearray()
        while len(data) < size:
            try:
                more = await self._process.stdout.receive_some(size - len(data))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise self._died() from error
            if not more:
                raise self._died()
            data += more
        return bytes(data)

    def _died(self) -> WorkerDied:
        return WorkerDied(f"worker process {self._process.pid} is gone")
