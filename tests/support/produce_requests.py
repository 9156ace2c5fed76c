"""Produce requests of tests, and the offsets that they move."""

from __future__ import annotations

from typing import Any

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.testing import Broker
from tests.support.raw_requests import ask, request_frame
from tests.support.records import batch_of_size

PRODUCE_VERSION = 9


def produce_values(
    topic: str,
    *batches: bytes | None,
    transactional_id: str | None = None,
    acks: int = -1,
    timeout_ms: int = 1000,
    first_partition: int = 0,
) -> dict[str, Any]:
    """Return the values of a Produce request: one batch for each partition, from `first_partition` on."""
    partitions = [
        {"index": index, "records": records}
        for index, records in enumerate(batches, first_partition)
    ]
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [{"name": topic, "partition_data": partitions}],
    }


def produce_batch(
    broker: Broker,
    topic: str,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int = PRODUCE_VERSION,
) -> Any:
    """Produce a batch; return the partition's response, or None if the broker closed the connection."""
    values = produce_values(topic, records, acks=acks, first_partition=partition)
    response = ask(broker, apis.PRODUCE, version, values)
    if response is None:
        return None
    ((partition_response,),) = [each.partition_responses for each in response.responses]
    return partition_response


def produce_transactionally(
    broker: Broker,
    topic: str,
    *batches: bytes,
    version: int = 12,
    transactional_id: str | None = "tx",
) -> list[ErrorCode]:
    """Produce a batch to each partition, from 0 on; return their error codes."""
    values = produce_values(topic, *batches, transactional_id=transactional_id)
    response = ask(broker, apis.PRODUCE, version, values)
    ((partitions),) = [each.partition_responses for each in response.responses]
    return [each.error_code for each in partitions]


def end_offset(broker: Broker, topic: str, partition: int = 0) -> int:
    """Return the log end offset of a partition."""

    async def end() -> int:
        return (await broker.node.partitions.get(topic, None, partition)).log.end_offset

    return broker._call(end)


def produce_frame(correlation_id: int, *, size: int = 10, acks: int = 1, topic: str = "t") -> bytes:
    """Return a Produce request as it is sent: one record of `size` bytes for partition 0."""
    values = produce_values(topic, batch_of_size(size), acks=acks)
    return request_frame(apis.PRODUCE, PRODUCE_VERSION, correlation_id, values)
