"""How many connections an address may make (connection_creation_rate, KIP-612).

Each address has a rate of its own: the limit set for it, or the default of those that have none. The rate
is measured as those of clients are (`quotas.py`). A connection beyond it is not counted, and not served
either: it is closed a while later, so that whoever makes them one after the other is slowed down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from odradek.broker.quotas.client_quotas import Counted, Rate
from odradek.broker.security.hosts import Host, host_of
from odradek.replication.controller.image import QuotaEntity
from odradek.replication.controller.quotas import CONNECTION_CREATION_RATE, IP

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig


class ConnectionQuotas:
    """See the module. Times are monotonic, in ms."""

    def __init__(self, *, samples: int, window_ms: int) -> None:
        """`samples` is quota.window.num."""
        self._samples = samples
        self._window_ms = window_ms
        self._limits: dict[Host | None, float] = {}
        """None: of all that have no limit of their own."""
        self._rates: Counted[Host, Rate] = Counted()

    def __bool__(self) -> bool:
        return bool(self._limits)

    def update(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """These hold from now on; what was counted counts on."""
        self._limits = {
            _named(parts[IP]): values[CONNECTION_CREATION_RATE]
            for entity, values in quotas.items()
            if IP in (parts := dict(entity)) and CONNECTION_CREATION_RATE in values
        }

    def record(self, peer: str, now_ms: int) -> int:
        """It has made a connection. 0 if it may; else for how many ms it is to be kept waiting before that
        is closed: until its rate would be its limit, and no more than a window."""
        host = host_of(peer)
        limit = self._limits.get(host, self._limits.get(None))
        if limit is None:
            return 0
        rate = self._rates.get(host)
        if rate is None:
            rate = self._rates.begin(host, Rate(self._samples, self._window_ms), now_ms)
        rate.record(1.0, now_ms)
        measured, over_ms = rate.measure(now_ms)
        if measured <= limit:
            return 0
        rate.record(-1.0, now_ms)
        return min(max(round((measured - limit) / limit * over_ms), 1), self._window_ms)


def _named(name: str | None) -> Host | None:
    return None if name is None else host_of(name)


def connection_quotas_from(
    quotas: Mapping[QuotaEntity, Mapping[str, float]],
    config: ServerConfig,
    before: ConnectionQuotas | None,
) -> ConnectionQuotas | None:
    """These, with what was counted before; None if there are none."""
    if before is None:
        before = ConnectionQuotas(
            samples=config.get_int("quota.window.num"),
            window_ms=config.get_int("quota.window.size.seconds") * 1000,
        )
    before.update(quotas)
    return before if before else None
