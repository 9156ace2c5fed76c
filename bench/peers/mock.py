"""librdkafka's mock cluster in a separate process.

It keeps only the newest few MB of each partition, so it shows the limit of a fake that does not store records.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from odradek.bench.model import Feature, PeerFailed, PeerUnavailable, Target
from odradek.bench.peers.process import ProcessLaunch, running


class MockTopics:
    """`model.Topics` over the control socket of `mock_host.py`, because the mock has no CreateTopics API."""

    def __init__(self, control: Path) -> None:
        self._control = control

    def create(self, name: str, partitions: int) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self._control))
            connection.sendall(f"{name} {partitions}\n".encode())
            if (response := connection.recv(1024).decode().strip()) != "ok":
                raise PeerFailed(f"librdkafka's mock: {response}")

    def delete(self, name: str) -> None:
        """Do nothing: the mock cannot delete topics, and they are small."""


class LibrdkafkaMock:
    """The mock cluster of the librdkafka that is part of confluent-kafka."""

    name = "librdkafka-mock"
    title = "librdkafka's mock cluster"
    default = True
    lacks: Mapping[Feature, str] = {
        Feature.CLUSTER: "all its brokers run in one process",
        Feature.TIERED: "keeps the newest few MB of each partition",
        Feature.DISKLESS: "has no diskless topics",
        Feature.RESTART: "keeps the newest few MB of each partition in memory",
        Feature.CREATE_TOPICS: "has no CreateTopics API",
        Feature.GROUPS: "closes the connection after the newest JoinGroup version that it advertises",
        Feature.TWO_DIRECTORIES: "has no log directories",
        Feature.COMPACTION: "keeps the newest few MB of each partition",
        Feature.MANY_CONNECTIONS: "accepts six connections per second",
        Feature.KEEPS_RECORDS: "keeps the newest few MB of each partition",
    }

    def obtain(self) -> None:
        if importlib.util.find_spec("confluent_kafka") is None:
            raise PeerUnavailable("needs confluent-kafka: pip install 'odradek[bench]'")

    def version(self) -> str:
        return importlib.metadata.version("confluent-kafka")

    def settings(self) -> Mapping[str, str]:
        return {}

    @contextmanager
    def start(self, directory: Path) -> Iterator[Target]:
        address, control = directory / "address", directory / "control"
        command = [
            sys.executable,
            "-m",
            "odradek.bench.peers.mock_host",
            str(address),
            str(control),
        ]
        with running(ProcessLaunch(command, address, directory)) as process:
            yield Target(self.name, process.bootstrap, MockTopics(control), process)
