"""Transactional producers and consumers of librdkafka and of Kafka's Java client."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Producer

from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import TIMEOUT_S, read_all

COMMITTED = {"isolation.level": "read_committed"}


def java(scenario: str, bootstrap: str, topic: str, *args: object) -> Any:
    run = run_tool("java-transactions", scenario, bootstrap, topic, *map(str, args), timeout=90)
    return json.loads(run.stdout.strip().splitlines()[-1])


def values(bootstrap: str, topic: str, count: int, **options: Any) -> list[str]:
    found = read_all(bootstrap, topic, count, **options)
    return [(message.value() or b"").decode() for message in found]


def transactional(bootstrap: str, name: str, **config: Any) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, **config})
    producer.init_transactions(TIMEOUT_S)
    return producer
