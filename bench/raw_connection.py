"""Requests over a plain socket, without the delays of a client library.

Client libraries pause, retry and refresh metadata on timers, which would be most of the time of an assignment or a
topic creation. A `RawConnection` writes a request and blocks until its response. Encoding takes some tens of microseconds,
the same for each broker.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any

from odradek.bench.model import WorkloadFailed
from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode
from odradek.protocol.framing import frame_head, read_response_header, request_header

CLIENT_ID = "odradek-bench"
TIMEOUT_S = 120.0
_SIZE = struct.Struct(">i")


class RawConnection:
    """One connection: `request` for one request at a time, or `send`, `wait` and `receive`."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._under_way: tuple[Api, int] | None = None
        self._respond = b""
        response = self._exchange(apis.API_VERSIONS, 0, {})
        self._highest = {row.api_key: row.max_version for row in response.api_keys}

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def version(self, api: Api) -> int:
        """Return the newest version that both sides support. Raises WorkloadFailed if the broker lacks the API."""
        highest: int = self._highest.get(api.key, -1)
        if highest < api.min_version:
            raise WorkloadFailed(f"the broker does not serve {api.title}")
        return min(highest, api.max_version)

    def request(self, api: Api, values: Mapping[str, Any], *, at_most: int | None = None) -> Any:
        """Send a request and return its response, in the newest common version (at most `at_most`)."""
        self.send(api, values, at_most=at_most)
        return self.receive()

    def send(self, api: Api, values: Mapping[str, Any], *, at_most: int | None = None) -> None:
        """Write a request; `receive` returns its response. Several requests of one API may be in flight."""
        version = self.version(api)
        self._send(api, version if at_most is None else min(version, at_most), values)

    def wait(self) -> None:
        """Block until the complete response has been received.

        `receive` decodes it, which may take longer than the broker needed to write it.
        """
        self._respond = self._respond or self._read(_SIZE.unpack(self._read(_SIZE.size))[0])

    def receive(self) -> Any:
        """Return the response to the oldest pending request; blocks until it has been received."""
        assert self._under_way is not None, "nothing was sent"
        self.wait()
        api, version = self._under_way
        response, self._respond = memoryview(self._respond), b""
        _, body = read_response_header(api, version, response)
        return messages.read_response(api.key, version, response, body)

    def _exchange(self, api: Api, version: int, values: Mapping[str, Any]) -> Any:
        self._send(api, version, values)
        return self.receive()

    def _send(self, api: Api, version: int, values: Mapping[str, Any]) -> None:
        head = request_header(api, version, 0, CLIENT_ID)
        body = messages.write_request(api.key, version, values)
        self._under_way = api, version
        self.socket.sendall(frame_head(head, [body])[0] + body)

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self.socket.recv(size - len(found))
            if not piece:
                raise WorkloadFailed("the broker closed the connection")
            found += piece
        return bytes(found)


def must_be_none(error_code: int, about: str) -> None:
    """Raise WorkloadFailed unless the error code is NONE."""
    if error_code:
        raise WorkloadFailed(f"{about}: {ErrorCode(error_code).name}")
