"""A node loses its power during a change of its files."""

from __future__ import annotations

import pytest

from odradek.seams.files import Path
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import CHANGES, NAMES, Strike, VirtualFiles

HERE = Path("/log")


def work(files: VirtualFiles) -> None:
    file = files.open(HERE, create=True)
    file.append_v([b"one", b"two"])
    file.sync()
    file.close()
    files.rename(HERE, Path("/renamed"))
    files.sync_directory(Path("/"))
    files.open(Path("/renamed"), write=True).truncate(2)


def left(strike: Strike) -> tuple[dict[str, bytes], int]:
    """Return the files after the strike, and the number of syncs before it."""
    files = VirtualFiles(VirtualDisk())
    files.strike = strike
    with pytest.raises(NodeCrashed):
        work(files)
    assert not files.power.on
    after = VirtualFiles(files.disk)
    return {name: after.read(Path("/") / name) for name in after.list(Path("/"))}, files.syncs


@pytest.mark.parametrize(
    ("strike", "expected"),
    [
        (Strike(CHANGES), ({}, 0)),
        (Strike(CHANGES, 1), ({"log": b""}, 0)),
        (Strike(frozenset({"write"}), share=0.5), ({"log": b"o"}, 0)),
        (Strike(frozenset({"write"}), 1, share=0.9), ({"log": b"onetw"}, 0)),
        (Strike(frozenset({"sync"})), ({"log": b"onetwo"}, 0)),
        (Strike(NAMES, 1), ({"log": b"onetwo"}, 1)),
        (Strike(frozenset({"sync"}), 1), ({"renamed": b"onetwo"}, 1)),
        (Strike(frozenset({"write"}), 2), ({"renamed": b"onetwo"}, 2)),
    ],
)
def test_the_power_goes_at_the_change_that_was_drawn(
    strike: Strike, expected: tuple[dict[str, bytes], int]
) -> None:
    assert left(strike) == expected
    assert strike.has_happened


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_strike_that_may_not_happen_waits_until_it_may(refused: int) -> None:
    responses = [False] * refused + [True]
    files = VirtualFiles(VirtualDisk())
    file = files.open(HERE, create=True)
    files.strike = Strike(frozenset({"sync"}), may_happen=lambda: responses.pop(0))
    for _ in range(refused):
        file.sync()
    with pytest.raises(NodeCrashed):
        file.sync()


def test_nothing_happens_that_is_not_due() -> None:
    files = VirtualFiles(VirtualDisk())
    files.strike = Strike(frozenset({"write"}), passes=3)
    work(files)
    assert not files.strike.has_happened
    assert files.power.on
