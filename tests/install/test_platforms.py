"""A broker works without the system calls that only Linux has, with the fallbacks for macOS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.smoke_program import PARTS

HERE = Path(__file__).parent
TIMEOUT_S = 180

CALLS_WITH_FALLBACK = (
    "os.fdatasync",
    "os.posix_fallocate",
    "os.sendfile",
    "os.preadv",
    "os.pwritev",
    "os.RWF_NOWAIT",
    "os.copy_file_range",
    "os.sched_yield",
    "select.epoll",
    "select.POLLRDHUP",
    "socket.MSG_MORE",
    "socket.TCP_CONGESTION",
    "fcntl.F_OFD_SETLK",
    "mmap.MADV_DONTNEED",
)
"""What the seams use if the platform has it."""

UNUSED_CALLS = (
    "os.sched_getaffinity",
    "os.posix_fadvise",
    "os.pidfd_open",
    "os.memfd_create",
    "os.eventfd",
    "os.O_DIRECT",
    "os.O_TMPFILE",
    "select.EPOLLIN",
    "socket.TCP_QUICKACK",
    "socket.TCP_USER_TIMEOUT",
    "socket.TCP_KEEPIDLE",
    "socket.SO_INCOMING_CPU",
    "fcntl.F_SETPIPE_SZ",
    "mmap.MADV_FREE",
    "mmap.MAP_POPULATE",
)


def run_smoke_program(directory: Path, **environment: str) -> None:
    run = subprocess.run(
        [sys.executable, str(HERE / "smoke_program.py"), str(directory)],
        env={**os.environ, "PYTHONPATH": str(HERE), **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (run.returncode, run.stdout.split(), run.stderr) == (0, PARTS, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS_WITH_FALLBACK)
def test_broker_works_without_one_platform_call(tmp_path: Path, name: str) -> None:
    run_smoke_program(tmp_path, WITHOUT=name)


@pytest.mark.slow
def test_broker_works_as_on_macos(tmp_path: Path) -> None:
    """`sys.platform` is darwin, F_FULLFSYNC exists and fails as on a network file system, and all calls are removed."""
    names = ",".join((*CALLS_WITH_FALLBACK, *UNUSED_CALLS))
    run_smoke_program(tmp_path, WITHOUT=names, AS_PLATFORM="darwin")
