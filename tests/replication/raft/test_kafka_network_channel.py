"""Connections, addresses and failures of KafkaNetworkChannel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from odradek.protocol.apis import API_VERSIONS, BEGIN_QUORUM_EPOCH, FETCH, VOTE
from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.fetch_rpcs import FETCH as FETCH_FORM
from odradek.replication.raft.kafka_network_channel import KafkaNetworkChannel
from odradek.replication.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    FetchRequest,
    FetchResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.network_channel import NodeNotRunning, RequestFailed
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from odradek.replication.raft.voters import ReplicaKey, VoterEndpoint
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from odradek.testing.virtual_world import VirtualWorld
from tests.support.scripted_broker import (
    HANG_UP,
    SILENCE,
    ReceivedRequest,
    ScriptedBroker,
    scripted_broker,
)

LISTENER = "CONTROLLER"
CONTROLLERS = {VOTE: (0, 2), BEGIN_QUORUM_EPOCH: (0, 1)}
VOTE_REQUEST = VoteRequest(epoch=7, candidate=ReplicaKey(1), last_epoch=6, end_offset=90)
PRE_VOTE = VoteRequest(epoch=7, candidate=ReplicaKey(1), last_epoch=6, end_offset=90, pre_vote=True)
BEGIN = BeginEpochRequest(leader_id=1, epoch=7)
FETCH_REQUEST = FetchRequest(
    replica=ReplicaKey(2), epoch=7, fetch_offset=90, last_fetched_epoch=6, max_wait_ms=500
)
TOPIC = {"topic_name": "__cluster_metadata"}
GRANTED = {
    "topics": [
        {**TOPIC, "partitions": [{"leader_id": -1, "leader_epoch": 7, "vote_granted": True}]}
    ]
}
BEGUN = {"topics": [{**TOPIC, "partitions": [{"leader_id": 1, "leader_epoch": 7}]}]}


def votes(asked: ReceivedRequest) -> Any:
    return dict(GRANTED) if asked.api is VOTE else None


def endpoints_of(broker: ScriptedBroker) -> tuple[VoterEndpoint, ...]:
    elsewhere = VoterEndpoint("OTHER", "nowhere.invalid", 1)
    return elsewhere, VoterEndpoint(LISTENER, broker.address.host, broker.address.port)


@asynccontextmanager
async def channel(**more: Any) -> AsyncIterator[KafkaNetworkChannel]:
    made = KafkaNetworkChannel(TcpNetwork(), listener=LISTENER, **{"timeout_s": 5.0, **more})
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield made
        nursery.cancel_scope.cancel()


async def test_connection_is_reused_for_the_next_request() -> None:
    async with (
        scripted_broker(votes, versions=CONTROLLERS) as node,
        channel(client_id="raft-client-1") as way,
    ):
        for _ in range(3):
            response = await way.send_request(2, endpoints_of(node), VOTE_REQUEST)
            assert response == VoteResponse(granted=True, epoch=7)
        assert node.connections == 1
        assert {asked.client_id for asked in node.requests} == {"raft-client-1"}
        assert [asked.version for asked in node.requests_of(VOTE)] == [2, 2, 2]


async def test_cancelled_request_closes_its_connection() -> None:
    """The connection is not reused, because a late response may arrive on it."""

    def script(asked: ReceivedRequest) -> Any:
        return SILENCE if asked.api is FETCH else votes(asked)

    async with scripted_broker(script, versions=CONTROLLERS) as node, channel() as way:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(way.send_request, 2, endpoints_of(node), FETCH_REQUEST)
            while not node.requests_of(FETCH):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert await way.send_request(2, endpoints_of(node), VOTE_REQUEST) == VoteResponse(
            granted=True, epoch=7
        )
        assert node.connections == 2


async def test_concurrent_requests_use_separate_connections() -> None:
    def script(asked: ReceivedRequest) -> Any:
        return SILENCE if asked.api is FETCH else votes(asked)

    async with scripted_broker(script, versions=CONTROLLERS) as node, channel() as way:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(way.send_request, 2, endpoints_of(node), FETCH_REQUEST)
            while not node.requests_of(FETCH):
                await trio.lowlevel.checkpoint()
            await way.send_request(2, endpoints_of(node), VOTE_REQUEST)
            nursery.cancel_scope.cancel()


async def test_bootstrap_servers_are_used_in_turn() -> None:
    async with (
        scripted_broker(votes, versions=CONTROLLERS) as one,
        scripted_broker(votes, versions=CONTROLLERS) as two,
        channel(bootstrap=[one.address, two.address]) as way,
    ):
        for _ in range(4):
            await way.send_request(BOOTSTRAP_SERVER, (), VOTE_REQUEST)
        assert (len(one.requests_of(VOTE)), len(two.requests_of(VOTE))) == (2, 2)


async def test_request_without_known_endpoint_fails() -> None:
    async with channel() as way:
        with pytest.raises(RequestFailed, match="no bootstrap servers"):
            await way.send_request(BOOTSTRAP_SERVER, (), VOTE_REQUEST)
        with pytest.raises(
            RequestFailed, match="node 2 has no known endpoint of listener CONTROLLER"
        ):
            await way.send_request(2, (VoterEndpoint("OTHER", "localhost", 1),), VOTE_REQUEST)
    with pytest.raises(RequestFailed, match="channel is not running"):
        await way.send_request(2, (VoterEndpoint(LISTENER, "localhost", 1),), VOTE_REQUEST)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (lambda asked: HANG_UP if asked.api is VOTE else None, "lost the connection"),
        (
            lambda asked: SILENCE if asked.api is VOTE else None,
            r"Vote request to .* timed out after 0\.2 s",
        ),
        (lambda asked: SILENCE, r"after 0\.2 s"),
        (lambda asked: {"error_code": 42, "api_keys": []}, "ApiVersions of .* failed"),
        (lambda asked: {"topics": []} if asked.api is VOTE else None, "not for"),
    ],
)
async def test_unusable_response_fails_the_request(script: Any, why: str) -> None:
    async with scripted_broker(script, versions=CONTROLLERS) as node:
        async with channel(timeout_s=0.2) as way:
            with pytest.raises(RequestFailed, match=why) as silence:
                await way.send_request(2, endpoints_of(node), VOTE_REQUEST)
            assert not isinstance(silence.value, NodeNotRunning), "another process listens"


async def test_restarted_node_is_connected_again() -> None:
    async with channel() as way:
        async with scripted_broker(votes, versions=CONTROLLERS) as node:
            there = endpoints_of(node)
            await way.send_request(2, there, VOTE_REQUEST)
        with pytest.raises(RequestFailed):
            await way.send_request(2, there, VOTE_REQUEST)
        with pytest.raises(NodeNotRunning):
            await way.send_request(2, there, VOTE_REQUEST)
        async with scripted_broker(votes, versions=CONTROLLERS) as again:
            await way.send_request(2, endpoints_of(again), VOTE_REQUEST)


def test_refused_connection_is_distinguished_from_unreachable_host() -> None:
    world = VirtualWorld()
    there = (VoterEndpoint(LISTENER, "there", 9093),)
    made = KafkaNetworkChannel(world.node("here").network, listener=LISTENER, timeout_s=2.0)
    failures: list[RequestFailed] = []

    async def ask() -> None:
        with pytest.raises(RequestFailed) as failure:
            await made.send_request(2, there, VOTE_REQUEST)
        failures.append(failure.value)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            await ask()
            world.wires.partition("here", "there")
            nursery.start_soon(ask)
            await world.clock.run_for(3)
            nursery.cancel_scope.cancel()

    world.run(main)
    assert [type(each) for each in failures] == [NodeNotRunning, RequestFailed]


async def test_unsupported_api_yields_unsupported_version() -> None:
    """An API that an old node lacks, such as pre-votes, yields UNSUPPORTED_VERSION; the connection stays."""
    begins = {BEGIN_QUORUM_EPOCH: dict(BEGUN), VOTE: dict(GRANTED)}
    old = {VOTE: (0, 1), BEGIN_QUORUM_EPOCH: (0, 0)}
    async with (
        scripted_broker(lambda asked: begins.get(asked.api), versions=old) as node,
        channel() as way,
    ):
        there = endpoints_of(node)
        assert await way.send_request(2, there, PRE_VOTE) == VoteResponse(
            error=ErrorCode.unsupported_version
        )
        assert await way.send_request(2, there, VOTE_REQUEST) == VoteResponse(granted=True, epoch=7)
        assert await way.send_request(2, there, BEGIN) == BeginEpochResponse(epoch=7, leader_id=1)
        assert node.connections == 1
    async with scripted_broker(votes, versions={BEGIN_QUORUM_EPOCH: (0, -1)}) as node:
        async with channel() as way:
            assert await way.send_request(2, endpoints_of(node), BEGIN) == BeginEpochResponse(
                error=ErrorCode.unsupported_version
            )


async def test_fetched_records_are_unchanged() -> None:
    fetched = FetchResponse(
        epoch=7,
        leader_id=2,
        leader_endpoints=(VoterEndpoint(LISTENER, "two.example", 9093),),
        high_watermark=80,
        records=b"batches",
    )
    assert FETCH_FORM.encode_response is not None
    written = FETCH_FORM.encode_response(fetched, FETCH_REQUEST, LISTENER)
    partition = written["topics"][0].partitions[0]

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is not FETCH:
            return None
        reported = {
            "partition_index": 0,
            "high_watermark": partition.high_watermark,
            "current_leader": {"leader_id": 2, "leader_epoch": 7},
            "records": b"batches",
        }
        return {
            "responses": [{"topic_id": asked.body.topics[0].topic_id, "partitions": [reported]}],
            "node_endpoints": [{"node_id": 2, "host": "two.example", "port": 9093}],
        }

    async with scripted_broker(script) as node, channel() as way:
        assert await way.send_request(2, endpoints_of(node), FETCH_REQUEST) == fetched
        (asked,) = node.requests_of(FETCH)
        assert FETCH_FORM.read_request is not None
        assert FETCH_FORM.read_request(asked.body) == FETCH_REQUEST
        assert node.requests_of(API_VERSIONS)
        assert node.address == Address("127.0.0.1", node.address.port)
