"""What the mappings of `wire.py` share: the form of a request and its answer, topics, endpoints.

Kafka's messages can speak of many logs; a quorum has one, `__cluster_metadata-0`. A request about any
other is refused, an answer about another is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.topic_names import CLUSTER_METADATA
from odradek.replication.raft.messages import Endpoints, Request, Response
from odradek.replication.raft.network_channel import RequestFailed
from odradek.replication.raft.voters import NO_DIRECTORY, NO_LEADER, ReplicaKey, VoterEndpoint
from odradek.seams.values import value_class

Values = dict[str, Any]
PARTITION: Final = 0


@value_class
class RpcCodec:
    """How one request and its answer are written to the wire and read from it.

    Requests and answers are written as values of the newest version. `oldest` is the lowest version
    that can say what a request says. `listener` is whose endpoints the asker understands: the
    wire's answers name the leader's address on one listener only.
    """

    api: Api
    oldest: Callable[[Any], int]
    write_request: Callable[[Any], Values]
    decode_response: Callable[[Any, Any, str], Response]
    """(entity, the request it answers, listener); raises RequestFailed if it is about another log."""
    read_request: Callable[[Any], Request] | None = None
    """Raises KafkaError if it is about another log. None where nobody asks us that."""
    encode_response: Callable[[Any, Any, str], Values] | None = None
    """(answer, request, listener)"""
    refuse: Callable[[Any, KafkaError], Values] | None = None
    """The answer to an entity that `read_request` or the authorizer did not let pass."""


def any_version(request: Request) -> int:
    return 0


# The log


def one_topic(partition: Mapping[str, Any], index: str = "partition_index") -> list[Values]:
    return [{"topic_name": CLUSTER_METADATA, "partitions": [{index: PARTITION, **partition}]}]


def partition_of(topics: Sequence[Any], *, index: str = "partition_index") -> Any:
    """The part of a message about the quorum's log; None if it is not about that, and that alone."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, partition = topics[0], topics[0].partitions[0]
    known = topic.topic_name == CLUSTER_METADATA and getattr(partition, index) == PARTITION
    return partition if known else None


def requested_partition(topics: Sequence[Any]) -> Any:
    """Raises KafkaError (INVALID_REQUEST) for any other log."""
    partition = partition_of(topics)
    if partition is None:
        raise KafkaError(ErrorCode.invalid_request, f"the only log is {CLUSTER_METADATA}-0")
    return partition


def response_partition(topics: Sequence[Any]) -> Any:
    """Raises RequestFailed for any other log."""
    return about(partition_of(topics))


def about(partition: Any) -> Any:
    if partition is None:
        raise RequestFailed(f"the answer is not about {CLUSTER_METADATA}-0")
    return partition


def refuse_all(entity: Any, error: KafkaError) -> Values:
    """An error of the whole request; nothing is said of any log."""
    return {"error_code": error.code, "topics": []}


# Who


def directory(value: UUID | None) -> UUID:
    """kio reads the zero UUID as None."""
    return value or NO_DIRECTORY


def key_of(replica_id: int, directory_id: UUID | None) -> ReplicaKey | None:
    """None where a message names no replica."""
    return None if replica_id < 0 else ReplicaKey(replica_id, directory(directory_id))


# Where


def endpoints_of(listeners: Iterable[Any]) -> Endpoints:
    return tuple(VoterEndpoint(each.name, each.host, each.port) for each in listeners)


def write_endpoints(endpoints: Endpoints) -> list[Values]:
    return [{"name": each.listener, "host": each.host, "port": each.port} for each in endpoints]


def leader_at(leader_id: int, nodes: Iterable[Any], listener: str) -> Endpoints:
    """Where an answer says that the leader listens; nowhere in old versions."""
    if leader_id == NO_LEADER:
        return ()
    return tuple(
        VoterEndpoint(listener, node.host, node.port) for node in nodes if node.node_id == leader_id
    )


def endpoint_on(endpoints: Endpoints, listener: str) -> VoterEndpoint | None:
    return next((each for each in endpoints if each.listener == listener), None)


def write_leader(response: Response, listener: str) -> list[Values]:
    """An answer's node endpoints: the leader's, on the listener that was asked."""
    there = endpoint_on(response.leader_endpoints, listener)
    if there is None or response.leader_id < 0:
        return []
    return [{"node_id": response.leader_id, "host": there.host, "port": there.port}]
