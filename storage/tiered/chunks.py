"""Chunks of a log: each is compressed, encrypted and read independently.

A chunk is a fixed number of bytes of the log (the last one is smaller), compressed and then
encrypted. The object has the chunks one after another, and the manifest has their stored sizes, so
that a range of the log maps to a range of chunks. A chunk that does not decode to its original size
is corrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING

from odradek.seams.files import Buffer
from odradek.seams.values import value_class
from odradek.storage.tiered.errors import CorruptChunk

if TYPE_CHECKING:
    from odradek.storage.tiered.encryption import SegmentCipher

CHUNK_BYTES = 1 << 20


class Compression(Enum):
    NONE = "none"
    ZSTD = "zstd"
    LZ4 = "lz4"


class ChunkTable:
    """Positions of a log's chunks in its object."""

    def __init__(self, log_bytes: int, chunk_bytes: int, stored_sizes: Sequence[int]) -> None:
        """Raises ValueError if the number of chunks does not match the size of the log."""
        if chunk_bytes < 1 or len(stored_sizes) != -(-log_bytes // chunk_bytes):
            raise ValueError(
                f"{len(stored_sizes)} chunks of {chunk_bytes} bytes cannot be a log of {log_bytes} bytes"
            )
        self.log_bytes = log_bytes
        self.chunk_bytes = chunk_bytes
        self._positions = [0, *accumulate(stored_sizes)]

    @property
    def stored_bytes(self) -> int:
        return self._positions[-1]

    def chunks_of(self, start: int, end: int) -> list[Chunk]:
        """Chunks with the log's bytes from `start` to before `end`."""
        numbers = range(start // self.chunk_bytes, -(-end // self.chunk_bytes))
        return [self._chunk(number) for number in numbers]

    def _chunk(self, number: int) -> Chunk:
        start, position = number * self.chunk_bytes, self._positions[number]
        size = min(self.chunk_bytes, self.log_bytes - start)
        return Chunk(number, start, size, position, self._positions[number + 1] - position)


@value_class
class Chunk:
    number: int
    start: int
    """Position of its first byte in the log."""
    size: int
    position: int
    """Position in the object."""
    stored_size: int


class ChunkCodec:
    """Compresses and encrypts the files of one segment, and decodes them."""

    def __init__(self, compression: Compression, cipher: SegmentCipher | None) -> None:
        self._compression = compression
        self._cipher = cipher

    def encode_chunk(self, suffix: str, number: int, plain: Buffer) -> Buffer:
        """Compress and encrypt a chunk of the log."""
        return self.encrypt(suffix, number, _COMPRESS[self._compression](plain))

    def encrypt(self, suffix: str, number: int, plain: Buffer) -> Buffer:
        """Encrypt a file that is not compressed."""
        return plain if self._cipher is None else self._cipher.encrypt(suffix, number, plain)

    def decode_chunk(self, suffix: str, number: int, stored: Buffer, size: int) -> Buffer:
        """Decrypt and decompress a chunk of the log. Raises CorruptChunk."""
        plain = _DECOMPRESS[self._compression](self.decrypt(suffix, number, stored), size)
        if len(plain) != size:
            raise CorruptChunk(f"expected {size} bytes, but found {len(plain)}")
        return plain

    def decrypt(self, suffix: str, number: int, stored: Buffer) -> Buffer:
        return stored if self._cipher is None else self._cipher.decrypt(suffix, number, stored)


def _unchanged(data: Buffer, size: int = 0) -> Buffer:
    return data


def _zstd(data: Buffer) -> Buffer:
    from zstandard import ZstdCompressor

    return ZstdCompressor(write_checksum=True).compress(data)


def _unzstd(data: Buffer, size: int) -> Buffer:
    from zstandard import ZstdDecompressor, ZstdError, frame_content_size

    try:
        if frame_content_size(data) != size:  # checked first, because it limits the memory
            raise CorruptChunk(
                f"expected a zstd frame of {size} bytes, but found {frame_content_size(data)}"
            )
        return ZstdDecompressor().decompress(data, max_output_size=size)
    except ZstdError as error:
        raise CorruptChunk(f"zstd: {error}") from error


def _lz4(data: Buffer) -> Buffer:
    from lz4.frame import compress

    compressed: bytes = compress(data, content_checksum=True)
    return compressed


def _unlz4(data: Buffer, size: int) -> Buffer:
    from lz4.frame import decompress, get_frame_info

    try:
        content_size = get_frame_info(data)["content_size"]
        if content_size != size:
            raise CorruptChunk(f"expected an lz4 frame of {size} bytes, but found {content_size}")
        decompressed: bytes = decompress(data)
    except RuntimeError as error:
        raise CorruptChunk(f"lz4: {error}") from error
    return decompressed


_COMPRESS: dict[Compression, Callable[[Buffer], Buffer]] = {
    Compression.NONE: _unchanged,
    Compression.ZSTD: _zstd,
    Compression.LZ4: _lz4,
}
_DECOMPRESS: dict[Compression, Callable[[Buffer, int], Buffer]] = {
    Compression.NONE: _unchanged,
    Compression.ZSTD: _unzstd,
    Compression.LZ4: _unlz4,
}
