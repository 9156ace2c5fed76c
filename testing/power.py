"""The power switch of a simulated node: once it is off, no call of the node has an effect.

A crash first cuts the power, so that every later call through the node's seams raises `NodeCrashed`
without effect, and only then cancels the node's nursery. Otherwise the `finally` blocks would
perform a clean shutdown.
"""

from __future__ import annotations

from collections.abc import Callable


class NodeCrashed(BaseException):
    """The node's power is off. A BaseException, so that error handlers do not catch it."""


class Power:
    """The power switch of one node, shared by all its seams."""

    def __init__(self) -> None:
        self._on = True
        self._callbacks: list[Callable[[], None]] = []

    @property
    def on(self) -> bool:
        return self._on

    def check(self) -> None:
        """Raise NodeCrashed if the power is off."""
        if not self._on:
            raise NodeCrashed

    def cut(self) -> None:
        """Switch the power off permanently: a restarted node gets new seams. Idempotent."""
        if not self._on:
            return
        self._on = False
        for callback in self._callbacks:
            callback()

    def on_cut(self, callback: Callable[[], None]) -> None:
        """Register a callback for the power cut (a peer's connections are then reset)."""
        self._callbacks.append(callback)
