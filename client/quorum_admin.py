"""Admin functions for the metadata quorum: describe it, add and remove voters (KIP-595, KIP-853).

A broker forwards these requests to the active controller. Another controller does not, but has the address of the
active one (DescribeCluster with controller endpoints, KIP-919), to which the request is then sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from odradek.client.connection import BrokerConnection
from odradek.client.errors import Unreachable, check
from odradek.client.metadata import Cluster
from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode
from odradek.protocol.uuids import ZERO_UUID
from odradek.seams.network import Address
from odradek.seams.values import value_class

TOPIC = "__cluster_metadata"
CONTROLLERS = 2
"""Endpoint type of DescribeCluster for controllers."""
ELSEWHERE = (ErrorCode.not_leader_or_follower, ErrorCode.not_controller)


@value_class
class VoterListener:
    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


@value_class
class QuorumReplica:
    """Voter or observer; times are in ms since the epoch, -1 if unknown."""

    id: int
    directory_id: UUID
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
    listeners: tuple[VoterListener, ...]


@value_class
class QuorumState:
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]

    @property
    def leader(self) -> QuorumReplica | None:
        """The leader, or None if there is none or it was removed from the voters."""
        return next((each for each in self.voters if each.id == self.leader_id), None)

    def lag(self, replica: QuorumReplica) -> int | None:
        """Lag of a replica in offsets; None if there is no leader."""
        return None if self.leader is None else self.leader.log_end_offset - replica.log_end_offset

    @property
    def max_lag(self) -> int | None:
        """Largest lag of a voter in offsets."""
        lags = [lag for each in self.voters if (lag := self.lag(each)) is not None]
        return max(lags, default=None)

    @property
    def max_lag_ms(self) -> int:
        """Largest time in ms since a voter had caught up with the leader; -1 if unknown."""
        leader = self.leader
        last = min(self.voters, key=lambda each: each.log_end_offset, default=None)
        if leader is None or last is None:
            return -1
        if last.log_end_offset == leader.log_end_offset:
            return 0
        if leader.last_caught_up_ms < 0 or last.last_caught_up_ms < 0:
            return -1
        return leader.last_caught_up_ms - last.last_caught_up_ms


async def describe_quorum(cluster: Cluster) -> QuorumState:
    """Describe the quorum with the leader's DescribeQuorum response."""
    request = {"topics": [{"topic_name": TOPIC, "partitions": [{"partition_index": 0}]}]}
    response = await _request(cluster, apis.DESCRIBE_QUORUM, request, _quorum_error)
    check(response.error_code, getattr(response, "error_message", None), about="the quorum")
    partition = response.topics[0].partitions[0]
    check(partition.error_code, getattr(partition, "error_message", None), about="the quorum")
    listeners = {
        node.node_id: tuple(
            VoterListener(each.name, each.host, each.port) for each in node.listeners
        )
        for node in getattr(response, "nodes", ())
    }

    def replicas(rows: Sequence[Any]) -> tuple[QuorumReplica, ...]:
        return tuple(_replica(row, listeners.get(row.replica_id, ())) for row in rows)

    return QuorumState(
        partition.leader_id,
        partition.leader_epoch,
        partition.high_watermark,
        replicas(partition.current_voters),
        replicas(partition.observers),
    )


def _replica(row: Any, listeners: tuple[VoterListener, ...]) -> QuorumReplica:
    return QuorumReplica(
        row.replica_id,
        getattr(row, "replica_directory_id", None) or ZERO_UUID,
        row.log_end_offset,
        _ms(getattr(row, "last_fetch_timestamp", -1)),
        _ms(getattr(row, "last_caught_up_timestamp", -1)),
        listeners,
    )


def _ms(value: Any) -> int:
    return -1 if value is None else int(value)


async def add_voter(
    cluster: Cluster, voter_id: int, directory_id: UUID, listeners: Sequence[VoterListener]
) -> None:
    """Add an observer to the voters, and wait for the change."""
    values = {
        "cluster_id": None,
        "timeout": int(cluster.timeout_s * 1000),
        "voter_id": voter_id,
        "voter_directory_id": directory_id,
        "listeners": [
            {"name": each.name, "host": each.host, "port": each.port} for each in listeners
        ],
        "ack_when_committed": True,
    }
    response = await _request(cluster, apis.ADD_RAFT_VOTER, values, _error)
    check(response.error_code, response.error_message, about=f"controller {voter_id}")


async def remove_voter(cluster: Cluster, voter_id: int, directory_id: UUID) -> None:
    """Remove a voter from the quorum, and wait for the change."""
    values = {"cluster_id": None, "voter_id": voter_id, "voter_directory_id": directory_id}
    response = await _request(cluster, apis.REMOVE_RAFT_VOTER, values, _error)
    check(response.error_code, response.error_message, about=f"controller {voter_id}")


def _error(response: Any) -> int:
    return int(response.error_code)


def _quorum_error(response: Any) -> int:
    inner = [each.error_code for topic in response.topics for each in topic.partitions]
    return int(response.error_code or next(iter(inner), 0))


async def _request(
    cluster: Cluster, api: Api, values: Mapping[str, Any], error_of: Callable[[Any], int]
) -> Any:
    """Send a request to any node, and to the active controller if the node does not forward it."""
    connection = await cluster.any_node()
    response = await connection.request(api, values, timeout_s=cluster.timeout_s + 5)
    if error_of(response) not in ELSEWHERE:
        return response
    leader = await _active_controller(cluster, connection)
    return await leader.request(api, values, timeout_s=cluster.timeout_s + 5)


async def _active_controller(cluster: Cluster, connection: BrokerConnection) -> BrokerConnection:
    response = await connection.request(
        apis.DESCRIBE_CLUSTER, {"endpoint_type": CONTROLLERS}, timeout_s=cluster.timeout_s
    )
    check(response.error_code, response.error_message, about="the controllers")
    for each in response.brokers:
        if each.broker_id == response.controller_id:
            return await cluster.connect(Address(each.host, each.port))
    raise Unreachable(f"{connection.address} reports no active controller")
