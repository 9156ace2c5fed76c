"""gzip, snappy, lz4, zstandard, each imported when first used."""

from __future__ import annotations

from odradek.seams.files import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""Kafka's names of the codecs, by their number in a batch's attributes."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` as Java's producer would have compressed it; `level` None is Kafka's default."""
    raise NotImplementedError


def decompress(codec: int, data: Buffer, max_bytes: int) -> bytes:
    """What `data` decompresses to, at most `max_bytes`; CorruptBatch otherwise."""
    raise NotImplementedError
