"""Tests of the entry point: help, usage, exit codes, and the modules that a command imports."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest
import trio

from odradek.cli.cluster_connection import with_cluster
from odradek.cli.main import COMMANDS, READER_GONE, Command, build_parser, main
from odradek.client.metadata import Cluster
from odradek.seams import Seams
from tests.cli.command_line import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import deadline

ODRADEK = [sys.executable, "-m", "odradek.cli"]


def test_version(offline: CommandLine) -> None:
    assert offline("--version").stdout.startswith(b"odradek 0.")


def test_no_command_prints_help(offline: CommandLine) -> None:
    ran = offline(code=2)
    assert ran.stdout == b""
    assert "odradek serve" in ran.stderr
    assert all(name in ran.stderr for name in COMMANDS)


def test_unknown_command_is_wrong_usage(offline: CommandLine) -> None:
    assert "invalid choice: 'frobnicate'" in offline("frobnicate", code=2).stderr


def test_options_cannot_be_abbreviated(offline: CommandLine) -> None:
    """`--port 9092` must not be parsed as `--port-file 9092`."""
    ran = offline("serve", "--port", "9092", code=2)
    assert "unrecognized arguments: --port 9092" in ran.stderr


def test_unknown_option_prints_usage_of_command(
    offline: CommandLine,
) -> None:
    ran = offline("topics", "create", "t", "--replicas", "3", code=2)
    assert ran.stderr.startswith("usage: odradek topics create ")
    assert "odradek topics create: error: unrecognized arguments: --replicas 3" in ran.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_help_has_examples(offline: CommandLine, command: str) -> None:
    ran = offline(command, "--help")
    assert "examples:" in ran.stdout.decode()
    assert f"odradek {command}" in ran.stdout.decode()


def leaf_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, or those of its subcommands."""
    nested = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not nested:
        yield parser
    for each in nested:
        for inner in dict.fromkeys(each.choices.values()):
            yield from leaf_parsers(inner)


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"produce"}))
def test_every_command_that_connects_to_a_cluster_has_json(command: str) -> None:
    """`produce` prints nothing."""
    module, _ = COMMANDS[command]
    parser = build_parser(command, cast(Command, import_module(module)), alone=True)
    for leaf in leaf_parsers(parser):
        if "--bootstrap" in leaf._option_string_actions:
            assert "--json" in leaf._option_string_actions, leaf.prog


@pytest.mark.parametrize("verb", ["status", "restart"])
def test_cluster_subcommand_help(offline: CommandLine, verb: str) -> None:
    _, output, *_ = offline("cluster", verb, "--help").stdout.decode().split("\n\n")
    assert "of a cluster" in output


def test_cluster_directory_may_precede_the_subcommand(offline: CommandLine, tmp_path: Path) -> None:
    for words in (["--data", str(tmp_path), "status"], ["status", "--data", str(tmp_path)]):
        assert str(tmp_path) in offline("cluster", *words, code=1).stderr


@pytest.mark.parametrize("command", ["topics", "groups", "configs", "acls", "log-dirs"])
def test_command_without_subcommand_is_wrong_usage(offline: CommandLine, command: str) -> None:
    assert f"odradek {command} --help" in offline(command, code=2).stderr


def test_connection_error_suggests_bootstrap(offline: CommandLine) -> None:
    ran = offline("topics", "list", code=1)
    assert ran.stdout == b""
    assert "cannot connect to 127.0.0.1:1" in ran.stderr
    assert "--bootstrap HOST:PORT or ODRADEK_BOOTSTRAP" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_invalid_bootstrap_is_wrong_usage(offline: CommandLine) -> None:
    for bad in ("localhost", "host:port", ":9092", "::1:9092", "h:99999"):
        assert "is not HOST:PORT" in offline("topics", "list", "-b", bad, code=2).stderr


def test_impossible_bootstrap_host_is_connection_error(offline: CommandLine) -> None:
    ran = offline("topics", "list", "-b", "a..b:9092", code=1)
    assert "cannot connect to a..b:9092" in ran.stderr


def test_argument_that_is_not_utf8_is_wrong_usage(odradek: CommandLine, topic: str) -> None:
    for words in (
        ("topics", "create", "\udcff"),
        ("groups", "describe", "\udcff"),
        ("produce", "-t", "\udcff"),
        ("consume", "-t", topic, "-e", "--group", "\udcff"),
    ):
        assert odradek(*words, stdin=b"x", code=2).stderr == "odradek: '\\udcff' is not UTF-8\n"


def test_number_out_of_range_is_wrong_usage(odradek: CommandLine, topic: str) -> None:
    for words in (
        ("topics", "create", "new", "--partitions", "99999999999"),
        ("topics", "create", "new", "--replication-factor", "70000"),
        ("topics", "trim", topic, "--before", "99999999999999999999"),
        ("consume", "-t", topic, "-e", "-o", "99999999999999999999"),
    ):
        ran = odradek(*words, code=2)
        assert ran.stderr.startswith("odradek: a number is too large, or too small: ")
    refused = odradek("configs", "describe", "broker", "\u00b2", code=1)
    assert "a broker's name is its id" in refused.stderr


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_closed_stdin_is_empty(cli_broker: BrokerProcess, topic: str, stream: int) -> None:
    for words in (["produce", "-t", topic], ["consume", "-t", topic, "-o", "beginning", "-e"]):
        done = subprocess.run(
            [*ODRADEK, *words, "-b", cli_broker.bootstrap],
            preexec_fn=lambda: os.close(stream),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_serve_imports_no_client() -> None:
    script = (
        "import sys\n"
        "from odradek.cli.main import main\n"
        "main(['serve', '--help'])\n"
        "print([m for m in sys.modules if m.startswith(('odradek.client', 'odradek.cli.'))])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = out.stdout.splitlines()[-1]
    assert "odradek.client" not in imported
    for module, _ in COMMANDS.values():
        assert (f"'{module}'" in imported) == (module == "odradek.cli.serve")


@pytest.mark.parametrize("wrong", [["--log-dirs", "/dev/null"], ["--set", "num.partitions=none"]])
def test_stale_port_file_is_removed(tmp_path: Path, wrong: list[str]) -> None:
    port_file = tmp_path / "port"
    port_file.write_text("127.0.0.1:1\n")
    words = ["serve", "--listen", "127.0.0.1:0", "--port-file", str(port_file), *wrong]
    done = subprocess.run([*ODRADEK, *words], capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode in (1, 2)
    assert not port_file.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_serve_stops_cleanly_on_signals_of_kafka(tmp_path: Path, number: signal.Signals) -> None:
    # the test process may ignore SIGHUP
    process = _serve(tmp_path, "env", "--default-signal")
    process.send_signal(number)
    assert process.wait(30) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_serve_ignores_sighup_under_nohup(tmp_path: Path) -> None:
    process = _serve(tmp_path, "nohup")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.terminate()
    assert process.wait(30) == 0


def _serve(path: Path, *before: str) -> subprocess.Popen[bytes]:
    """A running broker."""
    ports = path / "port"
    words = ["serve", "--listen", "127.0.0.1:0", "--log-dirs", str(path / "data")]
    process = subprocess.Popen(
        [*before, *ODRADEK, *words, "--port-file", str(ports)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    with deadline(30, "the port file") as check:
        while not ports.exists():
            check()
    return process


def test_closed_stdout_ends_quietly(cli_broker: BrokerProcess, topic: str) -> None:
    """Like `odradek consume … | head -1`; the command also ends if there are no further records."""
    main(["produce", "-b", cli_broker.bootstrap, "-t", topic, __file__])
    process = subprocess.Popen(
        [*ODRADEK, "consume", "-b", cli_broker.bootstrap, "-t", topic, "-o", "beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b'"""Tests of the entry point')
    process.stdout.close()
    assert process.wait(10) == READER_GONE
    assert process.stderr.read() == b""
    process.stderr.close()


def test_closed_stdout_at_start_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*ODRADEK, "--help"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode in (0, READER_GONE)  # argparse itself looks away


@pytest.mark.parametrize("words", [["consume"], ["consume", "--group", "interrupted"], ["produce"]])
def test_ctrl_c_is_quiet(
    cli_broker: BrokerProcess, topic: str, words: list[str], tmp_path: Path
) -> None:
    reading, writing = os.pipe()  # a stdin on which nothing comes
    if words[0] == "consume":
        main(["produce", "-b", cli_broker.bootstrap, "-t", topic, __file__])
        words = [*words, "-o", "beginning"]
    process = subprocess.Popen(
        [*ODRADEK, *words, "-b", cli_broker.bootstrap, "-t", topic],
        stdin=reading,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    if words[0] == "consume":
        assert process.stdout.readline().startswith(b'"""Tests of the entry point')
    else:
        os.write(writing, b"one\n")
        main(["consume", "-b", cli_broker.bootstrap, "-t", topic, "-o", "beginning", "-c", "1"])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    os.close(reading)
    os.close(writing)
    assert err == b""
    assert process.returncode == 130


def test_ctrl_c_interrupts_only_at_checkpoints(cli_broker: BrokerProcess) -> None:
    """A KeyboardInterrupt inside `start_soon` would leave a nursery that waits for a task that does not
    exist.
    """
    steps: list[str] = []

    async def step() -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("whole")

    async def action(_: Cluster, __: Seams) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(step)
            await trio.sleep_forever()

    args = argparse.Namespace(bootstrap=cli_broker.bootstrap, timeout=10.0)
    with pytest.raises(KeyboardInterrupt):
        with_cluster(args, action)
    assert steps == ["whole"]
