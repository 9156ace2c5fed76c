"""Tests of the admin functions for the tiered state of topics."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.client.errors import Unreachable, Unsupported
from odradek.client.topic_tiering_admin import describe_topic_tiering


class KafkaConnection:
    """Connection that the broker closes, as Kafka does after a request with an unknown API key."""

    async def request(self, *request: Any, **options: Any) -> Any:
        raise Unreachable("lost the connection to kafka:9092: closed by the broker")


class KafkaCluster:
    timeout_s = 10.0

    async def controller(self) -> KafkaConnection:
        return KafkaConnection()


async def test_broker_that_closes_the_connection_does_not_support_the_api() -> None:
    """The command line would otherwise ask whether a broker is running."""
    cluster: Any = KafkaCluster()
    with pytest.raises(Unsupported, match=r"kafka:9092: closed by the broker\. Apache Kafka, and"):
        await describe_topic_tiering(cluster, ["t"])
