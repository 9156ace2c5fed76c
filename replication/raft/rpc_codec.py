"""Common parts of the Raft RPC codecs (Kafka's `RaftUtil`): topics, replica keys, endpoints.

Kafka's messages may contain several partitions; the quorum has one, `__cluster_metadata-0`. A request or
response with any other partition is rejected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import CLUSTER_METADATA
from odradek.replication.raft.messages import Endpoints, RaftRequest, RaftResponse
from odradek.replication.raft.network_channel import RequestFailed
from odradek.replication.raft.voters import NO_DIRECTORY, NO_LEADER, ReplicaKey, VoterEndpoint
from odradek.seams.values import value_class

log = logging.getLogger("odradek.metadata")

Values = dict[str, Any]
PARTITION: Final = 0


@value_class
class RpcCodec:
    """Maps a request of `messages.py` and its response to the values of one API and back.

    Values are those of the newest version. `oldest` returns the lowest version that has the request's
    fields. `listener` is the listener of the connection: responses contain the leader's endpoint of
    this listener only.
    """

    api: Api
    oldest: Callable[[Any], int]
    write_request: Callable[[Any], Values]
    decode_response: Callable[[Any, Any, str], RaftResponse]
    """(entity, request, listener) to response; raises RequestFailed for another partition."""
    read_request: Callable[[Any], RaftRequest] | None = None
    """Entity to request; raises KafkaError for another partition. None if this node does not serve
    the API here."""
    encode_response: Callable[[Any, Any, str], Values] | None = None
    """(response, request, listener) to values."""
    refuse: Callable[[Any, KafkaError], Values] | None = None
    """Error response to an entity that `read_request` or the authorizer rejected."""


def any_version(request: RaftRequest) -> int:
    return 0


# Partition


def one_topic(partition: Mapping[str, Any], index: str = "partition_index") -> list[Values]:
    return [{"topic_name": CLUSTER_METADATA, "partitions": [{index: PARTITION, **partition}]}]


def partition_of(topics: Sequence[Any], *, index: str = "partition_index") -> Any:
    """The partition `__cluster_metadata-0` of a message; None if it has others or more."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, partition = topics[0], topics[0].partitions[0]
    known = topic.topic_name == CLUSTER_METADATA and getattr(partition, index) == PARTITION
    return partition if known else None


def requested_partition(topics: Sequence[Any]) -> Any:
    """Partition of a request. Raises KafkaError (INVALID_REQUEST) for any other partition."""
    partition = partition_of(topics)
    if partition is None:
        raise KafkaError(ErrorCode.invalid_request, f"the only partition is {CLUSTER_METADATA}-0")
    return partition


def response_partition(topics: Sequence[Any]) -> Any:
    """Partition of a response. Raises RequestFailed for any other partition."""
    return require_partition(partition_of(topics))


def require_partition(partition: Any) -> Any:
    """The partition; raises RequestFailed if it is None."""
    if partition is None:
        raise RequestFailed(f"the response is not for {CLUSTER_METADATA}-0")
    return partition


def refuse_all(entity: Any, error: KafkaError) -> Values:
    """Values of a response with a top-level error and no topics."""
    return {"error_code": error.code, "topics": []}


# Replica keys


EPOCH_MAX = 2**31 - 2
"""Largest epoch of a message, so that the next epoch has 32 bits. RaftClient also limits how fast epochs grow."""


def requested_epoch(epoch: int) -> int:
    """The epoch of a request. Raises KafkaError if only a faulty or hostile peer can have sent it: after its adoption
    no leader could be elected any more."""
    if epoch > EPOCH_MAX:
        log.warning("refused a request with leader epoch %d: the largest is %d", epoch, EPOCH_MAX)
        raise KafkaError(ErrorCode.invalid_request, f"epoch {epoch} is larger than {EPOCH_MAX}")
    return epoch


def responded_epoch(epoch: int) -> int:
    """The epoch of a response. Raises RequestFailed as `requested_epoch` raises KafkaError."""
    if epoch > EPOCH_MAX:
        raise RequestFailed(f"a response with leader epoch {epoch}: the largest is {EPOCH_MAX}")
    return epoch


def directory(value: UUID | None) -> UUID:
    """Directory id of a message; kio decodes the zero UUID as None."""
    return value or NO_DIRECTORY


def key_of(replica_id: int, directory_id: UUID | None) -> ReplicaKey | None:
    """Replica key; None if a message has no replica id."""
    return None if replica_id < 0 else ReplicaKey(replica_id, directory(directory_id))


# Endpoints


def endpoints_of(listeners: Iterable[Any]) -> Endpoints:
    return tuple(VoterEndpoint(each.name, each.host, each.port) for each in listeners)


def write_endpoints(endpoints: Endpoints) -> list[Values]:
    return [{"name": each.listener, "host": each.host, "port": each.port} for each in endpoints]


def leader_at(leader_id: int, nodes: Iterable[Any], listener: str) -> Endpoints:
    """Endpoints of the leader in a response; empty in old versions."""
    if leader_id == NO_LEADER:
        return ()
    return tuple(
        VoterEndpoint(listener, node.host, node.port) for node in nodes if node.node_id == leader_id
    )


def endpoint_on(endpoints: Endpoints, listener: str) -> VoterEndpoint | None:
    return next((each for each in endpoints if each.listener == listener), None)


def write_leader(response: RaftResponse, listener: str) -> list[Values]:
    """`node_endpoints` of a response: the leader's endpoint of this listener, if known."""
    there = endpoint_on(response.leader_endpoints, listener)
    if there is None or response.leader_id < 0:
        return []
    return [{"node_id": response.leader_id, "host": there.host, "port": there.port}]
