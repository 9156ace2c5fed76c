"""Producer snapshots (`<offset>.snapshot`): the state of every producer of a partition.

Layout: i16 version 1, u32 CRC-32C of what follows it, i32 count, 46 bytes an entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ProducerEntry(NamedTuple):
    """A producer; `last_offset` - `offset_delta` is the first offset of its last batch."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode_producer_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    raise NotImplementedError


def decode_producer_snapshot(data: bytes) -> list[ProducerEntry]:
    """Raises InvalidRecord if the version, the checksum or the size is wrong."""
    raise NotImplementedError
