"""Requests as bytes, for tests that send them over sockets of their own."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from odradek.protocol import messages
from odradek.protocol.apis import Api
from odradek.protocol.framing import request_header


def framed(request: bytes) -> bytes:
    """Behind its size."""
    return struct.pack(">i", len(request)) + request


def request_frame(api: Api, version: int, number: int, values: Mapping[str, Any]) -> bytes:
    """A whole request; `number` is its correlation id."""
    head = request_header(api, version, number, "test")
    return framed(head + messages.write_request(api.key, version, values))
