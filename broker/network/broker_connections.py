"""Connections to the other brokers of the cluster: one per broker, opened when first needed.

Addresses come from the metadata image, by the inter-broker listener. The connection to a broker that is fenced,
unregistered or registered at another address is closed at once, so callers can find the new leader or
coordinator instead of waiting for a request timeout.

Requests are not retried here; the caller handles errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import trio

from odradek.client.errors import Unreachable, Unsupported
from odradek.protocol.apis import Api
from odradek.replication.controller.image import MetadataImage
from odradek.seams.locks import PromptLock
from odradek.seams.network import Address, Network
from odradek.seams.values import state_class

if TYPE_CHECKING:
    from odradek.client.connection import BrokerConnection


@state_class
class _BrokerConnection:
    """Connection to one broker, if any."""

    opening: PromptLock = field(default_factory=PromptLock)
    connection: BrokerConnection | None = None
    attempt: trio.CancelScope | None = None
    """Cancel scope of the connection attempt."""
    address: Address | None = None
    """Address of the connection or attempt."""

    def disconnect(self, why: str) -> None:
        if self.attempt is not None:
            self.attempt.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort(Unreachable(why))


class BrokerConnections:
    """Connections of this node to other brokers; `start` must be called before the first request."""

    def __init__(
        self,
        network: Network,
        image: Callable[[], MetadataImage],
        listener: Callable[[], str],
        *,
        client_id: str,
        connect_timeout_s: float = 10.0,
        any_listener: bool = False,
    ) -> None:
        """`listener` returns the name of the inter-broker listener. `any_listener`: use the first listener of a broker
        that has none with this name."""
        self._network = network
        self._image = image
        self._listener = listener
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._any_listener = any_listener
        self._nursery: trio.Nursery | None = None
        self._peers: dict[int, _BrokerConnection] = {}

    def start(self, nursery: trio.Nursery) -> None:
        """Set the nursery that runs the connections."""
        self._nursery = nursery

    async def request(
        self,
        broker_id: int,
        api: Api,
        values: Mapping[str, Any],
        *,
        timeout_s: float,
        at_least: int = 0,
    ) -> Any:
        """Send a request and return kio's entity of the newest version that both sides support, at least
        `at_least`.

        `timeout_s` limits the wait for the response. Raises Unreachable (the broker may have handled the
        request), TimedOut or Unsupported; the caller checks the error codes of the response.
        """
        address = self._address(broker_id)
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = _BrokerConnection()
        connection = await self._connected(broker_id, peer, address)
        version = connection.version_of(api)
        if version < at_least:
            raise Unsupported(
                f"broker {broker_id} supports {api.title} up to version {version} only"
            )
        return await connection.request(api, values, timeout_s=timeout_s)

    def brokers_changed(self) -> None:
        """Close connections to brokers that the new image has fenced, removed or moved."""
        for broker_id, peer in self._peers.items():
            if peer.connection is None and peer.attempt is None:
                continue
            try:
                address = self._address(broker_id)
            except Unreachable as gone:
                peer.disconnect(str(gone))
                continue
            if peer.address != address:
                peer.disconnect(f"broker {broker_id} has the new address {address}")

    def _address(self, broker_id: int) -> Address:
        broker = self._image().brokers.get(broker_id)
        if broker is None:
            raise Unreachable(f"broker {broker_id} is not registered")
        if broker.fenced:
            raise Unreachable(f"broker {broker_id} is fenced")
        name = self._listener()
        endpoint = broker.endpoint(name)
        if endpoint is None and self._any_listener:
            endpoint = next(iter(broker.endpoints), None)
        if endpoint is None:
            raise Unreachable(f"broker {broker_id} has no listener {name}")
        return Address(endpoint.host, endpoint.port)

    async def _connected(
        self, broker_id: int, peer: _BrokerConnection, address: Address
    ) -> BrokerConnection:
        """Return the connection, opening one if needed; one attempt at a time."""
        from odradek.client.connection import open_connection

        assert self._nursery is not None, "BrokerConnections.start was not called"
        async with peer.opening:
            found = peer.connection
            if found is not None and not found.broken and found.address == address:
                return found
            peer.disconnect(f"broker {broker_id} has the new address {address}")
            peer.address = address
            with trio.CancelScope() as peer.attempt:
                try:
                    peer.connection = await open_connection(
                        self._network,
                        address,
                        self._nursery,
                        client_id=self._client_id,
                        timeout_s=self._connect_timeout_s,
                    )
                finally:
                    peer.attempt = None
                return peer.connection
        raise Unreachable(f"broker {broker_id} was fenced or moved during the connection attempt")
