"""System calls that not every platform has do the same as their fallbacks."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from odradek.seams import system_calls

ENDS_AT = 2 * system_calls._CHUNK_BYTES + 17
FULL_SYNC_COMMAND = 51
"""F_FULLFSYNC of macOS, which Linux does not have."""


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("first", range(len(system_calls._WAYS)))
def test_zero_copy_methods_copy_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Each method, with the slower ones as fallbacks, copies exactly these bytes to their position."""
    monkeypatch.setattr(system_calls, "_WAYS", system_calls._WAYS[first:])
    content = bytes(range(256)) * 8192
    (tmp_path / "source").write_bytes(content)
    (tmp_path / "target").write_bytes(b"before")
    source = os.open(tmp_path / "source", os.O_RDONLY)
    target = os.open(tmp_path / "target", os.O_RDWR)
    try:
        size = len(content)
        assert system_calls.copy(source, 100, target, 6, size) == size - 100
        system_calls.write_out(target, 6, size, wait=True)
    finally:
        os.close(source)
        os.close(target)
    assert (tmp_path / "target").read_bytes() == b"before" + content[100:]


def test_zero_copy_error_of_either_file_is_raised(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * 100)
    source = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            system_calls.copy(source, 0, source, 0, 100)
    finally:
        os.close(source)


@pytest.mark.parametrize("write", [system_calls.write_vector, system_calls._write_joined])
def test_buffers_are_written_together_at_a_position(
    fd: int, write: Callable[[int, list[bytes | memoryview], int], int]
) -> None:
    assert write(fd, [b"abc", memoryview(b"defg")], 2) == 7
    assert os.pread(fd, 100, 0) == b"\0\0abcdefg"


@pytest.mark.parametrize("send", [system_calls.send_file, system_calls._send_read])
def test_file_is_sent_to_a_socket_until_it_would_block(
    fd: int, send: Callable[[int, int, int, int], int]
) -> None:
    content = bytes(range(256)) * 16384
    os.pwrite(fd, content, 0)
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        assert send(left.fileno(), fd, len(content), 10) == 0
        sent = 5
        with suppress(BlockingIOError):
            while True:
                sent += send(left.fileno(), fd, sent, len(content))
        left.close()
        received = b"".join(iter(lambda: right.recv(1 << 20), b""))
    assert received == content[5:sent]


@pytest.mark.parametrize("fallocate", [system_calls._fallocate, system_calls._write_zeros])
def test_allocated_space_contains_zeros_and_is_not_sparse(
    fd: int, monkeypatch: pytest.MonkeyPatch, fallocate: Callable[[int, int, int], None]
) -> None:
    monkeypatch.setattr(system_calls, "_fallocate", fallocate)
    os.pwrite(fd, b"abc", 0)
    system_calls.allocate(fd, 3, ENDS_AT - 3)
    assert os.pread(fd, ENDS_AT + 1, 0) == b"abc" + bytes(ENDS_AT - 3)
    os.fsync(fd)
    assert os.fstat(fd).st_blocks * 512 >= ENDS_AT


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_file_system_that_cannot_allocate_gets_zeros(
    fd: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(fd: int, position: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(system_calls, "_fallocate", refuse)
    system_calls.allocate(fd, 0, 100)
    assert os.pread(fd, 200, 0) == bytes(100)


class Syncs:
    """Replaces fcntl and fsync, and records the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        self.calls: list[object] = []
        self._code = code
        monkeypatch.setattr(system_calls, "_FULL_SYNC", FULL_SYNC_COMMAND)
        monkeypatch.setattr(fcntl, "fcntl", self._fcntl)
        monkeypatch.setattr(os, "fsync", lambda fd: self.calls.append("fsync"))

    def _fcntl(self, fd: int, command: int) -> int:
        self.calls.append(command)
        if self._code:
            raise OSError(self._code, os.strerror(self._code))
        return 0


def test_full_sync_flushes_the_cache_of_the_disk(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch, 0)
    system_calls._sync_to_medium(fd)
    assert syncs.calls == [FULL_SYNC_COMMAND]


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_full_sync_falls_back_to_fsync_if_the_file_system_has_none(
    fd: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    syncs = Syncs(monkeypatch, code)
    system_calls._sync_to_medium(fd)
    assert syncs.calls == [FULL_SYNC_COMMAND, "fsync"]


def test_full_sync_error_of_the_disk_is_raised(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        system_calls._sync_to_medium(fd)
    assert syncs.calls == [FULL_SYNC_COMMAND]


@pytest.mark.parametrize("open_file_lock", [system_calls._OPEN_FILE_LOCK, None])
def test_locked_file_cannot_be_locked_again(
    fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_file_lock: int | None
) -> None:
    monkeypatch.setattr(system_calls, "_OPEN_FILE_LOCK", open_file_lock)
    system_calls.lock_file(fd)
    other = os.open(tmp_path / "file", os.O_RDWR)
    try:
        with pytest.raises(BlockingIOError):
            system_calls.lock_file(other)
    finally:
        os.close(other)
