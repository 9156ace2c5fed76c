"""Bodies that are decompressed together equal those that `protocol.records.compression` decompresses one by one."""

from __future__ import annotations

import random
from typing import Any

import lz4.frame
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.pipeline.decoding.decompression import BLOCK_BYTES, DecompressionBuffer
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress
from odradek.protocol.records.records import MAX_DECOMPRESSED_BYTES

CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
MUCH = b"the same words again and again " * (3 * BLOCK_BYTES // 31)
# Stored uncompressed, because it is not compressible
NOISE = random.Random(1).randbytes(2 * BLOCK_BYTES + 5)
TEXTS = st.one_of(st.binary(max_size=300), st.sampled_from((b"", MUCH, NOISE, MUCH + NOISE)))


ENOUGH = 1 << 20


def together(bodies: list[tuple[int, bytes]]) -> list[bytes]:
    """Return the decompressed bodies; each follows bytes of another body that it must not overwrite."""
    made, found = DecompressionBuffer(ENOUGH), []
    data, codecs, starts, ends = laid_out(bodies)
    number = first = 0
    while number < len(bodies):
        number += made.add_frames(data, codecs[number:], starts[number:], ends[number:])
        if number < len(bodies) and not made.is_full:
            codec, body = bodies[number]
            made.add(codec, memoryview(body))
            number += 1
        texts, text_ends = made.take()
        assert len(text_ends) == number - first
        text_starts = [0, *text_ends][: len(text_ends)]
        found += [bytes(texts[a:b]) for a, b in zip(text_starts, text_ends, strict=True)]
        first = number
    return found


def laid_out(bodies: list[tuple[int, bytes]]) -> tuple[Any, Any, Any, Any]:
    """Return the bodies as in a log: bytes, codecs, starts and ends."""
    data = np.frombuffer(b"".join(b"header" + body for _, body in bodies), np.uint8)
    ends = np.cumsum([6 + len(body) for _, body in bodies], dtype=np.int64)
    starts = ends - [len(body) for _, body in bodies]
    return data, np.array([codec for codec, _ in bodies], np.int16), starts, ends


def frames_added(frames: list[bytes], enough: int = ENOUGH) -> int:
    return DecompressionBuffer(enough).add_frames(*laid_out([(LZ4, frame) for frame in frames]))


@given(st.lists(st.tuples(st.sampled_from(CODECS), TEXTS), max_size=6))
def test_bodies_are_decompressed_in_order(made: list[tuple[int, bytes]]) -> None:
    bodies = [(codec, compress(codec, text)) for codec, text in made]
    assert together(bodies) == [text for _, text in made]


def test_memory_is_reused() -> None:
    made = DecompressionBuffer(ENOUGH)
    for text in (MUCH, NOISE, b"short"):
        assert made.add_frames(*laid_out([(LZ4, compress(LZ4, text))])) == 1
        data, ends = made.take()
        assert bytes(data) == text
        assert list(ends) == [len(text)]


@pytest.mark.parametrize("text", [MUCH, NOISE, b""])
def test_lz4_frames_of_kafka_clients_are_decompressed_together(text: bytes) -> None:
    assert frames_added([compress(LZ4, text)] * 3) == 3


def test_decompression_stops_at_the_limit() -> None:
    assert frames_added([compress(LZ4, MUCH)] * 3, enough=2 * len(MUCH) - 1) == 2


def test_frame_larger_than_the_memory_is_decompressed_separately() -> None:
    frames = [compress(LZ4, b"short"), compress(LZ4, MUCH)]
    assert frames_added(frames, enough=BLOCK_BYTES) == 1
    assert together([(LZ4, compress(LZ4, MUCH * 20))]) == [MUCH * 20]


@pytest.mark.parametrize(
    "words", [{"block_linked": True}, {"content_checksum": True}, {"store_size": True}]
)
def test_other_lz4_frames_are_decompressed_separately(words: dict[str, bool]) -> None:
    settings = {"block_linked": False, "store_size": False} | words
    frame = lz4.frame.compress(MUCH, **settings)
    assert frames_added([frame]) == 0
    assert together([(LZ4, frame)]) == [MUCH]


def test_other_codec_is_never_decompressed_as_lz4() -> None:
    made = DecompressionBuffer(ENOUGH)
    assert made.add_frames(*laid_out([(NONE, compress(LZ4, MUCH))])) == 0


@given(st.data())
def test_corrupt_body_is_refused(data: st.DataObject) -> None:
    frame = bytearray(compress(LZ4, data.draw(st.sampled_from((MUCH[:5000], NOISE[:400])))))
    at = data.draw(st.integers(0, len(frame) - 1))
    change = data.draw(st.sampled_from(("cut", "bit", "more")))
    if change == "cut":
        del frame[at:]
    elif change == "bit":
        frame[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        frame += bytes([at & 0xFF])
    try:
        expected = bytes(decompress(LZ4, bytes(frame), MAX_DECOMPRESSED_BYTES))
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            together([(LZ4, bytes(frame))])
    else:
        assert together([(LZ4, bytes(frame))]) == [expected]
