"""DescribeQuorum, AddRaftVoter and RemoveRaftVoter, served by the active controller (KIP-595, KIP-853).

Only the leader of the quorum knows the progress of voters and observers (KIP-836). Brokers forward these requests to
the active controller. The response to AddRaftVoter or RemoveRaftVoter is sent when the change is committed or has
failed; only the connection of the request waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from odradek.broker.apis.raft import responded_by_the_quorum
from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import ClusterDenied, may_cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import CLUSTER_METADATA
from odradek.replication.controller.acls import AclOperation
from odradek.replication.raft import voter_rpcs as wire_voters
from odradek.replication.raft.quorum_info import ReplicaInfo
from odradek.replication.raft.rpc_codec import write_endpoints

Values = dict[str, Any]


async def describe_quorum(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    if not may_cluster(ctx):
        return {"error_code": ClusterDenied.code, "error_message": "", "topics": [], "nodes": []}
    requested = [
        (topic.topic_name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    if len(request.topics) != 1 or requested != [(CLUSTER_METADATA, 0)]:
        return _unknown(request)
    return _described(ctx)


def _unknown(request: Any) -> Values:
    """Error if the request has another partition than __cluster_metadata-0."""
    unknown = {
        "error_code": ErrorCode.unknown_topic_or_partition,
        "error_message": "The only quorum is that of __cluster_metadata-0",
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": [],
        "observers": [],
    }
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "topics": [
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    {"partition_index": each.partition_index, **unknown}
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
        "nodes": [],
    }


def _described(ctx: RequestContext) -> Values:
    quorum = ctx.services.metadata.quorum
    if not quorum.replicas:
        return _respond(
            {
                "error_code": ErrorCode.not_leader_or_follower,
                "error_message": "This node does not lead the metadata quorum.",
                "current_voters": [],
                "observers": [],
            }
        )
    partition = {
        "error_code": ErrorCode.none,
        "error_message": "",
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "current_voters": [_replica(each) for each in quorum.replicas],
        "observers": [_replica(each) for each in quorum.observers],
    }
    nodes = [
        {"node_id": voter.id, "listeners": write_endpoints(voter.endpoints)}
        for voter in quorum.voters
    ]
    return _respond(partition, nodes)


def _replica(info: ReplicaInfo) -> Values:
    return {
        "replica_id": info.key.id,
        "replica_directory_id": info.key.directory_id,
        "log_end_offset": info.log_end_offset,
        "last_fetch_timestamp": info.last_fetch_ms,
        "last_caught_up_timestamp": info.last_caught_up_ms,
    }


def _respond(partition: Values, nodes: Sequence[Values] = ()) -> Values:
    partitions = [{"partition_index": 0, **partition}]
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "topics": [{"topic_name": CLUSTER_METADATA, "partitions": partitions}],
        "nodes": nodes,
    }


HANDLERS = {
    apis.DESCRIBE_QUORUM: describe_quorum,
    apis.ADD_RAFT_VOTER: responded_by_the_quorum(wire_voters.ADD_VOTER, AclOperation.ALTER),
    apis.REMOVE_RAFT_VOTER: responded_by_the_quorum(wire_voters.REMOVE_VOTER, AclOperation.ALTER),
}
