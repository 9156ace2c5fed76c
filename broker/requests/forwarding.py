"""Forwards requests of clients to the active controller in Envelope requests (KIP-590).

The envelope has the client's request as received, its principal and its address; the controller authorizes and
handles the request. If the controller is unreachable or refuses the envelope, the request is handled here,
which returns NOT_CONTROLLER in the response of its API, and the client retries.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

from odradek.broker.requests.route import Parts, Route
from odradek.protocol import apis, messages
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.framing import read_response_header, request_header
from odradek.protocol.principal_serde import encode_principal
from odradek.seams.files import Buffer
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext

log = logging.getLogger("odradek.forwarding")

FORWARD_SECONDS: Final = 60.0
NOWHERE: Final = bytes(4)
"""Address 0.0.0.0, for a client without an IP address."""


@value_class
class ReceivedRequest:
    """Request as received, with its header, and decoded."""

    frame: memoryview
    request: Any


@value_class
class ForwardedResponse:
    """Encoded body of a response from another node."""

    body: bytes


def forwarded(route: Route) -> Route:
    """Route of the API on broker listeners: the active controller handles it, on this node or another one."""

    def read(api_key: int, version: int, frame: memoryview, offset: int) -> ReceivedRequest:
        return ReceivedRequest(frame, route.read(api_key, version, frame, offset))

    async def handle(received: ReceivedRequest, ctx: RequestContext) -> Any:
        if not ctx.services.metadata.is_active:
            body = await forward(bytes(received.frame), ctx)
            if body is not None:
                return ForwardedResponse(body)
        return await route.handler(received.request, ctx)

    def write(api_key: int, version: int, values: Any) -> Buffer | Parts:
        if isinstance(values, ForwardedResponse):
            return values.body
        return route.write(api_key, version, values)

    def read_steps(
        api_key: int, version: int, frame: memoryview, offset: int
    ) -> Generator[None, None, ReceivedRequest]:
        request = yield from messages.read_request_in_steps(api_key, version, frame, offset)
        return ReceivedRequest(frame, request)

    return Route(
        handle,
        read,
        write,
        route.batches_responses,
        read_steps=read_steps,
        write_steps=route.write_steps,
    )


async def forward(frame: bytes, ctx: RequestContext) -> bytes | None:
    """Forward a request with its header; returns the body of the response, or None if the controller did not
    handle it.

    Raises InvalidFrame if the controller does not support the version: the connection is closed, so the client
    requests ApiVersions again.
    """
    values = {
        "request_data": frame,
        "request_principal": encode_principal(ctx.principal),
        "client_host_address": _packed(ctx.peer.host),
    }
    try:
        response = await ctx.services.controller_channel.request(
            apis.ENVELOPE, values, timeout_s=FORWARD_SECONDS
        )
    except KafkaError as error:
        log.warning("%s was not forwarded: %s", ctx.api.title, error)
        return None
    if response.error_code == ErrorCode.unsupported_version:
        raise InvalidFrame(
            f"the active controller does not support {ctx.api.title} {ctx.api_version}"
        )
    if response.error_code != ErrorCode.none:
        log.warning(
            "the active controller refused to handle %s for a client: %s",
            ctx.api.title,
            response.error_code.name,
        )
        return None
    data = memoryview(response.response_data)
    _, start = read_response_header(ctx.api, ctx.api_version, data)
    return bytes(data[start:])


async def forward_values(values: Mapping[str, Any], ctx: RequestContext) -> Any:
    """Forward another request than the client's with its API, version and principal; returns the response as a
    kio entity, or None as `forward`."""
    api, version = ctx.api, ctx.api_version
    head = request_header(api, version, ctx.correlation_id, ctx.client_id)
    body = await forward(head + messages.write_request(api.key, version, values), ctx)
    return None if body is None else messages.read_response(api.key, version, memoryview(body))


def _packed(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return NOWHERE
