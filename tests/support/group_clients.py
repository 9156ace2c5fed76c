"""Group members that send raw requests to a broker, for comparisons of Odradek with Kafka."""

from __future__ import annotations

import dataclasses
import re
import socket
import struct
from typing import Any

from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from tests.support.raw_requests import receive_frame
from tests.support.waiting import deadline

TOPIC = "orders"


UUID_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


UNORDERED = ("members", "groups", "topics", "partitions", "results")


MADE_UP = {"port": "a port", "throttle_time": 0}


class Connection:
    """Connection of one client. Requests can be sent before earlier responses are read."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._client_id = client_id.encode()
        self._sent: list[tuple[Api, int]] = []

    def send(self, api: Api, version: int, values: dict[str, Any]) -> None:
        header = struct.pack(">hhih", api.key, version, len(self._sent), len(self._client_id))
        header += self._client_id + (b"\x00" if api.flexible(version) else b"")
        body = messages.write_request(api.key, version, values)
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        self._sent.append((api, version))

    def receive(self) -> Any:
        api, version = self._sent.pop(0)
        frame = receive_frame(self._socket)
        start = 5 if api.flexible(version) else 4
        return messages.read_response(api.key, version, memoryview(frame), start)

    def close(self) -> None:
        self._socket.close()


class Peer:
    """One of the two brokers, and the state of its clients."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._connections: dict[str, Connection] = {}
        self.topic_id = self._topic_id()

    def _topic_id(self) -> Any:
        response = self.ask("admin", apis.METADATA, 12, topics=[{"name": TOPIC}])
        return response.topics[0].topic_id

    def connection(self, who: str) -> Connection:
        if who not in self._connections:
            self._connections[who] = Connection(self._bootstrap, who)
        return self._connections[who]

    def send(self, who: str, api: Api, version: int, **values: Any) -> None:
        self.connection(who).send(api, version, values)

    def receive(self, who: str) -> Any:
        return self.connection(who).receive()

    def ask(self, who: str, api: Api, version: int, **values: Any) -> Any:
        self.send(who, api, version, **values)
        return self.receive(who)

    def close(self) -> None:
        for each in self._connections.values():
            each.close()


def plain(response: Any, peer: Peer, key: str = "") -> Any:
    """A response as plain values, without those that differ between brokers."""
    if key in MADE_UP:
        return MADE_UP[key]
    if dataclasses.is_dataclass(response):
        values = {f.name: getattr(response, f.name) for f in dataclasses.fields(response)}
        return {name: plain(value, peer, name) for name, value in values.items()}
    if isinstance(response, tuple):
        parts = [plain(each, peer) for each in response]
        return sorted(parts, key=repr) if key in UNORDERED else parts
    if isinstance(response, str):
        return UUID_TEXT.sub("<uuid>", response)
    if response == peer.topic_id:
        return "the topic's id"
    return response


def wait_for_coordinators(peer: Peer, groups: str = "abcdefgh") -> None:
    """Wait until the broker has created the offsets topic and loaded the partitions of these groups.

    Each letter of `groups` is the id of a group. The default has a group in each partition of five.
    """
    with deadline(30, "coordinators") as check:
        for group in groups:
            while peer.ask("admin", apis.FIND_COORDINATOR, 3, key=group).error_code:
                check()
            while peer.ask("admin", apis.DESCRIBE_GROUPS, 5, groups=[group]).groups[0].error_code:
                check()
