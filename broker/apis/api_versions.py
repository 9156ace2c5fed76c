"""ApiVersions: the supported APIs and versions, and the feature levels of the cluster (KIP-35, KIP-584)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from odradek.broker.requests.dispatch import SERVED, SERVED_BY_CONTROLLERS, version_range
from odradek.protocol import apis, messages
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller import image as images

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext

# Client software names and versions, sent since version 3 (KIP-511).
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_SINCE = 3
_LEVEL_ZERO_SINCE = 4


async def api_versions(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    version = ctx.api_version
    if version >= _SOFTWARE_SINCE and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return {"error_code": ErrorCode.invalid_request, "api_keys": []}
    metadata = ctx.services.metadata
    return {
        "error_code": ErrorCode.none,
        "api_keys": _served(of_controller=ctx.endpoint.of_controller),
        "supported_features": _supported(level_zero=version >= _LEVEL_ZERO_SINCE),
        "finalized_features_epoch": metadata.image.offset,
        "finalized_features": _finalized(tuple(metadata.finalized_features.items())),
    }


@cache
def _supported(*, level_zero: bool) -> messages.Repeated:
    """Supported features; clients before version 4 reject a minimum level of 0 (KAFKA-17492)."""
    return messages.Repeated(
        {"name": name, "min_version": low, "max_version": high}
        for name, (low, high) in images.SUPPORTED_FEATURES.items()
        if low > 0 or level_zero
    )


@lru_cache(maxsize=16)
def _finalized(levels: tuple[tuple[str, int], ...]) -> messages.Repeated:
    return messages.Repeated(
        {"name": name, "min_version_level": level, "max_version_level": level}
        for name, level in levels
        if level > 0
    )


@cache
def _served(*, of_controller: bool) -> messages.Repeated:
    """Served APIs with their versions, the same for all connections of a kind of listener."""
    served = SERVED_BY_CONTROLLERS if of_controller else SERVED
    shown = sorted(served.keys() - apis.PRIVATE_APIS.keys())
    return messages.Repeated(version_range(apis.APIS[key]) for key in shown)


HANDLERS = {apis.API_VERSIONS: api_versions}
