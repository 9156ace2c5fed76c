"""A broker in its own process; `real_kafka` and `odradek_process` start the two kinds."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

FIRST_PORT = 10_000
_any = random.SystemRandom()  # other test processes select ports too


class BrokerFailed(AssertionError):
    """A broker did not start, or failed at its end. The text has the end of its log."""


class BrokerProcess:
    """A running broker. As a context manager, it shuts the broker down at the end.

    `directory` has its config and log. `log_dirs` are kept after the process ends, for a later broker.
    """

    kind = "?"

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        bootstrap: str,
        directory: Path,
        log_dirs: Sequence[Path],
        log_file: Path,
    ) -> None:
        self.process = process
        self.bootstrap = bootstrap
        self.directory = directory
        self.log_dirs = list(log_dirs)
        self.log_file = log_file

    def stop(self, timeout: float = 30) -> None:
        """Send SIGTERM and wait for a clean shutdown. Raises BrokerFailed after `timeout` seconds or another exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"not stopped {timeout:g} s after SIGTERM\n{self.log()}") from None
        if code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            raise BrokerFailed(f"ended with exit code {code}\n{self.log()}")

    def kill(self) -> None:
        """Send SIGKILL. Acknowledged records must survive it."""
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        """Return the end of the broker's stdout and stderr."""
        return self.log_file.read_text(errors="replace")[-6000:]

    def partition_directory(self, topic: str, partition: int = 0) -> Path:
        """Return the directory of the partition's log. AssertionError unless exactly one log directory has it."""
        name = f"{topic}-{partition}"
        found = [path / name for path in self.log_dirs if (path / name).is_dir()]
        if len(found) != 1:
            raise AssertionError(f"{name} is in {len(found)} of {self.log_dirs}")
        return found[0]

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()


def free_port() -> int:
    """Return a free port that the kernel does not assign to clients: it is below the range of ephemeral ports."""
    range_of_kernel = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    highest = int(range_of_kernel.split()[0]) - 1
    while True:
        port = _any.randint(min(FIRST_PORT, highest), highest)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def log_directories(directory: Path, count: int) -> list[Path]:
    """Return the paths of `count` log directories in `directory`."""
    return [directory / f"logs-{number}" for number in range(1, count + 1)]


def properties(config: Mapping[str, str]) -> str:
    """Return the config as the text of a .properties file."""
    return "".join(f"{key}={value}\n" for key, value in config.items())
