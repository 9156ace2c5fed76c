"""Log directories in mixed company (KIP-858): a broker tells a controller of the other kind in which of them
its replicas are, and which has failed; that has what was in there led by another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.interop.mixed_brokers import OURS, THEIRS, MixedBrokers, mixed_brokers
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import TIMEOUT_S, produce, read_all
from tests.support.waiting import deadline

pytestmark = [pytest.mark.interop, pytest.mark.slow]
OFTEN = {"log.roll.ms": "1000", "replica.high.watermark.checkpoint.interval.ms": "500"}
"""Apache Kafka finds a directory bad when it makes a file there."""
ALL = {"acks": "all"}


@pytest.mark.parametrize("controller", [OURS, THEIRS], ids=["our controller", "their controller"])
def test_other_broker_leads_partitions_of_failed_directory(tmp_path: Path, controller: int) -> None:
    with mixed_brokers(tmp_path, OFTEN, OFTEN, controller=controller, directories=2) as company:
        node = OURS + THEIRS - controller
        broker = company.theirs if controller == OURS else company.ours
        good, bad = broker.log_dirs
        for topic, directory in (("stays", good), ("leaves", bad)):
            company.create_topic(topic, [node], replicas=2)
            assert company.leaders(topic) == [node]
            move(company, tmp_path, topic, node, directory)
            produce(broker.bootstrap, topic, [b"before"], config=ALL)
        bad.rename(tmp_path / "away")
        bad.write_text("a file")
        with deadline(TIMEOUT_S, "another leader") as check:
            while company.leaders("leaves") != [controller]:
                check(0.1)
        assert company.leaders("stays") == [node]
        assert broker.process.poll() is None
        for topic in ("stays", "leaves"):
            produce(company.ours.bootstrap, topic, [b"after"], config=ALL)
            read = read_all(company.ours.bootstrap, topic, 2)
            assert [each.value() for each in read] == [b"before", b"after"]


def move(company: MixedBrokers, place: Path, topic: str, node: int, directory: Path) -> None:
    """Have the broker's replica in that directory."""
    file = place / "wanted.json"
    replicas = [node, OURS + THEIRS - node]
    row = {
        "topic": topic,
        "partition": 0,
        "replicas": replicas,
        "log_dirs": [str(directory), "any"],
    }
    file.write_text(json.dumps({"version": 1, "partitions": [row]}))
    words = ("--bootstrap-server", company.ours.bootstrap, "--reassignment-json-file", str(file))
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
