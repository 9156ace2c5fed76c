"""Main program of a worker process: runs one work at a time, step by step, until the end of stdin."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from typing import Any, BinaryIO

from odradek.seams.memory import keep_freed_memory
from odradek.seams.real_files import RealFiles
from odradek.seams.worker_protocol import (
    LENGTH,
    BeginWork,
    CancelWork,
    DoneResponse,
    RaisedResponse,
    StepResponse,
    packed,
)
from odradek.seams.workers import WorkerDied

NICENESS = 5


def main() -> None:
    # Output of the work goes to stderr; stdout has the responses only.
    responses = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    # Ctrl-C in the broker's terminal reaches the process group; the broker stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    keep_freed_memory(kept_bytes=64 << 20, largest_bytes=32 << 20)
    with os.fdopen(0, "rb") as requests:
        serve(requests, responses)


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    """Serve requests until their stream ends or the responses are not read; then close the current work."""
    files = RealFiles()
    steps: Iterator[Any] = iter(())
    try:
        while (request := _read(requests)) is not None:
            if isinstance(request, BeginWork):
                steps = request.work(files, request.argument)
            elif isinstance(request, CancelWork):
                _close(steps)
                responses.write(packed(DoneResponse()))
            else:
                responses.write(_next(steps))
    except BrokenPipeError:
        pass
    finally:
        _close(steps)


def _read(requests: BinaryIO) -> object | None:
    head = requests.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    data = requests.read(size)
    if len(data) < size:
        return None
    request: object = pickle.loads(data)
    return request


def _next(steps: Iterator[Any]) -> bytes:
    try:
        return packed(StepResponse(next(steps)))
    except StopIteration:
        return packed(DoneResponse())
    except Exception as error:
        try:
            response = packed(RaisedResponse(error))
            pickle.loads(response[LENGTH.size :])
        except Exception:  # some exceptions cannot be pickled
            return packed(RaisedResponse(WorkerDied(f"{type(error).__name__}: {error}")))
        return response


def _close(steps: Iterator[Any]) -> None:
    close = getattr(steps, "close", None)
    if close is not None:
        close()


if __name__ == "__main__":
    main()
