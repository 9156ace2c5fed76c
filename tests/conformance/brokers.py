"""The two brokers that suites run against, each in a process of its own, set up alike."""

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

# What a member's first assignment would else wait for; every suite's own set-up has it.
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


def start(broker: str, directory: Path, settings: Mapping[str, str]) -> BrokerProcess:
    """Start it over a new log directory; a context that stops it, whatever became of the suite."""
    port = free_port()
    # Said, not left to the default: kafka-python looks where the value comes from.
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    return START[broker](directory, port=port, config={**SETTINGS, **advertised, **settings})
