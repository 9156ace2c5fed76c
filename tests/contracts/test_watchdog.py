"""The watchdog ends a process whose event loop is blocked, and no other."""

from __future__ import annotations

import subprocess
import sys

from odradek.seams.watchdog import EXIT_STATUS

SCRIPT = """
import sys, time, trio
from odradek.seams import watchdog

watchdog.TICK_SECONDS = 0.02

async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog.watch, 0.2)
        await trio.sleep(0.5)
        print("moved", flush=True)
        if sys.argv[1] == "hang":
            time.sleep(20)
        nursery.cancel_scope.cancel()

trio.run(main)
"""


def run(what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, what], capture_output=True, text=True, timeout=30
    )


def test_hanging_write_ends_the_process_with_its_stack() -> None:
    ended = run("hang")
    assert ended.returncode == EXIT_STATUS
    assert ended.stdout == "moved\n"
    assert "has been blocked" in ended.stderr
    assert "main" in ended.stderr


def test_responsive_event_loop_is_not_ended() -> None:
    ended = run("move")
    assert (ended.returncode, ended.stdout) == (0, "moved\n")
