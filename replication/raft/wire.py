"""What voters and observers say to each other, as Kafka's requests and responses.

`RPC_CODECS` is the table: for each message of `messages.py` its API, and how it and its answer are written
and read. Who asks uses it in `wire_transport.py`, who answers in the broker's handlers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft import election_rpcs as wire_elections
from odradek.replication.raft import fetch_rpcs as wire_log
from odradek.replication.raft import voter_rpcs as wire_voters
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
    Request,
    Response,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.rpc_codec import RpcCodec

RPC_CODECS: Final[Mapping[type[Request], RpcCodec]] = {
    VoteRequest: wire_elections.VOTE,
    BeginEpochRequest: wire_elections.BEGIN_EPOCH,
    EndEpochRequest: wire_elections.END_EPOCH,
    FetchRequest: wire_log.FETCH,
    FetchSnapshotRequest: wire_log.FETCH_SNAPSHOT,
    AddVoterRequest: wire_voters.ADD_VOTER,
    RemoveVoterRequest: wire_voters.REMOVE_VOTER,
    UpdateVoterRequest: wire_voters.UPDATE_VOTER,
    ApiVersionsRequest: wire_voters.API_VERSIONS,
}

_RESPONSES: Final[Mapping[type[Request], type[Response]]] = {
    VoteRequest: VoteResponse,
    BeginEpochRequest: BeginEpochResponse,
    EndEpochRequest: EndEpochResponse,
    FetchRequest: FetchResponse,
    FetchSnapshotRequest: FetchSnapshotResponse,
    AddVoterRequest: AddVoterResponse,
    RemoveVoterRequest: RemoveVoterResponse,
    UpdateVoterRequest: UpdateVoterResponse,
    ApiVersionsRequest: ApiVersionsResponse,
}


def codec_of(request: Request) -> RpcCodec:
    return RPC_CODECS[type(request)]


def unsupported_response(request: Request) -> Response:
    """The answer of a node that does not have the API, or not in a version that can say this.

    A leader that knows nothing of voters' endpoints is not told of them again in its epoch.
    """
    told: dict[str, Any] = {"error": ErrorCode.unsupported_version}
    if isinstance(request, UpdateVoterRequest):
        told["epoch"] = request.epoch
    return _RESPONSES[type(request)](**told)
