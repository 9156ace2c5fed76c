"""One cluster of two kinds: a broker of ours and one of Apache Kafka's; one of them is the controller."""

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
OURS, THEIRS = 1, 2
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
    """Node 1 is ours, node 2 Apache Kafka's; both are registered."""

    ours: OdradekProcess
    theirs: RealKafka
    start_theirs: Callable[[], RealKafka]

    def kill_theirs(self) -> None:
        self.theirs.kill()

    def restart_theirs(self) -> None:
        """After `kill_theirs`, on what that left."""
        self.theirs = self.start_theirs()

    def create_topic(self, name: str, leaders: list[int], *, replicas: int = 1) -> None:
        """A topic whose partitions are led by these nodes, and with 2 replicated to the other."""
        admin = AdminClient({"bootstrap.servers": self.ours.bootstrap})
        assignment = [[each, OURS + THEIRS - each][:replicas] for each in leaders]
        topic = NewTopic(name, num_partitions=len(leaders), replica_assignment=assignment)
        admin.create_topics([topic])[name].result(30)

    def leaders(self, topic: str) -> list[int]:
        """Who leads each partition, as both say; waits until they agree."""
        with deadline(20, "both brokers to know the same leaders") as check:
            while True:
                told = [
                    AdminClient({"bootstrap.servers": each.bootstrap}).list_topics(topic, 10)
                    for each in (self.ours, self.theirs)
                ]
                found = [
                    [row.leader for _, row in sorted(each.topics[topic].partitions.items())]
                    for each in told
                ]
                if found[0] == found[1] != []:
                    return found[0]
                check()


@contextmanager
def mixed_brokers(
    directory: Path,
    our_config: Mapping[str, str] = {},
    their_config: Mapping[str, str] = {},
    *,
    controller: int = OURS,
    directories: int = 1,
) -> Iterator[MixedBrokers]:
    """Both, formatted by `odradek storage`, started, and let in by the controller, ours or theirs. Each
    has so many log directories."""
    listener = f"127.0.0.1:{free_port()}"
    ports = {OURS: free_port(), THEIRS: free_port()}
    log_dirs = {
        node: [directory / f"data-{node}-{number}" for number in range(1, directories + 1)]
        for node in ports
    }
    settings: dict[int, dict[str, str]] = {}
    for node, more in ((OURS, our_config), (THEIRS, their_config)):
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

    def start_ours() -> OdradekProcess:
        process = start_odradek(
            directory / "ours", log_dirs=log_dirs[OURS], port=ports[OURS],
            config=settings[OURS], arguments=("--config", str(directory / f"{OURS}.properties")),
        )  # fmt: skip
        started.append(process)
        return process

    def start_theirs() -> RealKafka:
        process = start_kafka(
            directory / "theirs", log_dirs=log_dirs[THEIRS], port=ports[THEIRS],
            config=settings[THEIRS], formatted=True,
        )  # fmt: skip
        started.append(process)
        return process

    try:
        if controller == OURS:
            ours, theirs = start_ours(), start_theirs()
        else:
            theirs, ours = start_theirs(), start_ours()
        company = MixedBrokers(ours, theirs, start_theirs)
        wait_for_both(company)
        yield company
        leaving = [company.ours, company.theirs]  # who is no controller asks for its leave first
        for each in reversed(leaving) if controller == OURS else leaving:
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


def wait_for_both(company: MixedBrokers) -> None:
    """Until both are registered and unfenced."""
    with deadline(60, "both brokers to be known") as check:
        while True:
            admin = AdminClient({"bootstrap.servers": company.ours.bootstrap})
            if set(admin.list_topics(timeout=10).brokers) == {OURS, THEIRS}:
                return
            check()
            time.sleep(0.1)
