"""Runs the command line in the test's own process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from odradek.cli import terminal
from odradek.cli.main import main

DEADLINE_S = 60.0


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Interrupt a command that does not end; its exit code then fails the test."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Ran:
    """Exit code and output of a command."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.decode().splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def words(self) -> list[list[str]]:
        """Words of each line, which are the cells of a table."""
        return [line.split() for line in self.lines]


class CommandLine:
    """Runs `odradek …` in this process."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]
    ) -> None:
        self._monkeypatch = monkeypatch
        self._capture = capture

    def __call__(
        self, *words: str, stdin: bytes = b"", code: int | None = 0, more_to_come: bool = False
    ) -> Ran:
        """Run a command; AssertionError unless its exit code is `code` (None: any). With `more_to_come`,
        stdin stays open.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        assert os.write(writing, stdin) == len(stdin), "more than a pipe holds"
        if not more_to_come:
            os.close(writing)
        self._capture.readouterr()
        with self._monkeypatch.context() as patch, interrupted_after(DEADLINE_S):
            patch.setattr(terminal, "STDIN", reading)
            ended = main(words)
        os.close(reading)
        if more_to_come:
            os.close(writing)
        out, err = self._capture.readouterr()
        ran = Ran(ended, out, err.decode())
        assert code is None or ended == code, ran
        return ran
