"""Handlers of the Raft APIs on a controller listener: decoding, authorization, responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from odradek.broker.network.listeners import BoundListener
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.dispatch import find_controller_route
from odradek.broker.security.required_operations import RULES
from odradek.protocol import apis, messages
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.acls import AclOperation
from odradek.replication.raft.kafka_network_channel import RPC_CODECS, codec_of
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    ApiVersionsRequest,
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voters import ReplicaKey, Voter, VoterEndpoint
from odradek.seams.network import Address

HERE = VoterEndpoint("CONTROLLER", "one.example", 9093)
ELSEWHERE = VoterEndpoint("OTHER", "one.example", 9095)
SNAPSHOT = SnapshotId(500, 3)
KNOWN: dict[str, Any] = {"epoch": 7, "leader_id": 1, "leader_endpoints": (ELSEWHERE, HERE)}
REPORTED: dict[str, Any] = {**KNOWN, "leader_endpoints": (HERE,)}
ONE = Voter(1, endpoints=(HERE,))

CONVERSATIONS: list[tuple[RaftRequest, RaftResponse]] = [
    (
        VoteRequest(epoch=7, candidate=ReplicaKey(2), last_epoch=6, end_offset=9),
        VoteResponse(granted=True, **KNOWN),
    ),
    (BeginEpochRequest(leader_id=1, epoch=7), BeginEpochResponse(**KNOWN)),
    (EndEpochRequest(leader_id=1, epoch=7), EndEpochResponse(**KNOWN)),
    (
        FetchRequest(replica=ReplicaKey(2), epoch=7, fetch_offset=9, last_fetched_epoch=6),
        FetchResponse(high_watermark=8, records=b"batches", **KNOWN),
    ),
    (
        FetchSnapshotRequest(
            replica=ReplicaKey(2), epoch=7, snapshot_id=SNAPSHOT, position=3, max_bytes=9
        ),
        FetchSnapshotResponse(snapshot_id=SNAPSHOT, size=9, position=3, data=b"piece", **KNOWN),
    ),
    (AddVoterRequest(voter=ONE), AddVoterResponse(error=ErrorCode.duplicate_voter, message="1")),
    (RemoveVoterRequest(voter=ONE.key), RemoveVoterResponse()),
    (UpdateVoterRequest(voter=ONE, epoch=7), UpdateVoterResponse(**KNOWN)),
]


class Quorum:
    """Returns the given response, and records the requests."""

    def __init__(self, response: RaftResponse | KafkaError) -> None:
        self._respond = response
        self.asked: list[RaftRequest] = []

    async def handle_request(self, request: RaftRequest) -> RaftResponse:
        self.asked.append(request)
        if isinstance(self._respond, KafkaError):
            raise self._respond
        return self._respond


class OnlyTo:
    """Authorizer that allows one operation on the cluster."""

    def __init__(self, allowed: AclOperation | None) -> None:
        self._allowed = allowed

    def allows(
        self, principal: str, host: str, operation: AclOperation, resource: object, name: str
    ) -> bool:
        return operation is self._allowed


async def ask(quorum: Quorum, request: RaftRequest, *, authorizer: Any = None) -> RaftResponse:
    """Encode the request, call the handler, and decode the encoded response."""
    form = codec_of(request)
    api, version = form.api, form.api.max_version
    route = find_controller_route(api.key)
    assert route is not None
    broker: Any = SimpleNamespace(metadata=quorum, acls_loaded=trio.Event())
    broker.acls_loaded.set()
    listener = Address("127.0.0.1", 9093)
    ctx = RequestContext(
        broker,
        api,
        version,
        1,
        "raft-client-2",
        BoundListener("CONTROLLER", "PLAINTEXT", listener, None, of_controller=True),
        Address("127.0.0.1", 50_000),
        flush,
        authorizer,
    )
    sent = messages.write_request(api.key, version, form.write_request(request))
    values = await route.handler(route.read(api.key, version, memoryview(sent), 0), ctx)
    written = route.write(api.key, version, values)
    parts = [written] if isinstance(written, bytes) else written
    body = memoryview(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]
    entity = messages.read_response(api.key, version, body)
    return form.decode_response(entity, request, "CONTROLLER")


async def flush() -> None:
    pass


def as_reported(response: RaftResponse) -> RaftResponse:
    """The response with the leader's endpoint of the listener of the request."""
    if not response.leader_endpoints:
        return response
    return type(response)(
        **{name: getattr(response, name) for name in type(response).__dataclass_fields__} | REPORTED
    )


@pytest.mark.parametrize(("request_", "response"), CONVERSATIONS)
async def test_raft_request_gets_the_response_of_the_quorum(
    request_: RaftRequest, response: RaftResponse
) -> None:
    quorum = Quorum(response)
    assert await ask(quorum, request_) == as_reported(response)
    assert [type(asked) for asked in quorum.asked] == [type(request_)]


@pytest.mark.parametrize(("request_", "response"), CONVERSATIONS)
async def test_raft_request_error_is_returned(
    request_: RaftRequest, response: RaftResponse
) -> None:
    got = await ask(Quorum(KafkaError(ErrorCode.kafka_storage_error, "offline")), request_)
    assert got.error is ErrorCode.kafka_storage_error


@pytest.mark.parametrize(("request_", "response"), CONVERSATIONS)
async def test_raft_requests_require_cluster_action_or_alter(
    request_: RaftRequest, response: RaftResponse
) -> None:
    """Nodes need CLUSTER_ACTION, voter changes need ALTER."""
    quorum, api = Quorum(response), codec_of(request_).api
    changes_voters = api in (apis.ADD_RAFT_VOTER, apis.REMOVE_RAFT_VOTER)
    needed = AclOperation.ALTER if changes_voters else AclOperation.CLUSTER_ACTION
    if api is not apis.FETCH:  # whose rule is that of broker listeners
        assert RULES[api].cluster is needed
    refused = await ask(quorum, request_, authorizer=OnlyTo(None))
    assert refused.error is ErrorCode.cluster_authorization_failed
    assert quorum.asked == []
    assert await ask(quorum, request_, authorizer=OnlyTo(needed)) == as_reported(response)


def test_all_raft_apis_are_served() -> None:
    for kind, form in RPC_CODECS.items():
        assert find_controller_route(form.api.key) is not None
        assert kind is ApiVersionsRequest or any(type(asked) is kind for asked, _ in CONVERSATIONS)
