"""Codecs of AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter and ApiVersions (KIP-853)."""

from __future__ import annotations

from typing import Any, Final

from odradek.protocol import apis
from odradek.protocol.errors import KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.features import KRAFT_VERSION
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    RaftRequest,
    RemoveVoterRequest,
    RemoveVoterResponse,
    UpdateVoterRequest,
    UpdateVoterResponse,
)
from odradek.replication.raft.rpc_codec import (
    RpcCodec,
    Values,
    any_version,
    directory,
    endpoint_on,
    endpoints_of,
    write_endpoints,
)
from odradek.replication.raft.voters import ReplicaKey, Voter, VoterEndpoint

ACK_VERSION: Final = 1
"""First version of AddRaftVoter with `ack_when_committed`."""
LEVEL_ZERO_VERSION: Final = 4
"""First version of ApiVersions that contains features with minimum level 0 (KAFKA-17492)."""

# AddRaftVoter


def _oldest_add(request: AddVoterRequest) -> int:
    return 0 if request.ack_when_committed else ACK_VERSION


def _write_add(request: AddVoterRequest) -> Values:
    voter = request.voter
    return {
        "cluster_id": request.cluster_id,
        "timeout": request.timeout_ms,
        "voter_id": voter.id,
        "voter_directory_id": voter.directory_id,
        "listeners": write_endpoints(voter.endpoints),
        "ack_when_committed": request.ack_when_committed,
    }


def _read_add(entity: Any) -> AddVoterRequest:
    return AddVoterRequest(
        cluster_id=entity.cluster_id,
        voter=Voter(
            entity.voter_id,
            directory(entity.voter_directory_id),
            endpoints_of(entity.listeners),
        ),
        ack_when_committed=field(entity, "ack_when_committed", True),
        timeout_ms=round(entity.timeout.total_seconds() * 1000),
    )


def _read_add_response(entity: Any, request: RaftRequest, listener: str) -> AddVoterResponse:
    return AddVoterResponse(error=entity.error_code, message=entity.error_message)


# RemoveRaftVoter


def _write_remove(request: RemoveVoterRequest) -> Values:
    return {
        "cluster_id": request.cluster_id,
        "voter_id": request.voter.id,
        "voter_directory_id": request.voter.directory_id,
    }


def _read_remove(entity: Any) -> RemoveVoterRequest:
    return RemoveVoterRequest(
        cluster_id=entity.cluster_id,
        voter=ReplicaKey(entity.voter_id, directory(entity.voter_directory_id)),
    )


def _read_remove_response(entity: Any, request: RaftRequest, listener: str) -> RemoveVoterResponse:
    return RemoveVoterResponse(error=entity.error_code, message=entity.error_message)


def _write_changed(
    response: AddVoterResponse | RemoveVoterResponse, request: RaftRequest, listener: str
) -> Values:
    return {"error_code": response.error, "error_message": response.message}


def _refuse_change(entity: Any, error: KafkaError) -> Values:
    return {"error_code": error.code, "error_message": error.message}


# UpdateRaftVoter


def _write_update(request: UpdateVoterRequest) -> Values:
    voter = request.voter
    lowest, highest = voter.kraft_versions
    return {
        "cluster_id": request.cluster_id,
        "current_leader_epoch": request.epoch,
        "voter_id": voter.id,
        "voter_directory_id": voter.directory_id,
        "listeners": write_endpoints(voter.endpoints),
        "k_raft_version_feature": {
            "min_supported_version": lowest,
            "max_supported_version": highest,
        },
    }


def _read_update(entity: Any) -> UpdateVoterRequest:
    versions = entity.k_raft_version_feature
    return UpdateVoterRequest(
        cluster_id=entity.cluster_id,
        voter=Voter(
            entity.voter_id,
            directory(entity.voter_directory_id),
            endpoints_of(entity.listeners),
            (versions.min_supported_version, versions.max_supported_version),
        ),
        epoch=entity.current_leader_epoch,
    )


def _write_updated(response: UpdateVoterResponse, request: RaftRequest, listener: str) -> Values:
    leader: Values = {"leader_id": response.leader_id, "leader_epoch": response.epoch}
    endpoint = endpoint_on(response.leader_endpoints, listener)
    if endpoint is not None:
        leader |= {"host": endpoint.host, "port": endpoint.port}
    return {"error_code": response.error, "current_leader": leader}


def _refuse_update(entity: Any, error: KafkaError) -> Values:
    return {"error_code": error.code}


def _read_updated(entity: Any, request: RaftRequest, listener: str) -> UpdateVoterResponse:
    leader = entity.current_leader
    endpoint = (VoterEndpoint(listener, leader.host, leader.port),) if leader.host else ()
    return UpdateVoterResponse(
        error=entity.error_code,
        epoch=max(leader.leader_epoch, 0),
        leader_id=leader.leader_id,
        leader_endpoints=endpoint,
    )


# ApiVersions


def _oldest_api_versions(request: ApiVersionsRequest) -> int:
    return LEVEL_ZERO_VERSION


def _write_api_versions(request: ApiVersionsRequest) -> Values:
    return {"client_software_name": "odradek", "client_software_version": "1"}


def _read_api_versions(entity: Any, request: RaftRequest, listener: str) -> ApiVersionsResponse:
    levels = [
        (each.min_version, each.max_version)
        for each in entity.supported_features
        if each.name == KRAFT_VERSION
    ]
    return ApiVersionsResponse(
        error=entity.error_code, kraft_versions=levels[0] if levels else None
    )


ADD_VOTER = RpcCodec(
    api=apis.ADD_RAFT_VOTER,
    oldest=_oldest_add,
    write_request=_write_add,
    decode_response=_read_add_response,
    read_request=_read_add,
    encode_response=_write_changed,
    refuse=_refuse_change,
)
REMOVE_VOTER = RpcCodec(
    api=apis.REMOVE_RAFT_VOTER,
    oldest=any_version,
    write_request=_write_remove,
    decode_response=_read_remove_response,
    read_request=_read_remove,
    encode_response=_write_changed,
    refuse=_refuse_change,
)
UPDATE_VOTER = RpcCodec(
    api=apis.UPDATE_RAFT_VOTER,
    oldest=any_version,
    write_request=_write_update,
    decode_response=_read_updated,
    read_request=_read_update,
    encode_response=_write_updated,
    refuse=_refuse_update,
)
API_VERSIONS = RpcCodec(
    api=apis.API_VERSIONS,
    oldest=_oldest_api_versions,
    write_request=_write_api_versions,
    decode_response=_read_api_versions,
)
