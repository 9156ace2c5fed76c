"""Worker processes: `python -m odradek.seams.worker_process` with pipes for stdin and stdout.

When the broker ends for any reason, its end of the pipe closes, and the worker ends after its current step. A worker
has a lower priority than the broker and does not receive its signals. `worker_protocol.py` is imported with the
first worker, because the start of a broker needs none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from odradek.seams.workers import WorkerDied

if TYPE_CHECKING:
    from odradek.seams.worker_protocol import ProcessWorker

LINGER_SECONDS = 5.0
"""How long a released worker may take to end before it is killed, in seconds."""


class ProcessWorkers:
    """Workers as child processes, started on demand."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ProcessWorker]:
        from odradek.seams.worker_protocol import ProcessWorker

        command = [sys.executable, "-P", "-m", "odradek.seams.worker_process"]
        # The child gets this process's import path, as in multiprocessing.
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
