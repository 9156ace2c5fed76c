"""Listeners of a node: binding them, and the addresses that are advertised to clients (`advertised.listeners`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from odradek.broker.config.listeners import EVERY_ADDRESS, ListenerEndpoint
from odradek.seams.network import Address, Listener, Network, SocketOptions
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig


@value_class
class BoundListener:
    """A bound listener, and its advertised address if it has one."""

    name: str
    security_protocol: str
    bound: Address
    advertised: Address | None
    of_controller: bool = False
    """Whether it is in `controller.listener.names`: it serves the controller's APIs only."""

    @property
    def address(self) -> Address:
        """The advertised address, or the bound one where none is advertised."""
        return self.advertised or self.bound


BoundListeners = Sequence[tuple[BoundListener, list[Listener]]]
"""Bound listeners: each endpoint with its sockets."""


SYSTEM_BACKLOG = 2**31 - 1
"""Backlog that the operating system reduces to its own limit."""


def _backlog(config: ServerConfig) -> int:
    """`socket.listen.backlog.size` if it is set, or the system's limit: clients that open many connections at once
    would otherwise wait for retransmissions."""
    name = "socket.listen.backlog.size"
    return config.get_int(name) if config.is_set(name) else SYSTEM_BACKLOG


async def open_listeners(
    network: Network,
    config: ServerConfig,
    wanted: Sequence[ListenerEndpoint],
    advertised: Sequence[ListenerEndpoint],
    *,
    of_controller: bool = False,
) -> BoundListeners:
    """Bind every listener of `wanted`; for port 0 the operating system picks a port.

    `advertised` has the advertised listeners, matched by name. Where neither names a host, the machine's host
    name is advertised, as in Kafka, or localhost for a test node. Raises OSError if an address cannot be bound.
    """
    opened: list[tuple[BoundListener, list[Listener]]] = []
    advertised_by_name = {each.name: each for each in advertised}
    own_name = "localhost"
    if not config.standalone and any(each.host in EVERY_ADDRESS for each in wanted):
        own_name = await network.own_name()
    options = SocketOptions(
        config.get_int("socket.send.buffer.bytes"),
        config.get_int("socket.receive.buffer.bytes"),
        _backlog(config),
    )
    try:
        for each in wanted:
            sockets = await network.listen(each.host, each.port, options)
            bound = sockets[0].address
            opened.append(
                (
                    _endpoint(
                        each, advertised_by_name.get(each.name), bound, own_name, of_controller
                    ),
                    sockets,
                )
            )
    except BaseException:
        await close_listeners(opened)
        raise
    return opened


def _endpoint(
    wanted: ListenerEndpoint,
    advertised: ListenerEndpoint | None,
    bound: Address,
    own_name: str,
    of_controller: bool,
) -> BoundListener:
    address = None
    if advertised is not None:
        own = own_name if wanted.host in EVERY_ADDRESS else wanted.host
        address = Address(advertised.host or own, advertised.port or bound.port)
    return BoundListener(wanted.name, wanted.security_protocol, bound, address, of_controller)


async def close_listeners(opened: BoundListeners) -> None:
    with trio.CancelScope(shield=True):
        for _, listeners in opened:
            for listener in listeners:
                await listener.aclose()
