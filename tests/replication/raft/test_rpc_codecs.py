"""Round trip of every Raft message through the bytes of every version that supports it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest

from odradek.protocol import messages
from odradek.protocol.apis import FETCH
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.fetch_response_writer import write_fetch_response
from odradek.replication.raft.fetch_rpcs import UNKNOWN_HIGH_WATERMARK
from odradek.replication.raft.kafka_network_channel import (
    RPC_CODECS,
    codec_of,
    unsupported_response,
)
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    EpochEndOffset,
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
from odradek.replication.raft.network_channel import RequestFailed
from odradek.replication.raft.rpc_codec import EPOCH_MAX
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voters import NO_DIRECTORY, ReplicaKey, Voter, VoterEndpoint

CLUSTER = "q1Sh-9_ISia_zwGINzRvyQ"
LISTENER = "CONTROLLER"
HERE = VoterEndpoint(LISTENER, "one.example", 9093)
OTHER = VoterEndpoint("SECURE", "one.example", 9094)
ONE, TWO = ReplicaKey(1, UUID(int=101)), ReplicaKey(2, UUID(int=102))
SNAPSHOT = SnapshotId(500, 3)

REQUESTS: list[RaftRequest] = [
    VoteRequest(cluster_id=CLUSTER, voter=TWO, epoch=7, candidate=ONE, last_epoch=6, end_offset=90),
    VoteRequest(voter=TWO, epoch=7, candidate=ONE, last_epoch=7, end_offset=90, pre_vote=True),
    BeginEpochRequest(
        cluster_id=CLUSTER, voter=TWO, leader_id=1, epoch=7, leader_endpoints=(HERE, OTHER)
    ),
    EndEpochRequest(
        cluster_id=CLUSTER, leader_id=1, epoch=7, successors=(TWO, ONE), leader_endpoints=(HERE,)
    ),
    EndEpochRequest(leader_id=1, epoch=7),
    FetchRequest(
        cluster_id=CLUSTER,
        replica=TWO,
        epoch=7,
        fetch_offset=90,
        last_fetched_epoch=6,
        high_watermark=88,
        max_wait_ms=500,
        max_bytes=1 << 20,
    ),
    FetchRequest(replica=TWO, epoch=0, fetch_offset=0, last_fetched_epoch=0),
    FetchSnapshotRequest(
        cluster_id=CLUSTER,
        replica=TWO,
        epoch=7,
        snapshot_id=SNAPSHOT,
        position=4096,
        max_bytes=1 << 20,
    ),
    AddVoterRequest(
        cluster_id=CLUSTER,
        voter=Voter(1, ONE.directory_id, (HERE, OTHER)),
        ack_when_committed=False,
        timeout_ms=30_000,
    ),
    AddVoterRequest(voter=Voter(1, ONE.directory_id, (HERE,))),
    RemoveVoterRequest(cluster_id=CLUSTER, voter=ONE),
    UpdateVoterRequest(
        cluster_id=CLUSTER, voter=Voter(1, ONE.directory_id, (HERE,), (0, 1)), epoch=7
    ),
]

KNOWN: dict[str, Any] = {"epoch": 7, "leader_id": 1, "leader_endpoints": (HERE,)}

RESPONSES: list[tuple[type[RaftRequest], RaftResponse]] = [
    (VoteRequest, VoteResponse(granted=True, epoch=7)),
    (VoteRequest, VoteResponse(error=ErrorCode.fenced_leader_epoch, **KNOWN)),
    (VoteRequest, VoteResponse(error=ErrorCode.inconsistent_cluster_id)),
    (BeginEpochRequest, BeginEpochResponse(**KNOWN)),
    (BeginEpochRequest, BeginEpochResponse(error=ErrorCode.invalid_voter_key, **KNOWN)),
    (BeginEpochRequest, BeginEpochResponse(error=ErrorCode.inconsistent_cluster_id)),
    (EndEpochRequest, EndEpochResponse(**KNOWN)),
    (EndEpochRequest, EndEpochResponse(error=ErrorCode.inconsistent_cluster_id)),
    (FetchRequest, FetchResponse(high_watermark=80, log_start_offset=3, records=b"batch", **KNOWN)),
    (FetchRequest, FetchResponse(log_start_offset=0, **KNOWN)),
    (FetchRequest, FetchResponse(diverging=EpochEndOffset(5, 70), log_start_offset=3, **KNOWN)),
    (FetchRequest, FetchResponse(snapshot_id=SNAPSHOT, log_start_offset=500, **KNOWN)),
    (FetchRequest, FetchResponse(error=ErrorCode.not_leader_or_follower, **KNOWN)),
    (FetchRequest, FetchResponse(error=ErrorCode.inconsistent_cluster_id)),
    (
        FetchSnapshotRequest,
        FetchSnapshotResponse(
            snapshot_id=SNAPSHOT, size=8192, position=4096, data=b"piece", **KNOWN
        ),
    ),
    (FetchSnapshotRequest, FetchSnapshotResponse(error=ErrorCode.snapshot_not_found, **KNOWN)),
    (FetchSnapshotRequest, FetchSnapshotResponse(error=ErrorCode.inconsistent_cluster_id)),
    (AddVoterRequest, AddVoterResponse()),
    (AddVoterRequest, AddVoterResponse(error=ErrorCode.duplicate_voter, message="1 is one")),
    (RemoveVoterRequest, RemoveVoterResponse(error=ErrorCode.voter_not_found, message="3")),
    (UpdateVoterRequest, UpdateVoterResponse(**KNOWN)),
    (UpdateVoterRequest, UpdateVoterResponse(error=ErrorCode.request_timed_out, epoch=7)),
]


def through_request(request: RaftRequest, version: int) -> Any:
    """Return the entity that the receiver of this version decodes."""
    form = codec_of(request)
    sent = messages.write_request(form.api.key, version, form.write_request(request))
    return messages.read_request(form.api.key, version, memoryview(sent))


def through_response(
    asked: type[RaftRequest], response: RaftResponse, version: int
) -> RaftResponse:
    form = RPC_CODECS[asked]
    assert form.encode_response is not None
    values = form.encode_response(response, None, LISTENER)
    if form.api is FETCH:
        sent = b"".join(bytes(part) for part in write_fetch_response(version, **values))  # type: ignore[arg-type]
    else:
        sent = messages.write_response(form.api.key, version, values)
    entity = messages.read_response(form.api.key, version, memoryview(sent))
    return form.decode_response(entity, None, LISTENER)


def lost_in(request: RaftRequest, version: int) -> RaftRequest:
    """Return the request without the fields that a version does not have."""
    match request:
        case VoteRequest() if version < 1:
            return replace(request, voter=None, candidate=ReplicaKey(request.candidate.id))
        case BeginEpochRequest() if version < 1:
            return replace(request, voter=None, leader_endpoints=())
        case EndEpochRequest() if version < 1:
            ids = tuple(ReplicaKey(each.id) for each in request.successors)
            return replace(request, successors=ids, leader_endpoints=())
        case FetchRequest():
            if version < 17:
                request = replace(request, replica=ReplicaKey(request.replica.id))
            if version < 18:
                request = replace(request, high_watermark=UNKNOWN_HIGH_WATERMARK)
            return request
        case FetchSnapshotRequest() if version < 1:
            return replace(request, replica=ReplicaKey(request.replica.id))
    return request


def versions_of(request: RaftRequest) -> range:
    form = codec_of(request)
    return range(max(form.oldest(request), form.api.min_version), form.api.max_version + 1)


def each_version() -> Iterator[Any]:
    for number, request in enumerate(REQUESTS):
        for version in versions_of(request):
            name = f"{type(request).__name__}-{number}-v{version}"
            yield pytest.param(request, version, id=name)


@pytest.mark.parametrize(("request_", "version"), list(each_version()))
def test_request_is_decoded_as_encoded(request_: RaftRequest, version: int) -> None:
    read = codec_of(request_).read_request
    assert read is not None
    assert read(through_request(request_, version)) == lost_in(request_, version)


@pytest.mark.parametrize(("asked", "response"), RESPONSES)
def test_response_is_decoded_as_encoded(asked: type[RaftRequest], response: RaftResponse) -> None:
    got = through_response(asked, response, RPC_CODECS[asked].api.max_version)
    assert got == response


@pytest.mark.parametrize(("asked", "response"), RESPONSES)
def test_old_versions_omit_leader_endpoints(
    asked: type[RaftRequest], response: RaftResponse
) -> None:
    api = RPC_CODECS[asked].api
    oldest = 13 if api is FETCH else api.min_version
    with_endpoints = asked is UpdateVoterRequest or oldest == api.max_version
    expected = response if with_endpoints else replace(response, leader_endpoints=())
    assert through_response(asked, response, oldest) == expected


def test_oldest_version_of_a_request_depends_on_its_fields() -> None:
    vote = REQUESTS[1]
    assert versions_of(vote) == range(2, 3), "there are no pre-votes before KIP-996"
    assert versions_of(REQUESTS[5]) == range(13, 19), "the topic is identified by its id"
    assert versions_of(REQUESTS[8]) == range(1, 2), "AckWhenCommitted"
    assert versions_of(ApiVersionsRequest()) == range(4, 5), "features with a lowest level of 0"


def test_leader_endpoint_is_that_of_the_request_listener() -> None:
    response = VoteResponse(epoch=7, leader_id=1, leader_endpoints=(OTHER, HERE))
    assert through_response(VoteRequest, response, 2) == replace(response, leader_endpoints=(HERE,))
    elsewhere = replace(response, leader_endpoints=(OTHER,))
    assert through_response(VoteRequest, elsewhere, 2) == replace(response, leader_endpoints=())


def test_records_may_have_several_parts() -> None:
    response = FetchResponse(records=[b"one", bytearray(b"two")], **KNOWN)
    assert through_response(FetchRequest, response, 18) == replace(response, records=b"onetwo")


def test_kraft_version_range_in_api_versions_response() -> None:
    form = RPC_CODECS[ApiVersionsRequest]
    values = {
        "supported_features": [
            {"name": "metadata.version", "min_version": 7, "max_version": 30},
            {"name": "kraft.version", "min_version": 0, "max_version": 1},
        ]
    }
    for reported, levels in ((values, (0, 1)), ({}, None)):
        sent = messages.write_response(form.api.key, 4, reported)
        entity = messages.read_response(form.api.key, 4, memoryview(sent))
        assert form.decode_response(entity, ApiVersionsRequest(), LISTENER) == ApiVersionsResponse(
            kraft_versions=levels
        )


@pytest.mark.parametrize("asked", [VoteRequest, BeginEpochRequest, EndEpochRequest])
def test_request_for_another_partition_is_rejected(asked: type[RaftRequest]) -> None:
    request = next(each for each in REQUESTS if type(each) is asked)
    form = RPC_CODECS[asked]
    key, version = form.api.key, form.api.max_version
    assert form.read_request is not None
    assert form.refuse is not None
    values = form.write_request(request)
    topic = values["topics"][0]
    for topics in ([{**topic, "topic_name": "other"}], [topic, topic], []):
        sent = messages.write_request(key, version, {**values, "topics": topics})
        entity = messages.read_request(key, version, memoryview(sent))
        with pytest.raises(KafkaError) as refused:
            form.read_request(entity)
        assert refused.value.code is ErrorCode.invalid_request
        refusal = form.refuse(entity, refused.value)
        assert refusal == {"error_code": ErrorCode.invalid_request, "topics": []}
        reported = [{"topic_name": each["topic_name"], "partitions": [{}]} for each in topics]
        response = messages.write_response(key, version, {"topics": reported})
        with pytest.raises(RequestFailed):
            form.decode_response(
                messages.read_response(key, version, memoryview(response)), request, LISTENER
            )


@pytest.mark.parametrize("epoch", [EPOCH_MAX + 1])
@pytest.mark.parametrize("asked", [VoteRequest, BeginEpochRequest, EndEpochRequest, FetchRequest])
def test_epoch_above_the_largest_is_refused(asked: type[RaftRequest], epoch: int) -> None:
    """Once a quorum had adopted it, the epoch of the next election could not be encoded."""
    request = replace(next(each for each in REQUESTS if type(each) is asked), epoch=epoch)  # type: ignore[type-var]
    form = RPC_CODECS[asked]
    key, version = form.api.key, form.api.max_version
    assert form.read_request is not None
    sent = messages.write_request(key, version, form.write_request(request))
    with pytest.raises(KafkaError) as refused:
        form.read_request(messages.read_request(key, version, memoryview(sent)))
    assert refused.value.code is ErrorCode.invalid_request


def test_fetch_of_another_partition_is_rejected() -> None:
    form = RPC_CODECS[FetchRequest]
    assert form.read_request is not None
    assert form.refuse is not None
    values = form.write_request(REQUESTS[5])
    topic = values["topics"][0]
    second = {**topic["partitions"][0], "partition": 1}
    for topics in (
        [{**topic, "topic_id": UUID(int=2)}],
        [{**topic, "partitions": [second]}],
        [{**topic, "partitions": []}],
        [],
    ):
        sent = messages.write_request(FETCH.key, 18, {**values, "topics": topics})
        entity = messages.read_request(FETCH.key, 18, memoryview(sent))
        with pytest.raises(KafkaError) as refused:
            form.read_request(entity)
        assert form.refuse(entity, refused.value) == {"error_code": ErrorCode.invalid_request}
    sent = messages.write_request(FETCH.key, 12, {"topics": [{"topic": "__cluster_metadata"}]})
    with pytest.raises(KafkaError):
        form.read_request(messages.read_request(FETCH.key, 12, memoryview(sent)))


def test_fetch_snapshot_of_another_partition_is_rejected() -> None:
    form = RPC_CODECS[FetchSnapshotRequest]
    assert form.read_request is not None
    assert form.refuse is not None
    request = next(each for each in REQUESTS if isinstance(each, FetchSnapshotRequest))
    values = form.write_request(request)
    values["topics"][0]["name"] = "other"
    sent = messages.write_request(form.api.key, 1, values)
    entity = messages.read_request(form.api.key, 1, memoryview(sent))
    with pytest.raises(KafkaError) as refused:
        form.read_request(entity)
    response = messages.write_response(form.api.key, 1, form.refuse(entity, refused.value))
    reported = messages.read_response(form.api.key, 1, memoryview(response))
    assert reported.error_code == ErrorCode.none
    assert reported.topics[0].name == "other"
    assert reported.topics[0].partitions[0].error_code == ErrorCode.unknown_topic_or_partition


def test_response_without_snapshot_id_means_deleted_snapshot() -> None:
    form = RPC_CODECS[FetchSnapshotRequest]
    partition = {
        "snapshot_id": {"end_offset": -1, "epoch": -1},
        "current_leader": {"leader_id": 1, "leader_epoch": 7},
        "unaligned_records": b"",
    }
    topics = [{"name": "__cluster_metadata", "partitions": [partition]}]
    sent = messages.write_response(form.api.key, 1, {"topics": topics})
    entity = messages.read_response(form.api.key, 1, memoryview(sent))
    response = form.decode_response(entity, None, LISTENER)
    assert response.error is ErrorCode.snapshot_not_found
    assert (response.epoch, response.leader_id) == (7, 1)


def test_unknown_server_error_means_deleted_snapshot() -> None:
    """Kafka 4.3 cannot encode the response for a missing snapshot."""
    form = RPC_CODECS[FetchSnapshotRequest]
    request = next(each for each in REQUESTS if isinstance(each, FetchSnapshotRequest))
    failed = {"error_code": ErrorCode.unknown_server_error, "topics": []}
    sent = messages.write_response(form.api.key, 1, failed)
    entity = messages.read_response(form.api.key, 1, memoryview(sent))
    assert form.decode_response(entity, request, LISTENER) == FetchSnapshotResponse(
        error=ErrorCode.snapshot_not_found, epoch=request.epoch
    )


def test_unsupported_response_of_every_request() -> None:
    for kind, form in RPC_CODECS.items():
        example = next((each for each in REQUESTS if type(each) is kind), ApiVersionsRequest())
        response = unsupported_response(example)
        assert response.error is ErrorCode.unsupported_version
        assert kind is ApiVersionsRequest or type(response) in {
            type(each) for asked, each in RESPONSES if asked is kind
        }, form.api.title
    update = next(each for each in REQUESTS if isinstance(each, UpdateVoterRequest))
    assert unsupported_response(update).epoch == update.epoch, "so that it counts for the epoch"


def test_every_field_has_a_test_value() -> None:
    """Each field of each request has an example that differs from its default."""
    for kind in RPC_CODECS:
        examples = [each for each in REQUESTS if type(each) is kind]
        for field in fields(kind):
            values = [getattr(each, field.name) for each in examples]
            assert kind is ApiVersionsRequest or any(
                value not in (field.default, NO_DIRECTORY) for value in values
            ), f"{kind.__name__}.{field.name}"
