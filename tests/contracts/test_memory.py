"""The C library keeps freed memory in the process."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_c_library_keeps_freed_memory() -> None:
    code = (
        "from odradek.seams.memory import keep_freed_memory\n"
        "print(keep_freed_memory())\n"
        "kept = [bytearray(1 << 20) for _ in range(64)]\n"
        "del kept\n"
        "print(len(bytearray(1 << 20)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told, size = run.stdout.split()
    assert size == "1048576"
    if told != "True":
        pytest.skip("not glibc")
