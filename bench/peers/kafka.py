"""Apache Kafka in KRaft mode with its defaults: a single node, and the nodes of a cluster."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from odradek.bench.model import Feature, PeerFailed, Target
from odradek.bench.peers.clusters import three_brokers, three_tiered_brokers
from odradek.bench.peers.jars import java_program, kafka_jars, kafka_version
from odradek.bench.peers.process import ProcessLaunch, free_port, running
from odradek.bench.peers.topics import AdminTopics
from odradek.broker.local_cluster.plan import ClusterPlan, NodePlan

# JVM options of kafka-server-start.sh and kafka-run-class.sh
JVM = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
IN_A_JVM = {"JVM": " ".join(JVM)}

# As in the example configuration of a single node
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
CLUSTER_ID = "b2RyYWRlay1iZW5jaC0wMQ"  # any 16 bytes


class Kafka:
    """Apache Kafka with jars from Maven."""

    name = "kafka"
    title = "Apache Kafka"
    default = True
    lacks: Mapping[Feature, str] = {Feature.DISKLESS: "has no diskless topics"}

    def obtain(self) -> None:
        java_program()
        kafka_jars()

    def version(self) -> str:
        return kafka_version()

    def settings(self) -> Mapping[str, str]:
        return {**SETTINGS, **IN_A_JVM}

    @contextmanager
    def start_cluster(self, directory: Path) -> Iterator[Target]:
        """Run three brokers, each in a JVM with the heap size of Kafka's scripts."""
        nodes = KafkaNodes(self._java())
        with three_brokers(self.name, nodes, directory, further=IN_A_JVM) as target:
            yield target

    @contextmanager
    def start_tiered(self, directory: Path) -> Iterator[Target]:
        """Run three brokers and a controller with Kafka's LocalTieredStorage."""
        nodes = KafkaNodes(self._java())
        with three_tiered_brokers(self.name, nodes, directory, further=IN_A_JVM) as target:
            yield target

    def _java(self) -> list[str]:
        return [java_program(), *JVM, "-cp", os.pathsep.join(kafka_jars())]

    @contextmanager
    def start(self, directory: Path) -> Iterator[Target]:
        """Run a node, on the data and the port of an earlier one in `directory` if it exists."""
        java, config = self._java(), directory / "server.properties"
        if not config.exists():
            _format(java, _write_config(config, directory))
        address = _address(config)
        launch = ProcessLaunch([*java, "kafka.Kafka", str(config)], address, directory)
        with running(launch) as process:
            yield Target(self.name, process.bootstrap, AdminTopics(process.bootstrap), process)


def _write_config(config: Path, directory: Path) -> Path:
    controller = f"127.0.0.1:{free_port()}"
    values = {
        **SETTINGS,
        "controller.quorum.bootstrap.servers": controller,
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},CONTROLLER://{controller}",
        "log.dirs": f"{directory / 'data'},{directory / 'data-2'}",
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return config


def _address(config: Path) -> tuple[str, int]:
    """Return the address of the client listener."""
    found = re.search(r"^listeners=PLAINTEXT://([^:]+):(\d+)", config.read_text(), re.MULTILINE)
    assert found is not None, "the config has no listener"
    return found[1], int(found[2])


def _format(java: list[str], config: Path) -> None:
    done = subprocess.run(
        [*java, "kafka.tools.StorageTool", "format",
         "-t", CLUSTER_ID, "-c", str(config), "--standalone"],
        cwd=config.parent,  # it also writes a log file to the working directory
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise PeerFailed(f"kafka-storage format failed:\n{done.stdout}")


class KafkaNodes:
    """Apache Kafka as the software of a cluster's nodes (`local_cluster.nodes.Software`).

    `java` is the command line of a JVM with Kafka's class path, up to the main class.
    """

    def __init__(self, java: Sequence[str]) -> None:
        self._java = list(java)

    async def format(self, plan: ClusterPlan) -> None:
        """Write the configs, and format the log directories with `kafka-storage format`."""
        for node in plan.nodes:
            _write_node_config(plan, node)
            quorum = ["--initial-controllers", plan.initial_controllers]
            done = await trio.run_process(
                [*self._java, "kafka.tools.StorageTool", "format", "-t", plan.cluster_id,
                 "-c", node.config_file, *(quorum if node.is_controller else [])],
                check=False, capture_stdout=True, stderr=subprocess.STDOUT,
            )  # fmt: skip
            if done.returncode != 0:
                raise RuntimeError(
                    f"kafka-storage format failed:\n{done.stdout.decode(errors='replace')}"
                )

    def command(self, node: NodePlan) -> Sequence[str]:
        return [*self._java, "kafka.Kafka", node.config_file]


def _write_node_config(plan: ClusterPlan, node: NodePlan) -> None:
    Path(node.directory).mkdir(parents=True, exist_ok=True)
    settings = plan.properties(node).items()
    Path(node.config_file).write_text("".join(f"{key}={text}\n" for key, text in settings))
