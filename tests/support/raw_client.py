"""A blocking client with one request in flight, for tests that set every field of a request."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from odradek.protocol import messages
from odradek.protocol.apis import Api
from odradek.protocol.framing import frame_head, read_response_header, request_header
from tests.support.raw_requests import receive_frame


class RawClient:
    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def ask(self, api: Api, version: int, values: Mapping[str, Any]) -> Any:
        """Send a request and return its response."""
        self._correlation_id += 1
        head = request_header(api, version, self._correlation_id, "raw")
        body = messages.write_request(api.key, version, values)
        parts: Iterable[Any] = (frame_head(head, [body])[0], body)
        self._socket.sendall(b"".join(parts))
        response = memoryview(receive_frame(self._socket))
        correlation_id, body = read_response_header(api, version, response)
        assert correlation_id == self._correlation_id
        return messages.read_response(api.key, version, response, body)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
