"""A cluster of an Odradek broker and an Apache Kafka broker; one of them is also the controller."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import BrokerProcess, free_port, properties
from tests.support.odradek_process import OdradekProcess, start_odradek
from tests.support.real_kafka import RealKafka, start_kafka
from tests.support.waiting import deadline

CLUSTER_ID = "MIXEDmixedMIXEDmixedMI"
ODRADEK, KAFKA = 1, 2
SETTINGS: Mapping[str, str] = {
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "6",
    "group.initial.rebalance.delay.ms": "0",
}


@dataclass
class MixedBrokers:
    """Node 1 is Odradek, node 2 is Apache Kafka; both are registered."""

    odradek: OdradekProcess
    kafka: RealKafka
    start_kafka_node: Callable[[], RealKafka]

    def kill_kafka(self) -> None:
        self.kafka.kill()

    def restart_kafka(self) -> None:
        """Restart Apache Kafka on the same directories after `kill_kafka`."""
        self.kafka = self.start_kafka_node()

    def create_topic(self, name: str, leaders: list[int], *, replicas: int = 1) -> None:
        """Create a topic with a partition for each of the given leaders; with 2 replicas, the other node
        follows.
        """
        admin = AdminClient({"bootstrap.servers": self.odradek.bootstrap})
        assignment = [[each, ODRADEK + KAFKA - each][:replicas] for each in leaders]
        topic = NewTopic(name, num_partitions=len(leaders), replica_assignment=assignment)
        admin.create_topics([topic])[name].result(30)

    def leaders(self, topic: str) -> list[int]:
        """Leader of each partition; waits until both brokers report the same leaders."""
        with deadline(20, "both brokers to report the same leaders") as check:
            while True:
                metadata = [
                    AdminClient({"bootstrap.servers": each.bootstrap}).list_topics(topic, 10)
                    for each in (self.odradek, self.kafka)
                ]
                found = [
                    [row.leader for _, row in sorted(each.topics[topic].partitions.items())]
                    for each in metadata
                ]
                if found[0] == found[1] != []:
                    return found[0]
                check()


@contextmanager
def mixed_brokers(
    directory: Path,
    odradek_config: Mapping[str, str] = {},
    kafka_config: Mapping[str, str] = {},
    *,
    controller: int = ODRADEK,
    directories: int = 1,
) -> Iterator[MixedBrokers]:
    """Format both nodes with `odradek storage` and start them; waits until both are registered. Each node
    has `directories` log directories.
    """
    listener = f"127.0.0.1:{free_port()}"
    ports = {ODRADEK: free_port(), KAFKA: free_port()}
    log_dirs = {
        node: [directory / f"data-{node}-{number}" for number in range(1, directories + 1)]
        for node in ports
    }
    settings: dict[int, dict[str, str]] = {}
    for node, more in ((ODRADEK, odradek_config), (KAFKA, kafka_config)):
        own = f"PLAINTEXT://127.0.0.1:{ports[node]}"
        controls = node == controller
        settings[node] = {
            **SETTINGS,
            "controller.quorum.bootstrap.servers": listener,
            "process.roles": "broker,controller" if controls else "broker",
            "node.id": str(node),
            "listeners": f"{own},CONTROLLER://{listener}" if controls else own,
            "log.dirs": ",".join(map(str, log_dirs[node])),
            **more,
        }
        flags = ("--standalone",) if controls else ()
        _format(directory / f"{node}.properties", settings[node], *flags)

    started: list[BrokerProcess] = []

    def start_odradek_node() -> OdradekProcess:
        process = start_odradek(
            directory / "odradek", log_dirs=log_dirs[ODRADEK], port=ports[ODRADEK],
            config=settings[ODRADEK], arguments=("--config", str(directory / f"{ODRADEK}.properties")),
        )  # fmt: skip
        started.append(process)
        return process

    def start_kafka_node() -> RealKafka:
        process = start_kafka(
            directory / "kafka", log_dirs=log_dirs[KAFKA], port=ports[KAFKA],
            config=settings[KAFKA], formatted=True,
        )  # fmt: skip
        started.append(process)
        return process

    try:
        if controller == ODRADEK:
            odradek, kafka = start_odradek_node(), start_kafka_node()
        else:
            kafka, odradek = start_kafka_node(), start_odradek_node()
        mixed = MixedBrokers(odradek, kafka, start_kafka_node)
        wait_for_both(mixed)
        yield mixed
        # The controller is stopped last, because the other broker needs it for its controlled shutdown
        leaving = [mixed.odradek, mixed.kafka]
        for each in reversed(leaving) if controller == ODRADEK else leaving:
            each.stop()
    except BaseException:
        for each in started:
            each.kill()
        raise


def _format(file: Path, settings: Mapping[str, str], *flags: str) -> None:
    file.write_text(properties(settings))
    command = [sys.executable, "-m", "odradek.cli", "storage", "format", *flags]
    subprocess.run(
        [*command, "-t", CLUSTER_ID, "-c", str(file)], check=True, stdout=subprocess.DEVNULL
    )


def wait_for_both(mixed: MixedBrokers) -> None:
    """Wait until both brokers are registered and unfenced."""
    with deadline(60, "both brokers to be registered") as check:
        while True:
            admin = AdminClient({"bootstrap.servers": mixed.odradek.bootstrap})
            if set(admin.list_topics(timeout=10).brokers) == {ODRADEK, KAFKA}:
                return
            check()
            time.sleep(0.1)
