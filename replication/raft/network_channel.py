"""Interface through which the driver sends requests to other nodes (Kafka's `NetworkChannel`)."""

from __future__ import annotations

from typing import Protocol

from odradek.replication.raft.messages import Endpoints, RaftRequest, RaftResponse


class RequestFailed(Exception):
    """A request without a usable response."""


class NodeNotRunning(RequestFailed):
    """The node's host refused the connection."""


class NetworkChannel(Protocol):
    """Sends one request at a time per node. A request may be cancelled at any time; its response
    must not complete the next one."""

    async def send_request(
        self, to: int, endpoints: Endpoints, request: RaftRequest
    ) -> RaftResponse:
        """Send a request; `to` is a node id, or BOOTSTRAP_SERVER for the next bootstrap server.

        Raises RequestFailed, or NodeNotRunning if the connection was refused.
        """
        ...
