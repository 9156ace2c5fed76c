"""Tagged fields of Produce and Fetch responses with the current leader and its endpoint (KIP-951)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from odradek.protocol.codec.primitives import append_count, append_string, append_uvarint

_INT32 = Struct(">i")
CURRENT_LEADER = Struct(">bbiib")
"""The tagged field CurrentLeader: tag, size, leader id, leader epoch, and no tagged fields in the struct."""
CURRENT_LEADER_SIZE = 9


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    """Host, port and rack of a broker that is a current leader in a response."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def node_endpoints_tags(endpoints: Sequence[NodeEndpoint]) -> bytearray:
    """The section of tagged fields of a response, with the endpoints as tag 0 if there are any."""
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
