"""What a handler knows of the request it answers, beside the request itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from odradek.protocol.apis import Api
from odradek.seams.network import Address
from odradek.seams.values import state_class

if TYPE_CHECKING:
    from odradek.broker.network.server import Endpoint
    from odradek.broker.node import Node
    from odradek.broker.security.authorizer import Authorizer


class RequestConnection(Protocol):
    """The connection that a request came on, for a handler that waits."""

    def respond_nowait(self, ctx: RequestContext, values: Any) -> None:
        """Answer, in the step of whoever ended the wait; the handler returns None then. The values hold
        no slices of files."""
        ...

    async def wait_for_next_request(self) -> None:
        """Return when the client sends its next request, or at `wake`; at once where it has sent it, or
        where the connection's task has something to do by then."""
        ...

    def wake(self) -> None:
        """End `wait_for_next_request`; nothing if nobody is in it."""
        ...


@state_class
class RequestContext:
    services: Node
    api: Api
    api_version: int
    correlation_id: int
    client_id: str | None
    endpoint: Endpoint
    peer: Address
    flush: Callable[[], Awaitable[None]]
    """Send the answers that wait in this connection. Whoever may wait for other than the disk calls
    it first, so that a client which pipelines sees its earlier answers."""
    authorizer: Authorizer | None = None
    """Who decides what the client may do; None lets everybody do everything."""
    principal: str = "User:ANONYMOUS"
    """Who the listener says the client is."""
    connection: RequestConnection | None = None
    """None where answers go through their tasks alone."""
    is_forwarded: bool = False
    """It came in an envelope, from a broker that has looked at what is its own business."""
    nowait_failed: bool = False
    """Found out when it was to be done at once: the handler needs not try that again."""
