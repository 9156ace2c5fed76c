"""A worker process as the broker has it, and what the two say to each other over its stdin and stdout.

A message is a pickle behind its length. The broker asks (`Begin`, `Next`, `End`), the worker answers
each `Next` and `End` (worker_process.py). A worker that does not keep to that is taken for dead.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator, Callable, Iterator
from struct import Struct
from typing import Any, TypeVar

import trio

from odradek.seams.files import Files
from odradek.seams.values import value_class
from odradek.seams.workers import WorkerDied

A = TypeVar("A")
T = TypeVar("T")

LENGTH = Struct(">I")
RESPONSE_SECONDS_MAX = 5.0
"""How long a worker may take to give up a work, before whoever owns it kills it."""


@value_class
class Begin:
    work: Callable[[Files, Any], Iterator[Any]]
    argument: Any


@value_class
class Next:
    """Answered by a Step, Done or Raised."""


@value_class
class End:
    """Answered by Done."""


@value_class
class Step:
    value: Any


@value_class
class Done:
    pass


@value_class
class Raised:
    error: Exception


def packed(message: object) -> bytes:
    """A message as it is sent."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


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
                respond = await self._ask(Next())
                is_idle = True
                if isinstance(respond, Step):
                    yield respond.value
                elif isinstance(respond, Raised):
                    raise respond.error
                else:
                    return
        finally:
            if is_idle:
                # One that does not answer is killed by whoever owns it.
                with trio.move_on_after(RESPONSE_SECONDS_MAX, shield=True):
                    await self._ask(End())

    async def _ask(self, question: object) -> object:
        await self._send(question)
        (size,) = LENGTH.unpack(await self._receive(LENGTH.size))
        respond: object = pickle.loads(await self._receive(size))
        return respond

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
