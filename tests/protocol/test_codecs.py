"""gzip, snappy, lz4 and zstd: Java's formats are read, and decompression bombs are rejected with bounded memory."""

from __future__ import annotations

import gzip
import struct
import zlib
from contextlib import suppress

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.errors import CorruptBatch, DecompressedRecordsTooLarge
from odradek.protocol.records.compression import (
    GZIP,
    LZ4,
    NAMES,
    NONE,
    SNAPPY,
    ZSTD,
    compress,
    decompress,
)

CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
TEXT = b"the quick brown fox jumps over the lazy dog; " * 3000
XERIAL = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"


def named(codec: int) -> str:
    return NAMES[codec]


@pytest.mark.parametrize("codec", CODECS, ids=named)
@given(data=st.binary(max_size=3000), repeated=st.integers(1, 60))
def test_compressed_data_is_decompressed(codec: int, data: bytes, repeated: int) -> None:
    plain = data * repeated
    packed = compress(codec, plain)
    for form in (packed, bytearray(packed), memoryview(packed)):
        assert bytes(decompress(codec, form, len(plain))) == plain
    if plain:
        with pytest.raises(CorruptBatch, match="more than"):
            decompress(codec, packed, len(plain) - 1)


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_truncated_data_or_trailing_bytes_are_corrupt(codec: int) -> None:
    packed = compress(codec, TEXT)
    ends = {*range(40), len(packed) // 2, len(packed) - 1}
    if codec == SNAPPY:
        ends.remove(len(XERIAL))  # a frame without blocks
    for end in ends:
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:end], 1 << 20)
    for garbage in (b"x", b"\0\0", b"garbage garbage"):
        with pytest.raises(CorruptBatch):
            decompress(codec, packed + garbage, 1 << 20)


@pytest.mark.parametrize("codec", CODECS, ids=named)
@given(raw=st.binary(max_size=100), data=st.data())
def test_random_bytes_decompress_or_are_corrupt(
    codec: int, raw: bytes, data: st.DataObject
) -> None:
    with suppress(CorruptBatch):
        assert len(decompress(codec, raw, 10_000)) <= 10_000
    changed = bytearray(compress(codec, TEXT[:5000]))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptBatch):
        assert len(decompress(codec, changed, 10_000)) <= 10_000


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_decompression_bomb_is_rejected(codec: int) -> None:
    bomb = compress(codec, bytes(1 << 25))
    with pytest.raises(CorruptBatch, match="more than"):
        decompress(codec, bomb, 1 << 16)


def test_codec_none_returns_data_unchanged() -> None:
    assert compress(NONE, memoryview(b"abc")) == b"abc"
    same = memoryview(b"abc")
    assert decompress(NONE, same, 3) is same
    with pytest.raises(CorruptBatch):
        decompress(NONE, same, 2)


def test_unknown_codec_is_rejected() -> None:
    with pytest.raises(CorruptBatch):
        decompress(5, b"", 1)
    with pytest.raises(ValueError, match="5"):
        compress(5, b"")


def test_gzip_header_is_empty_and_members_are_read() -> None:
    packed = compress(GZIP, TEXT)
    assert packed[:8] == b"\x1f\x8b\x08\0\0\0\0\0"
    assert gzip.decompress(packed) == TEXT
    assert decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 6) == b"onetwo"
    with pytest.raises(CorruptBatch, match="more than"):
        decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 5)
    with pytest.raises(CorruptBatch):
        decompress(GZIP, zlib.compress(TEXT), 1 << 20)


def test_gzip_with_many_members_is_not_copied_per_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a copy per member, 1 MiB of empty members took 3 s, and 8 MiB took 3 minutes."""
    members = 10_000
    data = gzip.compress(b"") * members + gzip.compress(b"last")
    copied = [0]

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._stream = zlib_stream(wbits)
            self.eof = False
            self.unused_data = b""

        def decompress(self, piece: memoryview, max_length: int) -> bytes:
            found = self._stream.decompress(piece, max_length)
            self.eof, self.unused_data = self._stream.eof, self._stream.unused_data
            copied[0] += len(self.unused_data)
            return found

    zlib_stream = zlib.decompressobj
    monkeypatch.setattr("odradek.protocol.records.compression.zlib.decompressobj", Counting)
    assert decompress(GZIP, data, 4) == b"last"
    assert copied[0] < members * 16 * 1024 + len(data)


def test_gzip_level_affects_the_size() -> None:
    assert len(compress(GZIP, TEXT, 1)) >= len(compress(GZIP, TEXT, 9))


def test_snappy_is_written_in_xerial_frame() -> None:
    packed = compress(SNAPPY, TEXT)
    assert packed.startswith(XERIAL)
    (size,) = struct.unpack_from(">i", packed, 16)
    assert snappy.decompress(packed[20 : 20 + size]) == TEXT[: 32 * 1024]
    assert compress(SNAPPY, b"") == XERIAL


def test_snappy_is_read_with_and_without_frame() -> None:
    assert decompress(SNAPPY, snappy.compress(TEXT), len(TEXT)) == TEXT
    assert decompress(SNAPPY, compress(SNAPPY, b"one") + compress(SNAPPY, b"two"), 6) == b"onetwo"


@pytest.mark.parametrize(
    "block", [b"", b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x0f", b"\x05ab"]
)
def test_snappy_block_with_wrong_size_is_corrupt(block: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decompress(SNAPPY, block, 1 << 20)
    with pytest.raises(CorruptBatch):
        decompress(SNAPPY, XERIAL + struct.pack(">I", len(block)) + block, 1 << 20)


def test_snappy_frame_with_wrong_block_size_is_corrupt() -> None:
    for size in (2**31 - 1, 2**32 - 1, 10):
        with pytest.raises(CorruptBatch):
            decompress(SNAPPY, XERIAL + struct.pack(">I", size) + b"abc", 1 << 20)


def test_lz4_frame_equals_that_of_java_producer() -> None:
    packed = compress(LZ4, TEXT)
    info = lz4.frame.get_frame_info(packed)
    assert info["block_size"] == 64 * 1024
    assert not info["block_linked"]
    assert not info["content_checksum"]
    assert not info["block_checksum"]
    assert info["content_size"] == 0
    assert lz4.frame.decompress(compress(LZ4, TEXT, 12)) == TEXT


@pytest.mark.parametrize("content_checksum", [False, True])
@pytest.mark.parametrize("block_checksum", [False, True])
@pytest.mark.parametrize("block_linked", [False, True])
@pytest.mark.parametrize("store_size", [False, True])
def test_lz4_frame_options_are_read(
    content_checksum: bool, block_checksum: bool, block_linked: bool, store_size: bool
) -> None:
    packed = lz4.frame.compress(
        TEXT,
        content_checksum=content_checksum,
        block_checksum=block_checksum,
        block_linked=block_linked,
        store_size=store_size,
    )
    assert decompress(LZ4, packed, len(TEXT)) == TEXT


def test_lz4_content_checksum_is_verified() -> None:
    packed = bytearray(lz4.frame.compress(TEXT, content_checksum=True))
    packed[-1] ^= 1
    with pytest.raises(CorruptBatch):
        decompress(LZ4, packed, len(TEXT))


def test_zstd_is_written_without_content_size() -> None:
    packed = compress(ZSTD, TEXT)
    parameters = zstandard.get_frame_parameters(packed)
    assert parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert zstandard.ZstdDecompressor().decompressobj().decompress(packed) == TEXT


def test_zstd_with_size_checksum_or_frames_is_read() -> None:
    sized = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    assert decompress(ZSTD, sized, len(TEXT)) == TEXT
    twice = compress(ZSTD, b"one") + sized
    assert decompress(ZSTD, twice, len(TEXT) + 3) == b"one" + TEXT
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0xyz"
    assert decompress(ZSTD, skippable + sized, len(TEXT)) == TEXT
    with pytest.raises(CorruptBatch):
        decompress(ZSTD, sized[:-1], len(TEXT))


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_limit_is_exact_for_data_that_decompresses_to_much_more(codec: int) -> None:
    """The decompressed data has several times the size that a decompressor allocates at once."""
    data = bytes(9 << 20)
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    with pytest.raises(DecompressedRecordsTooLarge):
        decompress(codec, compressed, len(data) - 1)
