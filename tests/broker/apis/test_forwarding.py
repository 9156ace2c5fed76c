"""Tests of forwarding to the active controller with Envelope requests (KIP-590)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from odradek.broker.config import loggers
from odradek.broker.config.types import ResourceType
from odradek.broker.network.listeners import BoundListener
from odradek.broker.quotas.client_quotas import ClientQuotas
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.dispatch import (
    FORWARDABLE,
    IN_PROCESS,
    find_controller_route,
    find_route,
    handle_locally,
)
from odradek.broker.security.authorizer import Authorizer
from odradek.protocol import apis, messages
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.framing import request_header
from odradek.protocol.principal_serde import decode_principal, encode_principal
from odradek.replication.controller.acls import (
    AclOperation,
    AclResource,
    PatternType,
    Permission,
)
from odradek.replication.controller.configs import AlterConfigOp
from odradek.replication.controller.image import MetadataImage
from odradek.seams.network import Address
from tests.broker.apis.fake_broker import FakeBroker, FakeMetadata

ALICE = "User:alice"
CLIENT = Address("10.0.0.7", 4711)
NO_OPERATION = request_header(apis.CREATE_ACLS, 3, 1, "tests") + messages.write_request(
    apis.CREATE_ACLS.key,
    3,
    {
        "creations": [
            {
                "resource_type": AclResource.TOPIC,
                "resource_name": "t",
                "resource_pattern_type": PatternType.LITERAL,
                "principal": ALICE,
                "host": "*",
                "operation": 0,
                "permission_type": Permission.ALLOW,
            }
        ]
    },
)
"""A valid frame whose handler closes the connection."""
TOPIC = {
    "name": "t",
    "num_partitions": 2,
    "replication_factor": 1,
    "assignments": [],
    "configs": [],
}


class Channel:
    """Controller channel that leads to another node, or to none."""

    def __init__(self, controller: FakeBroker | None) -> None:
        self.controller = controller
        self.asked: list[apis.Api] = []
        self.envelopes: list[Mapping[str, Any]] = []

    async def request(self, api: apis.Api, values: Mapping[str, Any], *, timeout_s: float) -> Any:
        assert api is apis.ENVELOPE
        if self.controller is None:
            raise KafkaError(ErrorCode.request_timed_out, "nobody")
        self.envelopes.append(values)
        return await handle_locally(self.controller, api, values)  # type: ignore[arg-type]


class Following(FakeMetadata):
    """Metadata manager that has every change of the active controller at once."""

    is_active = False

    def __init__(self, active: FakeBroker) -> None:
        self._active = active

    @property
    def image(self) -> MetadataImage:  # type: ignore[override]
        return self._active.metadata.image


class Nodes:
    """A broker, and the node that is the active controller."""

    def __init__(self) -> None:
        self.active = FakeBroker({})
        self.broker: Any = FakeBroker({"node.id": "2"})
        self.broker.metadata.is_active = False
        self.broker.controller_channel = Channel(self.active)

    async def ask(self, api: apis.Api, values: Mapping[str, Any], version: int = -1) -> Any:
        """Send a request of Alice to the broker."""
        version = api.max_version if version < 0 else version
        head = request_header(api, version, 77, "tests")
        frame = memoryview(head + messages.write_request(api.key, version, values))
        route = find_route(api.key)
        assert route is not None
        ctx = RequestContext(
            self.broker,
            api,
            version,
            77,
            "tests",
            BoundListener("PLAINTEXT", "PLAINTEXT", Address("127.0.0.1", 9092), None),
            CLIENT,
            flush,
            principal=ALICE,
        )
        request = route.read(api.key, version, frame, len(head))
        body = route.write(api.key, version, await route.handler(request, ctx))
        assert isinstance(body, bytes)
        return messages.read_response(api.key, version, memoryview(body))


async def flush() -> None:
    pass


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


async def create(nodes: Nodes) -> ErrorCode:
    response = await nodes.ask(
        apis.CREATE_TOPICS, {"topics": [TOPIC], "timeout": 1000, "validate_only": False}
    )
    code: ErrorCode = response.topics[0].error_code
    return code


async def test_request_is_forwarded_to_active_controller(nodes: Nodes) -> None:
    assert await create(nodes) is ErrorCode.none
    assert "t" in nodes.active.metadata.image.topics_by_name
    assert "t" not in nodes.broker.metadata.image.topics_by_name
    (envelope,) = nodes.broker.controller_channel.envelopes
    assert decode_principal(envelope["request_principal"]) == ALICE
    assert envelope["client_host_address"] == bytes((10, 0, 0, 7))


async def ask_for(nodes: Nodes, name: str) -> ErrorCode:
    values = {"topics": [{"topic_id": None, "name": name}], "allow_auto_topic_creation": True}
    response = await nodes.ask(apis.METADATA, values, 12)
    code: ErrorCode = response.topics[0].error_code
    return code


async def test_auto_created_topic_uses_principal_of_client(nodes: Nodes) -> None:
    """So the quota of the client applies, not that of the brokers."""
    quotas = ClientQuotas(samples=11, window_ms=1000)
    quotas.update({(("user", "alice"),): {"controller_mutation_rate": 0.01}})
    nodes.active.client_quotas = quotas
    nodes.broker.metadata = Following(nodes.active)
    assert await ask_for(nodes, "t") is ErrorCode.unknown_topic_or_partition  # it is created
    assert await ask_for(nodes, "t") is ErrorCode.none
    assert await ask_for(nodes, "u") is ErrorCode.unknown_topic_or_partition
    assert set(nodes.active.metadata.image.topics_by_name) == {"t"}
    principals = [each["request_principal"] for each in nodes.broker.controller_channel.envelopes]
    assert [decode_principal(each) for each in principals] == [ALICE, ALICE]


async def test_auto_creation_without_controller_fails(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.broker.controller_channel = Channel(None)
    assert await ask_for(nodes, "t") is ErrorCode.unknown_topic_or_partition
    assert "auto-creation of 1 topics failed" in caplog.text


async def test_active_controller_does_not_forward(nodes: Nodes) -> None:
    nodes.broker.metadata.is_active = True
    assert await create(nodes) is ErrorCode.none
    assert "t" in nodes.broker.metadata.image.topics_by_name
    assert not nodes.broker.controller_channel.envelopes


async def test_new_active_controller_authorizes_the_client(nodes: Nodes) -> None:
    """The node becomes the active controller while it sends the envelope to itself. The node is authorized to
    send it, and the client for the request inside."""
    broker = nodes.broker

    class Elected(Channel):
        async def request(self, *asked: Any, timeout_s: float) -> Any:
            broker.metadata.is_active = True
            return await super().request(*asked, timeout_s=timeout_s)

    broker.controller_channel = Elected(broker)
    broker.authorizer = Authorizer()
    assert await create(nodes) is ErrorCode.topic_authorization_failed
    assert "t" not in broker.metadata.image.topics_by_name


async def test_forwarding_without_controller_returns_not_controller(nodes: Nodes) -> None:
    nodes.broker.controller_channel = Channel(None)

    async def refuse(operation: Any) -> Any:
        raise KafkaError(ErrorCode.not_controller)

    nodes.broker.metadata.perform = refuse
    assert await create(nodes) is ErrorCode.not_controller


async def test_own_broker_configs_are_validated_before_forwarding(nodes: Nodes) -> None:
    """Only the remaining resources are forwarded."""
    await create(nodes)
    nodes.active.register(2)

    def resource(kind: ResourceType, name: str, config: str, value: str) -> dict[str, Any]:
        configs = [{"name": config, "config_operation": 0, "value": value}]
        return {"resource_type": int(kind), "resource_name": name, "configs": configs}

    response = await nodes.ask(
        apis.INCREMENTAL_ALTER_CONFIGS,
        {
            "resources": [
                resource(ResourceType.TOPIC, "t", "retention.ms", "5"),
                resource(ResourceType.BROKER, "2", "background.threads", "11"),
                resource(ResourceType.BROKER, "1", "background.threads", "12"),
                resource(ResourceType.BROKER_LOGGER, "2", "odradek.forwarding", "INFO"),
            ],
            "validate_only": False,
        },
    )
    assert [each.error_code.name for each in response.responses] == [
        "none",
        "none",
        "invalid_request",  # of another broker
        "none",
    ]
    loggers.set_level("odradek.forwarding", None)
    image = nodes.active.metadata.image
    assert image.topic_configs("t") == {"retention.ms": "5"}
    assert image.config(ResourceType.BROKER, "2") == {"background.threads": "11"}
    assert len(nodes.broker.controller_channel.envelopes) == 2  # for the topic and these configs


async def test_cordoned_directories_are_validated_by_their_broker(nodes: Nodes) -> None:
    """Only the broker knows its log directories: an invalid list that the controller accepted would keep the
    broker from applying any dynamic config. The controller itself only accepts a shorter list (KIP-1066)."""
    nodes.active.register(2)

    def values(operation: int, value: str) -> dict[str, Any]:
        config = {"name": "cordoned.log.dirs", "config_operation": operation, "value": value}
        broker = {"resource_type": int(ResourceType.BROKER), "resource_name": "2"}
        return {"resources": [{**broker, "configs": [config]}], "validate_only": False}

    def code(response: Any) -> str:
        return response.responses[0].error_code.name

    async def ask_controller(operation: int, value: str) -> str:
        request = values(operation, value)
        active: Any = nodes.active
        return code(await handle_locally(active, apis.INCREMENTAL_ALTER_CONFIGS, request))

    for operation in (AlterConfigOp.SET, AlterConfigOp.APPEND):
        assert await ask_controller(operation, "/elsewhere") == "invalid_config"
    forwarded = await nodes.ask(apis.INCREMENTAL_ALTER_CONFIGS, values(AlterConfigOp.SET, "*"))
    assert code(forwarded) == "none"
    assert await ask_controller(AlterConfigOp.SET, " * ") == "none"
    assert await ask_controller(AlterConfigOp.SET, "") == "none"


@pytest.mark.parametrize("api", sorted(FORWARDABLE, key=lambda api: api.key), ids=lambda a: a.name)
def test_forwarded_apis_are_served_by_controllers(api: apis.Api) -> None:
    assert apis.CONTROLLER in api.listeners
    if find_route(api.key) is not None:
        assert find_controller_route(api.key) is not None


async def test_description_of_tiering_comes_from_the_active_controller(nodes: Nodes) -> None:
    assert await create(nodes) is ErrorCode.none
    response = await nodes.ask(apis.DESCRIBE_TOPIC_TIERING, {"topics": ["t", "absent"]})
    assert response.error_code is ErrorCode.none
    assert [(row.name, row.error_code.name, row.epoch) for row in response.topics] == [
        ("t", "none", 0),
        ("absent", "unknown_topic_or_partition", 0),
    ]
    assert (
        decode_principal(nodes.broker.controller_channel.envelopes[-1]["request_principal"])
        == ALICE
    )
    nodes.broker.controller_channel.controller = None
    response = await nodes.ask(apis.DESCRIBE_TOPIC_TIERING, {"topics": ["t"]})
    assert (response.error_code, response.topics) == (ErrorCode.not_controller, ())


# The controller


async def envelope(broker: FakeBroker, **changes: Any) -> ErrorCode:
    api = apis.CREATE_TOPICS
    body = messages.write_request(
        api.key, 7, {"topics": [TOPIC], "timeout": 1000, "validate_only": False}
    )
    values = {
        "request_data": request_header(api, 7, 1, "tests") + body,
        "request_principal": encode_principal(ALICE),
        "client_host_address": bytes(4),
        **changes,
    }
    response = await handle_locally(broker, apis.ENVELOPE, values)  # type: ignore[arg-type]
    code: ErrorCode = response.error_code
    return code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "none"),
        ({"client_host_address": bytes(5)}, "invalid_request"),
        ({"request_principal": b"\0\1\0"}, "principal_deserialization_failure"),
        ({"request_principal": None}, "principal_deserialization_failure"),
        ({"request_data": b"\0"}, "unsupported_version"),
        ({"request_data": request_header(apis.CREATE_TOPICS, 7, 1, "t")}, "unsupported_version"),
        ({"request_data": request_header(apis.CREATE_TOPICS, 99, 1, "t")}, "unsupported_version"),
        ({"request_data": NO_OPERATION}, "unsupported_version"),
        ({"request_data": request_header(apis.API_VERSIONS, 3, 1, "t")}, "invalid_request"),
        ({"request_data": request_header(apis.METADATA, 9, 1, "t")}, "invalid_request"),
    ],
)
async def test_invalid_envelope_is_rejected(changes: Mapping[str, Any], code: str) -> None:
    assert (await envelope(FakeBroker({}), **changes)).name == code


async def test_inactive_controller_rejects_envelope() -> None:
    broker = FakeBroker({})
    broker.metadata.is_active = False
    assert await envelope(broker) is ErrorCode.not_controller


async def test_failover_during_envelope_returns_not_controller() -> None:
    broker: Any = FakeBroker({})

    async def refuse(operation: Any) -> Any:
        broker.metadata.is_active = False
        raise KafkaError(ErrorCode.not_controller)

    broker.metadata.perform = refuse
    assert await envelope(broker) is ErrorCode.not_controller


async def test_envelope_needs_cluster_action_and_client_is_authorized() -> None:
    """The sender needs CLUSTER_ACTION, and Alice the permission to create the topic."""
    broker = FakeBroker({})

    class OfNodes(Authorizer):
        def allows(
            self, principal: str, host: str, operation: Any, resource: Any, name: str
        ) -> bool:
            asked.append((principal, operation, resource))
            return principal == "User:ANONYMOUS" and operation is AclOperation.CLUSTER_ACTION

    asked: list[Any] = []
    api, version = apis.ENVELOPE, 0
    body = messages.write_request(
        19, 7, {"topics": [TOPIC], "timeout": 1000, "validate_only": False}
    )
    values = {
        "request_data": request_header(apis.CREATE_TOPICS, 7, 1, "tests") + body,
        "request_principal": encode_principal(ALICE),
        "client_host_address": bytes((10, 0, 0, 7)),
    }
    route = find_controller_route(api.key)
    assert route is not None
    broker.authorizer = OfNodes(super_users=frozenset(), allow_if_no_acl=False)
    ctx = RequestContext(
        broker,  # type: ignore[arg-type]
        api,
        version,
        1,
        "node-2",
        IN_PROCESS,
        CLIENT,
        flush,
        broker.authorizer,
    )
    frame = memoryview(messages.write_request(api.key, version, values))
    response = await route.handler(route.read(api.key, version, frame, 0), ctx)
    assert response["error_code"] is ErrorCode.none
    created = messages.read_response(19, 7, memoryview(response["response_data"])[5:])
    assert created.topics[0].error_code is ErrorCode.topic_authorization_failed
    assert (ALICE, AclOperation.CREATE, AclResource.TOPIC) in asked


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\1" + bytes(4), b"\0\0\2U", b"\0\0" + b"\xff" * 9]
)
def test_invalid_principal_is_rejected(data: bytes) -> None:
    with pytest.raises(InvalidFrame):
        decode_principal(data)


def test_principal_is_encoded_as_in_kafka() -> None:
    assert encode_principal(ALICE) == b"\0\0" + b"\5User" + b"\6alice" + b"\0" + b"\0"
    assert decode_principal(encode_principal("User:a:b")) == "User:a:b"
