"""Limit of file descriptors for the contract tests."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path as OsPath


def open_descriptors(below: OsPath | None = None) -> int:
    """How many this process has open; of the files below a directory alone, if it is given.

    Only the latter are the test's own to count: clients of tests before it, and the collector that
    ends them, open and close theirs when they like.
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
    """Let this process open `count` more."""
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
