"""Log directories with a controller of the other kind (KIP-858): a broker reports the directories of its
replicas and failed directories; the controller elects the other broker for partitions in a failed
directory.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.interop.mixed_brokers import KAFKA, ODRADEK, MixedBrokers, mixed_brokers
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import TIMEOUT_S, produce, read_all
from tests.support.waiting import deadline

pytestmark = [pytest.mark.interop, pytest.mark.slow]
OFTEN = {"log.roll.ms": "1000", "replica.high.watermark.checkpoint.interval.ms": "500"}
"""Apache Kafka detects a failed directory when it creates a file in it."""
ALL = {"acks": "all"}


@pytest.mark.parametrize(
    "controller", [ODRADEK, KAFKA], ids=["odradek-controller", "kafka-controller"]
)
def test_other_broker_leads_partitions_of_failed_directory(tmp_path: Path, controller: int) -> None:
    with mixed_brokers(tmp_path, OFTEN, OFTEN, controller=controller, directories=2) as mixed:
        node = ODRADEK + KAFKA - controller
        broker = mixed.kafka if controller == ODRADEK else mixed.odradek
        good, bad = broker.log_dirs
        for topic, directory in (("stays", good), ("leaves", bad)):
            mixed.create_topic(topic, [node], replicas=2)
            assert mixed.leaders(topic) == [node]
            move(mixed, tmp_path, topic, node, directory)
            produce(broker.bootstrap, topic, [b"before"], config=ALL)
        bad.rename(tmp_path / "away")
        bad.write_text("a file")
        with deadline(TIMEOUT_S, "another leader") as check:
            while mixed.leaders("leaves") != [controller]:
                check(0.1)
        assert mixed.leaders("stays") == [node]
        assert broker.process.poll() is None
        for topic in ("stays", "leaves"):
            produce(mixed.odradek.bootstrap, topic, [b"after"], config=ALL)
            read = read_all(mixed.odradek.bootstrap, topic, 2)
            assert [each.value() for each in read] == [b"before", b"after"]


def move(mixed: MixedBrokers, place: Path, topic: str, node: int, directory: Path) -> None:
    """Move the broker's replica to the directory."""
    file = place / "wanted.json"
    replicas = [node, ODRADEK + KAFKA - node]
    row = {
        "topic": topic,
        "partition": 0,
        "replicas": replicas,
        "log_dirs": [str(directory), "any"],
    }
    file.write_text(json.dumps({"version": 1, "partitions": [row]}))
    words = ("--bootstrap-server", mixed.odradek.bootstrap, "--reassignment-json-file", str(file))
    run_tool("reassign-partitions", *words, "--execute")
    with deadline(TIMEOUT_S, f"{topic} to be in {directory}") as check:
        while not all(
            f"{what} {how}" in run_tool("reassign-partitions", *words, "--verify").stdout
            for what, how in (
                (f"Reassignment of partition {topic}-0", "is completed"),
                (f"Reassignment of replica {topic}-0-{node}", "completed successfully"),
            )
        ):
            check(0.2)
