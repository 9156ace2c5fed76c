"""CPU time and memory from /proc, checked with child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from odradek.bench import machine
from odradek.bench.machine import (
    ALL_FREE_BYTES,
    AT_ONCE_BYTES,
    LEFT_ALONE_BYTES,
    TOOTH_PAGES,
    warm_memory,
)

BUSY = "import time\nwhile time.process_time() < {seconds}: pass\n"
WAIT = "print('done', flush=True); input()"


@contextmanager
def process(code: str) -> Iterator[int]:
    """Run `code` in a Python process that then waits; enter when the code has finished."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}\n{WAIT}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        try:
            yield running.pid
        finally:
            running.kill()


def test_cpu_of_a_child_counts_before_and_after_its_exit() -> None:
    busy = BUSY.format(seconds=0.2)
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])"
    with process(busy) as alone, process(child) as parent:
        assert 0.2 <= machine.tree_cpu_s(alone) < 2
        assert 0.2 <= machine.tree_cpu_s(parent) < 2


def test_cpu_of_a_running_child_counts_for_its_parent() -> None:
    child = (
        "import subprocess, sys\n"
        f"c = subprocess.Popen([sys.executable, '-c', {BUSY.format(seconds=0.2) + WAIT!r}],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "c.stdout.readline()"
    )
    with process(child) as parent:
        assert machine.tree_cpu_s(parent) >= 0.2


def test_memory_includes_all_descendants() -> None:
    with process("kept = b'x' * 50_000_000") as pid:
        assert machine.tree_resident_bytes(pid) > 50_000_000
        assert machine.tree_resident_bytes(os.getpid()) > machine.tree_resident_bytes(pid)


def test_ended_process_has_no_cpu_or_memory() -> None:
    with process("pass") as pid:
        pass
    assert machine.tree_cpu_s(pid) == 0
    assert machine.tree_resident_bytes(pid) == 0


def test_descendants_except_bystanders_do_not_count_as_others() -> None:
    for_ever = "import threading\ndef spin():\n    while True: pass\n"
    with process(for_ever + "threading.Thread(target=spin, daemon=True).start()") as busy:
        bystander, own_processes = machine.Watch([busy]), machine.Watch()
        used_before = machine.tree_cpu_s(busy)
        while machine.tree_cpu_s(busy) - used_before < 0.5:
            pass
        usage = bystander.stop()
        assert usage.others_s - own_processes.stop().others_s >= 0.4
        assert usage.others_cores == usage.others_s / usage.elapsed_s


def test_machine_description_has_all_fields() -> None:
    described = machine.describe()
    assert int(described["cores"]) >= 1
    assert described["memory"].endswith("GiB")


def test_memory_is_touched_and_released() -> None:
    size_bytes = 64 << 20
    before = machine.tree_resident_bytes(os.getpid())
    with warm_memory(size_bytes):
        kept = machine.tree_resident_bytes(os.getpid()) - before
    assert 0 < kept < size_bytes / 8


def test_memory_warm_up_leaves_memory_to_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 of 640 MiB are touched, because the rest must stay free."""
    left = iter([ALL_FREE_BYTES, ALL_FREE_BYTES, ALL_FREE_BYTES])
    monkeypatch.setattr(
        "odradek.bench.machine.meminfo_bytes", lambda _: next(left, LEFT_ALONE_BYTES)
    )
    before = machine.tree_resident_bytes(os.getpid())
    with warm_memory(10 * AT_ONCE_BYTES):
        kept = machine.tree_resident_bytes(os.getpid()) - before
    assert kept < 3 * AT_ONCE_BYTES / TOOTH_PAGES


def test_memory_warm_up_of_zero_bytes_does_nothing() -> None:
    with warm_memory(0):
        pass


def test_settle_waits_for_busy_processes() -> None:
    busy = "import time\nwhile time.process_time() < 0.6: pass\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", busy]) as running:
        try:
            machine.settle([running.pid], timeout_s=30)
            assert machine.tree_cpu_s(running.pid) >= 0.6
        finally:
            running.kill()


def test_settle_returns_after_its_timeout() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as running:
        try:
            began = time.monotonic()
            machine.settle([running.pid], timeout_s=3)
            assert 0.5 < time.monotonic() - began < 10
        finally:
            running.kill()
