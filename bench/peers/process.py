"""Process of a peer: starts it, waits for a Metadata response, measures, kills and restarts it."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from odradek.bench import machine
from odradek.bench.model import PeerFailed

STOP_S = 30.0
ASK_EVERY_S = 0.001
_LOG_CHARACTERS = 4000

# Metadata version 1 for no topics, correlation id 0, no client id: every broker serves it (also after KIP-896).
_METADATA = struct.pack(">hhihi", 3, 1, 0, -1, 0)
METADATA_REQUEST = struct.pack(">i", len(_METADATA)) + _METADATA


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def responds_to_metadata(address: tuple[str, int], timeout_s: float) -> bool:
    """Return whether the broker responds to a Metadata request on a new connection."""
    try:
        with socket.create_connection(address, timeout=timeout_s) as connection:
            connection.sendall(METADATA_REQUEST)
            return len(connection.recv(8)) > 0
    except OSError:
        return False


@dataclass(frozen=True)
class ProcessLaunch:
    """Command, address and start timeout of a peer.

    `address` may be a file to which the peer writes HOST:PORT, if it chooses its port.
    """

    command: Sequence[str]
    address: tuple[str, int] | Path
    directory: Path
    start_s: float = 60.0


class PeerProcess:
    """`model.ServerProcess` for a command."""

    def __init__(self, launch: ProcessLaunch) -> None:
        self._launch = launch
        self._log_file = launch.directory / "output.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.exec_started_at = 0.0
        self.responded_at = 0.0

    def start(self) -> None:
        """Start the process and wait for a Metadata response. On failure, kills it and raises PeerFailed."""
        with self._log_file.open("ab") as log:
            self.exec_started_at = time.monotonic()
            self._process = subprocess.Popen(
                self._launch.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._launch.directory,
                process_group=0,  # Ctrl-C goes only to this process, which stops the peer
            )
        try:
            self._wait_for_response(self._process)
        except BaseException:
            self.kill()
            raise

    def _wait_for_response(self, process: subprocess.Popen[bytes]) -> None:
        end = self.exec_started_at + self._launch.start_s
        while (address := self._address()) is None or not responds_to_metadata(
            address, timeout_s=1
        ):
            if process.poll() is not None:
                raise PeerFailed(f"ended with exit status {process.returncode}\n{self.log()}")
            if time.monotonic() > end:
                raise PeerFailed(f"no response after {self._launch.start_s:g} s\n{self.log()}")
            time.sleep(ASK_EVERY_S)
        self.responded_at = time.monotonic()

    def _address(self) -> tuple[str, int] | None:
        where = self._launch.address
        if isinstance(where, tuple):
            return where
        host, _, port = (where.read_text() if where.exists() else "").strip().rpartition(":")
        return (host, int(port)) if port else None

    @property
    def bootstrap(self) -> str:
        """Return HOST:PORT. The process must have been started."""
        address = self._address()
        assert address is not None, "start() comes first"
        return f"{address[0]}:{address[1]}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "start() comes first"
        return self._process.pid

    def cpu_seconds(self) -> float:
        return machine.tree_cpu_s(self.pid)

    def resident_bytes(self) -> int:
        return machine.tree_resident_bytes(self.pid)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        if self._process is not None and self._process.poll() is None:
            raise RuntimeError("it is still running")
        self.start()

    def log(self) -> str:
        return self._log_file.read_text(errors="replace")[-_LOG_CHARACTERS:]


@contextmanager
def running(launch: ProcessLaunch) -> Iterator[PeerProcess]:
    """Run the process inside the `with` block, and stop it at the end."""
    process = PeerProcess(launch)
    process.start()
    try:
        yield process
    finally:
        process.stop()
