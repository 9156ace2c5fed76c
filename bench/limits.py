"""Physical limits: what this machine reaches without a broker, for comparison with the workloads.

Each limit uses two processes, like a broker and its client. The client is a fork that feeds or drains a loopback
connection (`_be_client`), or `odradek-load`, the client that measures brokers. The other process does the least that
a broker could do: `recv_into` a buffer and `write` it, `sendfile` a file from the page cache, or respond to a few
bytes with as many. It has no protocol and no checks. It is written in Python, whose cost in calls of 1 MiB is
negligible.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from odradek.bench.load import run_load
from odradek.bench.model import Limit, LimitResult, Metric, WorkloadFailed
from odradek.bench.workloads.latency import P999, outcome

SIZE_BYTES = 1 << 30
CHUNK_BYTES = 1 << 20
PING_PONG_S = 2.0
PING = (1).to_bytes(4, "big") + b"!"
"""Bytes of a request and of a response: the size, and one byte."""
RECORD_BYTES = 1024
INTERVAL_NS = 1_000_000
PACED_S = 10.0
COME_S = 30.0
PASSES = 3
"""Number of times that the file is sent, so that the measurement is long enough."""

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


def _echo(connection: socket.socket) -> None:
    buffer = bytearray(RECORD_BYTES)
    while _filled(connection, buffer):
        connection.sendall(buffer)


def _filled(connection: socket.socket, buffer: bytearray) -> bool:
    """Fill the buffer. Returns False if the connection was closed."""
    got = 0
    with memoryview(buffer) as view:
        while got < len(buffer):
            count = connection.recv_into(view[got:])
            if count == 0:
                return False
            got += count
    return True


@contextmanager
def _connected(client: Client) -> Iterator[socket.socket]:
    """Open a loopback connection to a fork that runs `client`; yields this process's end."""
    with _listening() as server:
        child = os.fork()
        if child == 0:
            _be_client(server.getsockname(), client)
        try:
            with _accepted(server) as accepted:
                yield accepted
        finally:
            os.waitpid(child, 0)


@contextmanager
def _listening() -> Iterator[socket.socket]:
    """Listen for one client; accepting raises OSError after `COME_S` seconds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        _send_unpaced(server)
        server.settimeout(COME_S)
        yield server


def _accepted(server: socket.socket) -> socket.socket:
    accepted, _ = server.accept()
    accepted.settimeout(None)
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return accepted


def _send_unpaced(connection: socket.socket) -> None:
    """Use Reno for congestion control, as seams/tcp.py does: BBR paces loopback with timers."""
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
        os._exit(0)  # a fork must not run the rest of the harness


@dataclass(frozen=True)
class _Clock:
    """Measures time and this process's CPU from its creation on."""

    began: float
    cpu_began: float

    @classmethod
    def start(cls) -> _Clock:
        return cls(time.monotonic(), time.process_time())

    def passed(self) -> tuple[float, float]:
        """Return the elapsed seconds and CPU seconds."""
        return time.monotonic() - self.began, time.process_time() - self.cpu_began

    def result(self, size_bytes: int) -> LimitResult:
        """Return MB/s and CPU seconds per GB for `size_bytes`."""
        elapsed, cpu = self.passed()
        return LimitResult(size_bytes / elapsed / 1e6, {"cpu_s_per_gb": cpu / size_bytes * 1e9})


@dataclass(frozen=True)
class SocketToFile:
    """Receives chunks from a socket and writes them to a file."""

    name: str = "socket-to-file"
    title: str = "loopback socket to file: recv_into, write"
    metric: Metric = SPEED

    def measure(self, directory: Path) -> LimitResult:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        with _new_file(directory) as file, _connected(_feed) as connection:
            clock = _Clock.start()
            received = 0
            while count := connection.recv_into(buffer):
                os.write(file, buffer[:count])
                received += count
            result = clock.result(SIZE_BYTES)
        if received < SIZE_BYTES:
            raise WorkloadFailed(f"{received} of {SIZE_BYTES} bytes were received")
        return result


@dataclass(frozen=True)
class Sendfile:
    """Sends a file from the page cache with sendfile."""

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


class _Responding(threading.Thread):
    """Responds to each request with a few bytes, in a thread whose CPU time is measured."""

    def __init__(self, server: socket.socket) -> None:
        super().__init__(name="responding")
        self._server = server
        self.responses = 0
        self.cpu_s = 0.0

    def run(self) -> None:
        # Ends without a client, or when the client disconnects
        with suppress(OSError), _accepted(self._server) as connection:
            while connection.recv(len(PING)):
                connection.sendall(PING)
                self.responses += 1
        self.cpu_s = time.thread_time()


@dataclass(frozen=True)
class PingPong:
    """Exchanges a few bytes, one request at a time, with the client that measures brokers."""

    name: str = "ping-pong"
    title: str = f"loopback round trips of {len(PING)} bytes"
    metric: Metric = ROUND_TRIP

    def measure(self, directory: Path) -> LimitResult:
        request = directory / "ping"
        request.write_bytes(PING)
        with _listening() as server:
            responding = _Responding(server)
            responding.start()
            host, port = server.getsockname()
            try:
                load = run_load(
                    [
                        "requests", "--bootstrap", f"{host}:{port}", "--request", str(request),
                        "--seconds", str(PING_PONG_S),
                        "--warm-up", str(PING_PONG_S / 10),
                    ]
                )  # fmt: skip
            finally:
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)  # ends a pending accept
                responding.join()
                request.unlink()
        return LimitResult(
            load.report["p50_us"],
            {
                "requests_per_s": load.report["requests"] / load.seconds,
                "cpu_us": responding.cpu_s / responding.responses * 1e6,
            },
        )


@dataclass(frozen=True)
class PacedPingPong:
    """Exchanges a record every millisecond; latency is measured from when it was due, as in `latency`.

    The high percentiles show how long the machine itself delays two processes.
    """

    name: str = "paced-ping-pong"
    title: str = (
        f"loopback round trips of {RECORD_BYTES:,} bytes, 1,000/s, from when each was due: p99.9"
    )
    metric: Metric = P999

    def measure(self, directory: Path) -> LimitResult:
        del directory
        record = bytearray(RECORD_BYTES)
        latencies_ns: list[int] = []
        latenesses_ns: list[int] = []
        with _connected(_echo) as connection:
            began = time.monotonic_ns()
            for number in range(1, int(PACED_S * 1e9) // INTERVAL_NS + 1):
                due = began + number * INTERVAL_NS
                time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
                latenesses_ns.append(time.monotonic_ns() - due)
                connection.sendall(record)
                if not _filled(connection, record):
                    raise WorkloadFailed("the connection was closed")
                latencies_ns.append(time.monotonic_ns() - due)
        found = dict(outcome(latencies_ns, latenesses_ns).values)
        return LimitResult(found.pop(self.metric.name), found)


@dataclass(frozen=True)
class SequentialWrite:
    """Writes a file and syncs it to the disk."""

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


LIMITS: Sequence[Limit] = (
    SocketToFile(),
    Sendfile(),
    PingPong(),
    PacedPingPong(),
    SequentialWrite(),
)
