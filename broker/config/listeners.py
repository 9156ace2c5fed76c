"""Listeners as configs name them: parsing and validation, no sockets.

`NAME://host:port`, an empty host meaning every address; the name's security protocol comes from
`listener.security.protocol.map` (KIP-103, KIP-291).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListenerEndpoint:
    """One entry of `listeners` or `advertised.listeners`; `host` is "" for every address."""

    name: str
    security_protocol: str
    host: str
    port: int
