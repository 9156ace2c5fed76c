"""Tests of quorum requests to the controller listener of a single node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import trio
import trio.lowlevel

from odradek.broker.node import Node
from odradek.client.connection import open_connection
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import batches
from odradek.protocol.topics import CLUSTER_METADATA
from odradek.replication.raft.kafka_network_channel import KafkaNetworkChannel
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
    VoteRequest,
)
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voters import ReplicaKey, Voter, VoterEndpoint
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Broker

CONFIGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:0",
}
OBSERVER = ReplicaKey(9, UUID(int=9 << 64))


class Observer:
    """Client that sends the requests of an observer."""

    def __init__(self, node: Node, way: KafkaNetworkChannel, address: Address) -> None:
        self.node = node
        self.address = address
        self._way = way
        self._there = (VoterEndpoint("CONTROLLER", address.host, address.port),)

    async def ask(self, request: RaftRequest) -> RaftResponse:
        return await self._way.send_request(1, self._there, request)

    async def fetch(self, offset: int, last_epoch: int, max_wait_ms: int = 0) -> FetchResponse:
        quorum = self.node.metadata.quorum
        request = FetchRequest(
            replica=OBSERVER,
            epoch=quorum.leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
            high_watermark=quorum.high_watermark if max_wait_ms else -1,
            max_wait_ms=max_wait_ms,
            max_bytes=1 << 20,
        )
        response = await self.ask(request)
        assert isinstance(response, FetchResponse)
        return response


@asynccontextmanager
async def observed() -> AsyncIterator[Observer]:
    async with Broker(configs=CONFIGS) as broker, trio.open_nursery() as nursery:
        (controller,) = broker.node.controller_endpoints
        way = KafkaNetworkChannel(TcpNetwork(), listener="CONTROLLER", timeout_s=10)
        await nursery.start(way.run)
        yield Observer(broker.node, way, Address("127.0.0.1", controller.bound.port))
        nursery.cancel_scope.cancel()


async def test_observer_fetches_the_log_to_its_end() -> None:
    async with observed() as observer:
        offset = epoch = 0
        while offset < observer.node.metadata.quorum.high_watermark:
            response = await observer.fetch(offset, epoch)
            assert response.error is ErrorCode.none
            assert response.leader_endpoints == (
                VoterEndpoint("CONTROLLER", observer.address.host, observer.address.port),
            )
            for batch in batches(response.records):
                assert batch.base_offset == offset
                offset, epoch = batch.last_offset + 1, batch.leader_epoch
        assert (await observer.fetch(offset, epoch)).high_watermark == offset


async def test_fetch_waits_for_the_next_commit() -> None:
    async with observed() as observer:
        node = observer.node
        offset, epoch = node.metadata.quorum.high_watermark, node.metadata.quorum.leader_epoch
        fetched: list[FetchResponse] = []

        async def wait() -> None:
            fetched.append(await observer.fetch(offset, epoch, max_wait_ms=5_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            while not any(each.key == OBSERVER for each in node.metadata.quorum.observers):
                await trio.lowlevel.checkpoint()
            connection = await open_connection(TcpNetwork(), observer.address, nursery)
            described = await connection.request(
                apis.DESCRIBE_QUORUM,
                {"topics": [{"topic_name": CLUSTER_METADATA, "partitions": [{}]}]},
            )
            assert not fetched, "there was nothing new"
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
            await connection.request(
                apis.CREATE_TOPICS,
                {"topics": [{**topic, "assignments": [], "configs": []}], "timeout": 5000},
            )
            connection.abort()
        (partition,) = described.topics[0].partitions
        (known,) = partition.observers
        assert (known.replica_id, known.replica_directory_id) == OBSERVER
        assert known.log_end_offset == offset
        assert known.last_fetch_timestamp > 0
        (response,) = fetched
        assert next(iter(batches(response.records))).base_offset == offset


async def test_snapshot_is_fetched_in_chunks() -> None:
    async with observed() as observer:
        metadata = observer.node.metadata
        snapshot = await metadata.take_snapshot()
        assert snapshot is not None
        reported = await observer.fetch(0, 0)
        assert reported.snapshot_id == snapshot, "quicker than the log from its beginning"
        data = b""
        while True:
            piece = await observer.ask(
                FetchSnapshotRequest(
                    replica=OBSERVER,
                    epoch=metadata.quorum.leader_epoch,
                    snapshot_id=snapshot,
                    position=len(data),
                    max_bytes=500,
                )
            )
            assert isinstance(piece, FetchSnapshotResponse)
            assert (piece.error, piece.snapshot_id) == (ErrorCode.none, snapshot)
            data += piece.data
            assert 0 < len(piece.data) <= 500
            if len(data) == piece.size:
                break
        assert sum(batch.size for batch in batches(data)) == len(data)
        gone = await observer.ask(
            FetchSnapshotRequest(
                replica=OBSERVER,
                epoch=metadata.quorum.leader_epoch,
                snapshot_id=SnapshotId(1, 1),
                position=0,
            )
        )
        assert gone.error is ErrorCode.snapshot_not_found


async def test_leader_rejects_votes_and_lagging_voters() -> None:
    async with observed() as observer:
        epoch = observer.node.metadata.quorum.leader_epoch
        vote = VoteRequest(
            epoch=epoch, candidate=OBSERVER, last_epoch=epoch, end_offset=1 << 40, pre_vote=True
        )
        refused = await observer.ask(vote)
        assert (refused.error, refused.leader_id, refused.epoch) == (ErrorCode.none, 1, epoch)
        nowhere = VoterEndpoint("CONTROLLER", "127.0.0.1", 1)
        voter = Voter(OBSERVER.id, OBSERVER.directory_id, (nowhere,))
        unreachable = await observer.ask(AddVoterRequest(voter=voter, timeout_ms=1000))
        assert isinstance(unreachable, AddVoterResponse)
        assert unreachable.error is ErrorCode.request_timed_out
        assert len(observer.node.metadata.quorum.voters) == 1
