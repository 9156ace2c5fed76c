"""Tests of DescribeLogDirs and AlterReplicaLogDirs, on a node with disks that restarts."""

from __future__ import annotations

import errno
import logging
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from odradek.broker.apis.log_dirs import _topics
from odradek.protocol import apis
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.files import Path as SeamPath
from odradek.storage.errors import LogFailed
from odradek.storage.log.partition_log import PartitionLog
from odradek.testing import Broker
from tests.support.replica_moves import hold_moves

BATCH_RECORDS = 3


def two_directories(data: Path) -> str:
    return f"{data / 'a'},{data / 'b'}"


async def described(client: Any, topics: Any = None, version: int = 5) -> dict[str, Any]:
    response = await client.ask(apis.DESCRIBE_LOG_DIRS, version, topics=topics)
    assert version < 3 or response.error_code.name == "none"
    return {result.log_dir: result for result in response.results}


async def append(node: Any, topic: str, partition: int) -> int:
    """Append records and return their bytes."""
    batch = build_batch([Record(-1, 0, b"k", b"v", ())] * BATCH_RECORDS)
    opened = await node.partitions.get(topic, None, partition)
    opened.append(memoryview(batch), acks=-1, now_ms=0)
    return len(batch)


@pytest.mark.parametrize("version", apis.DESCRIBE_LOG_DIRS.versions)
async def test_describe_log_dirs_in_all_versions(client_of: Any, version: int) -> None:
    async with Broker(topics={"t": 1}) as broker:
        size = await append(broker.node, "t", 0)
        (directory,) = (await described(client_of(broker.node.services), version=version)).values()
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


async def test_describe_log_dirs_of_many_partitions_yields_to_event_loop() -> None:
    """The size of each log may require opening its files."""
    logs = [SimpleNamespace(topic="t", partition=n, size_bytes=n, high_watermark=0, end_offset=0)
            for n in range(200)]  # fmt: skip
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        (topic,) = await _topics(logs, [], None, trio.to_thread.run_sync)  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()
    assert [each["partition_size"] for each in topic["partitions"]] == list(range(200))
    assert turns >= 19


async def test_renamed_files_do_not_fail_the_directory(
    client_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are renamed in a thread by a truncation, or by the deletion of the topic."""

    def size_bytes(partition_log: PartitionLog) -> int:
        if partition_log.topic == "deleted":
            partition_log.fail(LogFailed("deleted is deleted"))
        raise FileNotFoundError(errno.ENOENT, "renamed", str(partition_log.directory))

    async with Broker(topics={"cut": 1, "deleted": 1}) as broker:
        size = await append(broker.node, "cut", 0)
        deleted = (await broker.node.partitions.get("deleted", None, 0)).log
        monkeypatch.setattr(PartitionLog, "size_bytes", property(size_bytes))
        (directory,) = (await described(client_of(broker.node.services))).values()
        assert directory.error_code.name == "none"
        (topic,) = (each for each in directory.topics if each.partitions)
        assert [each.partition_size for each in topic.partitions] == [size]
        assert topic.name == "cut"
        monkeypatch.undo()
        assert deleted.failure is not None


async def test_describe_log_dirs_filters_by_topic(client_of: Any, tmp_path: Path) -> None:
    async with Broker(topics={"t": 4, "u": 2}, data=two_directories(tmp_path)) as broker:
        client = client_of(broker.node.services)
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
        assert counts == [3, 3]  # created together, they are spread over the directories


async def test_describe_log_dirs_of_offline_directory(
    client_of: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory has error 56, and its partitions are offline in Metadata."""
    async with Broker(topics={"t": 2}, data=two_directories(tmp_path)) as broker:
        node = broker.node
        for index in range(2):
            await append(node, "t", index)
        lost = await node.partitions.get("t", None, 1)
        directory = node.logs.directory_of(lost.log)
        with caplog.at_level(logging.INFO):
            directory.fail(OSError(5, "Input/output error"))
        assert "1 partitions are offline; OfflineLogDirectoryCount is 1 of 2" in caplog.text
        client = client_of(node.services)
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


async def test_topics_and_configs_survive_restart(client_of: Any, tmp_path: Path) -> None:
    def change(kind: int, name: str, key: str, value: str) -> dict[str, Any]:
        config = {"name": key, "config_operation": 0, "value": value}
        return {"resource_type": kind, "resource_name": name, "configs": [config]}

    async with Broker(topics={"t": 3}, data=tmp_path) as broker:
        before = broker.node.metadata.image.topics_by_name["t"].id
        log = (await broker.node.partitions.get("t", None, 0)).log
        response = await client_of(broker.node.services).ask(
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
        assert log.config.retention_ms == 5000  # without a delay, to open logs
        assert log.config.max_message_bytes == 7000
        assert log.config.segment_bytes == 2_000_000
    async with Broker(data=tmp_path) as broker:
        client = client_of(broker.node.services)
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


# AlterReplicaLogDirs


async def alter(client: Any, *moves: tuple[str, str, int], version: int = 2) -> list[str]:
    """Send one request with (path, topic, partition) tuples and return the errors in the same order."""
    response = await client.ask(
        apis.ALTER_REPLICA_LOG_DIRS,
        version,
        dirs=[
            {"path": path, "topics": [{"name": topic, "partitions": [index]}]}
            for path, topic, index in moves
        ],
    )
    found = {
        (result.topic_name, partition.partition_index): partition.error_code.name
        for result in response.results
        for partition in result.partitions
    }
    return [found[topic, index] for _, topic, index in moves]


async def all_moved(node: Any) -> None:
    with trio.fail_after(30):
        while node.logs.mover.moves():
            await trio.sleep(0.01)


@pytest.mark.parametrize("version", apis.ALTER_REPLICA_LOG_DIRS.versions)
async def test_replica_is_moved(client_of: Any, tmp_path: Path, version: int) -> None:
    """J-01, J-18."""
    async with Broker(topics={"t": 1}, data=two_directories(tmp_path)) as broker:
        node, client = broker.node, client_of(broker.node.services)
        for _ in range(20):
            size = await append(node, "t", 0)
        partition = await node.partitions.get("t", None, 0)
        source = node.logs.directory_of(partition.log)
        (destination,) = {each.path for each in node.services.directories.all} - {source.path}
        release = hold_moves(node.logs.mover)
        assert await alter(client, (str(destination), "t", 0), version=version) == ["none"]
        (copy,) = (await described(client))[str(destination)].topics[0].partitions
        assert copy.is_future_key
        assert copy.offset_lag == 20 * BATCH_RECORDS
        assert copy.partition_size == 0
        (current,) = (await described(client))[str(source.path)].topics[0].partitions
        assert (current.is_future_key, current.partition_size) == (False, 20 * size)
        release()
        await all_moved(node)
        assert (await described(client))[str(source.path)].topics == ()
        (moved,) = (await described(client))[str(destination)].topics[0].partitions
        assert (moved.is_future_key, moved.partition_size) == (False, 20 * size)
        assert partition.log.directory.parent == destination
        # KIP-858: the controller is notified.
        id = node.logs.directory_of(partition.log).id
        with trio.fail_after(10):
            while partition.assigned_directory != id:
                await trio.sleep(0.01)


async def test_move_of_missing_replica_is_remembered(client_of: Any, tmp_path: Path) -> None:
    """J-03: as in Kafka's AlterReplicaLogDirsRequestTest: the topic is later created in that directory."""
    async with Broker(data=two_directories(tmp_path)) as broker:
        node, client = broker.node, client_of(broker.node.services)
        a, b = (str(each.path) for each in node.services.directories.all)
        asked = [(b, "t", 0), (b, "t", 1), (a, "t", 2), ("/elsewhere", "t", 3)]
        unknown = "unknown_topic_or_partition"
        assert await alter(client, *asked) == [unknown] * 3 + ["log_dir_not_found"]
        await broker.node.ensure_topic("t", partitions=4)
        opened = [await node.partitions.get("t", None, index) for index in range(3)]
        assert [str(each.log.directory.parent) for each in opened] == [b, b, a]
        assert await alter(client, (a, "t", 0), (b, "t", 1), ("any", "t", 2)) == ["none"] * 3
        await all_moved(node)
        assert str((await node.partitions.get("t", None, 0)).log.directory.parent) == a


async def test_errors_of_alter_replica_log_dirs(client_of: Any, tmp_path: Path) -> None:
    data = f"{two_directories(tmp_path)},{tmp_path / 'c'}"
    async with Broker(topics={"t": 2}, data=data) as broker:
        node, client = broker.node, client_of(broker.node.services)
        for index in range(2):
            await append(node, "t", index)
        a, b, c = (str(each.path) for each in node.services.directories.all)
        assert await alter(client, (a, "x" * 240, 0)) == ["invalid_topic_exception"]
        assert await alter(client, ("relative", "t", 0)) == ["log_dir_not_found"]
        assert await alter(client, (b, "t", 7)) == ["unknown_topic_or_partition"]
        assert await alter(client, ("any", "gone", 0)) == ["unknown_topic_or_partition"]
        node.logs.registry.cordoned = frozenset({SeamPath(b)})
        assert await alter(client, (b, "t", 0)) == ["invalid_replica_assignment"]
        node.logs.registry.cordoned = frozenset()
        node.logs.directory_of((await node.partitions.get("t", None, 1)).log).fail(
            OSError(5, "EIO")
        )
        # Any directory that is offline may have a copy of the replica.
        asked = [(c, "t", 1), (b, "t", 0)]
        assert await alter(client, *asked) == ["kafka_storage_error"] * 2
        assert await alter(client, (c, "t", 0)) == ["kafka_storage_error"]
