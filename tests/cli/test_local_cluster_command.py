"""Tests of `odradek cluster` in its own process, with one and with three brokers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from odradek.seams.files import Path as FilePath
from odradek.seams.real import real_seams
from tests.support.librdkafka_clients import create_topic, produce, read_all
from tests.support.waiting import deadline

DEADLINE_S = 60
SHORT_SESSIONS = (
    *("--set", "broker.session.timeout.ms=2000"),
    *("--set", "broker.heartbeat.interval.ms=300"),
)
"""Short session timeouts, so that a killed node is fenced and registered again quickly."""


class Command:
    """Runs `odradek cluster` and its subcommands for one cluster."""

    def __init__(self, path: Path) -> None:
        self.data = path / "data"
        self.port_file = path / "ports"
        self.output = path / "output"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        """Start the cluster and wait for its port file."""
        self.port_file.unlink(missing_ok=True)
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self._words("--port-file", str(self.port_file), *words),
                stdout=output,
                stderr=output,
            )
        with deadline(DEADLINE_S, "the port file") as check:
            while not self.port_file.exists():
                assert self.process.poll() is None, self.output.read_text()
                check()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._words(*words), capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )

    def status(self) -> dict[str, Any]:
        done = self.run("status", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["brokers"][0]
        return found

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(DEADLINE_S)

    def _words(self, *words: str) -> list[str]:
        what = list(words)
        where = ["--data", str(self.data)]
        return [sys.executable, "-m", "odradek.cli", "cluster", *what, *where]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def test_cluster_start_status_restart_and_restart_of_all(command: Command) -> None:
    command.start("--brokers", "1", "--listen", "127.0.0.1:0")
    address = command.port_file.read_text().strip()
    running = command.status()
    assert (running["id"], running["address"], running["state"]) == (1, address, "running")
    create_topic(address, "t")
    produce(address, "t", [b"kept"])

    os.kill(running["pid"], signal.SIGSTOP)
    assert command.status()["state"] == "silent"
    os.kill(running["pid"], signal.SIGCONT)
    assert command.status()["state"] == "running"

    os.kill(running["pid"], signal.SIGKILL)
    with deadline(DEADLINE_S, "the node's death") as check:
        while command.status()["state"] != "dead":
            check()
    assert command.status()["pid"] is None
    assert command.run("restart", "1").returncode == 0
    assert command.status()["state"] == "running"
    refused = command.run("restart", "2")
    assert (refused.returncode, refused.stderr) == (
        1,
        "odradek: node 2 does not exist; the nodes are 1\n",
    )
    assert command.run().stderr == f"odradek: the cluster in {command.data} is running already\n"

    assert command.stop() == 0
    assert command.status() == {"id": 1, "pid": None, "address": address, "state": "stopped"}
    assert command.run("restart", "1").returncode == 1
    lines = command.output.read_text().splitlines()
    assert f"odradek: 1 broker at {address}, data in {command.data}" in lines
    assert all(line.startswith(("node-1 | ", "odradek: ")) for line in lines)

    command.start()
    assert command.port_file.read_text().strip() == address
    assert [message.value() for message in read_all(address, "t", 1)] == [b"kept"]
    assert command.stop() == 0


def test_nodes_exit_when_supervisor_is_killed(command: Command) -> None:
    command.start("--brokers", "1", "--listen", "127.0.0.1:0")
    pid = command.status()["pid"]
    assert command.process is not None
    command.process.kill()
    command.process.wait()
    with deadline(DEADLINE_S, "the node's end") as check, suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            check()
    assert command.status()["state"] == "stopped"


def test_existing_cluster_rejects_other_options(command: Command) -> None:
    command.start("--brokers", "1", "--listen", "127.0.0.1:0")
    command.stop()
    other = command.run("--brokers", "3")
    assert other.returncode == 2
    assert "the cluster in" in other.stderr
    assert command.run("--set", "num.partitions=3").returncode == 2


def test_cluster_runs_after_its_directory_moved(command: Command) -> None:
    """The cluster runs after a move of its directory, and does not recreate the old one."""
    command.start("--brokers", "1", "--listen", "127.0.0.1:0")
    create_topic(command.port_file.read_text().strip(), "kept")
    command.stop()
    command.data = command.data.rename(command.data.with_name("moved"))
    command.start()
    address = command.port_file.read_text().strip()
    assert "kept" in AdminClient({"bootstrap.servers": address}).list_topics(timeout=30).topics
    assert command.stop() == 0
    assert not command.data.with_name("data").exists()


def test_start_rejects_directory_of_another_cluster(command: Command) -> None:
    command.start("--brokers", "1", "--listen", "127.0.0.1:0")
    command.stop()
    written = command.data / "node-1" / "data" / "meta.properties"
    text = re.sub("cluster.id=.*", "cluster.id=AAAAAAAAAAAAAAAAAAAAAA", written.read_text())
    written.write_text(text)
    refused = command.run()
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"odradek: Invalid cluster.id in: {written}")
    assert written.read_text() == text


def test_set_option_that_is_not_utf8_is_wrong_usage(command: Command) -> None:
    refused = command.run("--set", "a=\udcff")
    assert refused.returncode == 2
    assert "--set: 'a=\\udcff' is not UTF-8" in refused.stderr


def test_invalid_config_creates_no_cluster(command: Command) -> None:
    """The next attempt with a valid value succeeds, because no plan was stored."""
    wrong = command.run("--brokers", "1", "--set", "num.partitions=x")
    assert (wrong.returncode, "num.partitions" in wrong.stderr) == (2, True), wrong
    command.start("--brokers", "1", "--set", "num.partitions=3")
    assert command.stop() == 0


def test_status_times_out_for_suspended_supervisor(command: Command) -> None:
    """The supervisor is suspended, or another process has its port and does not respond."""
    command.start("--brokers", "1", "--listen", "127.0.0.1:0")
    assert command.process is not None
    command.process.send_signal(signal.SIGSTOP)
    shown = command.run("status")
    command.process.send_signal(signal.SIGCONT)
    assert shown.returncode == 1
    assert "does not respond" in shown.stderr
    assert command.status()["state"] == "running"
    assert command.stop() == 0


def test_stale_port_file_is_removed(command: Command) -> None:
    command.port_file.write_text("127.0.0.1:1\n")
    words = ("--port-file", str(command.port_file), "--listen", "127.0.0.1:0")
    failed = command.run("--brokers", "1", "--set", "num.partitions=abc", *words)
    assert failed.returncode == 2
    assert not command.port_file.exists()


def test_start_waits_for_nodes_of_previous_run(command: Command) -> None:
    command.start("--brokers", "1", "--listen", "127.0.0.1:0")
    command.stop()
    lock = real_seams().files.lock(FilePath(f"{command.data}/node-1/data/.lock"))
    with command.output.open("rb") as output:
        starting = threading.Thread(target=command.start)
        starting.start()
        with deadline(DEADLINE_S, "word of the last run") as check:
            while b"node 1 of the previous run is still shutting down" not in output.read():
                output.seek(0)
                check()
    lock.release()
    starting.join(DEADLINE_S)
    assert command.status()["state"] == "running"
    assert command.stop() == 0


@pytest.mark.slow
def test_node_exit_during_start_stops_cluster(command: Command) -> None:
    command.start("--brokers", "2", "--listen", "127.0.0.1:0", *SHORT_SESSIONS)
    *_, second = command.port_file.read_text().split()
    command.stop()
    host, _, port = second.rpartition(":")
    with socket.create_server((host, int(port))):
        failed = command.run()
    assert failed.returncode == 1
    assert "node 2 exited with code 1" in failed.stderr


def test_failed_restart_keeps_other_nodes_running(command: Command) -> None:
    command.start("--brokers", "1", "--listen", "127.0.0.1:0")
    os.kill(command.status()["pid"], signal.SIGKILL)
    node = command.data / "node-1"
    elsewhere = node.rename(command.data / "elsewhere")
    refused = command.run("restart", "1")
    assert refused.returncode == 1
    assert refused.stderr.startswith("odradek: node 1 cannot be started: ")
    assert str(node) in refused.stderr
    elsewhere.rename(node)
    assert command.run("restart", "1").returncode == 0
    assert command.stop() == 0


@pytest.mark.parametrize(
    ("listen", "code", "why"),
    [
        ("127.0.0.1:65535", 2, "would need port 65536"),
        ("192.0.2.1:0", 1, "can't listen on 192.0.2.1"),
        ("192.0.2.1:9092", 1, "can't listen on 192.0.2.1"),
    ],
)
def test_serve_reports_unavailable_address(
    command: Command, listen: str, code: int, why: str
) -> None:
    refused = command.run("--listen", listen)
    assert (refused.returncode, refused.stdout) == (code, "")
    assert why in refused.stderr
    assert "Traceback" not in refused.stderr


def test_status_without_cluster_fails(command: Command) -> None:
    shown = command.run("status")
    assert shown.returncode == 1
    assert f"no cluster in {command.data}" in shown.stderr


def test_three_brokers_survive_a_killed_one(command: Command) -> None:
    command.start("--brokers", "3", "--listen", "127.0.0.1:0", *SHORT_SESSIONS)
    addresses = command.port_file.read_text().split()
    rows = json.loads(command.run("status", "--json").stdout)["brokers"]
    assert [(row["id"], row["address"], row["state"]) for row in rows] == [
        (node, address, "running") for node, address in enumerate(addresses, start=1)
    ]
    assert len({row["pid"] for row in rows}) == 3
    os.kill(rows[0]["pid"], signal.SIGKILL)
    create_topic(addresses[1], "made-by-two")
    assert command.run("restart", "1").returncode == 0
    assert brokers_seen_by(addresses[0]) == [1, 2, 3]
    assert command.stop() == 0


def brokers_seen_by(address: str) -> list[int]:
    admin = AdminClient({"bootstrap.servers": address})
    return sorted(admin.list_topics(timeout=DEADLINE_S).brokers)


def test_dedicated_controllers_are_listed_separately(command: Command) -> None:
    command.start("--brokers", "1", "--controllers", "1", "--listen", "127.0.0.1:0")
    found = json.loads(command.run("status", "--json").stdout)
    assert [(row["id"], row["state"]) for row in found["brokers"]] == [(1, "running")]
    assert [(row["id"], row["state"]) for row in found["controllers"]] == [(2, "running")]
    os.kill(found["controllers"][0]["pid"], signal.SIGKILL)
    assert command.run("restart", "2").returncode == 0
    create_topic(command.port_file.read_text().strip(), "made-after")
    assert command.stop() == 0
