"""128-bit hashes of keys, computed for many keys at once.

The offset map identifies keys by these bits only: two keys with equal bits would lose a record. Kafka
uses MD5. This is multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast"): a
key is its length and its 32-bit words; each is multiplied by a random 64-bit number, and the upper half
of the sum is used; four such sums make 128 bits. For any two keys, even chosen by an attacker, the
probability of a collision is 2^-128, because the multipliers are random and secret for each pass. The
cost is one multiplication per word. Keys longer than LONG bytes are hashed with keyed BLAKE2b one by
one.
"""

from __future__ import annotations

import hashlib

import numpy as np

from odradek.storage.compaction.varint_columns import Bits, Bytes, Ints

LONG = 256
"""Bytes of the longest key that is hashed as words."""
SEED_BYTES = 32

_SUMS = 4
_WORD = 4
_HIGH = np.uint64(0xFFFFFFFF00000000)
_HALF = np.uint64(32)
_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], np.uint64)


class KeyHash:
    """The hash of one pass; `seed` is random and secret."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        count = (1 + LONG // _WORD) * _SUMS
        drawn = hashlib.shake_256(seed).digest(8 * count)
        self._multipliers = np.frombuffer(drawn, "<u8").astype(np.uint64).reshape(-1, _SUMS)

    def __call__(self, data: Bytes, starts: Ints, sizes: Ints) -> tuple[Bits, Bits]:
        """Both 64-bit halves for the keys of `sizes` bytes at `starts`; `data` must extend LONG bytes
        past the last key."""
        is_long = sizes > LONG
        if not is_long.any():
            return self._of_words(data, starts, sizes)
        first, second = self._of_words(data, starts, np.where(is_long, 0, sizes))
        for row in np.flatnonzero(is_long).tolist():
            key = data[starts[row] : starts[row] + sizes[row]].tobytes()
            digest = hashlib.blake2b(key, digest_size=16, key=self._seed).digest()
            first[row] = int.from_bytes(digest[:8], "little")
            second[row] = int.from_bytes(digest[8:], "little")
        return first, second

    def _of_words(self, data: Bytes, starts: Ints, sizes: Ints) -> tuple[Bits, Bits]:
        # The word that begins at each byte, whether or not it is aligned.
        word_at = np.ndarray((len(data) - _WORD + 1,), "<u4", data, strides=(1,))
        lengths = sizes.astype(np.uint64)
        sums = [lengths * multiplier for multiplier in self._multipliers[0]]
        longest = int(sizes.max(initial=0))
        shortest = int(sizes.min(initial=0))
        rows: Ints | None = None
        for number, done in enumerate(range(0, longest, _WORD), 1):
            if done >= shortest:
                rows = np.flatnonzero(sizes > done)
                starts_left, left = starts[rows], sizes[rows] - done
            else:
                starts_left, left = starts, sizes - done
            word = word_at[starts_left + done].astype(np.uint64)
            if done + _WORD > shortest:
                word &= _MASKS[np.minimum(left, _WORD)]
            for total, multiplier in zip(sums, self._multipliers[number], strict=True):
                if rows is None:
                    total += word * multiplier
                else:
                    total[rows] += word * multiplier
        return (sums[0] & _HIGH) | (sums[1] >> _HALF), (sums[2] & _HIGH) | (sums[3] >> _HALF)
