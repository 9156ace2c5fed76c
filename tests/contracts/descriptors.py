"""Limit of file descriptors for the contract tests."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path as OsPath


def open_descriptors(below: OsPath | None = None) -> int:
    """Return the number of open descriptors of this process, or of those for files below a directory.

    A test counts only the latter: clients of earlier tests open and close descriptors at any time.
    """
    if below is None:
        return len(os.listdir("/proc/self/fd"))
    return sum(file.is_relative_to(below) for file in open_files())


def open_files() -> Iterator[OsPath]:
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists them, or another thread's
            yield OsPath(os.readlink(f"/proc/self/fd/{fd}"))


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open only `count` more descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 64, before[1]))
    plugs: list[int] = []
    try:
        while True:
            try:
                plugs.append(os.dup(0))
            except OSError:
                break
        for plug in plugs[:count]:
            os.close(plug)
        del plugs[:count]
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for plug in plugs:
            os.close(plug)
