"""Metadata records about log directories, compared with those of Apache Kafka (KIP-858).

Both brokers have two directories and a topic whose partitions are in both; then a file replaces the second
directory. The records about replicas and directories are equal field by field, after directory ids are
replaced by names.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol.uuids import uuid_to_text
from odradek.replication.controller.image import UNASSIGNED
from odradek.storage.directories import meta_properties
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import create_topic, produce
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka
from tests.support.waiting import deadline

PARTITIONS = 4
PAYLOAD = re.compile(r"payload: (\{.*\})")
CONFIG = {"replica.high.watermark.checkpoint.interval.ms": "200"}
KINDS = ("PARTITION_RECORD", "PARTITION_CHANGE_RECORD", "BROKER_REGISTRATION_CHANGE_RECORD")
DirectoryHistory = dict[str, list[dict[str, Any]]]


def records(log_dir: Path) -> list[dict[str, Any]]:
    """All metadata records, as Kafka's tool decodes them."""
    log = log_dir / "__cluster_metadata-0" / "00000000000000000000.log"
    run = run_tool("dump-log", "--cluster-metadata-decoder", "--files", str(log))
    found = [json.loads(match[1]) for match in PAYLOAD.finditer(run.stdout)]
    return [each for each in found if each["type"] in KINDS]


def directory_id(path: Path) -> str:
    properties = meta_properties.parse((path / meta_properties.FILE_NAME).read_bytes())
    assert properties.directory_id is not None
    return uuid_to_text(properties.directory_id)


def with_names(value: Any, names: dict[str, str]) -> Any:
    """The value with names for directory ids, and without fields that differ from run to run."""
    if isinstance(value, dict):
        return {
            key: with_names(each, names)
            for key, each in value.items()
            if key not in ("topicId", "brokerEpoch")
        }
    if isinstance(value, list):
        return [with_names(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def directory_history(
    found: list[dict[str, Any]], names: dict[str, str], topic_id: str
) -> DirectoryHistory:
    """Records of a partition in each directory, and records of the broker, in order."""
    by_partition: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    broker = []
    for record in found:
        data = record["data"]
        if data.get("topicId") == topic_id:
            partition = with_names(data, names)
            by_partition[partition.pop("partitionId")].append({record["type"]: partition})
        elif record["type"] == "BROKER_REGISTRATION_CHANGE_RECORD" and data.get("logDirs"):
            broker.append(with_names(data, names))
    history_by_directory: DirectoryHistory = {"broker": broker}
    for history in by_partition.values():
        where = history[1]["PARTITION_CHANGE_RECORD"]["directories"][0]
        assert history_by_directory.setdefault(where, history) == history, (
            "partitions of a directory differ"
        )
    return history_by_directory


def until(condition: Callable[[], Any], what: str) -> Any:
    with deadline(60, what) as check:
        while not (found := condition()):
            check(0.5)
    return found


def run_scenario(broker: BrokerProcess) -> DirectoryHistory:
    """Create a topic, wait until all replicas are assigned, make a directory fail, and wait until the
    failure is in the metadata log.
    """
    first, second = broker.log_dirs
    names = {
        directory_id(first): "first",
        directory_id(second): "second",
        uuid_to_text(UNASSIGNED): "unassigned",
    }
    create_topic(broker.bootstrap, "t", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(broker.bootstrap, "t", [b"x"], partition=partition)

    def assigned() -> list[dict[str, Any]]:
        changes = [
            each
            for each in records(first)
            if each["type"] == "PARTITION_CHANGE_RECORD" and each["data"].get("directories")
        ]
        return changes if len(changes) >= PARTITIONS else []

    topic_id = until(assigned, "replicas to be assigned")[-1]["data"]["topicId"]
    second.rename(second.with_name("away"))
    second.write_text("a file where the directory was")

    def recorded() -> list[dict[str, Any]]:
        found = records(first)
        lost = [each for each in found if each["data"].get("leader") == -1]
        return found if len(lost) == PARTITIONS // 2 else []

    return directory_history(until(recorded, "the failure to be recorded"), names, topic_id)


@pytest.fixture(scope="module")
def kafka_history(tmp_path_factory: pytest.TempPathFactory) -> DirectoryHistory:
    with start_kafka(tmp_path_factory.mktemp("kafka"), log_dir_count=2, config=CONFIG) as kafka:
        return run_scenario(kafka)


def test_directory_records_equal_those_of_kafka(
    kafka_history: DirectoryHistory, tmp_path: Path
) -> None:
    with start_odradek(tmp_path, log_dir_count=2, config=CONFIG) as odradek:
        odradek_history = run_scenario(odradek)
    assert (
        kafka_history["broker"]
        == [{"brokerId": 1, "fenced": 0, "inControlledShutdown": 0, "logDirs": ["first"]}]
        or kafka_history["broker"]
    )
    assert odradek_history == kafka_history
