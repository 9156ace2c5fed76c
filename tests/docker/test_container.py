"""The entry point and the health check, run as in the container but without a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from odradek.cli.main import main as odradek
from tests.support.broker_process import free_port
from tests.support.waiting import deadline

DOCKER = Path(__file__).resolve().parents[2] / "docker"
END_SECONDS = 30


def environment(directory: Path, **variables: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_LOG_DIRS": str(directory / "data"),
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{free_port()}",
        "ODRADEK_PORT_FILE": str(directory / "port"),
        "ODRADEK_LOG_LEVEL": "warn",
        **variables,
    }


@contextmanager
def container(environment: Mapping[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The entry point after the broker is ready; stopped as `docker stop` does."""
    process = subprocess.Popen(
        [sys.executable, str(DOCKER / "entrypoint.py"), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("odradek: node 1 listens on"), _why(process)
        yield process
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=END_SECONDS)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.wait()


def _why(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=END_SECONDS)[1]


def healthy(environment: Mapping[str, str]) -> bool:
    checked = subprocess.run(
        [sys.executable, str(DOCKER / "healthcheck.py")],
        env=environment,
        capture_output=True,
        check=False,
    )
    return checked.returncode == 0


def test_container_serves_is_healthy_and_stops_cleanly(tmp_path: Path) -> None:
    variables = environment(tmp_path, ODRADEK_TOPICS="orders:3", KAFKA_NUM_PARTITIONS="2")
    data, created = tmp_path / "data", {"orders-0", "orders-1", "orders-2", "audit-0", "audit-1"}
    assert not healthy(variables)
    with container(variables, "--topic", "audit"):
        assert healthy(variables)
        bootstrap = (tmp_path / "port").read_text().strip()
        assert bootstrap == variables["KAFKA_LISTENERS"].removeprefix("PLAINTEXT://")
        with deadline(END_SECONDS, "the partitions to open") as check:
            while not created <= {path.name for path in data.iterdir()}:
                check()
    assert (data / ".kafka_cleanshutdown").exists()
    assert "cluster.id=4L6g3nShT-eMCtK--X86sw\n" in (data / "meta.properties").read_text()
    assert not (data / "audit-2").exists()
    assert odradek(["dump", "--verify", str(data)]) == 0
    with container(variables):  # restart with the same volume
        assert healthy(variables)


def test_invalid_config_exits_with_code_2(tmp_path: Path) -> None:
    variables = environment(tmp_path, KAFKA_NUM_PARTITIONS="many")
    ran = subprocess.run(
        [sys.executable, str(DOCKER / "entrypoint.py")],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "num.partitions" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_other_command_runs_instead_of_broker(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(DOCKER / "entrypoint.py"), "dump", str(tmp_path / "nothing")],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "does not exist" in ran.stderr
