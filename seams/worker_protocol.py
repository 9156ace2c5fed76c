"""Protocol between the broker and a worker process over the worker's stdin and stdout.

A message is a pickle after its length. The broker sends `BeginWork`, `NextStep` and `CancelWork`; the worker
responds to each `NextStep` and `CancelWork` (worker_process.py). A worker that violates the protocol is treated as dead.
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
"""How long a worker may take to cancel its work before its owner kills it, in seconds."""


@value_class
class BeginWork:
    work: Callable[[Files, Any], Iterator[Any]]
    argument: Any


@value_class
class NextStep:
    """Request the next step; the response is a StepResponse, DoneResponse or RaisedResponse."""


@value_class
class CancelWork:
    """Cancel the work; the response is DoneResponse."""


@value_class
class StepResponse:
    value: Any


@value_class
class DoneResponse:
    pass


@value_class
class RaisedResponse:
    error: Exception


def packed(message: object) -> bytes:
    """Serialize a message with its length."""
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
        await self._send(BeginWork(work, argument))
        is_idle = True  # whether the worker is idle; one that is in a step is terminated
        try:
            while True:
                is_idle = False
                response = await self._request(NextStep())
                is_idle = True
                if isinstance(response, StepResponse):
                    yield response.value
                elif isinstance(response, RaisedResponse):
                    raise response.error
                else:
                    return
        finally:
            if is_idle:
                # Its owner kills a worker that does not respond.
                with trio.move_on_after(RESPONSE_SECONDS_MAX, shield=True):
                    await self._request(CancelWork())

    async def _request(self, message: object) -> object:
        await self._send(message)
        (size,) = LENGTH.unpack(await self._receive(LENGTH.size))
        response: object = pickle.loads(await self._receive(size))
        return response

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
