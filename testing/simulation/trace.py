"""The events of a run, in order: one line for each, with the virtual time.

Two runs of one plan write the same lines, byte for byte; the digest shows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class Trace:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self.lines: list[str] = []
        self._now_s = now_s

    def add(self, event: str) -> None:
        self.lines.append(f"{self._now_s():10.6f} {event}")

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()
