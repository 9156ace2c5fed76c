"""A node's way to the others of its quorum, over Kafka's wire.

Nodes are asked on the listener that controllers use among themselves. A connection carries one
question at a time, and is kept for the next one to the same address when the answer was read to its
end; whatever else happens to a question ends its connection. So a question that is given up (an
election in the middle of a fetch) is never waited for by the next one.

Nothing is asked twice here: who gets no answer decides itself when to ask again.
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
    RemoveVoterRequest,
    RemoveVoterResponse,
    Request,
    Response,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.network_channel import NodeNotRunning, RequestFailed
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from odradek.replication.raft.rpc_codec import RpcCodec, endpoint_on
from odradek.seams.network import Address, Network

RPC_CODECS: Final[Mapping[type[Request], RpcCodec]] = {
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


class KafkaNetworkChannel:
    """See the module.

    `listener` is the name of the controllers' listener, `bootstrap` where to ask when nobody is known,
    `timeout_s` how long an answer may take, connecting included. Answers come while `run` is running.
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

    async def ask(self, to: int, endpoints: Endpoints, request: Request) -> Response:
        """Ask a node that listens there, or BOOTSTRAP_SERVER: the next of the bootstrap servers.

        A node that does not speak that answers UNSUPPORTED_VERSION. Raises NodeNotRunning where nobody
        listens, else RequestFailed, also for an answer that means nothing.
        """
        address = (
            self._bootstrap_server() if to == BOOTSTRAP_SERVER else self._address(to, endpoints)
        )
        form = codec_of(request)
        try:
            entity = await self._exchange(address, form, request)
        except TimedOut:
            raise RequestFailed(
                f"{address} did not answer {form.api.title} in {self._timeout_s:g} s"
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
            raise RequestFailed("there are no bootstrap servers to ask")
        address = self._bootstrap[self._next_bootstrap]
        self._next_bootstrap = (self._next_bootstrap + 1) % len(self._bootstrap)
        return address

    def _address(self, to: int, endpoints: Endpoints) -> Address:
        there = endpoint_on(endpoints, self._listener)
        if there is None:
            raise RequestFailed(f"nobody knows where node {to} listens for {self._listener}")
        return Address(there.host, there.port)

    async def _exchange(self, address: Address, form: RpcCodec, request: Request) -> Any:
        """The answer's entity; None if the node does not speak that."""
        until = trio.current_time() + self._timeout_s
        connection = self._idle.pop(address, None)
        if connection is None or connection.broken:
            connection = await self._connect(address)
        try:
            entity = None
            if _speaks(connection, form, request):
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
            raise RequestFailed("this node has no connections (any more)")
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


def _speaks(connection: BrokerConnection, form: RpcCodec, request: Request) -> bool:
    try:
        return connection.version_of(form.api) >= form.oldest(request)
    except Unsupported:
        return False
