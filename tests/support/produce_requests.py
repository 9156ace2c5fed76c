"""Produce requests of tests, and what they change in the log."""

from __future__ import annotations

from typing import Any

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.testing import Broker
from tests.support.raw_requests import PRODUCE_VERSION, ask


def produce_batch(
    broker: Broker,
    topic: str,
    records: bytes | None,
    *,
    acks: int = -1,
    version: int = PRODUCE_VERSION,
) -> Any:
    """The partition's answer."""
    response = ask(
        broker,
        apis.PRODUCE,
        version,
        {
            "transactional_id": None,
            "acks": acks,
            "timeout": 1000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": records}]}],
        },
    )
    if response is None:
        return None
    ((partition,),) = [each.partition_responses for each in response.responses]
    return partition


def end_offset(broker: Broker, topic: str) -> int:
    async def end() -> int:
        return (await broker.node.partitions.get(topic, None, 0)).log.end_offset

    return broker._call(end)


def produce_values(
    topic: str, *batches: bytes, transactional_id: str | None = None
) -> dict[str, Any]:
    """A request with a batch for each partition from 0 on."""
    partitions = [{"index": index, "records": each} for index, each in enumerate(batches)]
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": topic, "partition_data": partitions}],
    }


def produce_transactionally(
    broker: Broker,
    topic: str,
    *batches: bytes,
    version: int = 12,
    transactional_id: str | None = "tx",
) -> list[ErrorCode]:
    """Error code of each partition, from 0 on."""
    values = produce_values(topic, *batches, transactional_id=transactional_id)
    response = ask(broker, apis.PRODUCE, version, values)
    ((partitions),) = [each.partition_responses for each in response.responses]
    return [each.error_code for each in partitions]
