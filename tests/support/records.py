"""Record batches that tests send in Produce requests."""

from __future__ import annotations

import time
from typing import Any

from odradek.protocol.records.records import Record, build_batch


def batch(**changes: Any) -> bytes:
    record = Record(offset=0, timestamp=1_700_000_000_000, key=b"k", value=b"v", headers=())
    return bytes(build_batch([record], **changes))


NOW_MS = time.time_ns() // 1_000_000
"""Timestamp of the records: markers have the current time, and older records would roll a segment."""


def transactional_batch(sequence: int = 0, *, producer_id: int = 5, epoch: int = 0) -> bytes:
    record = Record(offset=0, timestamp=NOW_MS, key=b"k", value=b"v", headers=())
    return bytes(
        build_batch(
            [record],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )
