"""Partitioner of the producer: murmur2 of the key, as in Kafka's Java producer.

Records without a key go to one partition until a batch of it is sent, and then to another (KIP-480), which gives
fewer and larger batches.
"""

from __future__ import annotations

from odradek.seams.entropy import Entropy

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Unsigned 32-bit hash of Kafka's clients."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little")
        k = (k * _M) & _MASK
        k ^= k >> 24
        k = (k * _M) & _MASK
        value = ((value * _M) & _MASK) ^ k
    if whole < length:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * _M) & _MASK
    value ^= value >> 13
    value = (value * _M) & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Partition of a key in a topic with `partitions` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitions:
    """Current partition of each topic for records without a key."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._current: dict[str, int] = {}

    def current(self, topic: str, partitions: int) -> int:
        chosen = self._current.get(topic, -1)
        if not 0 <= chosen < partitions:
            chosen = self._current[topic] = self._entropy.below(partitions)
        return chosen

    def move_on(self, topic: str, partition: int) -> None:
        """Choose another partition after a batch of this one was taken."""
        if self._current.get(topic) == partition:
            del self._current[topic]
