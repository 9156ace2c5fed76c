"""Only the layer `seams` uses system calls that not every platform has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure.platform_calls import find_platform_calls

NEEDS_LINUX = ("seams", "bench")
"""`odradek bench` refuses to run elsewhere."""
WITH_FALLBACK = (
    "testing/cluster/connection_owner.py",  # lsof
    "pipeline/jobs/export_lease.py",  # without /proc, no driver of another process counts as ended
)


def test_only_seams_use_calls_that_not_every_platform_has() -> None:
    found = [
        f"{path}: {name}"
        for path, name in find_platform_calls()
        if path.parts[0] not in NEEDS_LINUX and str(path) not in WITH_FALLBACK
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import os\nos.fdatasync(1)", "os.fdatasync"),
        ("from select import epoll", "select.epoll"),
        ("import os\ncall = getattr(os, 'sendfile', None)", "os.sendfile"),
        ("import socket\nhasattr(socket, 'TCP_QUICKACK')", "socket.TCP_QUICKACK"),
        ("library.prctl(1)", "prctl"),
        ("open('/proc/self/stat')", "/proc/self/stat"),
    ],
)
def test_use_of_a_platform_call_is_found(tmp_path: Path, text: str, name: str) -> None:
    assert _found(tmp_path, text) == [name]


def test_portable_calls_are_not_reported(tmp_path: Path) -> None:
    text = "import os, select\nos.fsync(1)\nselect.poll()\nself.sendfile\nprint('no /proc/ here')"
    assert _found(tmp_path, text) == []


def _found(root: Path, text: str) -> list[str]:
    (root / "broker").mkdir()
    (root / "broker" / "one.py").write_text(text)
    return [name for _, name in find_platform_calls(root)]
