"""Delegation tokens (KIP-48), as on a Kafka broker without `delegation.token.secret.key`.

An unauthenticated listener refuses every request; an authenticated one would respond that tokens are disabled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.broker.requests.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import field

NO_TIME = -1


def _refusal(ctx: RequestContext) -> ErrorCode:
    if ctx.endpoint.security_protocol in ("PLAINTEXT", "SSL"):
        return ErrorCode.delegation_token_request_not_allowed
    return ErrorCode.delegation_token_auth_disabled


async def create_token(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    kind, _, name = ctx.principal.partition(":")
    owner_kind = field(request, "owner_principal_type")
    owner = field(request, "owner_principal_name")
    code = _refusal(ctx)
    if not owner:
        owner_kind, owner = kind, name
    elif owner_kind is None:  # Kafka fails on an owner without a principal type
        code, owner_kind, owner = ErrorCode.unknown_server_error, kind, name
    return {
        "error_code": code,
        "principal_type": owner_kind,
        "principal_name": owner,
        "token_requester_principal_type": kind,
        "token_requester_principal_name": name,
        "issue_timestamp": NO_TIME,
        "expiry_timestamp": NO_TIME,
        "max_timestamp": NO_TIME,
        "token_id": "",
        "hmac": b"",
    }


async def change_token(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """RenewDelegationToken and ExpireDelegationToken, which fail the same way."""
    return {"error_code": _refusal(ctx), "expiry_timestamp": NO_TIME}


async def describe_tokens(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    return {"error_code": _refusal(ctx), "tokens": []}


HANDLERS = {
    apis.CREATE_DELEGATION_TOKEN: create_token,
    apis.RENEW_DELEGATION_TOKEN: change_token,
    apis.EXPIRE_DELEGATION_TOKEN: change_token,
    apis.DESCRIBE_DELEGATION_TOKEN: describe_tokens,
}
