"""What the machine can do with no broker in between: every throughput is seen against one of these.

Two processes, as with a broker and its client: the other one (`_be_client`, forked) only feeds or drains
a loopback connection. What the broker's side does is the least that a broker could do: `recv_into`
one buffer and `write` it, `sendfile` a file that is in the page cache, answer a byte with a byte. No
protocol, no checks; in Python, whose part in calls of a megabyte is nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from odradek.bench.model import Limit, LimitResult, Metric

SIZE_BYTES = 1 << 30
CHUNK_BYTES = 1 << 20
PING_PONG_S = 2.0
PASSES = 3
"""How often a file is sent: once is too short to time."""

SPEED = Metric("mb_per_s", "MB/s", "higher")
ROUND_TRIP = Metric("round_trip_us", "µs", "lower")

Client = Callable[[socket.socket], None]


def _feed(connection: socket.socket) -> None:
    chunk = bytes(CHUNK_BYTES)
    for _ in range(SIZE_BYTES // CHUNK_BYTES):
        connection.sendall(chunk)


def _drain(connection: socket.socket) -> None:
    buffer = bytearray(CHUNK_BYTES)
    while connection.recv_into(buffer):
        pass


def _ping(connection: socket.socket) -> None:
    try:
        while True:
            connection.sendall(b"?")
            if not connection.recv(1):
                return
    except OSError:  # the other side has seen enough
        return


@contextmanager
def _connected(client: Client) -> Iterator[socket.socket]:
    """Our end of a loopback connection, at whose other end `client` runs in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        _send_unpaced(server)
        address = server.getsockname()
        child = os.fork()
        if child == 0:
            _be_client(address, client)
        ours, _ = server.accept()
    try:
        with ours:
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield ours
    finally:
        os.waitpid(child, 0)


def _send_unpaced(connection: socket.socket) -> None:
    """Of the ways in which the system sends the fastest, as a broker may choose (seams/tcp.py does): BBR, where it is
    the system's choice, lets loopback wait for timers."""
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _be_client(address: tuple[str, int], client: Client) -> None:
    try:
        with socket.socket() as connection:
            _send_unpaced(connection)
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client(connection)
    finally:
        os._exit(0)  # a fork of the harness: nothing of it may run on


@dataclass(frozen=True)
class _Clock:
    """Time and this process's CPU since it was made."""

    began: float
    cpu_began: float

    @classmethod
    def start(cls) -> _Clock:
        return cls(time.monotonic(), time.process_time())

    def passed(self) -> tuple[float, float]:
        """Seconds, and CPU seconds."""
        return time.monotonic() - self.began, time.process_time() - self.cpu_began

    def result(self, size_bytes: int) -> LimitResult:
        """MB/s of so many bytes, and CPU seconds a GB."""
        elapsed, cpu = self.passed()
        return LimitResult(size_bytes / elapsed / 1e6, {"cpu_s_per_gb": cpu / size_bytes * 1e9})


@dataclass(frozen=True)
class SocketToFile:
    """Receive and write, each chunk once."""

    name: str = "socket-to-file"
    title: str = "loopback socket to file: recv_into, write"
    metric: Metric = SPEED

    def measure(self, directory: Path) -> LimitResult:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        with _new_file(directory) as file, _connected(_feed) as connection:
            clock = _Clock.start()
            while count := connection.recv_into(buffer):
                os.write(file, buffer[:count])
            return clock.result(SIZE_BYTES)


@dataclass(frozen=True)
class Sendfile:
    """Send a file that is in the page cache."""

    name: str = "sendfile"
    title: str = "file to loopback socket: sendfile"
    metric: Metric = SPEED

    def measure(self, directory: Path) -> LimitResult:
        with _new_file(directory) as file, _connected(_drain) as connection:
            _write(file)
            clock = _Clock.start()
            for _ in range(PASSES):
                offset = 0
                while offset < SIZE_BYTES:
                    offset += os.sendfile(connection.fileno(), file, offset, CHUNK_BYTES)
            return clock.result(PASSES * SIZE_BYTES)


@dataclass(frozen=True)
class PingPong:
    """A byte there and a byte back, one at a time."""

    name: str = "ping-pong"
    title: str = "loopback round trips of one byte"
    metric: Metric = ROUND_TRIP

    def measure(self, directory: Path) -> LimitResult:
        rounds = 0
        with _connected(_ping) as connection:
            clock = _Clock.start()
            end = clock.began + PING_PONG_S
            while time.monotonic() < end:
                connection.recv(1)
                connection.sendall(b"!")
                rounds += 1
            elapsed, cpu = clock.passed()
        return LimitResult(
            elapsed / rounds * 1e6,
            {"requests_per_s": rounds / elapsed, "cpu_us": cpu / rounds * 1e6},
        )


@dataclass(frozen=True)
class SequentialWrite:
    """Write a file and have it on the disk."""

    name: str = "sequential-write"
    title: str = "file written from beginning to end, then fsync"
    metric: Metric = SPEED

    def measure(self, directory: Path) -> LimitResult:
        with _new_file(directory) as file:
            clock = _Clock.start()
            _write(file)
            cached = time.monotonic() - clock.began
            os.fsync(file)
            result = clock.result(SIZE_BYTES)
        cached_speed = SIZE_BYTES / cached / 1e6
        return LimitResult(result.value, {**result.details, "page_cache_mb_per_s": cached_speed})


@contextmanager
def _new_file(directory: Path) -> Iterator[int]:
    path = directory / "limit"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        yield file
    finally:
        os.close(file)
        path.unlink()


def _write(file: int) -> None:
    chunk = bytes(CHUNK_BYTES)
    for _ in range(SIZE_BYTES // CHUNK_BYTES):
        os.write(file, chunk)


LIMITS: Sequence[Limit] = (SocketToFile(), Sendfile(), PingPong(), SequentialWrite())
