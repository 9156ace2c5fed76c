"""Apache Kafka reads Odradek's metadata log, snapshots and directories, and the reverse."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from odradek.replication.controller.broker_fencing import start_broker
from odradek.replication.controller.broker_registration import BrokerRegistration
from odradek.replication.controller.configs import ConfigAlteration, incremental_alter_configs
from odradek.replication.controller.create_partitions import NewPartitions, create_partitions
from odradek.replication.controller.features import SUPPORTED_FEATURES
from odradek.replication.controller.image import TOPIC, Endpoint, MetadataImage
from odradek.replication.controller.topics import (
    NewTopic,
    TopicDefaults,
    create_topics,
    delete_topics,
)
from odradek.replication.raft.metadata_manager import MetadataManager
from odradek.replication.raft.quorum_recovery import QuorumMember
from odradek.seams.files import Path as SeamPath
from odradek.seams.real import real_seams
from odradek.storage.directories.opening import open_directories
from tests.support.kafka_tools import run_tool, spawn_tool
from tests.support.metadata_nodes import log_of
from tests.support.real_kafka import RealKafka, start_kafka
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop

TIMEOUT_S = 30.0
METADATA_SHELL = "org.apache.kafka.shell.MetadataShell"
PAYLOAD = re.compile(r"payload: (\{.*\})")


@asynccontextmanager
async def odradek_metadata(directory: Path) -> AsyncIterator[MetadataManager]:
    """Run an Odradek node with a registered broker on a directory."""
    seams = real_seams()
    opened = open_directories(seams.files, seams.entropy, [SeamPath(str(directory))], node_id=1)
    (here,) = opened.all
    assert here.id is not None
    metadata = MetadataManager(seams, here.path, QuorumMember(1, opened.cluster_id, here.id))
    await metadata.start()
    who = BrokerRegistration(
        id=1,
        incarnation_id=seams.entropy.uuid(),
        endpoints=[Endpoint("PLAINTEXT", "127.0.0.1", 9092, 0)],
        directories=[here.id],
        features=SUPPORTED_FEATURES,
    )
    await metadata.perform(lambda image: start_broker(image, who, next_offset=image.offset + 1))
    yield metadata
    await metadata.close()
    opened.close()


def any_config(*_: object) -> None:
    """Accept all config values."""


async def create(metadata: MetadataManager, *topics: NewTopic) -> None:
    entropy = real_seams().entropy
    responses = await metadata.perform(
        lambda image: create_topics(
            image,
            topics,
            entropy=entropy,
            defaults=TopicDefaults(),
            validate_config=any_config,
        )
    )
    assert {response.error_code for response in responses} == {0}


async def change(metadata: MetadataManager) -> None:
    """Commit records of every kind."""
    entropy = real_seams().entropy
    await create(
        metadata,
        NewTopic("ours", 3, configs={"retention.ms": "60000"}),
        NewTopic("ours-too"),
        NewTopic("short-lived", 2),
    )
    await metadata.perform(lambda image: delete_topics(image, ["short-lived"]))
    await metadata.perform(
        lambda image: create_partitions(image, [NewPartitions("ours-too", 2)], entropy=entropy)
    )
    await metadata.perform(
        lambda image: incremental_alter_configs(
            image,
            [((TOPIC, "ours"), [ConfigAlteration("cleanup.policy", 0, "compact")])],
            validate_config=any_config,
            list_configs={},
        )
    )


def topics_of(image: MetadataImage) -> dict[str, tuple[str, int, dict[str, str]]]:
    return {
        name: (str(topic.id), len(topic.partitions), dict(image.topic_configs(name)))
        for name, topic in image.topics_by_name.items()
        if not name.startswith("__")
    }


def partition_counts(image: MetadataImage) -> dict[str, int]:
    return {name: count for name, (_, count, _) in topics_of(image).items()}


def dumped(*files: Path) -> str:
    run = run_tool("dump-log", "--cluster-metadata-decoder", "--files", ",".join(map(str, files)))
    assert "isvalid: false" not in run.stdout
    for word in ("corrupt", "mismatch", "Exception", "Could not", "unknown"):
        assert word not in run.stdout + run.stderr, run
    return run.stdout


def camel(kind: str) -> str:
    """Return the class name of a record type that kafka-dump-log printed."""
    return "".join(part.title() for part in kind.removesuffix("_RECORD").split("_"))


async def test_dump_log_reads_odradek_log_and_snapshots(tmp_path: Path) -> None:
    async with odradek_metadata(tmp_path) as metadata:
        await change(metadata)
        snapshot = await metadata.take_snapshot()
        await create(metadata, NewTopic("last"))
    assert snapshot is not None
    directory = tmp_path / "__cluster_metadata-0"
    for file in (
        directory / "00000000000000000000.log",
        directory / snapshot.file_name,
        directory / "00000000000000000000-0000000000.checkpoint",
        tmp_path / "bootstrap.checkpoint",
    ):
        record_types = [camel(json.loads(each)["type"]) for each in PAYLOAD.findall(dumped(file))]
        batches = log_of(real_seams().files, SeamPath(str(file)))
        written = [line.split()[0] for batch in batches for line in batch if not line.isupper()]
        assert record_types == written
    indexes = [directory / f"00000000000000000000.{kind}" for kind in ("index", "timeindex")]
    dumped(*indexes)


def shell(snapshot: Path, *command: str) -> str:
    """Return the output of Kafka's metadata shell.

    Retried, because the shell may not wait for the image, or may wait forever.
    """
    output = ""
    for _ in range(5):
        with spawn_tool(METADATA_SHELL, "--snapshot", str(snapshot), *command) as process:
            try:
                output, _ = process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                continue
        assert process.returncode == 0, output
        if "No such file or directory" not in output:
            break
    return output


async def test_metadata_shell_reads_odradek_log_and_snapshots(tmp_path: Path) -> None:
    async with odradek_metadata(tmp_path) as metadata:
        await change(metadata)
        snapshot = await metadata.take_snapshot()
    assert snapshot is not None
    directory = tmp_path / "__cluster_metadata-0"
    for file in (directory / snapshot.file_name, directory / "00000000000000000000.log"):
        listed = shell(file, "ls", "/image/topics/byName").splitlines()[-2:]
        assert sorted(" ".join(listed).split()) == ["ours", "ours-too"]
        shown = shell(file, "cat", "/image/topics/byName/ours/0")
        assert "leader=1" in shown
        assert "leaderRecoveryState=RECOVERED" in shown


def kafka_on(directory: Path, log_dir: Path, *, formatted: bool) -> RealKafka:
    # no internal topics, so that only the metadata is read
    config = {"offsets.topic.num.partitions": "1"}
    return start_kafka(directory, log_dirs=[log_dir], formatted=formatted, config=config)


def described(kafka: RealKafka, expected: Mapping[str, int]) -> dict[str, int]:
    """Number of partitions with a leader per topic; waits until they are as expected, or fails.

    The described broker may replay a new topic later than the controller.
    """
    with deadline(TIMEOUT_S, f"Kafka to describe {expected}") as check:
        while (counts := describe(kafka)) != expected:
            check()
    return counts


def describe(kafka: RealKafka) -> dict[str, int]:
    run = run_tool("topics", "--bootstrap-server", kafka.bootstrap, "--describe")
    counts: dict[str, int] = {}
    for line in run.lines:
        if found := re.search(r"Topic: (\S+)\s+Partition: \d+\s+Leader: (\S+)", line):
            assert found.group(2) == "1", line
            counts[found.group(1)] = counts.get(found.group(1), 0) + 1
    return {name: count for name, count in counts.items() if not name.startswith("__")}


@pytest.mark.slow
async def test_kafka_directory_moves_to_odradek_and_back(tmp_path: Path) -> None:
    log_dir = tmp_path / "data"
    with kafka_on(tmp_path / "first", log_dir, formatted=False) as kafka:
        for name, partitions in (("theirs", "3"), ("theirs-too", "1")):
            run_tool(
                "topics", "--bootstrap-server", kafka.bootstrap, "--create", "--topic", name,
                "--partitions", partitions, "--config", "retention.ms=1234567",
            )  # fmt: skip
        topics = described(kafka, {"theirs": 3, "theirs-too": 1})
        ids = run_tool("topics", "--bootstrap-server", kafka.bootstrap, "--describe").stdout
        kafka.stop()
    async with odradek_metadata(log_dir) as metadata:
        assert partition_counts(metadata.image) == topics
        assert metadata.image.topic_configs("theirs") == {"retention.ms": "1234567"}
        assert "TopicId" in ids
        for name in topics:
            partition = metadata.image.partition(name, 0)
            assert partition is not None
            assert partition.leader == 1
        await change(metadata)
        await metadata.take_snapshot()
    with kafka_on(tmp_path / "second", log_dir, formatted=True) as kafka:
        expected = {"theirs": 3, "theirs-too": 1, "ours": 3, "ours-too": 2}
        described(kafka, expected)
        run_tool("topics", "--bootstrap-server", kafka.bootstrap, "--delete", "--topic", "theirs")
        kafka.stop()
    del expected["theirs"]
    async with odradek_metadata(log_dir) as metadata:
        assert partition_counts(metadata.image) == expected
        assert metadata.image.topic_configs("ours") == {
            "retention.ms": "60000",
            "cleanup.policy": "compact",
        }


@pytest.mark.slow
async def test_odradek_directory_moves_to_kafka_and_back(tmp_path: Path) -> None:
    log_dir = tmp_path / "data"
    log_dir.mkdir()
    async with odradek_metadata(log_dir) as metadata:
        await change(metadata)
        before = topics_of(metadata.image)
    with kafka_on(tmp_path / "kafka", log_dir, formatted=True) as kafka:
        described(kafka, {"ours": 3, "ours-too": 2})
        quorum = run_tool(
            "metadata-quorum", "--bootstrap-server", kafka.bootstrap, "describe", "--status"
        )
        assert re.search(r"LeaderId:\s+1", quorum.stdout)
        kafka.stop()
    async with odradek_metadata(log_dir) as metadata:
        assert topics_of(metadata.image) == before
