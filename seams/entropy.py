"""Entropy seam: the operating system's random numbers, or those of a simulation's seed."""

from __future__ import annotations

import random
from typing import Protocol
from uuid import UUID


class Entropy(Protocol):
    def uuid(self) -> UUID:
        """Return a version 4 UUID whose base64 form does not start with '-' (Kafka's Uuid.randomUuid)."""
        ...

    def below(self, bound: int) -> int:
        """Return an integer in range(bound)."""
        ...

    def uniform(self, low: float, high: float) -> float: ...

    def bytes(self, count: int) -> bytes: ...


class SeededEntropy:
    """Entropy from a seeded random source."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def uuid(self) -> UUID:
        while True:
            drawn = UUID(int=self._source.getrandbits(128), version=4)
            # 62 is '-' in base64url, which starts an option on command lines
            if drawn.bytes[0] >> 2 != 62:
                return drawn

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)


class RealEntropy(SeededEntropy):
    def __init__(self) -> None:
        super().__init__(random.SystemRandom())

    def bytes(self, count: int) -> bytes:
        return random.SystemRandom().getrandbits(8 * count).to_bytes(count, "big")
