"""Tests of the modules that are loaded in advance, after replicas have caught up or after a timeout."""

from __future__ import annotations

import errno
import logging
import os

import pytest
import trio

from odradek.broker.lifecycle import warm_up
from odradek.testing.virtual_clock import VirtualClock


@pytest.mark.parametrize(
    ("caught_up_at", "begins_at"),
    [(0.0, 0.0), (1.0, 1.0), (1e9, warm_up.CATCH_UP_SECONDS_MAX)],
    ids=["caught up", "one second behind", "unavailable leader"],
)
def test_warm_up_waits_for_replicas_to_catch_up(
    monkeypatch: pytest.MonkeyPatch, caught_up_at: float, begins_at: float
) -> None:
    clock = VirtualClock()
    clock.jumping = True
    loaded_at: list[float] = []
    monkeypatch.setattr(warm_up, "import_module", lambda name: loaded_at.append(clock.monotonic()))
    monkeypatch.setattr(warm_up, "SCHEMAS", ())

    async def main() -> None:
        await warm_up.warm_up(clock, is_catching_up=lambda: clock.monotonic() < caught_up_at)

    trio.run(main, clock=clock)
    assert loaded_at[0] == pytest.approx(begins_at, abs=2 * warm_up.LOOK_SECONDS)
    assert len(loaded_at) == len(warm_up.MODULES)


def test_warm_up_stops_at_unreadable_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node must not stop because its clients use all file descriptors."""

    def out_of_descriptors(name: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

    clock = VirtualClock()
    clock.jumping = True
    monkeypatch.setattr(warm_up, "import_module", out_of_descriptors)

    async def main() -> None:
        await warm_up.warm_up(clock, is_catching_up=lambda: False)

    with caplog.at_level(logging.WARNING):
        trio.run(main, clock=clock)
    assert "Too many open files" in caplog.text
