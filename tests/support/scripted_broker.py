"""Scripted broker on a real socket, whose responses a test provides.

The test provides a function from a request to the values of a response, SILENCE, HANG_UP or
raw bytes. ApiVersions and Metadata have default responses of a single node 1.
Every request is kept in `requests`.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from odradek.protocol import apis, messages
from odradek.protocol.apis import API_VERSIONS, METADATA, Api
from odradek.protocol.errors import ErrorCode
from odradek.protocol.framing import frame_head, read_request_header, response_header
from odradek.seams.network import Address, Connection, ConnectionLost
from odradek.seams.tcp import TcpNetwork

SILENCE = object()
"""Send no response, and continue to receive."""
HANG_UP = object()
"""Close the connection."""


@dataclass
class ReceivedRequest:
    """A received request."""

    api: Api
    version: int
    body: Any
    client_id: str | None
    correlation_id: int


Script = Callable[[ReceivedRequest], Any]


@dataclass
class ScriptedBroker:
    script: Script
    topics: dict[str, int] = field(default_factory=dict)
    """Topics and their partitions, for Metadata."""
    leader_epoch: int = 0
    """Of every partition, there."""
    versions: Mapping[Api, tuple[int, int]] = field(default_factory=dict)
    """Overrides of the versions in ApiVersions."""
    requests: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0
    address: Address = field(default=Address("", 0))

    def requests_of(self, api: Api) -> list[ReceivedRequest]:
        """The requests of one API so far."""
        return [request for request in self.requests if request.api is api]

    async def serve(self, connection: Connection) -> None:
        self.connections += 1
        try:
            while True:
                size = struct.unpack(">i", await receive(connection, 4))[0]
                data = memoryview(await receive(connection, size))
                header = read_request_header(data)
                api = header.api
                request = ReceivedRequest(
                    api,
                    header.api_version,
                    self._read(api, header.api_version, data, header.body),
                    header.client_id,
                    header.correlation_id,
                )
                self.requests.append(request)
                response = self.script(request)
                if response is None:
                    response = self._usual(request)
                if response is HANG_UP:
                    return
                if response is SILENCE:
                    continue
                await self.respond(connection, request, response)
        except ConnectionLost:
            pass
        finally:
            connection.abort()

    @staticmethod
    async def respond(connection: Connection, request: ReceivedRequest, response: Any) -> None:
        if isinstance(response, bytes):
            await connection.send([response])
            return
        version = response.pop("version", request.version)
        body = messages.write_response(request.api.key, version, response)
        header = response_header(request.api, request.version, request.correlation_id)
        await connection.send([frame_head(header, [body])[0], body])

    def _read(self, api: Api, version: int, data: memoryview, start: int) -> Any:
        if not api.serves(version):
            return None
        return messages.read_request(api.key, version, data, start)

    def _usual(self, request: ReceivedRequest) -> Any:
        if request.api is API_VERSIONS:
            return self.api_versions()
        if request.api is METADATA:
            return self.metadata(request)
        raise AssertionError(f"the test has no response to {request.api.name}")

    def api_versions(self) -> dict[str, Any]:
        rows = {
            api: (api.min_version, api.max_version)
            for api in apis.APIS.values()
            if apis.BROKER & api.listeners
        } | dict(self.versions)
        return {
            "api_keys": [
                {"api_key": api.key, "min_version": low, "max_version": high}
                for api, (low, high) in rows.items()
            ]
        }

    def metadata(self, request: ReceivedRequest) -> dict[str, Any]:
        wanted = request.body.topics
        names = self.topics if wanted is None else [topic.name for topic in wanted]
        rows = [self._topic(name) for name in names]
        me = {"node_id": 1, "host": self.address.host, "port": self.address.port, "rack": None}
        return {"brokers": [me], "cluster_id": "scripted", "controller_id": 1, "topics": rows}

    def _topic(self, name: str) -> dict[str, Any]:
        if name not in self.topics:
            code = ErrorCode.unknown_topic_or_partition
            return {"error_code": code, "name": name, "topic_id": None, "partitions": []}
        partition = {
            "leader_id": 1,
            "leader_epoch": self.leader_epoch,
            "replica_nodes": [1],
            "isr_nodes": [1],
        }
        return {
            "error_code": 0,
            "name": name,
            "topic_id": None,
            "partitions": [
                {"error_code": 0, "partition_index": index, "offline_replicas": [], **partition}
                for index in range(self.topics[name])
            ],
        }


async def receive(connection: Connection, size: int) -> bytes:
    """Exactly `size` bytes."""
    data = bytearray(size)
    have = 0
    while have < size:
        count = await connection.receive_into(memoryview(data)[have:])
        if count == 0:
            raise ConnectionLost("the client has hung up")
        have += count
    return bytes(data)


@asynccontextmanager
async def scripted_broker(
    script: Script, *, kind: type[ScriptedBroker] = ScriptedBroker, **more: Any
) -> AsyncIterator[ScriptedBroker]:
    """The broker, listening on a free port."""
    broker = kind(script, **more)
    (listener,) = await TcpNetwork().listen("127.0.0.1", 0)
    broker.address = listener.address
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            while True:
                nursery.start_soon(broker.serve, await listener.accept())

        nursery.start_soon(accept)
        yield broker
        nursery.cancel_scope.cancel()
    await listener.aclose()
