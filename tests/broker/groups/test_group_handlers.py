"""Handlers of group requests, encoded and decoded, at every version of Kafka 4.3."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import trio

from odradek.broker.apis import find_coordinator, group_offsets, groups
from odradek.broker.coordination.coordinator_log import partition_for
from odradek.broker.coordination.internal_topics import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
)
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.coordinator import GroupCoordinator
from odradek.broker.requests.context import RequestContext
from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import (
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.seams.entropy import SeededEntropy
from odradek.seams.network import Address
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.groups.group_shard_driver import metadata
from tests.support.coordinator_log import MemoryLog

HANDLERS: Mapping[Api, Any] = {
    **groups.HANDLERS,
    **group_offsets.HANDLERS,
    **find_coordinator.HANDLERS,
}
ORDERS_ID, GONE_ID = UUID(int=1001), UUID(int=1002)
NONE = ErrorCode.none


def versions(*wanted: Api) -> list[Any]:
    return [
        pytest.param(api, version, id=f"{api.name}-v{version}")
        for api in wanted
        for version in api.versions
    ]


def topic(name: str, topic_id: UUID, partitions: int) -> TopicImage:
    partition = PartitionImage((1,), (UUID(int=500),), (1,), 1, 0, 0)
    return TopicImage(name, topic_id, dict.fromkeys(range(partitions), partition))


class Configs:
    def get_int(self, name: str) -> int:
        return {
            "offsets.topic.num.partitions": 50,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.segment.bytes": 104857600,
            "transaction.state.log.num.partitions": 50,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.segment.bytes": 104857600,
        }[name]


class Node:
    """The services that these handlers need, without disks and sockets."""

    def __init__(self, clock: VirtualClock) -> None:
        self.config = Configs()
        self.log = MemoryLog(4)
        self.groups = GroupCoordinator(
            self.log,
            GroupConfig(initial_rebalance_delay_ms=0),
            clock=clock,
            entropy=SeededEntropy(random.Random(1)),
        )
        for partition in range(4):
            self.groups.runtime.schedule_load(partition, 0)
        self.node_id = 1
        self.partitions = self
        self.opened: list[tuple[str, int]] = []
        self.controller_channel = self
        self.created: list[dict[str, Any]] = []
        self.cannot_create: KafkaError | None = None
        orders = topic("orders", ORDERS_ID, 2)
        broker = BrokerImage(
            1, 1, UUID(int=3), (Endpoint("PLAINTEXT", "here", 9092, 0),), {}, None, False, False, ()
        )
        self.metadata = SimpleNamespace(
            image=MetadataImage(
                topics_by_name={"orders": orders},
                topics_by_id={ORDERS_ID: orders},
                brokers={1: broker},
            ),
            is_active=False,
            subscribe=lambda changed: lambda: None,
        )

    async def get(self, name: str, topic_id: None, index: int) -> Node:
        self.opened.append((name, index))
        return self

    def check_leader(self) -> None:
        """This node leads all partitions."""

    async def request(self, api: Api, values: dict[str, Any], *, timeout_s: float) -> Any:
        """Handle CreateTopics as the active controller does."""
        assert api is apis.CREATE_TOPICS
        (wanted,) = values["topics"]
        error = self.cannot_create
        if error is None:
            self.created.append(wanted)
            self._add_topic(wanted["name"], wanted["num_partitions"])
        created = SimpleNamespace(
            name=wanted["name"],
            error_code=NONE if error is None else error.code,
            error_message=None if error is None else error.message,
            topic_id=UUID(int=7),
            num_partitions=wanted["num_partitions"],
            replication_factor=wanted["replication_factor"],
        )
        return SimpleNamespace(topics=[created])

    def _add_topic(self, name: str, partitions: int) -> None:
        before = self.metadata.image
        self.metadata.image = MetadataImage(
            topics_by_name={**before.topics_by_name, name: topic(name, UUID(int=7), partitions)},
            topics_by_id=before.topics_by_id,
            brokers=before.brokers,
        )

    async def call(self, api: Api, version: int, **values: Any) -> Any:
        """Encode a request, handle it, and decode the encoded response."""
        body = messages.write_request(api.key, version, values)
        request = messages.read_request(api.key, version, memoryview(body))
        context = RequestContext(
            cast(Any, self), api, version, 1, "client", _endpoint(), Address("::1", 5), _flush
        )
        response = await HANDLERS[api](request, context)
        written = messages.write_response(api.key, version, response)
        return messages.read_response(api.key, version, memoryview(written))


def _endpoint() -> Any:
    return SimpleNamespace(name="PLAINTEXT")


async def _flush() -> None:
    raise AssertionError("nothing here needs to flush")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def node(clock: VirtualClock) -> AsyncIterator[Node]:
    made = Node(clock)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.groups.run)
        yield made
        nursery.cancel_scope.cancel()


async def a_join(node: Node, version: int, **fields: Any) -> Any:
    values = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 20_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [
            {"name": "range", "metadata": metadata("orders")},
            {"name": "range", "metadata": b"named twice"},
            {"name": "sticky", "metadata": b""},
        ],
        "reason": "why not",
        **fields,
    }
    values = {**values, **({"group_instance_id": None} if version < 5 else {})}
    joined = await node.call(apis.JOIN_GROUP, version, **values)
    if joined.error_code is ErrorCode.member_id_required:
        assert version >= 4
        joined = await node.call(
            apis.JOIN_GROUP, version, **{**values, "member_id": joined.member_id}
        )
    return joined


async def a_sync(node: Node, version: int, joined: Any, **fields: Any) -> Any:
    values = {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": joined.member_id, "assignment": b"all"}],
        **fields,
    }
    return await node.call(apis.SYNC_GROUP, version, **values)


async def a_member(node: Node) -> Any:
    joined = await a_join(node, 9)
    await a_sync(node, 5, joined)
    return joined


# JoinGroup, SyncGroup, Heartbeat, LeaveGroup


@pytest.mark.parametrize("version", apis.JOIN_GROUP.versions)
async def test_join_group(node: Node, version: int) -> None:
    joined = await a_join(node, version)
    assert joined.error_code is NONE
    assert joined.generation_id == 1
    assert joined.protocol_name == "range"
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("client-")
    assert [each.metadata for each in joined.members] == [metadata("orders")]
    if version >= 7:
        assert joined.protocol_type == "consumer"
    group = node.groups.describe("g")
    assert group is not None
    assert group.members[0].client_host == "/::1"


@pytest.mark.parametrize(("version", "nothing"), [(0, ""), (6, ""), (7, None), (9, None)])
async def test_join_group_of_invalid_requests_returns_errors(
    node: Node, version: int, nothing: str | None
) -> None:
    refused = await a_join(node, version, session_timeout=1)
    assert refused.error_code is ErrorCode.invalid_session_timeout
    assert (refused.generation_id, refused.protocol_name, refused.members) == (-1, nothing, ())


async def test_join_group_v0_rejoins_within_its_session_timeout(
    node: Node, clock: VirtualClock
) -> None:
    joined = await a_join(node, 0, session_timeout=7000)
    await a_sync(node, 0, joined)
    shard = node.groups.runtime.context_for("g").shard
    assert shard.groups["g"].members.rebalance_timeout_ms == 7000


async def test_join_group_of_static_leader_sets_skip_assignment(node: Node) -> None:
    joined = await a_join(node, 9, group_instance_id="i")
    assert joined.member_id.startswith("i-")
    await a_sync(node, 5, joined, group_instance_id="i")
    again = await a_join(node, 9, group_instance_id="i")
    assert (again.generation_id, again.skip_assignment) == (1, True)
    assert again.members[0].group_instance_id == "i"
    old = await a_join(node, 8, group_instance_id="i")
    assert (old.generation_id, old.leader, old.members) == (1, again.member_id, ())


@pytest.mark.parametrize("version", apis.SYNC_GROUP.versions)
async def test_sync_group(node: Node, version: int) -> None:
    synced = await a_sync(node, version, await a_join(node, 9))
    assert (synced.error_code, synced.assignment) == (NONE, b"all")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


async def test_sync_group_returns_protocol(node: Node) -> None:
    """KIP-559."""
    joined = await a_join(node, 9)
    for fields in ({"protocol_type": None}, {"protocol_name": None}, {"protocol_name": "sticky"}):
        refused = await a_sync(node, 5, joined, **fields)
        assert refused.error_code is ErrorCode.inconsistent_group_protocol
        assert refused.assignment == b""


@pytest.mark.parametrize("version", apis.HEARTBEAT.versions)
async def test_heartbeat(node: Node, version: int) -> None:
    joined = await a_member(node)
    values = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
    beat = await node.call(apis.HEARTBEAT, version, **values)
    assert beat.error_code is NONE
    late = await node.call(apis.HEARTBEAT, version, **{**values, "generation_id": 0})
    assert late.error_code is ErrorCode.illegal_generation


@pytest.mark.parametrize("version", apis.LEAVE_GROUP.versions)
async def test_leave_group(node: Node, version: int) -> None:
    joined = await a_member(node)
    leaver = {"member_id": joined.member_id, "group_instance_id": None, "reason": "bye"}
    stranger = {**leaver, "member_id": "unknown"}
    if version >= 3:
        left = await node.call(apis.LEAVE_GROUP, version, group_id="g", members=[stranger, leaver])
        assert left.error_code is NONE
        assert [each.error_code for each in left.members] == [ErrorCode.unknown_member_id, NONE]
    else:
        for member_id, expected in (
            ("unknown", ErrorCode.unknown_member_id),
            (joined.member_id, NONE),
        ):
            left = await node.call(apis.LEAVE_GROUP, version, group_id="g", member_id=member_id)
            assert left.error_code is expected
    missing = await node.call(
        apis.LEAVE_GROUP, version, group_id="", members=[leaver], member_id="m"
    )
    assert missing.error_code is ErrorCode.invalid_group_id


# Offsets


def named(version: int, name: str = "orders", topic_id: UUID = ORDERS_ID) -> dict[str, Any]:
    return {"topic_id": topic_id} if version >= 10 else {"name": name}


async def a_commit(node: Node, version: int, *topics: dict[str, Any], **fields: Any) -> Any:
    values = {
        "group_id": "g",
        "member_id": "",
        "topics": list(topics),
        **fields,
    }
    return await node.call(apis.OFFSET_COMMIT, version, **values)


def partitions(*offsets: tuple[int, int], text: str | None = "m") -> dict[str, Any]:
    return {
        "partitions": [
            {
                "partition_index": index,
                "committed_offset": offset,
                "committed_leader_epoch": 3,
                "committed_metadata": text,
            }
            for index, offset in offsets
        ]
    }


def errors(response: Any) -> list[ErrorCode]:
    return [each.error_code for topic in response.topics for each in topic.partitions]


async def a_fetch(
    node: Node, version: int, topics: list[dict[str, Any]] | None, **fields: Any
) -> Any:
    """The result of the only group, in the format of the latest version."""
    if version >= 8:
        values = {"groups": [{"group_id": "g", "topics": topics, **fields}]}
        response = await node.call(apis.OFFSET_FETCH, version, **values)
        return response.groups[0]
    return await node.call(apis.OFFSET_FETCH, version, group_id="g", topics=topics, **fields)


@pytest.mark.parametrize("version", apis.OFFSET_COMMIT.versions)
async def test_offset_commit_then_fetch(node: Node, version: int) -> None:
    committed = await a_commit(node, version, {**named(version), **partitions((0, 5), (1, 6))})
    assert errors(committed) == [NONE, NONE]
    for fetching in apis.OFFSET_FETCH.versions:
        wanted = {**named(fetching), "partition_indexes": [0, 1]}
        (found,) = (await a_fetch(node, fetching, [wanted])).topics
        assert [each.committed_offset for each in found.partitions] == [5, 6]
        assert [each.metadata for each in found.partitions] == ["m", "m"]
        if fetching >= 5:
            expected = 3 if version >= 6 else -1
            assert found.partitions[0].committed_leader_epoch == expected


@pytest.mark.parametrize("version", apis.OFFSET_COMMIT.versions)
async def test_offset_commit_of_unknown_topics_and_partitions_returns_errors(
    node: Node, version: int
) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    response = await a_commit(
        node,
        version,
        {**named(version), **partitions((7, 1), (0, 5))},
        {**named(version, "gone", GONE_ID), **partitions((0, 1))},
    )
    no_topic = ErrorCode.unknown_topic_id if version >= 10 else unknown
    assert errors(response) == [unknown, NONE, no_topic]
    if version >= 10:
        assert [each.topic_id for each in response.topics] == [ORDERS_ID, GONE_ID]
    nothing = await a_commit(
        node, version, {**named(version, "gone", GONE_ID), **partitions((0, 1))}
    )
    assert errors(nothing) == [no_topic]


@pytest.mark.parametrize("version", apis.OFFSET_COMMIT.versions)
async def test_offset_commit_of_unknown_member_fails(node: Node, version: int) -> None:
    one = {**named(version), **partitions((0, 5))}
    missing = await a_commit(node, version, one, generation_id_or_member_epoch=3, member_id="m")
    expected = ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
    assert errors(missing) == [expected]
    joined = await a_member(node)
    for member_id, generation, received in (
        (joined.member_id, 1, NONE),
        (joined.member_id, 0, ErrorCode.illegal_generation),
        ("unknown", 1, ErrorCode.unknown_member_id),
        ("", -1, ErrorCode.unknown_member_id),
    ):
        response = await a_commit(
            node, version, one, generation_id_or_member_epoch=generation, member_id=member_id
        )
        assert errors(response) == [received]


async def test_offset_commit_metadata_over_the_limit_fails(node: Node) -> None:
    response = await a_commit(
        node,
        9,
        {**named(9), **partitions((0, 5), text="x" * 4097)},
        {**named(9), **partitions((1, 5), text=None)},
    )
    assert errors(response) == [ErrorCode.offset_metadata_too_large, NONE]
    (found,) = (await a_fetch(node, 9, [{"name": "orders", "partition_indexes": [0, 1]}])).topics
    assert [(each.committed_offset, each.metadata) for each in found.partitions] == [
        (-1, ""),
        (5, ""),
    ]


@pytest.mark.parametrize(("retention", "lives"), [(1000, False), (-1, True)])
async def test_offset_commit_v2_to_v4_sets_retention(
    node: Node, clock: VirtualClock, retention: int, lives: bool
) -> None:
    await a_commit(node, 2, {**named(2), **partitions((0, 5))}, retention_time=retention)
    await clock.run_for(601)
    found = await a_fetch(node, 1, [{"name": "orders", "partition_indexes": [0]}])
    assert found.topics[0].partitions[0].committed_offset == (5 if lives else -1)


@pytest.mark.parametrize("version", apis.OFFSET_FETCH.versions)
async def test_offset_fetch_of_unknown_group_returns_no_error(node: Node, version: int) -> None:
    response = await a_fetch(node, version, [{**named(version), "partition_indexes": [0]}])
    assert getattr(response, "error_code", NONE) is NONE
    (found,) = response.topics[0].partitions
    assert (found.committed_offset, found.metadata, found.error_code) == (-1, "", NONE)
    if version >= 2:
        everything = await a_fetch(node, version, None)
        assert (everything.error_code, everything.topics) == (NONE, ())


@pytest.mark.parametrize("version", range(2, 11))
async def test_offset_fetch_of_all_topics(node: Node, version: int) -> None:
    await a_commit(node, 10, {"topic_id": ORDERS_ID, **partitions((0, 5), (1, 6))})
    (found,) = (await a_fetch(node, version, None)).topics
    assert [each.committed_offset for each in found.partitions] == [5, 6]
    assert (found.topic_id == ORDERS_ID) if version >= 10 else (found.name == "orders")


async def test_offset_fetch_omits_deleted_topic_ids(node: Node) -> None:
    await a_commit(node, 9, {"name": "orders", **partitions((0, 5))})
    node.metadata.image = MetadataImage()
    assert (await a_fetch(node, 10, None)).topics == ()
    assert len((await a_fetch(node, 9, None)).topics) == 1


async def test_offset_fetch_by_id_of_an_unknown_topic(node: Node) -> None:
    await a_commit(node, 10, {"topic_id": ORDERS_ID, **partitions((0, 5))})
    wanted = [
        {"topic_id": GONE_ID, "partition_indexes": [0]},
        {"topic_id": ORDERS_ID, "partition_indexes": [0]},
        {"topic_id": None, "partition_indexes": [1]},
    ]
    response = await a_fetch(node, 10, wanted)
    found = {each.topic_id: each.partitions[0] for each in response.topics}
    assert found[ORDERS_ID].committed_offset == 5
    assert found[GONE_ID].error_code is ErrorCode.unknown_topic_id
    assert found[None].error_code is ErrorCode.unknown_topic_id


async def test_offset_fetch_of_several_groups(node: Node) -> None:
    await a_commit(node, 9, {"name": "orders", **partitions((0, 5))}, group_id="one")
    await a_commit(node, 9, {"name": "orders", **partitions((0, 6))}, group_id="two")
    wanted = [{"name": "orders", "partition_indexes": [0]}]
    response = await node.call(
        apis.OFFSET_FETCH,
        9,
        groups=[{"group_id": each, "topics": wanted} for each in ("one", "two", "three")],
        require_stable=True,
    )
    assert [
        (each.group_id, each.topics[0].partitions[0].committed_offset) for each in response.groups
    ] == [("one", 5), ("two", 6), ("three", -1)]


@pytest.mark.parametrize("version", apis.OFFSET_FETCH.versions)
async def test_offset_fetch_without_coordinator_fails(node: Node, version: int) -> None:
    for partition in range(4):
        node.groups.runtime.unload(partition)
    response = await a_fetch(node, version, [{**named(version), "partition_indexes": [0]}])
    if version >= 2:
        assert (response.error_code, response.topics) == (ErrorCode.not_coordinator, ())
    else:
        assert errors(response) == [ErrorCode.not_coordinator]


async def test_offset_delete(node: Node) -> None:
    wanted = [
        {
            "name": name,
            "partitions": [{"partition_index": index} for index in indexes],
        }
        for name, indexes in (("orders", (0, 1, 9)), ("gone", (0,)))
    ]
    missing = await node.call(apis.OFFSET_DELETE, 0, group_id="g", topics=wanted)
    assert (missing.error_code, missing.topics) == (ErrorCode.group_id_not_found, ())
    await a_commit(node, 9, {"name": "orders", **partitions((0, 5))})
    response = await node.call(apis.OFFSET_DELETE, 0, group_id="g", topics=wanted)
    unknown = ErrorCode.unknown_topic_or_partition
    assert errors(response) == [NONE, NONE, unknown, unknown]
    assert (await a_fetch(node, 9, None)).topics == ()


# ListGroups, DescribeGroups, DeleteGroups


@pytest.mark.parametrize("version", apis.LIST_GROUPS.versions)
async def test_list_groups(node: Node, version: int) -> None:
    await a_member(node)
    await a_commit(node, 9, {"name": "orders", **partitions((0, 5))}, group_id="simple")
    listed = await node.call(apis.LIST_GROUPS, version)
    assert listed.error_code is NONE
    assert {(each.group_id, each.protocol_type) for each in listed.groups} == {
        ("g", "consumer"),
        ("simple", ""),
    }
    if version >= 4:
        stable = await node.call(apis.LIST_GROUPS, version, states_filter=["stable"])
        assert [(each.group_id, each.group_state) for each in stable.groups] == [("g", "Stable")]
    if version >= 5:
        none = await node.call(apis.LIST_GROUPS, version, types_filter=["Consumer"])
        assert none.groups == ()
        classic = await node.call(apis.LIST_GROUPS, version, types_filter=["Classic"])
        assert {each.group_type for each in classic.groups} == {"classic"}


@pytest.mark.parametrize("version", apis.DESCRIBE_GROUPS.versions)
async def test_describe_groups(node: Node, version: int) -> None:
    joined = await a_member(node)
    values = {"groups": ["g", "unknown"], "include_authorized_operations": version >= 3}
    response = await node.call(apis.DESCRIBE_GROUPS, version, **values)
    group, missing = response.groups
    assert (group.error_code, group.group_state) == (NONE, "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    (member,) = group.members
    assert member.member_id == joined.member_id
    assert (member.client_id, member.client_host) == ("client", "/::1")
    assert (member.member_metadata, member.member_assignment) == (metadata("orders"), b"all")
    assert missing.group_state == "Dead"
    if version >= 3:
        assert group.authorized_operations == 3400  # Kafka returns this without an authorizer
    if version >= 6:
        assert missing.error_code is ErrorCode.group_id_not_found
        assert missing.error_message == "Group unknown not found."
    else:
        assert missing.error_code is NONE


async def test_describe_groups_has_metadata_only_of_stable_groups(node: Node) -> None:
    await a_join(node, 9)
    (group,) = (await node.call(apis.DESCRIBE_GROUPS, 6, groups=["g"])).groups
    assert group.group_state == "CompletingRebalance"
    assert (group.protocol_data, group.members[0].member_metadata) == ("", b"")
    assert group.authorized_operations == -(2**31)


async def test_describe_groups_without_coordinator_fails(node: Node) -> None:
    for partition in range(4):
        node.groups.runtime.unload(partition)
    (group,) = (await node.call(apis.DESCRIBE_GROUPS, 6, groups=["g"])).groups
    assert (group.error_code, group.group_state) == (ErrorCode.not_coordinator, "")


@pytest.mark.parametrize("version", apis.DELETE_GROUPS.versions)
async def test_delete_groups(node: Node, version: int) -> None:
    await a_member(node)
    await a_commit(node, 9, {"name": "orders", **partitions((0, 5))}, group_id="simple")
    response = await node.call(apis.DELETE_GROUPS, version, groups_names=["g", "simple", "unknown"])
    assert [(each.group_id, each.error_code) for each in response.results] == [
        ("g", ErrorCode.non_empty_group),
        ("simple", NONE),
        ("unknown", ErrorCode.group_id_not_found),
    ]


# FindCoordinator


async def a_find(node: Node, version: int, key_type: int, *keys: str) -> list[Any]:
    if version >= 4:
        values: dict[str, Any] = {"key_type": key_type, "coordinator_keys": list(keys)}
        return list((await node.call(apis.FIND_COORDINATOR, version, **values)).coordinators)
    values = {"key_type": key_type} if version >= 1 else {}
    return [await node.call(apis.FIND_COORDINATOR, version, key=key, **values) for key in keys]


@pytest.mark.parametrize("version", apis.FIND_COORDINATOR.versions)
async def test_find_coordinator(node: Node, version: int) -> None:
    for key_type, name in ((0, OFFSETS_TOPIC), (1, TRANSACTIONS_TOPIC))[: 1 if version == 0 else 2]:
        found = await a_find(node, version, key_type, "g", "h")
        for each in found:
            assert (each.error_code, each.node_id, each.host, each.port) == (NONE, 1, "here", 9092)
        assert node.created[-1]["name"] == name
        assert {"name": "cleanup.policy", "value": "compact"} in node.created[-1]["configs"]
        assert node.opened[-2:] == [(name, partition_for(each, 50)) for each in "gh"]


@pytest.mark.parametrize("version", apis.FIND_COORDINATOR.versions)
async def test_find_coordinator_without_creatable_topic_fails(node: Node, version: int) -> None:
    node.cannot_create = KafkaError(ErrorCode.invalid_replication_factor, "too few brokers")
    (refused,) = await a_find(node, version, 0, "g")
    assert refused.error_code is ErrorCode.coordinator_not_available
    assert (refused.node_id, refused.host, refused.port) == (-1, "", -1)


@pytest.mark.parametrize(("version", "key_type"), [(1, 2), (5, 2), (6, 2), (6, 77)])
async def test_find_coordinator_of_unsupported_key_type_fails(
    node: Node, version: int, key_type: int
) -> None:
    (refused,) = await a_find(node, version, key_type, "k")
    assert refused.error_code is ErrorCode.invalid_request
    assert node.created == []
