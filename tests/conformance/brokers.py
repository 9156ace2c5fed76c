"""The two brokers that suites run against, with the same settings, each in its own process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.broker_process import BrokerProcess, free_port
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka

TITLES = {"odradek": "Odradek", "kafka": "Apache Kafka"}
START: Mapping[str, Callable[..., BrokerProcess]] = {
    "odradek": start_odradek,
    "kafka": start_kafka,
}

# No initial rebalance delay, as in the set-up of every suite.
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


def start(broker: str, directory: Path, settings: Mapping[str, str]) -> BrokerProcess:
    """Start a broker on a new log directory; the context stops it."""
    port = free_port()
    # Set explicitly, because kafka-python checks the source of the value.
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    return START[broker](directory, port=port, config={**SETTINGS, **advertised, **settings})
