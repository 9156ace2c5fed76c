"""A log in chunks: each is compressed, encrypted and read by itself.

A chunk is so many bytes of the log (the last one fewer), compressed and then encrypted, in one object
one after the other. How large each became is in the manifest: any range of the log is a range of
chunks. What comes back must have the size it had, or it is corrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING

from odradek.seams.files import Buffer
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.storage.tiered.encryption import SegmentCipher

CHUNK_BYTES = 1 << 20


class Compression(Enum):
    NONE = "none"
    ZSTD = "zstd"
    LZ4 = "lz4"


class CorruptChunk(ValueError):
    """It does not decrypt, decompress, or have the size that it had."""


class ChunkTable:
    """Where the chunks of a log lie in its object."""

    def __init__(self, log_bytes: int, chunk_bytes: int, stored_sizes: Sequence[int]) -> None:
        """ValueError if that many chunks are not that log's."""
        if chunk_bytes < 1 or len(stored_sizes) != -(-log_bytes // chunk_bytes):
            raise ValueError(
                f"{len(stored_sizes)} chunks of {chunk_bytes} bytes for a log of {log_bytes}"
            )
        self.log_bytes = log_bytes
        self.chunk_bytes = chunk_bytes
        self._positions = [0, *accumulate(stored_sizes)]

    @property
    def stored_bytes(self) -> int:
        return self._positions[-1]

    def span(self, start: int, end: int) -> list[Chunk]:
        """The chunks that have the log's bytes from `start` up to, not including, `end`."""
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
    """Its first byte's position in the log."""
    size: int
    position: int
    """In the object."""
    stored_size: int


class ChunkCodec:
    """What is done to the bytes of one segment on their way to the store, and undone on the way back."""

    def __init__(self, compression: Compression, cipher: SegmentCipher | None) -> None:
        self._compression = compression
        self._cipher = cipher

    def encode_chunk(self, suffix: str, number: int, plain: Buffer) -> Buffer:
        """One of the log's."""
        return self.encrypt(suffix, number, _COMPRESS[self._compression](plain))

    def encrypt(self, suffix: str, number: int, plain: Buffer) -> Buffer:
        """What is not compressed."""
        return plain if self._cipher is None else self._cipher.encrypt(suffix, number, plain)

    def decode_chunk(self, suffix: str, number: int, stored: Buffer, size: int) -> Buffer:
        """Raises BrokenChunk."""
        plain = _DECOMPRESS[self._compression](self.decrypt(suffix, number, stored), size)
        if len(plain) != size:
            raise CorruptChunk(f"{len(plain)} bytes instead of {size}")
        return plain

    def decrypt(self, suffix: str, number: int, stored: Buffer) -> Buffer:
        return stored if self._cipher is None else self._cipher.decrypt(suffix, number, stored)


def _as_it_is(data: Buffer, size: int = 0) -> Buffer:
    return data


def _zstd(data: Buffer) -> Buffer:
    from zstandard import ZstdCompressor

    return ZstdCompressor(write_checksum=True).compress(data)


def _unzstd(data: Buffer, size: int) -> Buffer:
    from zstandard import ZstdDecompressor, ZstdError, frame_content_size

    try:
        if frame_content_size(data) != size:  # which decides how much memory it takes
            raise CorruptChunk(f"a zstd frame of {frame_content_size(data)} bytes, not {size}")
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
        said = get_frame_info(data)["content_size"]
        if said != size:
            raise CorruptChunk(f"an lz4 frame of {said} bytes, not {size}")
        decompressed: bytes = decompress(data)
    except RuntimeError as error:
        raise CorruptChunk(f"lz4: {error}") from error
    return decompressed


_COMPRESS: dict[Compression, Callable[[Buffer], Buffer]] = {
    Compression.NONE: _as_it_is,
    Compression.ZSTD: _zstd,
    Compression.LZ4: _lz4,
}
_DECOMPRESS: dict[Compression, Callable[[Buffer, int], Buffer]] = {
    Compression.NONE: _as_it_is,
    Compression.ZSTD: _unzstd,
    Compression.LZ4: _unlz4,
}
