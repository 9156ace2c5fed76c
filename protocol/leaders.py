"""Who leads a partition and where that broker is, as Produce and Fetch answers tell it (KIP-951)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from odradek.protocol.codec.primitives import append_count, append_string, append_uvarint

_INT32 = Struct(">i")
CURRENT_LEADER = Struct(">bbiib")
"""A tagged field: its number, the size of what follows, leader id, leader epoch, no tags of its own."""
CURRENT_LEADER_SIZE = 9


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    """Where the leader is that an answer names."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def node_endpoints_tags(endpoints: Sequence[NodeEndpoint]) -> bytearray:
    """A response's tagged fields, with the endpoints in them (tag 0); none if there are none."""
    if not endpoints:
        return bytearray(1)
    field = bytearray()
    append_count(field, len(endpoints), True)
    for endpoint in endpoints:
        field += _INT32.pack(endpoint.node_id)
        append_string(field, endpoint.host, True)
        field += _INT32.pack(endpoint.port)
        if endpoint.rack is None:
            field.append(0)
        else:
            append_string(field, endpoint.rack, True)
        field.append(0)
    section = bytearray(b"\1\0")
    append_uvarint(section, len(field))
    section += field
    return section
