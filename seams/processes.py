"""Workers as processes: `python -m odradek.seams.worker_process`, spoken to over its stdin and stdout.

When the broker ends, in whatever way, its end of the pipe closes, and the worker ends after the step
it is in. It runs at a lower priority than the broker, and keeps away from its signals. What a worker is
spoken to with (worker_conversation.py) is loaded with the first one: a broker that starts needs none.
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
    from odradek.seams.worker_conversation import ProcessWorker

LINGER_SECONDS = 5.0
"""How long a worker that is let go of may take to tidy up, before it is killed."""


class ProcessWorkers:
    """Nothing is started before a worker is opened."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ProcessWorker]:
        from odradek.seams.worker_conversation import ProcessWorker

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
