"""Tests of the private APIs of KIP-950: DescribeTopicTiering and DisableRemoteTopic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from odradek.broker.apis import disable_remote_topic
from odradek.broker.requests.dispatch import SERVED, SERVED_BY_CONTROLLERS, handle_locally
from odradek.broker.security.authorizer import Authorizer
from odradek.broker.timers import BusyConnectionQueue
from odradek.protocol import apis
from odradek.protocol.acls import AclOperation, AclResource, PatternType, Permission
from odradek.replication.controller.acls import CLUSTER_NAME, Acl
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import (
    DisablePolicy,
    MetadataImage,
    TieredState,
    TopicTiering,
)
from odradek.replication.controller.topic_tiering import tiering_record
from tests.broker.apis.fake_broker import FakeBroker

DISABLING = TopicTiering(3, TieredState.DISABLING, DisablePolicy.DELETE, 3)
RETAINED = TopicTiering(1, TieredState.DISABLED, DisablePolicy.RETAIN, 0)


async def create(client: Any, name: str, tiering: TopicTiering | None = None) -> None:
    created = await client.create(name)

    def operation(image: MetadataImage) -> ControllerResult[None]:
        return ControllerResult([tiering_record(created.topic_id, tiering)], None)

    if tiering is not None:
        await client.broker.metadata.perform(operation)


def may(resource: AclResource, name: str, operation: AclOperation) -> Acl:
    me = "User:ANONYMOUS"
    return Acl(resource, name, PatternType.LITERAL, me, "*", operation, Permission.ALLOW)


@pytest.fixture
def restricted(client: Any, client_of: Callable[..., Any]) -> Callable[..., Any]:
    """Client that is allowed only what the ACLs allow."""

    def make(*acls: Acl) -> Any:
        authorizer = Authorizer()
        authorizer.load(acls)
        return client_of(client.broker, authorizer=authorizer)

    return make


async def describe(client: Any, *topics: str) -> dict[str, Any]:
    response = await client.ask(apis.DESCRIBE_TOPIC_TIERING, 0, topics=topics or None)
    assert response.error_code.name == "none"
    return {row.name: row for row in response.topics}


async def test_tiered_state_of_requested_topics(client: Any) -> None:
    await create(client, "disabling", DISABLING)
    await create(client, "retained", RETAINED)
    await create(client, "plain")
    found = await describe(client, "retained", "disabling", "plain", "absent", "plain")
    assert list(found) == ["retained", "disabling", "plain", "absent"]
    disabling = found["disabling"]
    assert (disabling.state, disabling.epoch, disabling.policy) == (1, 3, "delete")
    assert [(row.broker_id, row.is_done, row.reason) for row in disabling.brokers] == [
        (1, False, None)
    ]
    retained = found["retained"]
    assert (retained.state, retained.epoch, retained.policy) == (2, 1, "retain")
    assert retained.brokers == ()
    assert (found["plain"].state, found["plain"].epoch, found["plain"].is_tiered) == (0, 0, False)
    assert found["absent"].error_code.name == "unknown_topic_or_partition"


async def test_request_without_topics_describes_topics_with_a_tiered_state(client: Any) -> None:
    for name, tiering in (("b", DISABLING), ("a", RETAINED), ("plain", None)):
        await create(client, name, tiering)
    assert list(await describe(client)) == ["a", "b"]


async def test_description_needs_describe_on_the_topic(
    client: Any, restricted: Callable[..., Any]
) -> None:
    await create(client, "seen", RETAINED)
    await create(client, "hidden", DISABLING)
    other = restricted(may(AclResource.TOPIC, "seen", AclOperation.DESCRIBE))
    assert list(await describe(other)) == ["seen"]
    found = await describe(other, "seen", "hidden", "absent")
    assert [row.error_code.name for row in found.values()] == [
        "none",
        "topic_authorization_failed",
        "topic_authorization_failed",
    ]
    assert found["hidden"].epoch == 0


async def test_disable_remote_topic_needs_cluster_action(
    client: Any, restricted: Callable[..., Any]
) -> None:
    """Without it, the broker does not wait, and the response has no progress."""
    await create(client, "t", DISABLING)
    topic_id = client.broker.metadata.image.topics_by_name["t"].id
    values = {"topic_id": topic_id, "metadata_offset": client.broker.metadata.image.offset}
    other = restricted(may(AclResource.CLUSTER, CLUSTER_NAME, AclOperation.ALTER))
    denied = await other.ask(apis.DISABLE_REMOTE_TOPIC, 0, **values)
    assert denied.error_code.name == "cluster_authorization_failed"
    assert denied.error_message == "Cluster authorization failed."
    node = restricted(may(AclResource.CLUSTER, CLUSTER_NAME, AclOperation.CLUSTER_ACTION))
    unfinished = await node.ask(apis.DISABLE_REMOTE_TOPIC, 0, **values)
    assert unfinished.error_code.name == "request_timed_out"


async def finish(client: Any, tiered: bool = True, **replica: Any) -> str | None:
    """Message of the response to DisableRemoteTopic of a leader with one replica of these attributes."""
    message: str | None = (await respond(client, tiered, **replica)).error_message
    return message


async def respond(client: Any, tiered: bool = True, **replica: Any) -> Any:
    image = client.broker.metadata.image
    (topic_id,) = image.topics_by_id
    log = SimpleNamespace(failure=replica.get("failure"))

    async def get(topic: str, topic_id: UUID, index: int) -> Any:
        return SimpleNamespace(leader_epoch=0, log=log, index=index)

    def is_disabled(partition: Any) -> bool:
        return not replica.get("has_segments", False)

    manager = SimpleNamespace(
        work=SimpleNamespace(is_busy=lambda id: replica.get("is_busy", False)),
        is_disabled=replica.get("check", is_disabled),
        disablement_progress=lambda partition: "7 remote segments are not deleted yet",
        may_copy=lambda id, partition: replica.get("may_copy", False),
    )
    client.broker.partitions = SimpleNamespace(get=get)
    client.broker.tiered_storage = SimpleNamespace(manager=manager) if tiered else None
    values = {"topic_id": topic_id, "metadata_offset": image.offset}
    response = await client.ask(apis.DISABLE_REMOTE_TOPIC, 0, **values)
    assert (response.error_code.name == "none") is (response.error_message is None)
    return response


async def test_leader_that_cannot_delete_the_remote_data_has_not_finished(client: Any) -> None:
    """X-05, X-07: without tiered storage, or with an offline log directory."""
    await create(client, "t", DISABLING)
    assert await finish(client) is None
    missing = "partition t-0: this broker needs remote.log.storage.system.enable=true"
    assert await finish(client, tiered=False) == missing
    offline = "partition t-0: the log directory is offline"
    assert await finish(client, failure=OSError("EIO")) == offline


async def test_broker_without_tiered_storage_has_nothing_to_do_for_retain(client: Any) -> None:
    """X-06."""
    await create(client, "t", RETAINED)
    assert await finish(client, tiered=False) is None


async def test_broker_that_is_copying_has_not_finished_even_without_a_replica(client: Any) -> None:
    """X-04: the copy of a leader from which the partition was reassigned."""
    await create(client, "t", RETAINED)
    client.broker.node_id += 1
    assert await finish(client) is None
    busy = "partition t-0: a segment is being copied or deleted"
    assert await finish(client, is_busy=True) == busy


@pytest.mark.parametrize("may_copy", [False, True])
async def test_unfinished_broker_reports_whether_its_copies_have_ended(
    client: Any, may_copy: bool
) -> None:
    """Two leaders may wait for the end of each other's copies."""
    await create(client, "t", DISABLING)
    response = await respond(client, has_segments=True, may_copy=may_copy)
    assert response.error_code.name == "request_timed_out"
    assert response.has_ended_copies is not may_copy
    assert (await respond(client)).has_ended_copies


async def test_finished_partitions_are_not_checked_again_while_others_are_waited_for(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may have thousands of partitions; otherwise, each poll would check them all."""
    monkeypatch.setattr(disable_remote_topic, "WAIT_SECONDS", 0.2)
    checked: Counter[int] = Counter()

    def is_disabled(partition: Any) -> bool:
        checked[partition.index] += 1
        return bool(partition.index < 99)

    await client.create("t", 100)
    client.broker.busy_connections = BusyConnectionQueue()
    assert (await respond(client, check=is_disabled)).error_code.name == "request_timed_out"
    assert checked.pop(99) > 1
    assert checked == Counter(range(99))


async def test_broker_with_outdated_metadata_reports_no_end_of_copies(client: Any) -> None:
    await create(client, "t", DISABLING)
    image = client.broker.metadata.image
    (topic_id,) = image.topics_by_id
    values = {"topic_id": topic_id, "metadata_offset": image.offset + 1}
    response = await client.ask(apis.DISABLE_REMOTE_TOPIC, 0, **values)
    assert response.error_message.startswith("the metadata is known up to offset")
    assert not response.has_ended_copies


async def test_api_versions_do_not_have_private_apis(client: Any) -> None:
    assert {apis.DISABLE_REMOTE_TOPIC.key, apis.DESCRIBE_TOPIC_TIERING.key} <= SERVED.keys()
    assert apis.DESCRIBE_TOPIC_TIERING.key in SERVED_BY_CONTROLLERS
    software = {"client_software_name": "tests", "client_software_version": "1"}
    of_broker = await client.ask(apis.API_VERSIONS, 4, **software)
    of_controller = await handle_locally(client.broker, apis.API_VERSIONS, software)
    for response in (of_broker, of_controller):
        shown = {each.api_key for each in response.api_keys}
        assert shown <= apis.APIS.keys()
        assert not shown & apis.PRIVATE_APIS.keys()


async def test_controller_that_is_not_active_does_not_describe() -> None:
    broker: Any = FakeBroker({})
    broker.metadata.is_active = False
    response = await handle_locally(broker, apis.DESCRIBE_TOPIC_TIERING, {"topics": ["t"]})
    assert (response.error_code.name, response.topics) == ("not_controller", ())


async def test_leader_adds_its_remote_segments(client: Any) -> None:
    await create(client, "t", DISABLING)
    led = SimpleNamespace(is_leader=True)
    client.broker.partitions = SimpleNamespace(opened=lambda topic, index: led)
    manager = SimpleNamespace(segment_count=lambda partition: 7)
    client.broker.tiered_storage = SimpleNamespace(manager=manager)
    (row,) = (await describe(client, "t")).values()
    assert [(each.partition_index, each.segments) for each in row.partitions] == [(0, 7)]
    led.is_leader = False
    (row,) = (await describe(client, "t")).values()
    assert row.partitions == ()
