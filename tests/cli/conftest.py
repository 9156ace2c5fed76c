"""The command line in this process, against a broker in another one.

The broker is `odradek serve`, or with ODRADEK_INTEROP_BROKER=kafka Apache Kafka. The output of the commands
must be the same with both.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from tests.cli.command_line import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka


@pytest.fixture(scope="session")
def cli_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    kafka = os.environ.get("ODRADEK_INTEROP_BROKER") == "kafka"
    start: Callable[..., BrokerProcess] = start_kafka if kafka else start_odradek
    with start(tmp_path_factory.mktemp("cli-broker"), log_dir_count=2) as broker:
        yield broker


@pytest.fixture
def offline(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> CommandLine:
    """The command line without a broker."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", "127.0.0.1:1")
    return CommandLine(monkeypatch, capsysbinary)


@pytest.fixture
def odradek(
    cli_broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> CommandLine:
    """The command line with a broker at ODRADEK_BOOTSTRAP."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", cli_broker.bootstrap)
    return CommandLine(monkeypatch, capsysbinary)


_numbers = itertools.count(1)


@pytest.fixture
def topic(odradek: CommandLine) -> str:
    """A new topic with three partitions."""
    name = f"topic-{next(_numbers)}"
    odradek("topics", "create", name, "--partitions", "3")
    return name
