"""Accepts connections on the listeners, and enforces connection limits and idle timeouts."""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING

import trio

from odradek.broker.network.connection import ClientConnection
from odradek.broker.network.listeners import BoundListener, BoundListeners, close_listeners
from odradek.broker.timers import monotonic_ms
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.seams.network import Connection, Listener, Selector

if TYPE_CHECKING:
    from odradek.broker.services import Services

log = logging.getLogger("odradek.network")

IDLE_CHECKS_PER_LIMIT = 4
IDLE_CHECK_SECONDS_MAX = 10.0


class Server:
    """Accepts clients on listeners until cancelled, which closes their connections."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._selector: Selector
        self._connections: set[ClientConnection] = set()
        self._tasks: Containment[str] = Containment("a task", consequence=STARTED_AGAIN)
        self._accepting: Containment[Connection] = Containment(
            "accepting",
            lambda connection, error: connection.abort(),
            name=lambda connection: f"a connection of {connection.peer.host}",
            consequence="it is closed",
        )
        self._per_host: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()

    async def serve(
        self,
        opened: BoundListeners,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled. On cancellation the listeners are closed before the connections."""
        self._selector = self._services.seams.network.selector()
        unsubscribe = self._services.config.subscribe(self._configs_changed)
        async with trio.open_nursery() as clients:
            clients.start_soon(self._selector.run)
            try:
                async with trio.open_nursery() as accepting:
                    for endpoint, listeners in opened:
                        for listener in listeners:
                            accepting.start_soon(self._accept, listener, endpoint, clients)
                    accepting.start_soon(
                        self._tasks.keep_running, "closing idle connections", self._close_idle
                    )
                    task_status.started()
            finally:
                unsubscribe()
                await close_listeners(opened)

    def _configs_changed(self, changed: frozenset[str]) -> None:
        if "max.connections" in changed:
            limit = self._services.config.get_int("max.connections")
            for _ in range(len(self._connections) - limit):
                self._close_most_idle()

    async def _accept(
        self, listener: Listener, endpoint: BoundListener, clients: trio.Nursery
    ) -> None:
        while True:
            connection = await listener.accept()
            self._accepting.call(connection, self._admit, connection, endpoint, clients)

    def _admit(
        self, connection: Connection, endpoint: BoundListener, clients: trio.Nursery
    ) -> None:
        """Start the task of a new connection, or refuse it."""
        wait_ms = self._wait_ms(connection.peer.host)
        if wait_ms:
            log.debug(
                "%s exceeds its connection creation rate: closed in %d ms",
                connection.peer,
                wait_ms,
            )
            clients.start_soon(self._close_later, connection, wait_ms)
            return
        refusal = self._refusal(connection.peer.host, endpoint)
        if refusal is not None:
            log.warning("refused %s: %s", connection.peer, refusal)
            connection.abort()
            return
        client = ClientConnection(connection, endpoint, self._services, self._selector)
        # Counted before the next accept, not when its task starts
        self._connections.add(client)
        self._per_host[connection.peer.host] += 1
        self._per_listener[endpoint.name] += 1
        clients.start_soon(self._talk, client)

    def _wait_ms(self, host: str) -> int:
        """Throttle time in ms of a host that exceeds its connection creation rate (KIP-612)."""
        quotas = self._services.connection_quotas
        return (
            0 if quotas is None else quotas.record(host, monotonic_ms(self._services.seams.clock))
        )

    async def _close_later(self, connection: Connection, wait_ms: int) -> None:
        try:
            await self._services.seams.clock.sleep(wait_ms / 1000)
        finally:
            connection.abort()

    def _refusal(self, host: str, endpoint: BoundListener) -> str | None:
        config = self._services.config
        if self._per_host[host] >= config.get_int("max.connections.per.ip"):
            return "max.connections.per.ip reached"
        of_listener = f"listener.name.{endpoint.name.lower()}.max.connections"
        if config.is_set(of_listener) and (
            self._per_listener[endpoint.name] >= config.get_int(of_listener)
        ):
            return f"{of_listener} reached"
        if len(self._connections) >= config.get_int("max.connections"):
            if not self._is_for_brokers(endpoint):
                return "max.connections reached"
            self._close_most_idle()
        return None

    def _is_for_brokers(self, endpoint: BoundListener) -> bool:
        """Whether this is a separate inter-broker listener, whose connections are not limited by
        max.connections (KIP-402)."""
        config = self._services.config
        return endpoint.name == config.inter_broker_listener and len(config.listeners) > 1

    def _close_most_idle(self) -> None:
        """Close the client connection that is idle for the longest time."""
        now = self._services.seams.clock.monotonic()
        clients = [each for each in self._connections if not self._is_for_brokers(each.endpoint)]
        if clients:
            idle = max(clients, key=lambda each: each.idle_seconds(now))
            self._forget(idle)
            idle.abort()

    async def _talk(self, client: ClientConnection) -> None:
        log.debug("Accepted connection from %s on listener %s", client.peer, client.endpoint.name)
        try:
            await client.talk()
        finally:
            log.debug("Closed connection from %s", client.peer)
            self._forget(client)

    def _forget(self, client: ClientConnection) -> None:
        """Stop counting a closed connection, although its task may still wait in a handler."""
        if client not in self._connections:
            return
        self._connections.remove(client)
        self._per_listener[client.endpoint.name] -= 1
        host = client.peer.host
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    async def _close_idle(self) -> None:
        """Close connections idle for connections.max.idle.ms (never if negative), also of disconnected clients,
        and release the memory of silent connections earlier."""
        clock = self._services.seams.clock
        while True:
            limit = self._services.config.get_int("connections.max.idle.ms") / 1000
            pause = max(limit / IDLE_CHECKS_PER_LIMIT, 0.05) if limit >= 0 else math.inf
            await clock.sleep(min(pause, IDLE_CHECK_SECONDS_MAX))
            now = clock.monotonic()
            for client in list(self._connections):
                if 0 <= limit < client.idle_seconds(now):
                    self._forget(client)
                    await client.aclose()
                else:
                    client.release_memory(now)
