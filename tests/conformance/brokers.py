"""The two brokers that suites run against, each in a process of its own, set up alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from odradek.bench.peers.kafka import Kafka
from odradek.bench.peers.odradek import Odradek
from tests.interop.broker_process import BrokerProcess
from tests.interop.odradek_process import start_odradek
from tests.interop.real_kafka import start_kafka

TITLES = {"odradek": "Odradek", "kafka": "Apache Kafka"}
START: Mapping[str, Callable[..., BrokerProcess]] = {
    "odradek": start_odradek,
    "kafka": start_kafka,
}

# What a member's first assignment would else wait for; every suite's own set-up has it.
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


def version(broker: str) -> str:
    """The version of the broker, with the commit if it is this checkout."""
    return Odradek().version() if broker == "odradek" else Kafka().version()


def start(broker: str, directory: Path, settings: Mapping[str, str]) -> BrokerProcess:
    """Start it over a new log directory; a context that stops it, whatever became of the suite."""
    return START[broker](directory, config={**SETTINGS, **settings})
