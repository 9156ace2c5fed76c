"""Tests of a group member with a scripted broker."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from odradek.client.assignors import read_assignment, write_assignment, write_subscription
from odradek.client.errors import ClientError
from odradek.client.group import GroupConsumer, GroupOptions
from odradek.client.metadata import open_cluster
from odradek.protocol.apis import (
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.tcp import TcpNetwork
from tests.support.scripted_broker import SILENCE, ReceivedRequest, ScriptedBroker, scripted_broker


class Coordinator(ScriptedBroker):
    """Responses for a group with one member, the group leader."""

    subscribed = ("t", "u")

    def _usual(self, asked: ReceivedRequest) -> Any:
        if asked.api is FIND_COORDINATOR:
            node = {"node_id": 1, "host": self.address.host, "port": self.address.port}
            key = {"key": "g", **node, "error_code": 0, "error_message": None}
            return {"coordinators": [key]}
        if asked.api is JOIN_GROUP:
            member = {
                "member_id": "m",
                "group_instance_id": None,
                "metadata": write_subscription(self.subscribed),
            }
            return {
                "error_code": 0,
                "generation_id": 1,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "leader": "m",
                "skip_assignment": False,
                "member_id": "m",
                "members": [member],
            }
        if asked.api is SYNC_GROUP:
            return {
                "error_code": 0,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignment": write_assignment([]),
            }
        return super()._usual(asked)


def with_one_partition(asked: ReceivedRequest, *, commits: ErrorCode = ErrorCode.none) -> Any:
    """The member is assigned t-0 with committed offset 7 and no further records."""
    if asked.api is SYNC_GROUP:
        assignment = write_assignment([TopicPartition("t", 0)])
        named = {"protocol_type": "consumer", "protocol_name": "range"}
        return {"error_code": 0, **named, "assignment": assignment}
    if asked.api is OFFSET_FETCH:
        row = {"partition_index": 0, "committed_offset": 7, "error_code": 0, "metadata": None}
        row |= {"committed_leader_epoch": -1}
        topics = [{"name": "t", "partitions": [row]}]
        return {"groups": [{"group_id": "g", "error_code": 0, "topics": topics}]}
    if asked.api is OFFSET_COMMIT:
        rows = [{"partition_index": 0, "error_code": commits}]
        return {"topics": [{"name": "t", "partitions": rows}]}
    if asked.api is FETCH:
        return {"error_code": 0, "responses": []}
    return None


async def test_member_keeps_membership_while_coordinator_moves() -> None:
    """The position is kept, not reset to the committed offset."""

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not HEARTBEAT:
            return None
        is_first = len(broker.requests_of(HEARTBEAT)) == 1
        return {"error_code": ErrorCode.not_coordinator if is_first else ErrorCode.none}

    async with scripted_broker(script, kind=Coordinator, topics={"t": 1, "u": 1}) as broker:
        async with open_cluster(TcpNetwork(), [broker.address]) as cluster:
            member = GroupConsumer(cluster, "g", ["t", "u"], options=GroupOptions(heartbeat_s=0.01))
            with trio.fail_after(10):
                while len(broker.requests_of(HEARTBEAT)) < 3:
                    await member.poll(0.01)
        assert len(broker.requests_of(JOIN_GROUP)) == 1
        assert len(broker.requests_of(FIND_COORDINATOR)) == 2


async def test_group_leader_assigns_topic_after_creation() -> None:
    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not METADATA or len(asked.body.topics or ()) != 2:
            return None
        response = broker.metadata(asked)
        if len(broker.requests_of(JOIN_GROUP)) == 1:
            response["topics"][1] |= {
                "error_code": ErrorCode.leader_not_available,
                "partitions": [],
            }
        return response

    async with scripted_broker(script, kind=Coordinator, topics={"t": 1, "u": 1}) as broker:
        async with open_cluster(TcpNetwork(), [broker.address]) as cluster:
            member = GroupConsumer(cluster, "g", ["t", "u"])
            with trio.fail_after(10):
                await member.poll(0)
        (sync,) = broker.requests_of(SYNC_GROUP)
        (assigned,) = sync.body.assignments
        found = read_assignment(bytes(assigned.assignment))
        assert found == [TopicPartition("t", 0), TopicPartition("u", 0)]


async def test_failed_rejoin_commits_no_old_assignment() -> None:
    """Another member may already have committed a larger offset."""

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is HEARTBEAT:
            return {"error_code": ErrorCode.rebalance_in_progress}
        if asked.api is SYNC_GROUP and len(broker.requests_of(SYNC_GROUP)) > 1:
            return SILENCE
        return with_one_partition(asked)

    async with scripted_broker(script, kind=Coordinator, topics={"t": 1, "u": 1}) as broker:
        async with open_cluster(TcpNetwork(), [broker.address]) as cluster:
            member = GroupConsumer(cluster, "g", ["t"], options=GroupOptions(heartbeat_s=0))
            await member.poll(0.02)
            assert member.positions == {TopicPartition("t", 0): 7}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(member.poll, 0.02)
                with trio.fail_after(10):
                    while len(broker.requests_of(SYNC_GROUP)) < 2:
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            before_joining = len(broker.requests_of(OFFSET_COMMIT))
            await member.commit()
            assert len(broker.requests_of(OFFSET_COMMIT)) == before_joining == 1
            assert member.assigned == []


@pytest.mark.parametrize("reported", [ErrorCode.unknown_member_id, ErrorCode.illegal_generation])
async def test_removed_member_stops_consuming(reported: ErrorCode) -> None:
    """Its partitions may be assigned to another member: it rejoins before the next heartbeat."""
    script = partial(with_one_partition, commits=reported)
    async with scripted_broker(script, kind=Coordinator, topics={"t": 1, "u": 1}) as broker:
        async with open_cluster(TcpNetwork(), [broker.address]) as cluster:
            member = GroupConsumer(cluster, "g", ["t"])
            await member.poll(0)
            with pytest.raises(KafkaError):
                await member.commit()
            with trio.fail_after(10):
                await member.poll(0)
        apis = [each.api for each in broker.requests if each.api in (FETCH, JOIN_GROUP)]
        assert apis == [JOIN_GROUP, FETCH, JOIN_GROUP, FETCH]


async def test_group_leader_assigns_added_partitions() -> None:
    script = partial(with_one_partition, commits=ErrorCode.none)
    async with scripted_broker(script, kind=Coordinator, topics={"t": 1, "u": 1}) as broker:
        async with open_cluster(TcpNetwork(), [broker.address]) as cluster:
            options = GroupOptions(metadata_max_age_s=0)
            member = GroupConsumer(cluster, "g", ["t"], options=options)
            with trio.fail_after(10):
                for _ in range(3):
                    await member.poll(0)
                assert len(broker.requests_of(JOIN_GROUP)) == 1
                broker.topics["t"] = 2
                for _ in range(3):
                    await member.poll(0)
        assert (
            len(broker.requests_of(JOIN_GROUP)) == len(broker.requests_of(OFFSET_COMMIT)) + 1 == 2
        )
        (assigned,) = broker.requests_of(SYNC_GROUP)[1].body.assignments
        assert read_assignment(bytes(assigned.assignment)) == [
            TopicPartition("t", 0),
            TopicPartition("t", 1),
            TopicPartition("u", 0),
        ]


class CoordinatorOfOne(Coordinator):
    subscribed = ("t",)


async def test_group_leader_assigns_nothing_of_missing_topics() -> None:
    async with scripted_broker(lambda asked: None, kind=CoordinatorOfOne, topics={}) as broker:
        async with open_cluster(TcpNetwork(), [broker.address]) as cluster:
            member = GroupConsumer(cluster, "g", ["t"])
            with trio.fail_after(10):
                assert await member.poll(0) == []
        (assigned,) = broker.requests_of(SYNC_GROUP)[0].body.assignments
        assert read_assignment(bytes(assigned.assignment)) == []


class CoordinatorOfGarbage(Coordinator):
    def _usual(self, asked: ReceivedRequest) -> Any:
        response = super()._usual(asked)
        if asked.api is JOIN_GROUP:
            response["members"].append(
                {**response["members"][0], "member_id": "n", "metadata": b"?"}
            )
        return response


async def test_group_leader_reports_member_of_invalid_subscription() -> None:
    async with scripted_broker(lambda asked: None, kind=CoordinatorOfGarbage) as broker:
        async with open_cluster(TcpNetwork(), [broker.address]) as cluster:
            with pytest.raises(
                ClientError, match="group g, member n: invalid subscription of 1 bytes"
            ):
                await GroupConsumer(cluster, "g", ["t"]).poll(0)
