"""`odradek serve` in a process of its own."""

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
    """Run `odradek serve` over the log directories, with its defaults; on a free port, unless `port`
    says which.

    `config` is set with --set; `arguments` are further ones for the command line; `descriptors` is
    the process's limit of them, soft and hard; `prefix` is a command that runs it. Returns once the port file is there, that is, once
    requests are answered.
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
