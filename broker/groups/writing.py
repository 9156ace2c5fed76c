"""Writing what a shard says to its partition of the offsets topic, and having the shard replay it."""

from __future__ import annotations

from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.group_log import OffsetsLog, build_batches
from odradek.broker.groups.led import GroupContext
from odradek.broker.groups.messages import EventTime, RecordAppend
from odradek.broker.groups.offset_store import NO_PRODUCER


def write(
    append: RecordAppend,
    context: GroupContext,
    log: OffsetsLog,
    config: GroupConfig,
    now: EventTime,
) -> None:
    """Raises KafkaError if not all records could be written; those that were are replayed."""
    producer = append.producer
    for batch, records in build_batches(
        append.records,
        now_ms=now.wall_ms,
        compression=config.offsets_topic_compression,
        batch_bytes_max=log.batch_bytes_max(context.partition),
        atomic=append.atomic,
        producer=None if producer is None else producer[:2],
    ):
        if producer is None:
            first_offset = log.append(context.partition, batch, now.wall_ms)
        else:
            first_offset = log.append_in_transaction(
                context.partition, batch, now.wall_ms, producer.guard
            )
        context.last_offset = first_offset + len(records) - 1
        if append.replay:
            producer_id = NO_PRODUCER if producer is None else producer.producer_id
            for position, record in enumerate(records):
                context.shard.replay(record, first_offset + position, producer_id)
