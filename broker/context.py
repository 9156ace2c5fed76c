"""What a handler knows of the request it answers, beside the request itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from odradek.protocol.apis import Api
from odradek.seams.network import Address
from odradek.seams.values import state_class

if TYPE_CHECKING:
    from odradek.broker.node import Broker
    from odradek.broker.security.authorizer import Authorizer
    from odradek.broker.server import Endpoint


@state_class
class RequestContext:
    broker: Broker
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
    answer_at_once: Callable[[RequestContext, Any], None] | None = None
    """Answer while the handler waits, from the task of whoever ended its wait; the handler returns
    None then. The values hold no slices of files. None where there is no such way."""
    takes_long: bool = False
    """Found out when it was to be done at once: the handler needs not try that again."""
