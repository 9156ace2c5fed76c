"""The real six, put together."""

from __future__ import annotations

import subprocess
import sys

from odradek.seams.real import real_seams


def test_they_are_all_there() -> None:
    seams = real_seams(max_open=16)
    assert seams.clock.wall_ms() > 0
    assert seams.entropy.below(1) == 0


def test_they_import_nothing_that_is_not_used_at_start() -> None:
    """DESIGN: serve imports no obstore or sqlite3 that it does not use."""
    code = (
        "import sys, odradek.seams.real\n"
        "print([name for name in ('obstore', 'sqlite3', 'asyncio') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
