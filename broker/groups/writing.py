"""Writing what a shard says to its partition of the offsets topic, and having the shard replay it."""

from __future__ import annotations

from odradek.broker.groups.actions import Append, Now
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.led import Led
from odradek.broker.groups.offsets import NO_PRODUCER
from odradek.broker.groups.store import OffsetsLog, build_batches


def write(append: Append, led: Led, log: OffsetsLog, config: GroupConfig, now: Now) -> None:
    """Raises KafkaError if not all records could be written; those that were are replayed."""
    producer = append.producer
    for batch, records in build_batches(
        append.records,
        now_ms=now.wall_ms,
        compression=config.offsets_topic_compression,
        batch_bytes_max=log.batch_bytes_max(led.partition),
        atomic=append.atomic,
        producer=None if producer is None else producer[:2],
    ):
        if producer is None:
            first_offset = log.append(led.partition, batch, now.wall_ms)
        else:
            first_offset = log.append_in_transaction(
                led.partition, batch, now.wall_ms, producer.guard
            )
        led.last_offset = first_offset + len(records) - 1
        if append.replay:
            producer_id = NO_PRODUCER if producer is None else producer.producer_id
            for position, record in enumerate(records):
                led.shard.replay(record, first_offset + position, producer_id)
