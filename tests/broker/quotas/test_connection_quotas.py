"""Tests of connection creation rates by address (KIP-612)."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from odradek.broker.quotas.connection_quotas import ConnectionQuotas
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.testing import Broker
from tests.support.raw_client import RawClient

RATE = {"connection_creation_rate": 2.0}


def quotas(**limits: float) -> ConnectionQuotas:
    """Rates by address, with `_` for a dot; `default` is for all other addresses."""
    made = ConnectionQuotas(samples=2, window_ms=1000)
    made.update(
        {
            (("ip", None if host == "default" else host.strip("_").replace("_", ".")),): {
                "connection_creation_rate": limit
            }
            for host, limit in limits.items()
        }
    )
    return made


def test_rate_applies_to_each_address() -> None:
    made = quotas(default=1, _10_0_0_9=3)
    for each in ("10.0.0.1", "10.0.0.2", "::1"):
        assert made.record(each, 0) == 0
        assert 0 < made.record(each, 0) <= 1000
    for _ in range(3):
        assert made.record("10.0.0.9", 0) == 0
    assert made.record("10.0.0.9", 0) == 333


def test_address_without_limit_is_not_throttled() -> None:
    made = quotas(_10_0_0_9=1)
    assert [made.record("10.0.0.1", 0) for _ in range(100)] == [0] * 100
    assert not quotas()


def test_rejected_connections_are_not_recorded() -> None:
    made = quotas(default=1)
    assert made.record("10.0.0.1", 0) == 0
    for _ in range(50):
        assert made.record("10.0.0.1", 10) == 1000 - 10
    assert made.record("10.0.0.1", 2000) == 0


def test_address_matches_in_any_spelling() -> None:
    made = quotas(_10_0_0_9=1)
    assert made.record("::ffff:10.0.0.9", 0) == 0
    assert made.record("10.0.0.9", 0) > 0


def seconds_until_closed(address: tuple[str, int]) -> float:
    begun = time.monotonic()
    with socket.create_connection(address, timeout=10) as connected:
        with suppress(ConnectionError):
            assert connected.recv(1) == b""
    return time.monotonic() - begun


def test_connection_above_the_rate_is_closed() -> None:
    configs = {"quota.window.num": "2", "quota.window.size.seconds": "3"}
    with Broker(configs=configs) as broker, RawClient(broker.bootstrap) as client:
        host, _, port = broker.bootstrap.rpartition(":")
        ops = [{"key": key, "value": value, "remove": False} for key, value in RATE.items()]
        entry = {"entity": [{"entity_type": "ip", "entity_name": host}], "ops": ops}
        values = {"entries": [entry], "validate_only": False}
        response = client.ask(apis.ALTER_CLIENT_QUOTAS, 1, values)
        assert response.entries[0].error_code is ErrorCode.none, response.entries[0].error_message
        for _ in range(6):  # 2 per second, over 3 s
            with RawClient(broker.bootstrap) as another:
                another.ask(apis.API_VERSIONS, 0, {})
        assert seconds_until_closed((host, int(port))) > 0.1
        client.ask(apis.API_VERSIONS, 0, {})  # existing connections stay open
