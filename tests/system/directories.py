"""Clusters whose brokers have several log directories: look up replicas, move them, and make directories
fail.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odradek.broker.local_cluster.nodes import NodeState, Software
from odradek.broker.local_cluster.plan import ClusterPlan, NodePlan
from odradek.testing import Cluster
from tests.support.kafka_tools import ToolRun, run_tool
from tests.support.waiting import deadline
from tests.system.cluster_state import TIMEOUT_S, create_topic, partition
from tests.system.clusters import CONFIGS, SOFTWARE
from tests.system.mounts import need
from tests.system.producer_consumer_pair import Pair

GOOD, BAD = 0, 1
"""Log directories of a broker: the first contains all internal topics and does not fail; the second one fails."""
OFTEN: Mapping[str, str] = {
    "log.roll.ms": "3000",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
}
"""Apache Kafka detects a failed directory when it creates a file in it."""
OFFSETS = "__consumer_offsets"
Places = dict[tuple[int, int], str]
"""(partition, broker) → its log directory."""
Target = Mapping[int, Sequence[tuple[int, str]]]
"""Partition → the broker of each replica, with a log directory or "any"."""


@dataclass
class ObeyingPermissions:
    """Runs `software` such that file modes apply: as root without the capability to bypass them."""

    software: Software
    _prefix: Sequence[str] = field(default=(), init=False)

    def __post_init__(self) -> None:
        if os.geteuid() == 0:
            need("setpriv")
            self._prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]

    async def format(self, plan: ClusterPlan) -> None:
        await self.software.format(plan)

    def command(self, node: NodePlan) -> Sequence[str]:
        return [*self._prefix, *self.software.command(node)]


def tool(cluster: Cluster, name: str, *words: str) -> ToolRun:
    return run_tool(name, "--bootstrap-server", cluster.bootstrap, *words)


def described(cluster: Cluster, *words: str) -> dict[int, list[dict[str, Any]]]:
    """Log directories of each broker, from kafka-log-dirs."""
    shown = json.loads(tool(cluster, "log-dirs", "--describe", *words).lines[-1])
    return {each["broker"]: each["logDirs"] for each in shown["brokers"]}


def places(cluster: Cluster, topic: str) -> Places:
    """Log directory of each replica of the topic; future replicas are excluded."""
    return {
        (int(part["partition"].rpartition("-")[2]), broker): str(directory["logDir"])
        for broker, directories in described(cluster, "--topic-list", topic).items()
        for directory in directories
        for part in directory["partitions"]
        if not part["isFuture"]
    }


def is_offline(cluster: Cluster, broker: int, directory: str) -> bool:
    (error,) = [
        each["error"]
        for each in described(cluster, "--broker-list", str(broker))[broker]
        if each["logDir"] == directory
    ]
    return error is not None


def wait_until_offline(cluster: Cluster, broker: int, directory: str) -> None:
    with deadline(TIMEOUT_S, f"{directory} to be offline") as check:
        while not is_offline(cluster, broker, directory):
            check(0.2)


def begin_move(cluster: Cluster, directory: Path, topic: str, target: Target) -> tuple[str, str]:
    """Start a move with kafka-reassign-partitions; returns the arguments that name its file."""
    rows = [
        {
            "topic": topic,
            "partition": index,
            "replicas": [broker for broker, _ in replicas],
            "log_dirs": [path for _, path in replicas],
        }
        for index, replicas in target.items()
    ]
    file = directory / f"{topic}.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    words = ("--reassignment-json-file", str(file))
    tool(cluster, "reassign-partitions", "--execute", *words)
    return words


def is_moved(cluster: Cluster, words: tuple[str, str], topic: str, target: Target) -> bool:
    """Whether --verify reports that every replica is in its target directory."""
    verified = tool(cluster, "reassign-partitions", "--verify", *words).stdout
    return all(
        each in verified
        for each in [
            *(f"Reassignment of partition {topic}-{index} is completed" for index in target),
            *(
                f"Reassignment of replica {topic}-{index}-{broker} completed successfully"
                for index, broker in _directories(target)
            ),
        ]
    )


def _directories(target: Target) -> Places:
    return {
        (index, broker): path
        for index, replicas in target.items()
        for broker, path in replicas
        if path != "any"
    }


def move(cluster: Cluster, directory: Path, topic: str, target: Target) -> None:
    """Start a move and wait until it is complete."""
    words = begin_move(cluster, directory, topic, target)
    with deadline(2 * TIMEOUT_S, f"{topic} to be reassigned") as check:
        while not is_moved(cluster, words, topic, target):
            check(0.2)
    found = places(cluster, topic)
    assert found.keys() == {
        (index, broker) for index, replicas in target.items() for broker, _ in replicas
    }
    assert _directories(target).items() <= found.items()


def move_all(cluster: Cluster, directory: Path, topic: str, partitions: int, number: int) -> None:
    """Move every replica to the log directory with the given number (from 0) on its broker."""
    _move_each(cluster, directory, topic, [number] * partitions)


def move_to_both(cluster: Cluster, directory: Path, topic: str, partitions: int) -> None:
    """Move the replicas of alternate partitions to alternate log directories, because the placement by the
    brokers depends on the bytes in each directory.
    """
    _move_each(cluster, directory, topic, [index % 2 for index in range(partitions)])


def _move_each(cluster: Cluster, directory: Path, topic: str, numbers: Sequence[int]) -> None:
    target: dict[int, list[tuple[int, str]]] = {}
    for index, number in enumerate(numbers):
        replicas = partition(cluster, topic, index).replicas
        target[index] = [(each, cluster.log_directories(each)[number]) for each in replicas]
    move(cluster, directory, topic, target)


def change_mode(directory: str, mode: str) -> None:
    """Change the mode of a directory and of everything in it."""
    subprocess.run(["chmod", "-R", mode, directory], check=True, timeout=60)


@contextmanager
def two_directories_each(
    kind: str, place: Path, *, brokers: int = 3, configs: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Cluster of brokers of a kind with two log directories each, and a separate controller. `place` is
    for the tools' files.
    """
    with Cluster(
        software=ObeyingPermissions(SOFTWARE[kind]()),
        brokers=brokers,
        controllers=1,
        configs={**CONFIGS, **OFTEN, **(configs or {})},
        log_directories=2,
    ) as running:
        create_topic(running, "first", 1, {})
        with Pair(running, "first") as pair:
            pair.check()  # creates __consumer_offsets
        move_all(running, place, OFFSETS, int(CONFIGS["offsets.topic.num.partitions"]), GOOD)
        yield running
        gc.collect()  # librdkafka's handles log errors while they outlive the brokers


def restore_directories(cluster: Cluster) -> None:
    """Make all directories available again, and restart the brokers that need it."""
    for broker in cluster.brokers:
        directory = Path(cluster.log_directories(broker)[BAD])
        if directory.is_file():
            directory.unlink()
            away(directory).rename(directory)
        change_mode(str(directory), "u+rwX")
    for node in (*cluster.controllers, *cluster.brokers):
        if cluster.state(node) is not NodeState.RUNNING:
            cluster.restart(node)
    for broker in cluster.brokers:
        if is_offline(cluster, broker, cluster.log_directories(broker)[BAD]):
            cluster.restart(broker)


def replace_by_a_file(directory: Path) -> None:
    """Replace a directory by a file, as Kafka's own tests do."""
    directory.rename(away(directory))
    directory.write_text("a file")


def away(directory: Path) -> Path:
    return directory.with_name(f"{directory.name} away")
