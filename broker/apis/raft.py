"""Requests between nodes of the metadata quorum, on controller listeners (KIP-595, KIP-630, KIP-853).

A handler decodes the request, calls `MetadataManager.handle_request` and encodes the response for the listener. Fetch
here is of the metadata log only; topics are fetched on broker listeners. A fetch that waits blocks its
connection only. Requests of administrators are in `quorum.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.route import Handler, Route
from odradek.broker.security.request_authorization import check_cluster
from odradek.protocol import apis
from odradek.protocol.errors import KafkaError
from odradek.protocol.fetch_response_writer import write_fetch_response
from odradek.replication.controller.acls import AclOperation
from odradek.replication.raft import election_rpcs as wire_elections
from odradek.replication.raft import fetch_rpcs as wire_log
from odradek.replication.raft import voter_rpcs as wire_voters
from odradek.replication.raft.rpc_codec import RpcCodec
from odradek.seams.files import Buffer, FileSlice

CLUSTER_ACTION = AclOperation.CLUSTER_ACTION


def responded_by_the_quorum(form: RpcCodec, needed: AclOperation) -> Handler:
    """Handler of requests of this form; the client needs the operation `needed` on the cluster."""
    read, write, refuse = form.read_request, form.encode_response, form.refuse
    assert read is not None
    assert write is not None
    assert refuse is not None

    async def handle(entity: Any, ctx: RequestContext) -> Mapping[str, Any]:
        try:
            check_cluster(ctx, needed)
            request = read(entity)
            response = await ctx.services.metadata.handle_request(request)
        except KafkaError as error:
            return refuse(entity, error)
        return write(response, request, ctx.endpoint.name)

    return handle


def _write_fetch(key: int, version: int, values: Mapping[str, Any]) -> Sequence[Buffer | FileSlice]:
    return write_fetch_response(version, **values)


HANDLERS = {
    apis.VOTE: responded_by_the_quorum(wire_elections.VOTE, CLUSTER_ACTION),
    apis.BEGIN_QUORUM_EPOCH: responded_by_the_quorum(wire_elections.BEGIN_EPOCH, CLUSTER_ACTION),
    apis.END_QUORUM_EPOCH: responded_by_the_quorum(wire_elections.END_EPOCH, CLUSTER_ACTION),
    apis.FETCH: Route(responded_by_the_quorum(wire_log.FETCH, CLUSTER_ACTION), write=_write_fetch),
    apis.FETCH_SNAPSHOT: responded_by_the_quorum(wire_log.FETCH_SNAPSHOT, CLUSTER_ACTION),
    apis.UPDATE_RAFT_VOTER: responded_by_the_quorum(wire_voters.UPDATE_VOTER, CLUSTER_ACTION),
}
