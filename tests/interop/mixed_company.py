"""One cluster of two kinds: a broker and controller of ours, and an Apache Kafka broker that joins it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.broker_process import deadline, free_port, properties
from tests.interop.odradek_process import OdradekProcess, start_odradek
from tests.interop.real_kafka import RealKafka, start_kafka

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
class MixedCompany:
    """Node 1 is ours, node 2 Apache Kafka's; both are registered."""

    ours: OdradekProcess
    theirs: RealKafka
    start_theirs: Callable[[], RealKafka]

    def kill_theirs(self) -> None:
        self.theirs.kill()

    def restart_theirs(self) -> None:
        """After `kill_theirs`, on what that left."""
        self.theirs = self.start_theirs()

    def create_topic(self, name: str, leaders: list[int]) -> None:
        """A topic with one replica of each partition, at these nodes."""
        admin = AdminClient({"bootstrap.servers": self.ours.bootstrap})
        topic = NewTopic(
            name, num_partitions=len(leaders), replica_assignment=[[each] for each in leaders]
        )
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
def mixed_company(
    directory: Path, our_config: Mapping[str, str] = {}, their_config: Mapping[str, str] = {}
) -> Iterator[MixedCompany]:
    """Both, formatted by `odradek storage`, started, and let in by our controller."""
    port, controller, other = free_port(), free_port(), free_port()
    shared = {**SETTINGS, "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}"}
    ours = {
        **shared,
        "process.roles": "broker,controller",
        "node.id": str(OURS),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "log.dirs": f"{directory}/data-1",
        **our_config,
    }
    theirs = {
        **shared,
        "process.roles": "broker",
        "node.id": str(THEIRS),
        "listeners": f"PLAINTEXT://127.0.0.1:{other}",
        "log.dirs": f"{directory}/data-2",
        **their_config,
    }
    _format(directory / "ours.properties", ours, "--standalone")
    _format(directory / "theirs.properties", theirs)
    arguments = ("--config", str(directory / "ours.properties"))
    mine = start_odradek(
        directory / "ours", log_dirs=[directory / "data-1"], port=port, config=ours,
        arguments=arguments,
    )  # fmt: skip

    def start_theirs() -> RealKafka:
        return start_kafka(
            directory / "theirs", config=theirs, log_dirs=[directory / "data-2"], port=other,
            formatted=True,
        )  # fmt: skip

    with mine:
        company = MixedCompany(mine, start_theirs(), start_theirs)
        try:
            _wait_for_both(company)
            yield company
        except BaseException:
            company.theirs.kill()
            raise
        company.theirs.stop()


def _format(file: Path, settings: Mapping[str, str], *flags: str) -> None:
    file.write_text(properties(settings))
    command = [sys.executable, "-m", "odradek.broker", "storage", "format", *flags]
    subprocess.run(
        [*command, "-t", CLUSTER_ID, "-c", str(file)], check=True, stdout=subprocess.DEVNULL
    )


def _wait_for_both(company: MixedCompany) -> None:
    with deadline(60, "both brokers to be known") as check:
        while True:
            admin = AdminClient({"bootstrap.servers": company.ours.bootstrap})
            if set(admin.list_topics(timeout=10).brokers) == {OURS, THEIRS}:
                return
            check()
            time.sleep(0.1)
