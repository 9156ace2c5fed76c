"""Map from keys to their last offset, in a fixed amount of memory (Kafka's SkimpyOffsetMap).

An open-addressing table with 24 bytes per slot, as in Kafka: 128 bits of the key (key_hash.py), and the
offset plus one, where 0 is an empty slot. The number of slots is prime and each key has its own step, so
probing reaches every slot; at Kafka's load factor of 0.9 a key is found with three probes on average.
Many keys are processed at once: each round probes once for every unfinished key.

The table is one zeroed array, so unused pages need no memory.
"""

from __future__ import annotations

import numpy as np

from odradek.storage.compaction.varint_columns import Bits, Ints

SLOT_BYTES = 24

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_SLOTS_MAX = (1 << 32) - 5
_KEY, _KEY_TOO, _OFFSET = range(3)


class OffsetMap:
    """Offset map with a fixed number of slots. `size` is the number of keys; callers keep it below
    `slots`."""

    def __init__(self, slots: int) -> None:
        self.slots = _prime_up_to(min(max(slots, 2), _SLOTS_MAX))
        self.size = 0
        self._table = np.zeros((self.slots, 3), np.uint64)

    def put(self, first: Bits, second: Bits, offsets: Ints) -> None:
        """Store offsets, which ascend; the largest offset of a key is kept."""
        places, steps = self._probes(first, second)
        values = (offsets + 1).astype(np.uint64)
        table = self._table
        while values.size:
            empty = np.flatnonzero(table[places, _OFFSET] == 0)
            if empty.size:
                # Of several that want the same slot one gets it; who, is read afterwards.
                wanted = places[empty]
                table[wanted, _OFFSET] = values[empty]
                won = empty[table[wanted, _OFFSET] == values[empty]]
                table[places[won], _KEY] = first[won]
                table[places[won], _KEY_TOO] = second[won]
                self.size += won.size
            found = table.take(places, axis=0)
            is_here = (found[:, _KEY] == first) & (found[:, _KEY_TOO] == second)
            newer = np.flatnonzero(is_here & (found[:, _OFFSET] < values))
            while newer.size:  # once, for of a key's several offsets the last is written last
                table[places[newer], _OFFSET] = values[newer]
                newer = newer[table[places[newer], _OFFSET] < values[newer]]
            left = np.flatnonzero(~is_here)
            first, second, values = first[left], second[left], values[left]
            places, steps = self._next(places[left], steps[left]), steps[left]

    def get(self, first: Bits, second: Bits) -> Ints:
        """Offset of each key; -1 if the key is not in the map."""
        result = np.full(first.size, -1, np.int64)
        rows = np.arange(first.size)
        places, steps = self._probes(first, second)
        while rows.size:
            found = self._table.take(places, axis=0)
            is_here = (found[:, _KEY] == first) & (found[:, _KEY_TOO] == second)
            is_used = found[:, _OFFSET] != 0
            result[rows[is_here & is_used]] = found[is_here & is_used, _OFFSET].astype(np.int64) - 1
            left = np.flatnonzero(~is_here & is_used)
            rows, first, second = rows[left], first[left], second[left]
            places, steps = self._next(places[left], steps[left]), steps[left]
        return result

    def _probes(self, first: Bits, second: Bits) -> tuple[Ints, Ints]:
        """First slot and step, from different bits of the key."""
        places = ((first >> _HALF) * np.uint64(self.slots)) >> _HALF
        steps = (((second & _LOW) * np.uint64(self.slots - 1)) >> _HALF) + np.uint64(1)
        return places.astype(np.int64), steps.astype(np.int64)

    def _next(self, places: Ints, steps: Ints) -> Ints:
        further = places + steps
        further[further >= self.slots] -= self.slots
        return further


def _prime_up_to(number: int) -> int:
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number
