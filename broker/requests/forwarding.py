"""What a broker has the active controller do for its clients: the request, in an Envelope (KIP-590).

The envelope has the client's request as it came, who the client is and where it sits; the controller
authorizes and answers it as if the client had come to it. Where the controller cannot be had in time,
or does not take envelopes from this node, the request is handled here, and the answer is
NOT_CONTROLLER in the words of its API: clients try again.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from odradek.broker.requests.route import Parts, Route
from odradek.protocol import apis, messages
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.framing import read_response_header, request_header
from odradek.protocol.principals import encode_principal
from odradek.seams.files import Buffer
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext

log = logging.getLogger("odradek.forwarding")

FORWARD_SECONDS: Final = 60.0
NOWHERE: Final = bytes(4)
"""0.0.0.0, for a client at no IP address."""


@value_class
class Received:
    """A request as it came, header included, and as it was read."""

    frame: memoryview
    request: Any


@value_class
class Responded:
    """The body of an answer, which another node has written."""

    body: bytes


def forwarded(route: Route) -> Route:
    """The same API on a broker's listener: the active controller answers, be it here or elsewhere."""

    def read(api_key: int, version: int, frame: memoryview, offset: int) -> Received:
        return Received(frame, route.read(api_key, version, frame, offset))

    async def handle(received: Received, ctx: RequestContext) -> Any:
        if not ctx.services.metadata.is_active:
            body = await forward(bytes(received.frame), ctx)
            if body is not None:
                return Responded(body)
        return await route.handler(received.request, ctx)

    def write(api_key: int, version: int, values: Any) -> Buffer | Parts:
        if isinstance(values, Responded):
            return values.body
        return route.write(api_key, version, values)

    return Route(handle, read, write, route.batches_responses)


async def forward(frame: bytes, ctx: RequestContext) -> bytes | None:
    """The body of the active controller's answer to a request with its header; None if it has none.

    Raises InvalidFrame where the controller cannot read it: the connection is closed, so that the
    client asks again which versions are served.
    """
    values = {
        "request_data": frame,
        "request_principal": encode_principal(ctx.principal),
        "client_host_address": _packed(ctx.peer.host),
    }
    try:
        respond = await ctx.services.controller_channel.request(
            apis.ENVELOPE, values, timeout_s=FORWARD_SECONDS
        )
    except KafkaError as error:
        log.warning("%s was not forwarded: %s", ctx.api.title, error)
        return None
    if respond.error_code == ErrorCode.unsupported_version:
        raise InvalidFrame(f"the active controller cannot read {ctx.api.title} {ctx.api_version}")
    if respond.error_code != ErrorCode.none:
        log.warning(
            "the active controller refuses to do %s for a client: %s",
            ctx.api.title,
            respond.error_code.name,
        )
        return None
    data = memoryview(respond.response_data)
    _, start = read_response_header(ctx.api, ctx.api_version, data)
    return bytes(data[start:])


async def forward_values(values: Mapping[str, Any], ctx: RequestContext) -> Any:
    """The active controller's answer, a kio entity, to another request than the client's, with the
    client's API, version and name; None as for `forward`."""
    api, version = ctx.api, ctx.api_version
    head = request_header(api, version, ctx.correlation_id, ctx.client_id)
    body = await forward(head + messages.write_request(api.key, version, values), ctx)
    return None if body is None else messages.read_response(api.key, version, memoryview(body))


def _packed(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return NOWHERE
