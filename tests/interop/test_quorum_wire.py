"""Requests of Odradek's quorum nodes to an Apache Kafka controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
import trio

from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import batches
from odradek.protocol.records.control import ControlType, control_type
from odradek.protocol.records.records import decode
from odradek.replication.raft.kafka_network_channel import KafkaNetworkChannel
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginEpochRequest,
    EndEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
    UpdateVoterRequest,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voters import ReplicaKey, Voter, VoterEndpoint
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from tests.support.broker_process import BrokerProcess
from tests.support.real_kafka import start_kafka

LISTENER = "CONTROLLER"
ME = ReplicaKey(9, UUID(int=9 << 64))
HERE = (VoterEndpoint(LISTENER, "127.0.0.1", 1),)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_kafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def controller(kafka: BrokerProcess) -> Address:
    text = (kafka.directory / "server.properties").read_text()
    host, _, port = text.partition("CONTROLLER://")[2].split()[0].rpartition(":")
    return Address(host, int(port))


def cluster_id(kafka: BrokerProcess) -> str:
    lines = Path(kafka.log_dirs[0], "meta.properties").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("cluster.id"))


async def ask(kafka: BrokerProcess, *requests: RaftRequest) -> list[RaftResponse]:
    way = KafkaNetworkChannel(
        TcpNetwork(), listener=LISTENER, bootstrap=[controller(kafka)], timeout_s=20
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(way.run)
        responses = [await way.send_request(BOOTSTRAP_SERVER, (), request) for request in requests]
        nursery.cancel_scope.cancel()
    return responses


def fetch(epoch: int, offset: int, last_epoch: int, max_wait_ms: int = 0) -> FetchRequest:
    return FetchRequest(
        replica=ME,
        epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        max_wait_ms=max_wait_ms,
        max_bytes=1 << 20,
    )


async def leader_of(kafka: BrokerProcess) -> RaftResponse:
    (response,) = await ask(kafka, fetch(0, 0, 0))
    assert response.error is ErrorCode.fenced_leader_epoch
    return response


async def test_response_to_older_epoch_has_epoch_and_leader(kafka: BrokerProcess) -> None:
    response = await leader_of(kafka)
    there = controller(kafka)
    assert (response.leader_id, response.leader_endpoints) == (
        1,
        (VoterEndpoint(LISTENER, there.host, there.port),),
    )


async def test_log_is_fetched_to_high_watermark(kafka: BrokerProcess) -> None:
    known = await leader_of(kafka)
    offset, epoch, kinds = 0, 0, set()
    while True:
        (response,) = await ask(kafka, fetch(known.epoch, offset, epoch))
        assert isinstance(response, FetchResponse)
        assert response.error is ErrorCode.none
        if response.records is None:
            break
        for batch in batches(response.records):
            assert batch.base_offset == offset
            offset, epoch = batch.last_offset + 1, batch.leader_epoch
            if batch.is_control:
                kinds |= {control_type(record.key) for record in decode(batch)}
        if offset >= response.high_watermark > 0:
            break
    assert ControlType.LEADER_CHANGE in kinds
    (parted,) = await ask(kafka, fetch(known.epoch, offset + 1000, known.epoch))
    assert isinstance(parted, FetchResponse)
    assert parted.diverging is not None
    assert parted.diverging.end_offset >= offset


async def test_leader_grants_no_vote(kafka: BrokerProcess) -> None:
    known = await leader_of(kafka)
    id_ = cluster_id(kafka)
    pre_vote = VoteRequest(
        cluster_id=id_,
        voter=ReplicaKey(1),
        epoch=known.epoch,
        candidate=ME,
        last_epoch=known.epoch,
        end_offset=1 << 40,
        pre_vote=True,
    )
    old = VoteRequest(epoch=0, candidate=ME, last_epoch=0, end_offset=0)
    strange = VoteRequest(
        cluster_id="x" * 22, epoch=known.epoch, candidate=ME, last_epoch=0, end_offset=0
    )
    not_me = VoteRequest(
        voter=ReplicaKey(1, UUID(int=3)),
        epoch=known.epoch,
        candidate=ME,
        last_epoch=0,
        end_offset=0,
    )
    refused, invalid, other_cluster, mistaken = await ask(kafka, pre_vote, old, strange, not_me)
    assert refused == VoteResponse(
        epoch=known.epoch, leader_id=1, leader_endpoints=known.leader_endpoints
    )
    assert invalid.error is ErrorCode.invalid_request
    assert other_cluster == VoteResponse(error=ErrorCode.inconsistent_cluster_id)
    assert mistaken.error is ErrorCode.invalid_voter_key


async def test_begin_and_end_of_older_epochs_are_refused(kafka: BrokerProcess) -> None:
    known = await leader_of(kafka)
    responses = await ask(
        kafka,
        BeginEpochRequest(voter=ReplicaKey(1), leader_id=9, epoch=0, leader_endpoints=HERE),
        EndEpochRequest(leader_id=9, epoch=0, successors=(ME,), leader_endpoints=HERE),
    )
    for response in responses:
        assert response.error is ErrorCode.fenced_leader_epoch
        assert (response.epoch, response.leader_id) == (known.epoch, 1)
        assert response.leader_endpoints == known.leader_endpoints


async def test_fetch_of_missing_snapshot_fails(kafka: BrokerProcess) -> None:
    known = await leader_of(kafka)
    requests = [
        FetchSnapshotRequest(
            cluster_id=cluster_id(kafka),
            replica=ME,
            epoch=epoch,
            snapshot_id=SnapshotId(3, 1),
            position=0,
            max_bytes=1 << 20,
        )
        for epoch in (known.epoch, known.epoch + 1)
    ]
    for request, response in zip(requests, await ask(kafka, *requests), strict=True):
        assert response == FetchSnapshotResponse(
            error=ErrorCode.snapshot_not_found, epoch=request.epoch
        ), "Kafka cannot serialize its error; Odradek returns to fetching the log"


async def test_invalid_voter_changes_are_refused(kafka: BrokerProcess) -> None:
    known = await leader_of(kafka)
    stranger = Voter(ME.id, ME.directory_id, HERE)
    levels, nowhere, removed, updated = await ask(
        kafka,
        ApiVersionsRequest(),
        AddVoterRequest(voter=Voter(ME.id, ME.directory_id), timeout_ms=1000),
        RemoveVoterRequest(voter=ME),
        UpdateVoterRequest(voter=stranger, epoch=known.epoch),
    )
    assert levels == ApiVersionsResponse(kraft_versions=(0, 1))
    assert isinstance(nowhere, AddVoterResponse)
    assert nowhere.error is ErrorCode.invalid_request
    assert "default listener" in (nowhere.message or "")
    assert isinstance(removed, RemoveVoterResponse)
    assert removed.error is ErrorCode.voter_not_found
    assert updated.error is ErrorCode.voter_not_found
    assert (updated.epoch, updated.leader_id) == (known.epoch, 1)
    assert updated.leader_endpoints == known.leader_endpoints
