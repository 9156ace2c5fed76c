"""A node loses its power during a change of its files."""

from __future__ import annotations

import pytest

from odradek.seams.files import Path
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import CHANGES, NAME_CHANGES, CrashPoint, VirtualFiles

HERE = Path("/log")


def work(files: VirtualFiles) -> None:
    file = files.open(HERE, create=True)
    file.append_v([b"one", b"two"])
    file.sync()
    file.close()
    files.rename(HERE, Path("/renamed"))
    files.sync_directory(Path("/"))
    files.open(Path("/renamed"), write=True).truncate(2)


def left(crash_point: CrashPoint) -> tuple[dict[str, bytes], int]:
    """Return the files after the crash, and the number of syncs before it."""
    files = VirtualFiles(VirtualDisk())
    files.crash_point = crash_point
    with pytest.raises(NodeCrashed):
        work(files)
    assert not files.power.on
    after = VirtualFiles(files.disk)
    return {name: after.read(Path("/") / name) for name in after.list(Path("/"))}, files.syncs


@pytest.mark.parametrize(
    ("crash_point", "expected"),
    [
        (CrashPoint(CHANGES), ({}, 0)),
        (CrashPoint(CHANGES, 1), ({"log": b""}, 0)),
        (CrashPoint(frozenset({"write"}), share=0.5), ({"log": b"o"}, 0)),
        (CrashPoint(frozenset({"write"}), 1, share=0.9), ({"log": b"onetw"}, 0)),
        (CrashPoint(frozenset({"sync"})), ({"log": b"onetwo"}, 0)),
        (CrashPoint(NAME_CHANGES, 1), ({"log": b"onetwo"}, 1)),
        (CrashPoint(frozenset({"sync"}), 1), ({"renamed": b"onetwo"}, 1)),
        (CrashPoint(frozenset({"write"}), 2), ({"renamed": b"onetwo"}, 2)),
    ],
)
def test_crash_point_cuts_power_at_its_operation(
    crash_point: CrashPoint, expected: tuple[dict[str, bytes], int]
) -> None:
    assert left(crash_point) == expected
    assert crash_point.has_occurred


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_crash_point_waits_until_it_may_occur(refused: int) -> None:
    responses = [False] * refused + [True]
    files = VirtualFiles(VirtualDisk())
    file = files.open(HERE, create=True)
    files.crash_point = CrashPoint(frozenset({"sync"}), may_occur=lambda: responses.pop(0))
    for _ in range(refused):
        file.sync()
    with pytest.raises(NodeCrashed):
        file.sync()


def test_crash_point_that_is_not_due_has_no_effect() -> None:
    files = VirtualFiles(VirtualDisk())
    files.crash_point = CrashPoint(frozenset({"write"}), passes=3)
    work(files)
    assert not files.crash_point.has_occurred
    assert files.power.on
