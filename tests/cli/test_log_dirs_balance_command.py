"""Tests of `odradek log-dirs balance`: the plan and its execution."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odradek.cli.log_dirs_balance import balance_of
from odradek.cli.main import INTERRUPTED
from odradek.cli.move_throttles import MOVE_RATE
from odradek.client.log_dir_admin import LogDirectory, Replica, ReplicaInDirectory
from odradek.protocol.errors import ErrorCode
from tests.cli.command_line import CommandLine
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.librdkafka_clients import produce, read_all
from tests.support.odradek_process import start_odradek
from tests.support.waiting import deadline

NONE, OFFLINE = ErrorCode.none, ErrorCode.kafka_storage_error


def replicas(**sizes: int) -> tuple[ReplicaInDirectory, ...]:
    """Replicas by topic; a name with `to_` is a future replica."""
    return tuple(
        ReplicaInDirectory(name.removeprefix("to_"), 0, size, 0, name.startswith("to_"))
        for name, size in sizes.items()
    )


def directory(
    path: str, *, error: ErrorCode = NONE, cordoned: bool = False, **sizes: int
) -> LogDirectory:
    return LogDirectory(1, path, error, 10**12, 10**12, replicas(**sizes), cordoned)


def moves(*found: LogDirectory) -> dict[str, tuple[str, str, int]]:
    balance = balance_of(found, tolerance_percent=5)
    return {replica.topic: each for replica, each in balance.moves.items()}


def test_plan_moves_largest_fitting_replica() -> None:
    assert moves(directory("/a", t=60, u=30, v=30), directory("/b")) == {"t": ("/a", "/b", 60)}


def test_balance_counts_moving_replica_at_its_target() -> None:
    """A second run includes the running moves, and plans the missing ones."""
    found = [directory("/a", t=60, u=30, v=30), directory("/b", to_t=7)]
    balance = balance_of(found, tolerance_percent=5)
    assert balance.moves == {}
    assert balance.in_progress == {Replica(1, "t", 0): ("/a", "/b", 60)}
    assert [balance.after(path) for path in ("/a", "/b")] == [(60, 2), (60, 1)]
    assert moves(directory("/a", t=60, u=30, v=30), directory("/b", to_u=7)) == {
        "v": ("/a", "/b", 30)
    }


def test_balance_excludes_offline_and_cordoned_directories() -> None:
    full = directory("/a", t=60, u=60)
    assert moves(full, directory("/b", error=OFFLINE)) == {}
    assert moves(full, directory("/b", cordoned=True)) == {}
    assert moves(full, directory("/b", error=OFFLINE), directory("/c")) == {
        "t": ("/a", "/c", 60)
    } or moves(full, directory("/b", error=OFFLINE), directory("/c")) == {"u": ("/a", "/c", 60)}


def test_plan_with_one_directory_is_empty() -> None:
    assert moves(directory("/a", t=60)) == {}
    assert moves() == {}


def test_balance_plan_json_is_reassignment_file(odradek: CommandLine, topic: str) -> None:
    planned = odradek("log-dirs", "balance", "--plan", "--json").json
    assert planned["version"] == 1
    shown = odradek("log-dirs", "balance").stdout.decode()
    assert shown.splitlines()[0].split() == [
        "BROKER", "DIRECTORY", "SIZE", "REPLICAS", "SIZE", "AFTER", "REPLICAS", "AFTER"
    ]  # fmt: skip
    assert ("nothing to do" in shown) == (planned["partitions"] == [])


def test_wrong_usage(offline: CommandLine) -> None:
    balance = ["log-dirs", "balance"]
    assert "not allowed with" in offline(*balance, "--plan", "--execute", code=2).stderr
    for tolerance in ("101", "-3", "abc"):
        assert "is not a percentage" in offline(*balance, "--tolerance", tolerance, code=2).stderr
    for rate in ("0", "1e6", "9" * 20):
        assert "is not a number of bytes" in offline(*balance, "--throttle", rate, code=2).stderr


@contextmanager
def balancing(broker: BrokerProcess, *, throttle: int) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process, and continue after its first progress line."""
    command = [sys.executable, "-m", "odradek.cli", "log-dirs", "balance", "--execute"]
    with subprocess.Popen(
        [*command, "-b", broker.bootstrap, "--throttle", str(throttle)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = ""
        while "replicas, " not in line or " of " not in line:
            line = process.stdout.readline()
            assert line, process.communicate()
        yield process


def put_all_into_one(
    odradek: CommandLine, broker: BrokerProcess, topic: str, tmp_path: Path, *where: str
) -> None:
    """Move all three partitions of the topic to the first directory."""
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "replicas": [1],
            "log_dirs": [str(broker.log_dirs[0])],
        }
        for partition in range(3)
    ]
    file = tmp_path / "all-in-one.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    odradek("reassign", "--execute", "--file", str(file), *where)
    verify = ["reassign", "--verify", "--file", str(file), *where]
    with deadline(30, "all to be in one") as check:
        while b"still in progress" in odradek(*verify).stdout:
            check()


def test_balance_executes_moves(
    odradek: CommandLine, cli_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """All replicas start in one directory; after the balance, the plan is empty."""
    for partition in ("0", "1", "2"):
        odradek("produce", "-t", topic, "-p", partition, stdin=b"x" * 60_000)
    put_all_into_one(odradek, cli_broker, topic, tmp_path)
    planned = odradek("log-dirs", "balance", "--json").json["partitions"]
    assert planned
    done = odradek("log-dirs", "balance", "--execute", "--throttle", "50000000")
    assert "(100 %)" in done.lines[-1]
    assert odradek("log-dirs", "balance", "--json").json["partitions"] == []
    assert "nothing to do" in odradek("log-dirs", "balance", "--execute").stdout.decode()
    configs = odradek("configs", "describe", "broker", "1", "--json").json
    assert MOVE_RATE not in {row["name"] for row in configs}  # the throttle was removed
    # As if an execution had been interrupted
    odradek("configs", "alter", "broker", "1", "--set", f"{MOVE_RATE}=70000000")
    assert (
        "limits moves between log directories to 70000000 bytes/s"
        in odradek("log-dirs", "balance", "--execute").stderr
    )
    assert odradek("log-dirs", "balance", "--execute", "--throttle", "1000").stderr == ""
    configs = odradek("configs", "describe", "broker", "1", "--json").json
    assert MOVE_RATE not in {row["name"] for row in configs}
    for partition in ("0", "1", "2"):
        shown = odradek("consume", "-t", topic, "-p", partition, "-o", "beginning", "-e")
        assert shown.stdout.strip() == b"x" * 60_000


def test_interrupted_balance_continues_moves(
    odradek: CommandLine, cli_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    values = [b"%05d" % number + b"x" * 60_000 for number in range(50)]
    for partition in (0, 1, 2):
        produce(cli_broker.bootstrap, topic, values, partition=partition)
    put_all_into_one(odradek, cli_broker, topic, tmp_path)
    with balancing(cli_broker, throttle=200_000) as first:
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=30)
    assert first.returncode == INTERRUPTED
    assert "The moves continue. `odradek log-dirs balance --execute` waits for them" in errors
    assert odradek("log-dirs", "balance", "--json").json["partitions"] == []
    again = odradek("log-dirs", "balance", "--execute", "--throttle", "500000000")
    assert again.lines[1].startswith("already in progress: ")
    assert "(100 %)" in again.lines[-1]
    configs = odradek("configs", "describe", "broker", "1", "--json").json
    assert MOVE_RATE not in {row["name"] for row in configs}
    for partition in (0, 1, 2):
        read = read_all(cli_broker.bootstrap, topic, len(values), partitions=[partition])
        assert [message.value() for message in read] == values


def test_consume_survives_broker_restart(odradek: CommandLine, tmp_path: Path) -> None:
    """J-13: a restarted broker continues the moves, and the command waits for them."""
    values = [b"%05d" % number + b"x" * 60_000 for number in range(50)]
    port = free_port()
    broker = start_odradek(tmp_path / "broker", log_dir_count=2, port=port)
    where = ["-b", broker.bootstrap]
    odradek("topics", "create", "t", "--partitions", "3", *where)
    for partition in (0, 1, 2):
        produce(broker.bootstrap, "t", values, partition=partition)
    put_all_into_one(odradek, broker, "t", tmp_path, *where)
    with balancing(broker, throttle=200_000) as balance:
        broker.kill()
        with start_odradek(tmp_path / "broker", log_dir_count=2, port=port) as again:
            fast = ["--set", f"{MOVE_RATE}=500000000"]
            odradek("configs", "alter", "broker", "1", *fast, *where)
            out, errors = balance.communicate(timeout=60)
            assert balance.returncode == 0, errors
            assert "(100 %)" in out
            assert odradek("log-dirs", "balance", "--json", *where).json["partitions"] == []
            for partition in (0, 1, 2):
                read = read_all(again.bootstrap, "t", len(values), partitions=[partition])
                assert [message.value() for message in read] == values
