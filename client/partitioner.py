"""Which partition a record goes to: murmur2 of the key, as Java's producer has it.

Records without a key go to one partition until a batch has been taken from it, then to another
(KIP-480): few full batches rather than many small ones.
"""

from __future__ import annotations

from odradek.seams.entropy import Entropy

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash (unsigned) that Kafka's clients share."""
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
    """The partition of a key among `partitions` of them."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitions:
    """The partition that a topic's records without keys go to at the moment."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._current: dict[str, int] = {}

    def current(self, topic: str, partitions: int) -> int:
        chosen = self._current.get(topic, -1)
        if not 0 <= chosen < partitions:
            chosen = self._current[topic] = self._entropy.below(partitions)
        return chosen

    def move_on(self, topic: str, partition: int) -> None:
        """A batch was taken from this partition: choose anew for the next record."""
        if self._current.get(topic) == partition:
            del self._current[topic]
