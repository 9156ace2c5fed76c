"""A node that tells its metrics: what its rooms know, put where Prometheus asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.config.listeners import parse_address
from odradek.broker.lifecycle.errors import CannotStart
from odradek.broker.metrics.endpoint import MetricsEndpoint
from odradek.broker.metrics.of_node import register

if TYPE_CHECKING:
    import trio

    from odradek.broker.services import Services
    from odradek.seams.network import Address


async def serve_metrics(services: Services, listener: str, house: trio.Nursery) -> Address:
    """Answer at `listener` (host:port) from now on, in `house`; where that came to be.

    Raises CannotStart if it can't listen there.
    """
    register(services)
    host, port = parse_address("odradek.metrics.listener", listener)
    endpoint = MetricsEndpoint(services.seams.network, services.metrics, host, port)
    try:
        await house.start(endpoint.run)
    except OSError as error:
        reason = error.strerror or error
        raise CannotStart(f"can't tell metrics on {listener}: {reason}") from None
    return endpoint.address
