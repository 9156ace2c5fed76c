"""Codecs of Vote, BeginQuorumEpoch and EndQuorumEpoch (KIP-595, 853, 996).

Their responses have a top-level error, or a partition error with epoch and leader.
"""

from __future__ import annotations

from typing import Any

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, error_code
from odradek.protocol.messages import field
from odradek.replication.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    RaftRequest,
    RaftResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.rpc_codec import (
    RpcCodec,
    Values,
    any_version,
    directory,
    endpoints_of,
    key_of,
    leader_at,
    one_topic,
    refuse_all,
    requested_epoch,
    requested_partition,
    responded_epoch,
    response_partition,
    write_endpoints,
    write_leader,
)
from odradek.replication.raft.voters import ReplicaKey

PRE_VOTE_VERSION = 2

# Vote


def _oldest_vote(request: VoteRequest) -> int:
    return PRE_VOTE_VERSION if request.pre_vote else 0


def _write_vote(request: VoteRequest) -> Values:
    voter = request.voter
    return {
        "cluster_id": request.cluster_id,
        "voter_id": -1 if voter is None else voter.id,
        "topics": one_topic(
            {
                "replica_epoch": request.epoch,
                "replica_id": request.candidate.id,
                "replica_directory_id": request.candidate.directory_id,
                "voter_directory_id": None if voter is None else voter.directory_id,
                "last_offset_epoch": request.last_epoch,
                "last_offset": request.end_offset,
                "pre_vote": request.pre_vote,
            }
        ),
    }


def _read_vote(entity: Any) -> VoteRequest:
    partition = requested_partition(entity.topics)
    return VoteRequest(
        cluster_id=entity.cluster_id,
        voter=key_of(field(entity, "voter_id", -1), field(partition, "voter_directory_id")),
        epoch=requested_epoch(partition.replica_epoch),
        candidate=ReplicaKey(
            partition.replica_id, directory(field(partition, "replica_directory_id"))
        ),
        last_epoch=partition.last_offset_epoch,
        end_offset=partition.last_offset,
        pre_vote=field(partition, "pre_vote", False),
    )


def _write_vote_response(response: VoteResponse, request: RaftRequest, listener: str) -> Values:
    return _write_response(response, request, listener, {"vote_granted": response.granted})


def _read_vote_response(entity: Any, request: VoteRequest, listener: str) -> VoteResponse:
    if entity.error_code != ErrorCode.none:
        return VoteResponse(error=entity.error_code)
    responded = response_partition(entity.topics)
    return VoteResponse(granted=responded.vote_granted, **_known(entity, responded, listener))


# BeginQuorumEpoch


def _write_begin(request: BeginEpochRequest) -> Values:
    voter = request.voter
    return {
        "cluster_id": request.cluster_id,
        "voter_id": -1 if voter is None else voter.id,
        "topics": one_topic(
            {
                "voter_directory_id": None if voter is None else voter.directory_id,
                "leader_id": request.leader_id,
                "leader_epoch": request.epoch,
            }
        ),
        "leader_endpoints": write_endpoints(request.leader_endpoints),
    }


def _read_begin(entity: Any) -> BeginEpochRequest:
    partition = requested_partition(entity.topics)
    return BeginEpochRequest(
        cluster_id=entity.cluster_id,
        voter=key_of(field(entity, "voter_id", -1), field(partition, "voter_directory_id")),
        leader_id=partition.leader_id,
        epoch=requested_epoch(partition.leader_epoch),
        leader_endpoints=endpoints_of(field(entity, "leader_endpoints", ())),
    )


def _read_begin_response(entity: Any, request: RaftRequest, listener: str) -> BeginEpochResponse:
    if entity.error_code != ErrorCode.none:
        return BeginEpochResponse(error=entity.error_code)
    return BeginEpochResponse(**_known(entity, response_partition(entity.topics), listener))


# EndQuorumEpoch


def _write_end(request: EndEpochRequest) -> Values:
    candidates = [
        {"candidate_id": each.id, "candidate_directory_id": each.directory_id}
        for each in request.successors
    ]
    return {
        "cluster_id": request.cluster_id,
        "topics": one_topic(
            {
                "leader_id": request.leader_id,
                "leader_epoch": request.epoch,
                "preferred_successors": [each.id for each in request.successors],
                "preferred_candidates": candidates,
            }
        ),
        "leader_endpoints": write_endpoints(request.leader_endpoints),
    }


def _read_end(entity: Any) -> EndEpochRequest:
    partition = requested_partition(entity.topics)
    successors = tuple(
        ReplicaKey(each.candidate_id, directory(each.candidate_directory_id))
        for each in field(partition, "preferred_candidates", ())
    )
    old = tuple(ReplicaKey(each) for each in field(partition, "preferred_successors", ()))
    return EndEpochRequest(
        cluster_id=entity.cluster_id,
        leader_id=partition.leader_id,
        epoch=requested_epoch(partition.leader_epoch),
        successors=successors or old,
        leader_endpoints=endpoints_of(field(entity, "leader_endpoints", ())),
    )


def _read_end_response(entity: Any, request: RaftRequest, listener: str) -> EndEpochResponse:
    if entity.error_code != ErrorCode.none:
        return EndEpochResponse(error=entity.error_code)
    return EndEpochResponse(**_known(entity, response_partition(entity.topics), listener))


# Common parts of the responses

_TOP_LEVEL_ERRORS = frozenset(
    {ErrorCode.inconsistent_cluster_id, ErrorCode.cluster_authorization_failed}
)


def _write_response(
    response: RaftResponse, request: RaftRequest, listener: str, more: Values | None = None
) -> Values:
    if response.error in _TOP_LEVEL_ERRORS:
        return {"error_code": response.error, "topics": []}
    return {
        "error_code": ErrorCode.none,
        "topics": one_topic(
            {
                "error_code": response.error,
                "leader_id": response.leader_id,
                "leader_epoch": response.epoch,
                **(more or {}),
            }
        ),
        "node_endpoints": write_leader(response, listener),
    }


def _known(entity: Any, responded: Any, listener: str) -> Values:
    return {
        "error": error_code(responded.error_code),
        "epoch": responded_epoch(responded.leader_epoch),
        "leader_id": responded.leader_id,
        "leader_endpoints": leader_at(
            responded.leader_id, field(entity, "node_endpoints", ()), listener
        ),
    }


VOTE = RpcCodec(
    api=apis.VOTE,
    oldest=_oldest_vote,
    write_request=_write_vote,
    decode_response=_read_vote_response,
    read_request=_read_vote,
    encode_response=_write_vote_response,
    refuse=refuse_all,
)
BEGIN_EPOCH = RpcCodec(
    api=apis.BEGIN_QUORUM_EPOCH,
    oldest=any_version,
    write_request=_write_begin,
    decode_response=_read_begin_response,
    read_request=_read_begin,
    encode_response=_write_response,
    refuse=refuse_all,
)
END_EPOCH = RpcCodec(
    api=apis.END_QUORUM_EPOCH,
    oldest=any_version,
    write_request=_write_end,
    decode_response=_read_end_response,
    read_request=_read_end,
    encode_response=_write_response,
    refuse=refuse_all,
)
