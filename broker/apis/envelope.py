"""Envelope: requests that brokers forward to the active controller for their clients (KIP-590).

Errors of the envelope are returned to the broker. The request inside is authorized and handled as if the client
had sent it to this node.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, cast

from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.dispatch import FORWARDABLE, find_controller_route
from odradek.broker.requests.steps import read_in_steps, write_in_steps
from odradek.broker.security.request_authorization import check_cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.framing import RequestHeader, read_request_header, response_header
from odradek.protocol.principal_serde import decode_principal
from odradek.replication.raft.errors import NotController
from odradek.seams.files import Buffer
from odradek.seams.network import Address

Values = dict[str, Any]


async def envelope(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    try:
        check_cluster(ctx)
        if not ctx.services.metadata.is_active:
            raise NotController("another node is the active controller")
        return {
            "error_code": ErrorCode.none,
            "response_data": await _respond(memoryview(request.request_data), request, ctx),
        }
    except KafkaError as error:
        return {"error_code": error.code, "response_data": None}


async def _respond(frame: memoryview, request: Any, ctx: RequestContext) -> bytes:
    """Response to the embedded request with its header. Raises KafkaError if the envelope is invalid."""
    principal = _principal(request)
    client = _client(request)
    header = _header(frame)
    api, version = header.api, header.api_version
    route = find_controller_route(api.key)
    if api not in FORWARDABLE or route is None:
        raise KafkaError(ErrorCode.invalid_request, f"{api.title} is not forwardable")
    if not api.serves(version):
        raise KafkaError(
            ErrorCode.unsupported_version, f"{api.title} version {version} is not supported"
        )
    inner = RequestContext(
        ctx.services,
        api,
        version,
        header.correlation_id,
        header.client_id,
        ctx.endpoint,
        client,
        ctx.flush,
        ctx.services.authorizer,  # also for an envelope of this node, which has no authorizer check
        principal,
        is_forwarded=True,
    )
    try:
        message = await read_in_steps(route, frame, header.body, inner)
        values = await route.handler(message, inner)
    except InvalidFrame as garbage:  # an invalid client request closes the connection of the client, not of the broker
        raise KafkaError(ErrorCode.unsupported_version, str(garbage)) from garbage
    if not ctx.services.metadata.is_active and _has_not_controller_error(values):
        raise NotController("another node became the active controller")
    body = cast(Buffer, await write_in_steps(route, values, inner))
    return response_header(api, version, header.correlation_id) + bytes(body)


def _principal(request: Any) -> str:
    try:
        return decode_principal(request.request_principal or b"")
    except InvalidFrame as garbage:
        raise KafkaError(
            ErrorCode.principal_deserialization_failure,
            f"Failed to deserialize the client principal of the envelope: {garbage}",
        ) from garbage


def _client(request: Any) -> Address:
    try:
        return Address(str(ipaddress.ip_address(bytes(request.client_host_address))), 0)
    except ValueError as garbage:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Failed to parse the client address of the envelope: {garbage}",
        ) from garbage


def _header(frame: memoryview) -> RequestHeader:
    try:
        return read_request_header(frame)
    except InvalidFrame as garbage:
        raise KafkaError(ErrorCode.unsupported_version, str(garbage)) from garbage


def _has_not_controller_error(values: Any) -> bool:
    """Whether any part of the response has the error NOT_CONTROLLER."""
    if isinstance(values, Mapping):
        return values.get("error_code") == ErrorCode.not_controller or any(
            _has_not_controller_error(each) for each in values.values()
        )
    return isinstance(values, list) and any(_has_not_controller_error(each) for each in values)


HANDLERS = {apis.ENVELOPE: envelope}
