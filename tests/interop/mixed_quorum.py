"""Controllers of Apache Kafka and of Odradek in one quorum, each in its own process."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from odradek.client.connection import open_connection
from odradek.client.errors import ClientError
from odradek.protocol import apis
from odradek.protocol.records.batch import batches
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from tests.support.broker_process import free_port, properties
from tests.support.kafka_dist import kafka_dist
from tests.support.kafka_tools import ToolRun, run_tool
from tests.support.waiting import deadline

LOG = "__cluster_metadata-0"
STOP_SECONDS = 30


class Controller:
    """A node that is only a controller. `kind` is "kafka" or "odradek"."""

    def __init__(self, kind: str, node_id: int, directory: Path) -> None:
        self.kind = kind
        self.id = node_id
        self.address = Address("127.0.0.1", free_port())
        self.directory = directory
        self.config = directory / "server.properties"
        self.data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def configure(self, quorum: Mapping[str, str]) -> None:
        self.directory.mkdir(parents=True)
        settings = {
            "process.roles": "controller",
            "node.id": str(self.id),
            "listeners": f"CONTROLLER://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data),
            **quorum,
        }
        self.config.write_text(properties(settings))

    def format(self, cluster_id: str, *words: str) -> None:
        words = ("format", f"--cluster-id={cluster_id}", "-c", str(self.config), *words)
        if self.kind == "kafka":
            run_tool("storage", *words)
        else:
            command = [sys.executable, "-m", "odradek.cli", "storage", *words]
            subprocess.run(command, check=True, capture_output=True)

    def start(self) -> None:
        if self.kind == "kafka":
            command = kafka_dist().command("kafka.Kafka", str(self.config))
        else:
            command = [sys.executable, "-m", "odradek.cli", "serve"]
            command += ["--config", str(self.config)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM; a leader resigns. A single Apache Kafka controller stops after 5 s."""
        if self.runs and self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(STOP_SECONDS)

    def log(self) -> str:
        return f"{self.kind} {self.id}\n" + (self.directory / "log").read_text()[-3000:]

    def batches(self) -> dict[int, bytes]:
        """Batches of its metadata log, by base offset."""
        found = {}
        for path in sorted((self.data / LOG).glob("*.log")):
            data = path.read_bytes()
            position = 0
            for batch in batches(data):
                found[batch.base_offset] = data[position : position + batch.size]
                position += batch.size
        return found

    def snapshots(self) -> list[Path]:
        """Snapshots that were written or fetched, without the one that formatting wrote."""
        found = sorted((self.data / LOG).glob("*.checkpoint"))
        return [path for path in found if not path.name.startswith("0" * 20)]


class Quorum:
    """Controllers with ids from 1, in the order of `kinds`."""

    def __init__(
        self, directory: Path, kinds: Sequence[str], config: Mapping[str, str], *, static: bool
    ) -> None:
        self.cluster_id = _random_id()
        self.nodes: list[Controller] = []
        self._directory = directory
        for kind in kinds:
            self._make(kind)
        if static:
            voters = ",".join(f"{node.id}@{node.address}" for node in self.nodes)
            self._known = {"controller.quorum.voters": voters}
        else:
            servers = ",".join(str(node.address) for node in self.nodes)
            self._known = {"controller.quorum.bootstrap.servers": servers}
        for node in self.nodes:
            node.configure({**self._known, **config})

    def _make(self, kind: str) -> Controller:
        number = len(self.nodes) + 1
        node = Controller(kind, number, self._directory / f"{kind}-{number}")
        self.nodes.append(node)
        return node

    def add(self, kind: str, config: Mapping[str, str]) -> Controller:
        """Add a controller that is not in the quorum yet."""
        node = self._make(kind)
        node.configure({**self._known, **config})
        return node

    def node(self, node_id: int) -> Controller:
        return self.nodes[node_id - 1]

    def describe(self) -> Any:
        """DescribeQuorum response of the leader; None if there is no leader or it cannot be reached."""
        for node in self.nodes:
            if node.runs:
                partition = trio.run(_describe, node.address)
                if partition is not None and partition.error_code == 0:
                    return partition
        return None

    def wait_for(self, what: str, condition: Any, seconds: float = 40) -> Any:
        """Wait until `condition` is true of the DescribeQuorum response; returns the response."""
        with deadline(seconds, what) as check:
            while True:
                described = self.describe()
                if described is not None and condition(described):
                    return described
                try:
                    check(0.1)
                except AssertionError as error:
                    logs = "\n".join(node.log() for node in self.nodes)
                    raise AssertionError(f"{error}; now it is {described}\n{logs}") from None

    def tool(self, asked: Controller, *words: str) -> ToolRun:
        """Run kafka-metadata-quorum with one of the controllers as bootstrap controller."""
        return run_tool("metadata-quorum", "--bootstrap-controller", str(asked.address), *words)


@contextmanager
def quorum(
    directory: Path,
    kinds: Sequence[str],
    config: Mapping[str, str] | None = None,
    *,
    static: bool = False,
) -> Iterator[Quorum]:
    made = Quorum(directory, kinds, config or {}, static=static)
    try:
        yield made
    finally:
        for node in made.nodes:
            if node.runs:
                node.kill()


def initial_controllers(nodes: Sequence[Controller]) -> tuple[str, str]:
    """Format arguments that make all of these nodes initial voters."""
    voters = [f"{node.id}@{node.address}:{_random_id()}" for node in nodes]
    return "--initial-controllers", ",".join(voters)


def _random_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


async def _describe(address: Address) -> Any:
    asked = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{}]}]}
    async with trio.open_nursery() as nursery:
        try:
            connection = await open_connection(TcpNetwork(), address, nursery, timeout_s=2)
            response = await connection.request(apis.DESCRIBE_QUORUM, asked, timeout_s=2)
        except ClientError:
            return None
        finally:
            nursery.cancel_scope.cancel()
    return response.topics[0].partitions[0]
