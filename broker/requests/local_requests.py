"""Requests that a node makes of itself: what it would ask the active controller, which it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from odradek.broker.network.listeners import Endpoint
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.dispatch import find_controller_route
from odradek.protocol import messages
from odradek.protocol.apis import Api
from odradek.seams.files import Buffer
from odradek.seams.network import Address

if TYPE_CHECKING:
    from odradek.broker.services import Services

HERE: Final = Address("localhost", 0)
IN_PROCESS: Final = Endpoint("", "PLAINTEXT", HERE, None, of_controller=True)


async def handle_locally(services: Services, api: Api, values: Mapping[str, Any]) -> Any:
    """What the handler of this node's controller answers, as kio's entity of the newest version.

    Through the codec in both directions, so that it is what another node would be answered. A node
    may do everything to itself.
    """
    route = find_controller_route(api.key)
    assert route is not None, f"{api.title} is no request to a controller"
    version = api.max_version
    frame = memoryview(messages.write_request(api.key, version, values))
    ctx = RequestContext(
        services, api, version, 0, f"node-{services.node_id}", IN_PROCESS, HERE, _nothing_to_flush
    )
    respond = await route.handler(route.read(api.key, version, frame, 0), ctx)
    body = cast(Buffer, route.write(api.key, version, respond))
    return messages.read_response(api.key, version, memoryview(body))


async def _nothing_to_flush() -> None:
    pass
