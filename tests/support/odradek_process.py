"""A broker that `odradek serve` runs in its own process."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.broker_process import BrokerFailed, BrokerProcess, log_directories
from tests.support.waiting import deadline

START_SECONDS = 30


class OdradekProcess(BrokerProcess):
    kind = "odradek"


def start_odradek(
    directory: Path,
    *,
    config: Mapping[str, str] | None = None,
    log_dirs: Sequence[Path] | None = None,
    log_dir_count: int = 1,
    port: int = 0,
    arguments: Sequence[str] = (),
    descriptors: int | None = None,
    prefix: Sequence[str] = (),
) -> OdradekProcess:
    """Start `odradek serve` on the log directories and on `port`, by default a free one.

    `config` is passed with --set, `arguments` are more arguments, `descriptors` is the soft and hard limit of file
    descriptors, and `prefix` is a command that runs the broker. Returns when the port file exists: the broker serves.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log_dirs = list(log_dirs or log_directories(directory, log_dir_count))
    port_file = directory / "port"
    port_file.unlink(missing_ok=True)
    log_file = directory / "odradek.log"
    settings = [
        word for key, value in (config or {}).items() for word in ("--set", f"{key}={value}")
    ]

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [
                *prefix, sys.executable, "-m", "odradek.cli", "serve",
                "--listen", f"127.0.0.1:{port}",
                "--log-dirs", ",".join(map(str, log_dirs)),
                "--port-file", str(port_file),
                *settings,
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            preexec_fn=limit,
        )  # fmt: skip
    broker = OdradekProcess(process, "", directory, log_dirs, log_file)
    try:
        with deadline(START_SECONDS, "odradek serve to write its port file") as check:
            while not port_file.exists():
                if process.poll() is not None:
                    raise BrokerFailed(f"odradek serve ended at once\n{broker.log()}")
                check(0.005)
    except BaseException:
        broker.kill()
        raise
    broker.bootstrap = port_file.read_text().strip()
    return broker
