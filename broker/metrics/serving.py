"""Starts the metrics endpoint of a node."""

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


async def serve_metrics(services: Services, listener: str, nursery: trio.Nursery) -> Address:
    """Serve the metrics at `listener` (host:port) in the nursery; returns the bound address.

    Raises CannotStart if the address cannot be bound.
    """
    register(services)
    host, port = parse_address("odradek.metrics.listener", listener)
    endpoint = MetricsEndpoint(services.seams.network, services.metrics, host, port)
    try:
        await nursery.start(endpoint.run)
    except OSError as error:
        reason = error.strerror or error
        raise CannotStart(f"can't serve metrics on {listener}: {reason}") from None
    return endpoint.address
