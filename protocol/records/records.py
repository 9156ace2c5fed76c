"""Records inside a batch: decoded and built only where the semantics need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from odradek.protocol.records.batch import Batch


class Record(NamedTuple):
    """A record as a reader sees it; `timestamp` in ms since the epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def decode(batch: Batch, *, max_bytes: int = 1 << 30) -> list[Record]:
    """The records of a batch; CorruptBatch unless every byte is accounted for.

    `max_bytes` bounds what the records may decompress to.
    """
    raise NotImplementedError


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = 0,
) -> bytearray:
    """A batch of these records; offsets are those of the records, from `base_offset` on."""
    raise NotImplementedError
