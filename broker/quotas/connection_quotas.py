"""Connection creation rate per address (connection_creation_rate, KIP-612).

Each address has its own rate, with its own or the default limit, measured as in `client_quotas.py`. A
connection above the limit is not recorded and not served; it is closed after the throttle time, which slows
down clients that reconnect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from odradek.broker.quotas.client_quotas import ExpiringSensors, Rate
from odradek.broker.security.hosts import Host, host_of
from odradek.replication.controller.client_quotas import CONNECTION_CREATION_RATE, IP
from odradek.replication.controller.image import QuotaEntity

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig


class ConnectionQuotas:
    """Connection creation rates by address. Times are monotonic, in ms."""

    def __init__(self, *, samples: int, window_ms: int) -> None:
        """`samples` is the number of windows, quota.window.num."""
        self._samples = samples
        self._window_ms = window_ms
        self._limits: dict[Host | None, float] = {}
        """Limits by host; None has the default limit."""
        self._rates: ExpiringSensors[Host, Rate] = ExpiringSensors()

    def __bool__(self) -> bool:
        return bool(self._limits)

    def update(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Replace the limits; recorded connections are kept."""
        self._limits = {
            _named(parts[IP]): values[CONNECTION_CREATION_RATE]
            for entity, values in quotas.items()
            if IP in (parts := dict(entity)) and CONNECTION_CREATION_RATE in values
        }

    def record(self, peer: str, now_ms: int) -> int:
        """Record a connection; returns 0 if it is accepted, else the throttle time in ms after which it is
        closed, at most one window."""
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
    """Connection quotas with the rates of `before`; None if no limit is set."""
    if before is None:
        before = ConnectionQuotas(
            samples=config.get_int("quota.window.num"),
            window_ms=config.get_int("quota.window.size.seconds") * 1000,
        )
    before.update(quotas)
    return before if before else None
