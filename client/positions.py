"""Partitions, and what is said in place of a time when offsets are asked for (`consumer.list_offsets`): for those, too,
who name them without asking a broker, and want no client for that.
"""

from __future__ import annotations

from typing import NamedTuple

LATEST = -1
"""For `list_offsets`: the end (under read_committed, the last stable offset)."""
EARLIEST = -2
"""For `list_offsets`: the first offset that can be read."""
MAX_TIMESTAMP = -3
"""For `list_offsets`: the record with the largest timestamp."""
EARLIEST_LOCAL = -4
"""For `list_offsets`: the first offset on the broker's own disk (KIP-405)."""
LATEST_TIERED = -5
"""For `list_offsets`: the last offset in the remote tier (KIP-1005)."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
