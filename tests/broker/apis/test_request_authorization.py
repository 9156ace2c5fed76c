"""Tests of the authorization of requests by the handlers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek.broker.security.authorizer import Authorizer
from odradek.broker.security.authorizer_config import STANDARD_AUTHORIZER
from odradek.broker.security.request_authorization import NOT_REQUESTED
from odradek.broker.security.required_operations import RULES
from odradek.protocol import apis
from odradek.protocol.acls import AclOperation, AclResource, PatternType, Permission
from odradek.replication.controller.acls import Acl, create_acls
from odradek.testing import Broker

ME = "User:ANONYMOUS"
Op = AclOperation


def allowed(resource: AclResource, name: str, operation: AclOperation) -> Acl:
    return Acl(resource, name, PatternType.LITERAL, ME, "*", operation, Permission.ALLOW)


def topic_may(name: str, operation: AclOperation) -> Acl:
    return allowed(AclResource.TOPIC, name, operation)


@pytest.fixture
def restricted(client: Any, broker: Any, client_of: Callable[..., Any]) -> Callable[..., Any]:
    """Client that is allowed only what the ACLs allow."""

    def make(*acls: Acl) -> Any:
        authorizer = Authorizer()
        authorizer.load(acls)
        return client_of(broker, authorizer=authorizer)

    return make


def codes(rows: Any) -> dict[str, str]:
    return {row.name: row.error_code.name for row in rows}


async def test_metadata_hides_topics(client: Any, restricted: Callable[..., Any]) -> None:
    for name in ("seen", "hidden"):
        await client.create(name)
    other = restricted(topic_may("seen", Op.READ), topic_may("new", Op.DESCRIBE))
    everything = await other.ask(apis.METADATA, 9, topics=None)
    assert [topic.name for topic in everything.topics] == ["seen"]
    named = [{"name": name} for name in ("seen", "hidden", "gone", "new")]
    response = await other.ask(
        apis.METADATA,
        9,
        topics=named,
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    denied = "topic_authorization_failed"
    assert codes(response.topics) == {
        "seen": "none",
        "hidden": denied,
        "gone": denied,
        "new": denied,
    }
    seen = response.topics[0]
    assert seen.topic_authorized_operations == 1 << Op.READ | 1 << Op.DESCRIBE
    assert response.topics[1].topic_authorized_operations == NOT_REQUESTED
    assert response.cluster_authorized_operations == 0
    assert "new" not in other.broker.metadata.image.topics_by_name


async def test_create_and_delete_topics_are_authorized(
    client: Any, restricted: Callable[..., Any]
) -> None:
    await client.create("doomed")
    await client.create("kept")
    other = restricted(topic_may("made", Op.CREATE), topic_may("doomed", Op.DELETE))
    wanted = [
        {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for name in ("made", "other")
    ]
    created = await other.ask(apis.CREATE_TOPICS, 7, topics=wanted, timeout=1000)
    assert codes(created.topics) == {"made": "none", "other": "topic_authorization_failed"}
    made = next(topic for topic in created.topics if topic.name == "made")
    assert made.topic_config_error_code == 29  # the same as an integer
    assert (made.num_partitions, made.configs) == (-1, ())
    names = ["doomed", "kept", "gone"]
    deleted = await other.ask(apis.DELETE_TOPICS, 5, topic_names=names, timeout=1000)
    assert codes(deleted.responses) == {
        "doomed": "none",
        "kept": "topic_authorization_failed",
        "gone": "topic_authorization_failed",
    }
    grown = [{"name": "kept", "count": 2, "assignments": None}]
    response = await other.ask(apis.CREATE_PARTITIONS, 3, topics=grown, timeout=1000)
    assert codes(response.results) == {"kept": "topic_authorization_failed"}


async def test_unauthorized_delete_of_new_topic_is_denied(
    client: Any, restricted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of the topic are appended but not committed; the decision uses the image with these records."""
    metadata = client.broker.metadata
    committed = metadata.image
    topic_id = (await client.create("t")).topic_id
    newest, metadata.image = metadata.image, committed

    async def perform(operation: Any) -> Any:
        metadata.image = newest
        return metadata.decide(operation)

    monkeypatch.setattr(metadata, "perform", perform)
    other = restricted(topic_may("t", Op.DESCRIBE))
    for asked in ({"name": "t", "topic_id": None}, {"name": None, "topic_id": topic_id}):
        metadata.image = committed
        deleted = await other.ask(apis.DELETE_TOPICS, 6, topics=[asked], timeout=1000)
        assert codes(deleted.responses) == {"t": "topic_authorization_failed"}
        assert "t" in metadata.image.topics_by_name


async def test_config_requests_are_authorized(client: Any, restricted: Callable[..., Any]) -> None:
    await client.create("mine")
    await client.create("theirs")
    other = restricted(topic_may("mine", Op.ALTER_CONFIGS))
    for kind, name, code in (
        (2, "mine", "none"),
        (2, "theirs", "topic_authorization_failed"),
        (4, "1", "cluster_authorization_failed"),
        (32, "g", "group_authorization_failed"),
    ):
        resource = {"resource_type": kind, "resource_name": name}
        described = await other.ask(
            apis.DESCRIBE_CONFIGS, 4, resources=[{**resource, "configuration_keys": None}]
        )
        assert described.results[0].error_code.name == code
        altered = await other.ask(
            apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[{**resource, "configs": []}]
        )
        assert altered.responses[0].error_code.name == code


async def test_acl_apis_are_authorized(client: Any, restricted: Callable[..., Any]) -> None:
    wanted = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": ME,
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    denied = await restricted().ask(apis.CREATE_ACLS, 3, creations=[wanted])
    assert denied.results[0].error_code.name == "cluster_authorization_failed"
    disabled = await client.ask(apis.CREATE_ACLS, 3, creations=[wanted, wanted])
    assert [row.error_code.name for row in disabled.results] == ["security_disabled"] * 2
    admin = restricted(allowed(AclResource.CLUSTER, "kafka-cluster", Op.ALTER))
    created = await admin.ask(apis.CREATE_ACLS, 3, creations=[wanted, wanted])
    assert [row.error_code.name for row in created.results] == ["none"] * 2
    found = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": ME,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    described = await admin.ask(apis.DESCRIBE_ACLS, 3, **found)
    assert [(each.resource_name, len(each.acls)) for each in described.resources] == [("t", 1)]
    deleted = await admin.ask(apis.DELETE_ACLS, 3, filters=[found, found])
    assert [len(each.matching_acls) for each in deleted.filter_results] == [1, 1]
    assert not admin.broker.metadata.image.acls


def test_all_client_apis_have_required_operations() -> None:
    from odradek.broker.requests.dispatch import SERVED

    missing = [key for key in SERVED if apis.find_api(key) not in RULES]
    assert not missing


async def test_acls_survive_restart(tmp_path: Path, client_of: Callable[..., Any]) -> None:
    """They are in the metadata log and apply from the first request."""
    configs = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "allow.everyone.if.no.acl.found": "true",
    }
    denied = Acl(AclResource.TOPIC, "t", PatternType.LITERAL, ME, "*", Op.ALL, Permission.DENY)
    async with Broker(data=tmp_path, configs=configs, topics=["t"]) as broker:
        entropy = broker.node.seams.entropy
        await broker.node.metadata.perform(
            lambda image: create_acls(image, [denied], entropy=entropy)
        )
        await broker.node.metadata.take_snapshot()
        assert broker.node.services.authorizer is not None
        assert not broker.node.services.authorizer.allows(
            ME, "127.0.0.1", Op.READ, AclResource.TOPIC, "t"
        )
    async with Broker(data=tmp_path, configs=configs) as broker:
        client = client_of(broker.node.services, authorizer=broker.node.services.authorizer)
        response = await client.ask(apis.METADATA, 9, topics=[{"name": "t"}, {"name": "free"}])
        assert codes(response.topics) == {
            "t": "topic_authorization_failed",
            "free": "unknown_topic_or_partition",
        }
