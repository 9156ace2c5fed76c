"""Sends Raft requests over Kafka connections (Kafka's `KafkaNetworkChannel`).

Requests use the controller listener. A connection carries one request at a time, and is reused only
after its response was read completely; cancellation or failure closes it. There are no retries
here. `RPC_CODECS` maps each message of `messages.py` to its API and codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from odradek.client.connection import BrokerConnection, open_connection
from odradek.client.errors import ClientError, Refused, TimedOut, Unsupported
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.raft import election_rpcs, fetch_rpcs, voter_rpcs
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    Endpoints,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.network_channel import NodeNotRunning, RequestFailed
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from odradek.replication.raft.rpc_codec import RpcCodec, endpoint_on
from odradek.seams.network import Address, Network

RPC_CODECS: Final[Mapping[type[RaftRequest], RpcCodec]] = {
    VoteRequest: election_rpcs.VOTE,
    BeginEpochRequest: election_rpcs.BEGIN_EPOCH,
    EndEpochRequest: election_rpcs.END_EPOCH,
    FetchRequest: fetch_rpcs.FETCH,
    FetchSnapshotRequest: fetch_rpcs.FETCH_SNAPSHOT,
    AddVoterRequest: voter_rpcs.ADD_VOTER,
    RemoveVoterRequest: voter_rpcs.REMOVE_VOTER,
    UpdateVoterRequest: voter_rpcs.UPDATE_VOTER,
    ApiVersionsRequest: voter_rpcs.API_VERSIONS,
}

_RESPONSES: Final[Mapping[type[RaftRequest], type[RaftResponse]]] = {
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


def codec_of(request: RaftRequest) -> RpcCodec:
    return RPC_CODECS[type(request)]


def unsupported_response(request: RaftRequest) -> RaftResponse:
    """Response for a node that does not support the API or the required version.

    For UpdateRaftVoter it has the epoch, so that the request is not repeated in this epoch.
    """
    values: dict[str, Any] = {"error": ErrorCode.unsupported_version}
    if isinstance(request, UpdateVoterRequest):
        values["epoch"] = request.epoch
    return _RESPONSES[type(request)](**values)


class KafkaNetworkChannel:
    """Connections to the other nodes of the quorum.

    `listener`: name of the controller listener. `bootstrap`: addresses to use when no leader is
    known. `timeout_s`: timeout of a request, connection setup included. Works while `run` is
    running.
    """

    def __init__(
        self,
        network: Network,
        *,
        listener: str,
        bootstrap: Sequence[Address] = (),
        client_id: str | None = None,
        timeout_s: float = 2.0,
    ) -> None:
        self._network = network
        self._listener = listener
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._next_bootstrap = 0
        self._idle: dict[Address, BrokerConnection] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._idle.clear()

    async def send_request(
        self, to: int, endpoints: Endpoints, request: RaftRequest
    ) -> RaftResponse:
        """Send a request to a node, or to the next bootstrap server (BOOTSTRAP_SERVER).

        A node that does not support it yields UNSUPPORTED_VERSION. Raises NodeNotRunning if the
        connection is refused, RequestFailed otherwise.
        """
        address = (
            self._bootstrap_server() if to == BOOTSTRAP_SERVER else self._address(to, endpoints)
        )
        form = codec_of(request)
        try:
            entity = await self._exchange(address, form, request)
        except TimedOut:
            raise RequestFailed(
                f"{form.api.title} request to {address} timed out after {self._timeout_s:g} s"
            ) from None
        except Refused as refused:
            raise NodeNotRunning(str(refused)) from refused
        except (ClientError, KafkaError) as error:
            raise RequestFailed(str(error)) from error
        if entity is None:
            return unsupported_response(request)
        return form.decode_response(entity, request, self._listener)

    def _bootstrap_server(self) -> Address:
        if not self._bootstrap:
            raise RequestFailed("there are no bootstrap servers")
        address = self._bootstrap[self._next_bootstrap]
        self._next_bootstrap = (self._next_bootstrap + 1) % len(self._bootstrap)
        return address

    def _address(self, to: int, endpoints: Endpoints) -> Address:
        endpoint = endpoint_on(endpoints, self._listener)
        if endpoint is None:
            raise RequestFailed(f"node {to} has no known endpoint of listener {self._listener}")
        return Address(endpoint.host, endpoint.port)

    async def _exchange(self, address: Address, form: RpcCodec, request: RaftRequest) -> Any:
        """The response entity; None if the node does not support the API."""
        until = trio.current_time() + self._timeout_s
        connection = self._idle.pop(address, None)
        if connection is None or connection.broken:
            connection = await self._connect(address)
        try:
            entity = None
            if _is_supported(connection, form, request):
                values = form.write_request(request)
                left_s = max(0.0, until - trio.current_time())
                entity = await connection.request(form.api, values, timeout_s=left_s)
        except BaseException:
            connection.abort()
            raise
        self._keep(address, connection)
        return entity

    async def _connect(self, address: Address) -> BrokerConnection:
        if self._nursery is None:
            raise RequestFailed("the network channel is not running")
        return await open_connection(
            self._network,
            address,
            self._nursery,
            client_id=self._client_id,
            timeout_s=self._timeout_s,
        )

    def _keep(self, address: Address, connection: BrokerConnection) -> None:
        if address in self._idle or self._nursery is None:
            connection.abort()
        else:
            self._idle[address] = connection


def _is_supported(connection: BrokerConnection, form: RpcCodec, request: RaftRequest) -> bool:
    try:
        return connection.version_of(form.api) >= form.oldest(request)
    except Unsupported:
        return False
