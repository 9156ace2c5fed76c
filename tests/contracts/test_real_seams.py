"""The real seams together."""

from __future__ import annotations

import subprocess
import sys

from odradek.seams.real import real_seams


def test_real_seams_work_together() -> None:
    seams = real_seams(max_open=16)
    assert seams.clock.wall_ms() > 0
    assert seams.entropy.below(1) == 0


def test_real_seams_import_no_optional_modules() -> None:
    """`serve` imports obstore and sqlite3 only if it uses them."""
    code = (
        "import sys, odradek.seams.real\n"
        "print([name for name in ('obstore', 'sqlite3', 'asyncio') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
