"""Replay of producer state from the batches of a log, by their headers."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import Batch
from odradek.storage.log.batch_scan import headers, read_batch
from odradek.storage.log.producer_state import CompletedTransaction, ProducerStates
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState

_logger = logging.getLogger("odradek.log")


def replay(
    states: ProducerStates, segments: Sequence[Segment], log_start_offset: int, up_to: int
) -> None:
    """Apply the batches from the state's end on that end below `up_to`. Raises OSError."""
    start = max(states.map_end_offset, log_start_offset)
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        if segment.base_offset >= up_to:
            break
        if not is_last and segments[number + 1].base_offset <= start:
            continue
        try:
            found = segment.locate(max(start, segment.base_offset))
            if found is not None:
                _replay_segment(states, segment, found.position, up_to)
        except KafkaError as error:
            _logger.warning(
                "could not replay the producer state of segment %s completely: %s", segment, error
            )
    states.map_end_offset = max(states.map_end_offset, up_to)


def _replay_segment(states: ProducerStates, segment: Segment, position: int, up_to: int) -> None:
    for header in headers(segment.file, position, segment.size):
        if header.last_offset >= up_to:
            break
        if header.producer_id < 0:
            continue
        batch = header
        if header.is_control:
            batch = read_batch(segment.file, header.position, header.size)
        completed = apply_leniently(states, batch, segment)
        if completed is not None:
            states.complete(completed)


def apply_leniently(
    states: ProducerStates, batch: Batch, segment: Segment
) -> CompletedTransaction | None:
    """Apply a batch of `segment`; an invalid control record is only logged."""
    try:
        return states.apply(batch)
    except KafkaError as error:
        _logger.warning(
            "ignoring the control batch at offset %d of %s: %s", batch.base_offset, segment, error
        )
        return None


def load_producers(log: LogState) -> ProducerStates:
    """Producer state at the end of a cleanly closed log, from its latest snapshot. Raises OSError."""
    states = log.new_producers()
    end = log.log_end.end_offset
    if log.snapshots.latest is None:
        states.reset(end)  # as in Kafka: a cleanly closed log without a snapshot had no producers
    else:
        rebuild_producers_at(log, states, end)
    return states


def rebuild_producers_at(log: LogState, states: ProducerStates, offset: int) -> None:
    """Set `states` to the producer state when the log ended at `offset`. Raises OSError."""
    start, fresh = log.log_start_offset, log.new_producers()
    log.snapshots.load(fresh, up_to=offset, start=start, now_ms=log.clock.wall_ms())
    replay(fresh, log.segment_list.all, start, offset)
    fresh.replicated_to(log.high_watermark)
    states.replace_with(fresh)
