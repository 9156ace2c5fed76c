"""Tests of the client with an Odradek broker in this process: groups and administration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from odradek.client import admin, group_admin, log_dir_admin
from odradek.client.assignors import read_assignment
from odradek.client.connection import BrokerConnection
from odradek.client.consumer import EARLIEST, LATEST, Reader, list_offsets
from odradek.client.group import GroupConsumer, GroupOptions
from odradek.client.metadata import Cluster, open_cluster
from odradek.client.producer import ProducerOptions, open_producer
from odradek.protocol.apis import LIST_OFFSETS, Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Broker

FAST = GroupOptions(heartbeat_s=0.05)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    topics = {"t": 4, "u": 1}
    async with (
        Broker(topics=topics) as broker,
        open_cluster(TcpNetwork(), broker.bootstrap, timeout_s=10) as found,
    ):
        yield found


async def produce(cluster: Cluster, topic: str, count: int) -> None:
    options = ProducerOptions(compression=3)
    async with open_producer(cluster, RealClock(), RealEntropy(), options) as producer:
        for number in range(count):
            await producer.enqueue(topic, b"%d" % number, key=b"%d" % number)
        await producer.flush()


async def test_produced_records_are_consumed(cluster: Cluster) -> None:
    await produce(cluster, "t", 1000)
    where = [TopicPartition("t", index) for index in range(4)]
    ends = await list_offsets(cluster, dict.fromkeys(where, LATEST))
    assert sum(found.offset for found in ends.values()) == 1000
    reader = Reader(cluster)
    reader.assign(dict.fromkeys(where, 0))
    values = [record.value for record in await reader.poll()]
    while not await reader.at_end():
        values += [record.value for record in await reader.poll()]
    assert sorted(values, key=int) == [b"%d" % number for number in range(1000)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("timestamp", "first_version"),
    [(-4, 7), (-5, 9), (-6, 11)],
    ids=["earliest local", "latest tiered", "earliest pending upload"],
)
async def test_special_timestamps_have_a_first_version(
    cluster: Cluster, timestamp: int, first_version: int
) -> None:
    """T-39: -4 is supported from version 7, as in KIP-405; -5 and -6 from the versions of Kafka."""
    await produce(cluster, "u", 3)
    node = await cluster.any_node()
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    values = {"topics": [{"name": "u", "partitions": [part]}], "timeout": 1000}
    values |= {"replica_id": -1, "isolation_level": 0}
    for version in LIST_OFFSETS.versions:
        response = await node.request(LIST_OFFSETS, values, at_most=version)
        (found,) = response.topics[0].partitions
        served = version >= first_version
        expected = ErrorCode.none if served else ErrorCode.unsupported_version
        assert found.error_code is expected, version
        if served:
            # nothing is tiered here: all of it is local, none of it in the remote tier
            assert found.offset == (0 if timestamp == -4 else -1)


async def settle(*members: GroupConsumer) -> list[list[TopicPartition]]:
    """Let each poll by itself until they share the topic's four partitions."""
    everything = [TopicPartition("t", index) for index in range(4)]
    owned: list[list[TopicPartition]] = []

    async def go_on(member: GroupConsumer, scope: trio.CancelScope) -> None:
        nonlocal owned
        while True:
            await member.poll(0.02)
            owned = [member.assigned for member in members]
            if all(owned) and sorted(part for own in owned for part in own) == everything:
                scope.cancel()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(go_on, member, nursery.cancel_scope)
    return owned


async def test_group_rebalances_when_members_join_and_leave(cluster: Cluster) -> None:
    first = GroupConsumer(cluster, "g", ["t"], options=FAST)
    second = GroupConsumer(cluster, "g", ["t"], options=FAST)
    assert await settle(first) == [[TopicPartition("t", index) for index in range(4)]]
    assert sorted(map(len, await settle(first, second))) == [2, 2]
    described = await group_admin.describe_group(cluster, "g")
    assert (described.state, described.protocol) == ("Stable", "range")
    assert {m.member_id: read_assignment(m.assignment) for m in described.members} == {
        first.member_id: first.assigned,
        second.member_id: second.assigned,
    }
    await first.leave()
    assert await settle(second) == [[TopicPartition("t", index) for index in range(4)]]
    await second.leave()
    assert (await group_admin.describe_group(cluster, "g")).state == "Empty"


async def test_next_member_starts_at_committed_offset(cluster: Cluster) -> None:
    await produce(cluster, "u", 10)
    first = GroupConsumer(cluster, "g", ["u"], options=FAST)
    records = await first.poll()
    assert len(records) == 10
    await first.commit({TopicPartition("u", 0): records[5].offset + 1})
    await first.leave()
    second = GroupConsumer(cluster, "g", ["u"], options=FAST)
    assert [record.value for record in await second.poll()] == [b"6", b"7", b"8", b"9"]
    assert await second.at_end()
    await second.commit()
    committed = await group_admin.committed_offsets(cluster, "g")
    assert {where: found.offset for where, found in committed.items()} == {
        TopicPartition("u", 0): 10
    }
    await second.leave()


async def test_reset_option_of_new_group(cluster: Cluster) -> None:
    await produce(cluster, "u", 5)
    for reset, count in ((EARLIEST, 5), (LATEST, 0)):
        member = GroupConsumer(cluster, f"g{reset}", ["u"], options=GroupOptions(reset=reset))
        assert len(await member.poll(0.05)) == count
        await member.leave()


async def test_unknown_member_rejoins(cluster: Cluster) -> None:
    member = GroupConsumer(cluster, "g", ["u"], options=FAST)
    await member.poll(0.01)
    before = member.member_id
    stand_in = GroupConsumer(cluster, "g", ["u"], options=FAST)
    stand_in.member_id = before
    await stand_in.leave()  # in its name
    with trio.fail_after(10):
        while member.member_id == before:
            await member.poll(0.02)
    assert member.assigned == [TopicPartition("u", 0)]
    await member.leave()


async def test_static_member_fences_its_previous_instance(cluster: Cluster) -> None:
    options = GroupOptions(heartbeat_s=0.02, instance_id="i")
    first = GroupConsumer(cluster, "g", ["u"], options=options)
    await first.poll(0.01)
    second = GroupConsumer(cluster, "g", ["u"], options=options)
    await second.poll(0.01)

    async def read_on() -> None:
        with trio.fail_after(10):
            while True:
                await first.poll(0.02)

    with pytest.raises(KafkaError) as fenced:
        await read_on()
    assert fenced.value.code is ErrorCode.fenced_instance_id


@pytest.mark.parametrize("at_most", [None, 3, 7], ids=["now", "before KIP-699", "before KIP-709"])
async def test_committed_offsets_of_many_groups_are_batched(
    cluster: Cluster, at_most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, other = TopicPartition("t", 2), TopicPartition("u", 0)
    for number in range(5):
        await group_admin.reset_offsets(cluster, f"g{number}", {where: number})
    request, asked = BrokerConnection.request, []

    async def counted(self: BrokerConnection, api: Api, values: Any, **more: Any) -> Any:
        asked.append(api)
        limits = [each for each in (at_most, more.pop("at_most", None)) if each is not None]
        return await request(self, api, values, at_most=min(limits, default=None), **more)

    monkeypatch.setattr(BrokerConnection, "request", counted)
    groups = {f"g{number}": [where, other] for number in range(6)}
    found = await group_admin.committed_by_group(cluster, groups)
    expected = {group: [number if number < 5 else -1, -1] for number, group in enumerate(groups)}
    assert {
        group: [found[group][each].offset for each in (where, other)] for group in groups
    } == expected
    assert await group_admin.committed_by_group(cluster, {}) == {}
    assert len(asked) == 2 if at_most is None else len(asked) > 6


async def test_group_offset_administration(cluster: Cluster) -> None:
    where = TopicPartition("u", 0)
    await produce(cluster, "u", 10)
    await group_admin.reset_offsets(cluster, "g", {where: 4})
    assert (await group_admin.committed_offsets(cluster, "g", [where]))[where].offset == 4
    assert [listed.group for listed in await group_admin.list_groups(cluster)] == ["g"]
    assert await group_admin.list_groups(cluster, states=["Stable"]) == []
    await group_admin.delete_offsets(cluster, "g", [where])
    committed = await group_admin.committed_offsets(cluster, "g", [where])
    assert committed[where].offset == -1
    await group_admin.reset_offsets(cluster, "g", {where: 1})
    await group_admin.delete_groups(cluster, ["g"])
    assert await group_admin.list_groups(cluster) == []
    with pytest.raises(KafkaError, match="group g"):
        await group_admin.delete_groups(cluster, ["g"])


async def test_topic_administration(cluster: Cluster) -> None:
    (made,) = await admin.create_topics(
        cluster, [admin.NewTopic("new", 2, configs={"retention.ms": "5000"})]
    )
    assert (made.partitions, made.replication_factor) == (2, 1)
    await admin.create_partitions(cluster, "new", 3)
    assert len((await cluster.topic("new")).partitions) == 3
    change = admin.ConfigChange(admin.ConfigOperation.DELETE, "retention.ms")
    await admin.alter_configs(cluster, admin.ResourceType.TOPIC, "new", [change])
    entries = await admin.describe_configs(cluster, admin.ResourceType.TOPIC, "new")
    assert [e.name for e in entries if e.source is admin.ConfigSource.TOPIC] == []
    assert {entry.name: entry.value for entry in entries}["retention.ms"] == "604800000"
    await produce(cluster, "u", 10)
    where = TopicPartition("u", 0)
    assert await admin.delete_records(cluster, {where: 7}) == {where: 7}
    (directory,) = await log_dir_admin.describe_log_dirs(cluster, partitions=[where])
    assert [(replica.topic, replica.partition) for replica in directory.replicas] == [("u", 0)]
    assert directory.replicas[0].size_bytes > 0
    assert (admin.ResourceType.TOPIC, "new") in await admin.list_config_resources(cluster)
    await admin.delete_topics(cluster, ["new"])
    with pytest.raises(KafkaError, match="topic new does not exist"):
        await cluster.topic("new")
    with pytest.raises(KafkaError, match="u"):
        await admin.create_topics(cluster, [admin.NewTopic("u")])


@pytest.mark.parametrize(
    ("reset", "numbers"),
    [(EARLIEST, range(60, 100)), (LATEST, range(0)), (1 << 50, range(0))],
    ids=["earliest", "latest", "later than all"],
)
async def test_out_of_range_commit_is_reset(cluster: Cluster, reset: int, numbers: range) -> None:
    where = TopicPartition("u", 0)
    await produce(cluster, "u", 100)
    await group_admin.reset_offsets(cluster, "g", {where: 50})
    await admin.delete_records(cluster, {where: 60})
    options = GroupOptions(heartbeat_s=0.05, reset=reset)
    member = GroupConsumer(cluster, "g", ["u"], options=options)
    values = []
    while not await member.at_end():
        values += [record.value for record in await member.poll(0.1)]
    await member.leave()
    assert values == [b"%d" % number for number in numbers]


async def test_out_of_range_commit_is_reset_with_other_partitions_active(
    cluster: Cluster,
) -> None:
    await produce(cluster, "t", 100)
    gone, others = TopicPartition("t", 0), [TopicPartition("t", index) for index in (1, 2, 3)]
    await group_admin.reset_offsets(cluster, "g", {gone: 1, **dict.fromkeys(others, 0)})
    end = (await list_offsets(cluster, {gone: LATEST}))[gone].offset
    first = (await admin.delete_records(cluster, {gone: end}))[gone]
    member = GroupConsumer(cluster, "g", ["t"], options=FAST)
    assert {record.partition for record in await member.poll()} == {1, 2, 3}
    assert await member.poll() == []
    assert member.positions[gone] == first == end
    await member.leave()
