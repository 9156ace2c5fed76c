"""How the driver reaches the other nodes of the quorum: the interface. `wire_transport.py` has Kafka's."""

from __future__ import annotations

from typing import Protocol

from odradek.replication.raft.messages import Endpoints, Request, Response


class RequestFailed(Exception):
    """No answer came, or none that means anything; the text says why."""


class NodeNotRunning(RequestFailed):
    """The node's host answers, and nobody listens there."""


class NetworkChannel(Protocol):
    """One request at a time to each node: the next comes after the one before was answered, failed
    or let go. It may be cancelled at any time, since roles change; its answer must not be taken for
    that of the next."""

    async def ask(self, to: int, endpoints: Endpoints, request: Request) -> Response:
        """Ask a node that listens there; `to` is its id, or ANYONE: a bootstrap server in turn.

        Raises RequestFailed, and NodeNotRunning where that is why. May be cancelled: who asks the same node
        next is not held up by that.
        """
        ...
