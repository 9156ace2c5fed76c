"""Requests to the other brokers of the cluster: one connection to each, opened when first needed.

Addresses are the image's, by the name of the listener that brokers use among themselves. A broker that
is fenced, gone, or registered anew at another address is not waited for: its connection is broken at
once, so that whoever asked it hears of it and can ask who took over. (A broker that was paused answers
nothing, and its time-outs are long.)

Nothing is sent twice here. What an error means, and whether to retry, the caller decides.
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
class _Peer:
    """The connection to one broker, if there is one."""

    opening: PromptLock = field(default_factory=PromptLock)
    connection: BrokerConnection | None = None
    attempt: trio.CancelScope | None = None
    """Around the opening of one."""
    address: Address | None = None
    """Where it is, or is being opened."""

    def hang_up(self, why: str) -> None:
        if self.attempt is not None:
            self.attempt.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort(Unreachable(why))


class BrokerConnections:
    """See the module. `start` comes before the first request."""

    def __init__(
        self,
        network: Network,
        image: Callable[[], MetadataImage],
        listener: Callable[[], str],
        *,
        client_id: str,
        connect_timeout_s: float = 10.0,
    ) -> None:
        """`listener` is the name of the one that brokers use (inter.broker.listener.name)."""
        self._network = network
        self._image = image
        self._listener = listener
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._nursery: trio.Nursery | None = None
        self._peers: dict[int, _Peer] = {}

    def start(self, nursery: trio.Nursery) -> None:
        """Have `nursery` own the connections."""
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
        """Ask a broker; kio's entity of the newest version both speak, which is `at_least` that.

        `timeout_s` is for the answer. Raises Unreachable (nothing is known of what became of the
        request), TimedOut or Unsupported; the caller checks the response's error codes.
        """
        address = self._address(broker_id)
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = _Peer()
        connection = await self._connected(broker_id, peer, address)
        version = connection.version_of(api)
        if version < at_least:
            raise Unsupported(f"broker {broker_id} has {api.title} up to version {version} only")
        return await connection.request(api, values, timeout_s=timeout_s)

    def brokers_changed(self) -> None:
        """The image has other brokers, or knows other things of them."""
        for broker_id, peer in self._peers.items():
            if peer.connection is None and peer.attempt is None:
                continue
            try:
                address = self._address(broker_id)
            except Unreachable as gone:
                peer.hang_up(str(gone))
                continue
            if peer.address != address:
                peer.hang_up(f"broker {broker_id} is at {address} now")

    def _address(self, broker_id: int) -> Address:
        broker = self._image().brokers.get(broker_id)
        if broker is None:
            raise Unreachable(f"broker {broker_id} is not registered")
        if broker.fenced:
            raise Unreachable(f"broker {broker_id} is fenced")
        name = self._listener()
        endpoint = broker.endpoint(name)
        if endpoint is None:
            raise Unreachable(f"broker {broker_id} has no listener {name}")
        return Address(endpoint.host, endpoint.port)

    async def _connected(self, broker_id: int, peer: _Peer, address: Address) -> BrokerConnection:
        """The connection, opened if there is none that works; one attempt at a time."""
        from odradek.client.connection import open_connection

        assert self._nursery is not None, "the node is not that far yet"
        async with peer.opening:
            found = peer.connection
            if found is not None and not found.broken and found.address == address:
                return found
            peer.hang_up(f"broker {broker_id} is at {address} now")
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
        raise Unreachable(f"broker {broker_id} went away while it was called")
