"""Record batches that tests send in Produce requests or append to a log."""

from __future__ import annotations

import time
from typing import Any

from odradek.protocol.records.records import Record, build_batch

NOW_MS = time.time_ns() // 1_000_000
"""Timestamp of transactional records: markers have the current time, and older records would roll a segment."""
OLD_MS = 1_700_000_000_000
"""Timestamp of all other records."""


def batch(
    value: bytes | None = b"v",
    *,
    key: bytes | None = b"k",
    timestamp_ms: int = OLD_MS,
    **fields: Any,
) -> bytes:
    """Return a batch of one record. `fields` are those of the batch, as `build_batch` takes them."""
    return bytes(build_batch([Record(0, timestamp_ms, key, value)], **fields))


def batch_of_size(value_bytes: int = 10) -> bytes:
    """Return a batch of one record without a key, whose value has `value_bytes` bytes."""
    return batch(b"v" * value_bytes, key=None)


def transactional_batch(sequence: int = 0, *, producer_id: int = 5, epoch: int = 0) -> bytes:
    """Return a batch of one record in a transaction of the producer."""
    return batch(
        timestamp_ms=NOW_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
