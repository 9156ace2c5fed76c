"""Tests of a broker with tiered storage: remote storage in a directory, the metadata topic, and a client (E1,
E3, E6, E7, E8, T-01, T-04 to T-06, T-36, T-51, T-63)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from odradek.broker.node import CannotStart
from odradek.client import admin
from odradek.client.log_dir_admin import Replica, alter_replica_log_dirs
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.tiered import partition_remover
from odradek.storage.tiered.metadata_records import METADATA_TOPIC, encode
from odradek.testing import Broker
from tests.support.remote_segments import FINISHED, FOO_0, becomes, segment
from tests.support.tiered_topic_broker import TIERED, VALUES, WHERE, stage


async def test_segments_are_copied_expired_locally_and_read(tmp_path: Path) -> None:
    """E1, T-32, T-63, also after a restart."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        assert tiered.log.log_start_offset == 0
        assert tiered.log.local_log_start_offset > 30
        remote = tiered.remote_segments()
        assert remote[0] == 0
        assert len(remote) > 5
        assert await tiered.read() == VALUES
        assert await tiered.read(7) == VALUES[7:]
    async with stage(tmp_path) as tiered:
        await tiered.until(lambda: tiered.log.highest_copied_offset >= 0)
        assert tiered.remote_segments() == remote
        assert await tiered.read() == VALUES
        await tiered.produce(VALUES)
        await tiered.until(lambda: len(tiered.remote_segments()) > 2 * len(remote) - 2)
        await tiered.until(tiered.is_copied)
        assert await tiered.read() == 2 * VALUES


async def test_total_retention_and_deleted_records(tmp_path: Path) -> None:
    """E6, E7, T-36, T-37."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        first, second, third = tiered.remote_segments()[:3]
        await admin.delete_records(tiered.cluster, {WHERE: second + 1})
        await tiered.until(lambda: tiered.remote_segments()[0] == second)
        assert tiered.log.log_start_offset == second + 1
        assert await tiered.read(second + 1) == VALUES[second + 1 :]
        await tiered.alter(
            {"retention.ms": "1", "local.retention.ms": "1", "local.retention.bytes": "-2"}
        )
        await tiered.until(lambda: tiered.remote_segments() == [])
        await tiered.until(lambda: tiered.log.log_start_offset == len(VALUES))
        assert third
        assert first == 0


async def test_deleted_topic_leaves_no_objects(tmp_path: Path) -> None:
    """E8, T-51, T-52: a recreated topic has none of the old records."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        await admin.delete_topics(tiered.cluster, ["orders"])
        await tiered.create()
        await tiered.produce(VALUES[:2])
        await tiered.until(lambda: tiered.objects() == [])
        assert await tiered.read() == VALUES[:2]


async def test_tiered_storage_is_enabled_on_existing_topic(tmp_path: Path) -> None:
    """E3: while the broker runs."""
    async with stage(tmp_path) as tiered:
        await tiered.create({"internal.segment.bytes": "2000"})
        await tiered.produce(VALUES)
        assert tiered.objects() == []
        await tiered.alter(TIERED)
        await tiered.until(tiered.is_copied)
        assert await tiered.read() == VALUES


async def test_broker_without_tiered_storage_does_not_start_with_tiered_topics(
    tmp_path: Path,
) -> None:
    """T-01: it would lose their log start offsets; Kafka does not start either."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
    logged = "topic orders has remote.storage.enable=true.*: start it with that and an object store"
    with pytest.raises(CannotStart, match=logged):
        async with Broker(data=tmp_path / "data"):
            pass


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"remote_log_storage_manager_class_name": "com.example.Mine"}, "Java plug-ins"),
        ({"remote_log_metadata_manager_class_name": "com.example.Mine"}, "can only be"),
        ({"rlmm_config_remote_log_metadata_topic_num_partitions": "x"}, "num.partitions"),
    ],
)
async def test_invalid_tiered_storage_configs_fail_the_start(
    tmp_path: Path, configs: dict[str, str], reason: str
) -> None:
    """T-02 to T-05."""
    with pytest.raises(CannotStart, match=reason):
        async with stage(tmp_path, **configs):
            pass


async def test_replica_move_during_copies(tmp_path: Path) -> None:
    """E4, T-57: the copies continue from the other log directory."""
    data = f"{tmp_path}/data,{tmp_path}/other"
    async with stage(tmp_path, log_dirs=data) as tiered:
        await tiered.create()
        await tiered.produce(VALUES[:20])
        here = str(tiered.log.directory.parent)
        there = next(each for each in data.split(",") if each != here)
        replica = Replica(tiered.node.node_id, "orders", 0)
        codes = await alter_replica_log_dirs(tiered.cluster, {replica: there})
        assert set(codes.values()) == {ErrorCode.none}
        await tiered.produce(VALUES[20:])
        await tiered.until(lambda: str(tiered.log.directory.parent) == there)
        await tiered.until(tiered.is_copied)
        assert len(set(tiered.remote_segments())) == len(tiered.remote_segments())
        assert await tiered.read() == VALUES


REFUSED = {
    "local.retention.ms": [
        {"retention.ms": "200", "local.retention.ms": "250"},
        {"retention.ms": "200", "local.retention.ms": "-1"},
    ],
    "local.retention.bytes": [{"retention.bytes": "200", "local.retention.bytes": "250"}],
    "cleanup.policy": [{"cleanup.policy": "compact"}, {"cleanup.policy": "compact,delete"}],
}


async def test_invalid_tiered_topic_configs_are_rejected(tmp_path: Path) -> None:
    """E17, T-15, T-16: at creation and alteration."""
    async with stage(tmp_path) as tiered:
        await tiered.node.ensure_topic("taken", 1, 1, TIERED)
        for reason, cases in REFUSED.items():
            for configs in cases:
                with pytest.raises(KafkaError, match=re.escape(reason)) as refusal:
                    await tiered.create({"remote.storage.enable": "true", **configs})
                assert refusal.value.code is ErrorCode.invalid_config
                with pytest.raises(KafkaError, match=re.escape(reason)) as refusal:
                    await tiered.alter(configs, "taken")
                assert refusal.value.code is ErrorCode.invalid_config


async def test_disabling_requires_delete_on_disable(tmp_path: Path) -> None:
    """E17, T-14: the remote tier is emptied, and the log starts at the local log start offset."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        start = tiered.log.local_log_start_offset
        with pytest.raises(KafkaError, match=r"remote\.log\.delete\.on\.disable"):
            await tiered.alter({"remote.storage.enable": "false"})
        await tiered.alter(
            {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        )
        await tiered.until(lambda: tiered.objects() == [])
        assert await tiered.read(start) == VALUES[start:]
        assert tiered.log.log_start_offset == start


async def test_tiered_topic_is_rejected_without_tiered_storage(tmp_path: Path) -> None:
    """E17, T-01."""
    async with Broker(data=tmp_path / "data") as broker:
        with pytest.raises(KafkaError, match=r"remote\.log\.storage\.system\.enable") as refusal:
            await broker.node.ensure_topic("orders", 1, 1, TIERED)
        assert refusal.value.code is ErrorCode.invalid_config
        assert broker.node.services.tiered_storage is None


async def test_metadata_topic_with_other_partition_count_fails_the_start(tmp_path: Path) -> None:
    """T-08: the metadata partition of a segment depends on the number of partitions. The broker exits with the
    reason, as Kafka's does."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.until(lambda: METADATA_TOPIC in tiered.node.metadata.image.topics_by_name)
    other = {"rlmm_config_remote_log_metadata_topic_num_partitions": "7"}
    with pytest.raises(ExceptionGroup) as ended:
        async with stage(tmp_path, **other) as tiered:
            await tiered.node.stopped.wait()
    assert ended.group_contains(
        CannotStart, match="tiered storage: topic __remote_log_metadata has 5"
    )


async def test_hostile_metadata_records_do_not_end_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any client may write to the metadata topic while there are no ACLs. These segments belong to no topic, so the
    leader of the metadata partition deletes them."""
    # The topics count as deleted at once
    monkeypatch.setattr(partition_remover, "SKEW_MS", -(2**62))
    started = [
        segment(number, 0, 9, partition=replace(FOO_0, topic=topic))
        for number, topic in enumerate(["../x", "a\0b", "unknown"], 1)
    ]
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.until(lambda: tiered.node.metadata.image.topic(METADATA_TOPIC) is not None)
        metadata_topic = tiered.node.metadata.image.topics_by_name[METADATA_TOPIC]
        for index in metadata_topic.partitions:
            for event in started:
                for value in (encode(event), encode(becomes(event, FINISHED))):
                    await tiered.produce([value], METADATA_TOPIC, index)
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
    async with stage(tmp_path) as tiered:  # the records are read again
        await tiered.until(lambda: tiered.log.highest_copied_offset >= 0)
        assert await tiered.read() == VALUES
