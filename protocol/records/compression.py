"""Compression with gzip, snappy, lz4 and zstandard, whose libraries are loaded when they are first used.

The compressed formats are those of the Java producer: gzip without name or time, snappy in xerial's frame with blocks of
32 KiB, lz4 frames of independent blocks of 64 KiB without content checksum or size, and zstd without content size.
Decompression also accepts raw snappy, lz4 with checksums, sizes and linked blocks, zstd with a size, and gzip
with several members. The decompressed size is limited before memory is allocated.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Protocol

from odradek.protocol.errors import CorruptBatch, DecompressedRecordsTooLarge
from odradek.seams.files import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names of the codecs in Kafka, by their number in the attributes of a batch."""

DEFAULT_LEVELS = {GZIP: -1, LZ4: 9, ZSTD: 3}

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK = 32 * 1024
_GZIP_PIECE = 16 * 1024
_LZ4_PIECE = 1 << 20
_LENGTH = Struct(">I")
_ZSTD_WINDOW_MAX = 1 << 27  # the default limit of zstd for streams; a header may request more


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` as the Java producer does. A `level` of None is Kafka's default."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return _gzip(data, -1 if level is None else level)
    if codec == SNAPPY:
        return _snappy_xerial(data)
    if codec == LZ4:
        return _lz4(data, 9 if level is None else level)
    if codec == ZSTD:
        return _zstd(data, 3 if level is None else level)
    raise ValueError(f"no codec has the number {codec}")


def decompress(codec: int, data: Buffer, max_bytes: int) -> Buffer:
    """Decompress `data`, or return it unchanged for codec 0 (none).

    Raises CorruptBatch if the data is invalid, truncated or has trailing bytes, and DecompressedRecordsTooLarge if the
    is larger than `max_bytes`.
    """
    if codec == NONE:
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return data
    if codec == GZIP:
        return _gunzip(data, max_bytes)
    if codec == SNAPPY:
        return _unsnappy(memoryview(data), max_bytes)
    if codec == LZ4:
        return _unlz4(data, max_bytes)
    if codec == ZSTD:
        return _unzstd(data, max_bytes)
    raise CorruptBatch(f"no codec has the number {codec}")


def _too_large(max_bytes: int) -> DecompressedRecordsTooLarge:
    return DecompressedRecordsTooLarge(f"records decompress to more than {max_bytes} bytes")


def _gzip(data: Buffer, level: int) -> bytes:
    stream = zlib.compressobj(level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


class _Stream(Protocol):
    """Interface of the decompressors of zlib and lz4."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: Buffer, max_length: int, /) -> bytes: ...


def _gunzip(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    members = []
    remaining = max_bytes
    # A decompressor copies the bytes after the end of its member. So it gets all bytes for the first member, which is
    # usually the only one, and small pieces for later ones, of which malicious data can have very many.
    position, piece_bytes = 0, len(view)
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
    while True:
        piece = view[position : position + piece_bytes]
        try:
            part = stream.decompress(piece, remaining + 1)
        except zlib.error as error:
            raise CorruptBatch(f"gzip: {error}") from None
        remaining -= len(part)
        if remaining < 0:
            raise _too_large(max_bytes)
        members.append(part)
        position += len(piece) - len(stream.unused_data)
        if position == len(view):
            break
        if stream.eof:
            stream, piece_bytes = zlib.decompressobj(16 + zlib.MAX_WBITS), _GZIP_PIECE
    if not stream.eof:
        raise CorruptBatch("gzip: cut short")
    return members[0] if len(members) == 1 else b"".join(members)


def _snappy_xerial(data: Buffer) -> bytes:
    import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = snappy.compress(bytes(view[start : start + _XERIAL_BLOCK]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _unsnappy(data: memoryview, max_bytes: int) -> bytes:
    """Decompress raw snappy, or xerial's frame: a header of 16 bytes, then sizes and blocks."""
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnappy_block(data, max_bytes, max_bytes)
    position, end = len(_XERIAL_HEADER), len(data)
    if end < position:
        raise CorruptBatch("snappy: cut short in xerial's header")
    blocks = []
    remaining = max_bytes
    while position < end:
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)  # concatenated streams, which Java accepts
            continue
        if end - position < _LENGTH.size:
            raise CorruptBatch("snappy: cut short in a block's size")
        (size,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if size > end - position:
            raise CorruptBatch("snappy: cut short in a block")
        block = _unsnappy_block(data[position : position + size], remaining, max_bytes)
        position += size
        remaining -= len(block)
        blocks.append(block)
    return b"".join(blocks)


def _unsnappy_block(block: memoryview, remaining: int, max_bytes: int) -> bytes:
    """Decompress a raw block after checking the size (varint) at its start."""
    import snappy

    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise CorruptBatch("snappy: no size at the start")
    if size > remaining:
        raise _too_large(max_bytes)
    try:
        decompressed: bytes = snappy.decompress(bytes(block))
    except snappy.UncompressError as error:
        raise CorruptBatch(f"snappy: {error.__cause__ or error}") from None
    return decompressed


def _lz4(data: Buffer, level: int) -> bytes:
    import lz4.frame

    # Kafka's default level 9 uses the fast compressor; other levels use the high compressor.
    compressed: bytes = lz4.frame.compress(
        data,
        compression_level=0 if level == DEFAULT_LEVELS[LZ4] else max(level, 3),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        block_checksum=False,
        store_size=False,
    )
    return compressed


def _unlz4(data: Buffer, max_bytes: int) -> bytes:
    import lz4.frame

    stream: _Stream = lz4.frame.LZ4FrameDecompressor()
    parts = []
    left = max_bytes
    # The decompressor allocates the limit of a call, so that a large limit costs more than the decompression.
    piece_bytes = max(4 * len(data), _LZ4_PIECE)
    rest: Buffer = data
    try:
        while part := stream.decompress(rest, min(left + 1, piece_bytes)):
            left -= len(part)
            if left < 0:
                raise _too_large(max_bytes)
            parts.append(part)
            if stream.eof:
                break
            rest = b""
    except RuntimeError as error:
        raise CorruptBatch(f"lz4: {error}") from None
    if not stream.eof:
        raise CorruptBatch("lz4: cut short")
    if stream.unused_data:
        raise CorruptBatch(f"lz4: {len(stream.unused_data)} bytes after the frame")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd(data: Buffer, level: int) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=level, write_content_size=False).compress(data)


def _unzstd(data: Buffer, max_bytes: int) -> bytes:
    import zstandard

    _check_zstd_frames(memoryview(data))
    reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX).stream_reader(
        data, read_across_frames=True
    )
    parts = []
    remaining = max_bytes
    try:
        while part := reader.read(min(remaining + 1, 1 << 17)):
            remaining -= len(part)
            if remaining < 0:
                raise _too_large(max_bytes)
            parts.append(part)
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd: {error}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_zstd_frames(data: memoryview) -> None:
    """Raises unless `data` is complete frames, because the library accepts a truncated one."""
    import zstandard

    position, end = 0, len(data)
    while True:
        if bytes(data[position + 1 : position + 4]) == b"\x2a\x4d\x18":  # a skippable frame
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
        else:
            try:
                header = zstandard.get_frame_parameters(data[position:])
                position += zstandard.frame_header_size(data[position:])
            except (zstandard.ZstdError, ValueError) as error:
                raise CorruptBatch(f"zstd: {error}") from None
            last = False
            while not last and position < end:
                block = int.from_bytes(data[position : position + 3], "little")
                last = block & 1 == 1
                is_run = block >> 1 & 3 == 1
                position += 3 + (1 if is_run else block >> 3)
            if not last:
                raise CorruptBatch("zstd: cut short")
            position += 4 if header.has_checksum else 0
        if position > end:
            raise CorruptBatch("zstd: cut short")
        if position == end:
            return
