"""Sends requests of this node to the active controller, and retries after a failover.

If this node is the active controller, the handler runs in process. Otherwise each request in flight
has a connection to the leader of the quorum, so that a long request does not delay a heartbeat. A
request is retried until its timeout after a lost connection or NOT_CONTROLLER; it may therefore be
executed twice. When another node becomes the leader, requests to the old one are abandoned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.raft.errors import NotController
from odradek.seams.network import Address, Network

if TYPE_CHECKING:
    from odradek.client.connection import BrokerConnection

BACKOFF_SECONDS: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 0.5
GRACE_SECONDS: Final = 0.2
"""Time that a deposed controller has to complete a request."""
CONNECT_SECONDS: Final = 5.0
IDLE_MAX: Final = 4
"""Maximum number of idle connections."""


class ActiveController(Protocol):
    """Sends requests to the active controller."""

    async def request(self, api: Api, values: Mapping[str, Any], *, timeout_s: float) -> Any: ...


class ControllerQuorum(Protocol):
    """The part of MetadataManager that the channel uses."""

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        ...

    @property
    def leader_address(self) -> tuple[str, int] | None:
        """Address of the leader's controller listener; None if unknown or if this node leads."""
        ...

    def on_leader(self, callback: Callable[[], None]) -> None:
        """Call back whenever one of these may have changed."""
        ...


class ControllerChannel:
    """Channel to the active controller; call `start` before the first request."""

    def __init__(
        self,
        network: Network,
        quorum: Callable[[], ControllerQuorum],
        here: Callable[[Api, Mapping[str, Any]], Awaitable[Any]],
    ) -> None:
        """`here` handles a request if this node is the active controller."""
        self._network = network
        self._quorum = quorum
        self._here = here
        self._nursery: trio.Nursery | None = None
        self._idle: list[BrokerConnection] = []
        self._request_scopes: dict[trio.CancelScope, tuple[str, int]] = {}
        self._moved = trio.Event()

    def start(self, nursery: trio.Nursery) -> None:
        """Use `nursery` for the connections, and follow leader changes."""
        self._nursery = nursery
        self._quorum().on_leader(self._leader_moved)

    async def request(self, api: Api, values: Mapping[str, Any], *, timeout_s: float) -> Any:
        """The response entity of the active controller; the caller checks its error codes.

        Raises KafkaError: REQUEST_TIMED_OUT if no active controller responded, UNSUPPORTED_VERSION
        if it does not support the API.
        """
        pause_seconds = BACKOFF_SECONDS
        with trio.move_on_after(timeout_s):
            while True:
                response = await self._try(api, values)
                if response is not None:
                    return response
                await self._while_led_by(self._leader(), pause_seconds)
                pause_seconds = min(pause_seconds * 2, BACKOFF_SECONDS_MAX)
        raise KafkaError(
            ErrorCode.request_timed_out,
            f"no active controller has responded to {api.title} within {timeout_s:g} s",
        )

    async def _try(self, api: Api, values: Mapping[str, Any]) -> Any:
        """The response; None if the active controller did not respond."""
        quorum = self._quorum()
        if quorum.is_active:
            try:
                response = await self._here(api, values)
            except NotController:
                return None
        elif (address := quorum.leader_address) is not None:
            response = await self._send_to_leader(Address(*address), api, values)
        else:
            return None
        if field(response, "error_code") == ErrorCode.not_controller:
            return None
        return response

    # Leader

    def _leader(self) -> tuple[str, int] | None:
        return self._quorum().leader_address

    def _leader_moved(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()
        for scope, leader in self._request_scopes.items():
            if self._is_followed(leader):
                scope.deadline = min(scope.deadline, trio.current_time() + GRACE_SECONDS)

    def _is_followed(self, leader: tuple[str, int] | None) -> bool:
        """Whether another leader is known, or this node leads."""
        return self._quorum().is_active or self._leader() not in (leader, None)

    async def _while_led_by(self, leader: tuple[str, int] | None, at_most_seconds: float) -> None:
        """Wait until the leader changes, at most `at_most_seconds`."""
        with trio.move_on_after(at_most_seconds):
            while self._leader() == leader and not self._quorum().is_active:
                await self._moved.wait()

    # Requests to another node

    async def _send_to_leader(self, address: Address, api: Api, values: Mapping[str, Any]) -> Any:
        from odradek.client.errors import TimedOut, Unreachable, Unsupported

        leader = (address.host, address.port)
        with trio.CancelScope() as scope:
            self._request_scopes[scope] = leader
            if self._is_followed(leader):
                scope.deadline = trio.current_time() + GRACE_SECONDS
            try:
                return await self._exchange(address, api, values)
            except (Unreachable, TimedOut):
                return None  # the next try may find another controller
            except Unsupported as error:
                raise KafkaError(ErrorCode.unsupported_version, str(error)) from error
            finally:
                del self._request_scopes[scope]
        return None

    async def _exchange(self, address: Address, api: Api, values: Mapping[str, Any]) -> Any:
        connection = await self._connection(address)
        try:
            response = await connection.request(api, values, timeout_s=float("inf"))
        except BaseException:
            connection.abort()
            raise
        self._keep(connection)
        return response

    async def _connection(self, address: Address) -> BrokerConnection:
        from odradek.client.connection import open_connection

        while self._idle:
            connection = self._idle.pop()
            if connection.address == address and not connection.broken:
                return connection
            connection.abort()
        assert self._nursery is not None, "the node is not that far yet"
        return await open_connection(
            self._network, address, self._nursery, timeout_s=CONNECT_SECONDS
        )

    def _keep(self, connection: BrokerConnection) -> None:
        if len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.abort()
