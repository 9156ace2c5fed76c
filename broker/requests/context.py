"""Context of one request: connection, principal, API version, and the node's services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from odradek.broker.fetch.purgatory import WaitingConnection
from odradek.protocol.apis import Api
from odradek.seams.network import Address
from odradek.seams.values import state_class

if TYPE_CHECKING:
    from odradek.broker.network.listeners import BoundListener
    from odradek.broker.security.authorizer import Authorizer
    from odradek.broker.services import Services


class DeferredResponse(Protocol):
    """Response to a request that was handled except for a wait, for example for the commit of its batches."""

    deadline: float
    """Monotonic seconds when the response is sent in any case."""

    @property
    def is_done(self) -> bool: ...

    def on_done(self, call: Callable[[], None]) -> None:
        """Have `call` called on the event loop when the response is done."""
        ...

    def values(self) -> Any:
        """Return the response, for the writer of the route; None if there is none. Raises InvalidFrame to close the
        connection."""
        ...


class RequestConnection(WaitingConnection, Protocol):
    """The client's connection, for a handler whose response can be sent by another task."""

    def respond_nowait(self, ctx: RequestContext, values: Any) -> None:
        """Send the response in the caller's task; the handler then returns None. `values` must not hold
        slices of files."""
        ...

    async def respond_when_done(self, ctx: RequestContext, response: DeferredResponse) -> None:
        """Send a response when it is done, in the order of the requests; the handler then returns None.

        The next requests of the connection are handled meanwhile. The request's frame is not valid any more.
        """
        ...


@state_class
class RequestContext:
    """Context of one request, for its handler; created for every request."""

    services: Services
    api: Api
    api_version: int
    correlation_id: int
    client_id: str | None
    endpoint: BoundListener
    peer: Address
    flush: Callable[[], Awaitable[None]]
    """Send the responses that the connection holds back. A handler calls it before it waits for anything but the
    disk, so that a client which pipelines requests receives the earlier responses."""
    authorizer: Authorizer | None = None
    """None: no ACLs, every operation is allowed."""
    principal: str = "User:ANONYMOUS"
    """The authenticated principal of the connection."""
    connection: RequestConnection | None = None
    """None where only the connection's own task may send the response."""
    is_forwarded: bool = False
    """Whether the request came in an Envelope (KIP-590)."""
    nowait_failed: bool = False
    """Whether `handler_nowait` found that the records need a thread: the handler skips its own attempt."""
