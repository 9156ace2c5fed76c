"""The switch of a simulated node: off, and nothing that it does has an effect any more.

A crash first cuts the power, so that every later call through the node's doors raises
`NodeCrashed` without effect, and only then cancels the node's nursery: otherwise its `finally`
blocks would shut it down gracefully.
"""

from __future__ import annotations

from collections.abc import Callable


class NodeCrashed(BaseException):
    """The node's power is off. A BaseException: no handler of errors may take it for one."""


class Power:
    """One a node, shared by all its doors."""

    def __init__(self) -> None:
        self._on = True
        self._when_cut: list[Callable[[], None]] = []

    @property
    def on(self) -> bool:
        return self._on

    def check(self) -> None:
        """Raises NodeCrashed once the power is off."""
        if not self._on:
            raise NodeCrashed

    def cut(self) -> None:
        """Off, for good: a restarted node gets doors of its own. Idempotent."""
        if not self._on:
            return
        self._on = False
        for tell in self._when_cut:
            tell()

    def when_cut(self, tell: Callable[[], None]) -> None:
        """Have the world outside the node told (its peers see their connections reset)."""
        self._when_cut.append(tell)
