"""DescribeLogDirs, and what survives a restart: on a node with disks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol import apis
from odradek.protocol.records.records import Record, build_batch
from odradek.testing import Broker

BATCH_RECORDS = 3


def two_directories(data: Path) -> str:
    return f"{data / 'a'},{data / 'b'}"


async def described(client: Any, topics: Any = None, version: int = 5) -> dict[str, Any]:
    response = await client.ask(apis.DESCRIBE_LOG_DIRS, version, topics=topics)
    assert version < 3 or response.error_code.name == "none"
    return {result.log_dir: result for result in response.results}


async def append(node: Any, topic: str, partition: int) -> int:
    """Bytes appended."""
    batch = build_batch([Record(-1, 0, b"k", b"v", ())] * BATCH_RECORDS)
    opened = await node.partitions.get(topic, None, partition)
    opened.append(memoryview(batch), acks=-1, now_ms=0)
    return len(batch)


@pytest.mark.parametrize("version", apis.DESCRIBE_LOG_DIRS.versions)
async def test_every_version(client_of: Any, version: int) -> None:
    async with Broker(topics={"t": 1}) as broker:
        size = await append(broker.node, "t", 0)
        (directory,) = (await described(client_of(broker.node), version=version)).values()
        assert directory.error_code.name == "none"
        (topic,) = directory.topics
        (partition,) = topic.partitions
        assert (topic.name, partition.partition_index) == ("t", 0)
        assert (partition.partition_size, partition.offset_lag) == (size, 0)
        assert not partition.is_future_key
        if version >= 4:
            assert directory.total_bytes >= directory.usable_bytes > 0  # KIP-827
        if version >= 5:
            assert not directory.is_cordoned


async def test_partitions_are_asked_for_by_topic(client_of: Any, tmp_path: Path) -> None:
    async with Broker(topics={"t": 4, "u": 2}, data=two_directories(tmp_path)) as broker:
        client = client_of(broker.node)
        for index in range(4):
            await append(broker.node, "t", index)
        for index in range(2):
            await append(broker.node, "u", index)

        async def found(topics: Any) -> dict[str, list[int]]:
            by_topic: defaultdict[str, list[int]] = defaultdict(list)
            for directory in (await described(client, topics)).values():
                for topic in directory.topics:
                    by_topic[topic.name] += [each.partition_index for each in topic.partitions]
            return {name: sorted(indexes) for name, indexes in by_topic.items()}

        assert await found(None) == {"t": [0, 1, 2, 3], "u": [0, 1]}
        assert await found([]) == {}
        assert await found([{"topic": "t", "partitions": [1, 3, 9]}]) == {"t": [1, 3]}
        assert await found([{"topic": "gone", "partitions": [0]}]) == {}
        counts = [
            sum(len(topic.partitions) for topic in directory.topics)
            for directory in (await described(client)).values()
        ]
        assert counts == [3, 3]  # made in one go, they are spread


async def test_a_directory_that_failed(client_of: Any, tmp_path: Path) -> None:
    """Offline: error 56, and what was in it is offline in Metadata too."""
    async with Broker(topics={"t": 2}, data=two_directories(tmp_path)) as broker:
        node = broker.node
        for index in range(2):
            await append(node, "t", index)
        lost = await node.partitions.get("t", None, 1)
        directory = node.logs.directory_of(lost.log)
        directory.fail(OSError(5, "Input/output error"))
        client = client_of(node)
        results = await described(client)
        assert results[str(directory.path)].error_code.name == "kafka_storage_error"
        assert results[str(directory.path)].topics == ()
        assert results[str(directory.path)].total_bytes == -1
        assert [each.error_code.name for each in results.values()].count("none") == 1
        response = await client.ask(apis.METADATA, 13, topics=[{"name": "t", "topic_id": None}])
        served, offline = response.topics[0].partitions
        assert (served.error_code.name, served.offline_replicas) == ("none", ())
        assert offline.error_code.name == "leader_not_available"
        assert (offline.leader_id, offline.offline_replicas) == (-1, (1,))


async def test_topics_and_configs_survive_a_restart(client_of: Any, tmp_path: Path) -> None:
    def change(kind: int, name: str, key: str, value: str) -> dict[str, Any]:
        config = {"name": key, "config_operation": 0, "value": value}
        return {"resource_type": kind, "resource_name": name, "configs": [config]}

    async with Broker(topics={"t": 3}, data=tmp_path) as broker:
        before = broker.node.metadata.image.topics_by_name["t"].id
        log = (await broker.node.partitions.get("t", None, 0)).log
        response = await client_of(broker.node).ask(
            apis.INCREMENTAL_ALTER_CONFIGS,
            1,
            resources=[
                change(2, "t", "retention.ms", "5000"),
                change(4, "", "message.max.bytes", "7000"),
                change(4, "1", "log.segment.bytes", "2000000"),
                change(32, "g", "consumer.session.timeout.ms", "50000"),
            ],
        )
        assert {each.error_code.name for each in response.responses} == {"none"}
        assert log.config.retention_ms == 5000  # at once, to logs that are open
        assert log.config.max_message_bytes == 7000
        assert log.config.segment_bytes == 2_000_000
    async with Broker(data=tmp_path) as broker:
        client = client_of(broker.node)
        response = await client.ask(apis.METADATA, 13, topics=[{"name": "t", "topic_id": None}])
        (topic,) = response.topics
        assert topic.topic_id == before
        assert [each.leader_id for each in topic.partitions] == [1, 1, 1]
        log = (await broker.node.partitions.get("t", None, 0)).log
        assert (log.config.retention_ms, log.config.max_message_bytes) == (5000, 7000)
        assert log.config.segment_bytes == 2_000_000
        response = await client.ask(
            apis.DESCRIBE_CONFIGS,
            4,
            resources=[
                {
                    "resource_type": 32,
                    "resource_name": "g",
                    "configuration_keys": ["consumer.session.timeout.ms"],
                }
            ],
        )
        assert response.results[0].configs[0].value == "50000"
