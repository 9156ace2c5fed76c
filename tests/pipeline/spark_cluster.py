"""Standalone Spark cluster on this machine: a master, and workers with their own directories."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 60.0
MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED = re.compile(r"Successfully registered with master")
EXECUTOR, PYTHON_WORKER = "CoarseGrainedExecutorBackend", "pyspark.daemon"


class SparkCluster:
    """Running cluster."""

    def __init__(self, master: str, workers: list[int]) -> None:
        self.master = master
        self._workers = workers

    @property
    def conf(self) -> dict[str, str]:
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
        }

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of `odradek pipeline` for this cluster."""
        conf = [word for pair in self.conf.items() for word in ("--conf", "=".join(pair))]
        return ["--master", self.master, *conf]

    def executors(self) -> list[int]:
        """Return the ids of the executor processes."""
        return [pid for pid in _below(self._workers) if EXECUTOR in _command(pid)]

    def python_workers(self) -> list[int]:
        return [pid for pid in _below(self.executors()) if PYTHON_WORKER in _command(pid)]


def environment() -> dict[str, str]:
    """Return the environment of all its processes and of drivers."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


@contextmanager
def spark_cluster(directory: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """Start a cluster; it stops with the context. `directory` has one log per process."""
    with ExitStack() as stack:
        master = stack.enter_context(_daemon(directory / "master", "master.Master", []))
        url = _await_log(master, directory / "master", MASTER)[1]
        started = []
        for number in range(workers):
            home = directory / f"worker-{number}"
            words = ["--cores", "1", "--memory", "1g", "--work-dir", str(home / "work"), url]
            started.append((stack.enter_context(_daemon(home, "worker.Worker", words)), home))
        for worker, home in started:
            _await_log(worker, home, REGISTERED)
        yield SparkCluster(url, [worker.pid for worker, _ in started])


@contextmanager
def _daemon(home: Path, name: str, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with its own process group; a worker's group includes its executors."""
    home.mkdir(parents=True)
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *words]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=home,
            env={**environment(), "SPARK_LOCAL_DIRS": str(home / "local")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group of a process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _await_log(
    process: subprocess.Popen[bytes], home: Path, what: re.Pattern[str]
) -> re.Match[str]:
    """Wait until the process's log matches `what`."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        text = (home / "log").read_text(errors="replace")
        if found := what.search(text):
            return found
        assert process.poll() is None, f"it ended: {text[-2000:]}"
        assert time.monotonic() < deadline, f"it does not come up: {text[-2000:]}"
        time.sleep(0.1)


def _below(parents: list[int]) -> list[int]:
    """Return the descendants of processes."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = list(parents)
    while waiting:
        mine = children.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return found


def _command(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
