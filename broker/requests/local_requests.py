"""Requests of a node to its own controller, while it is the active controller."""

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
    """Handle the request and return the response as kio's entity of the newest version.

    Request and response are encoded and decoded, so the result is the same as from another node. The node is
    authorized for all operations.
    """
    route = find_controller_route(api.key)
    assert route is not None, f"{api.title} is not an API of controllers"
    version = api.max_version
    frame = memoryview(messages.write_request(api.key, version, values))
    ctx = RequestContext(
        services, api, version, 0, f"node-{services.node_id}", IN_PROCESS, HERE, _nothing_to_flush
    )
    response = await route.handler(route.read(api.key, version, frame, 0), ctx)
    body = cast(Buffer, route.write(api.key, version, response))
    return messages.read_response(api.key, version, memoryview(body))


async def _nothing_to_flush() -> None:
    pass
