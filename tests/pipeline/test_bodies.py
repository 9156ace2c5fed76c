"""Bodies decompressed side by side are what `protocol.records.compression` makes of each."""

from __future__ import annotations

import random

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.pipeline.decoding.bodies import BLOCK_BYTES, Bodies, lz4_blocks
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress
from odradek.protocol.records.records import MAX_DECOMPRESSED_BYTES

CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
MUCH = b"the same words again and again " * (3 * BLOCK_BYTES // 31)
NOISE = random.Random(1).randbytes(
    2 * BLOCK_BYTES + 5
)  # kept as it is: nothing of it can be compressed
TEXTS = st.one_of(st.binary(max_size=300), st.sampled_from((b"", MUCH, NOISE, MUCH + NOISE)))


def together(bodies: list[tuple[int, bytes]]) -> list[bytes]:
    made = Bodies(1 << 20)
    for codec, body in bodies:
        made.add(codec, memoryview(body))
    data, ends = made.take()
    assert made.size == 0
    starts = [0, *ends][: len(ends)]
    return [bytes(data[start:end]) for start, end in zip(starts, ends, strict=True)]


@given(st.lists(st.tuples(st.sampled_from(CODECS), TEXTS), max_size=6))
def test_each_is_there_in_their_order(made: list[tuple[int, bytes]]) -> None:
    bodies = [(codec, compress(codec, text)) for codec, text in made]
    assert together(bodies) == [text for _, text in made]


def test_the_memory_is_used_again() -> None:
    made = Bodies(1 << 20)
    for text in (MUCH, NOISE, b"short"):
        made.add(LZ4, memoryview(compress(LZ4, text)))
        data, ends = made.take()
        assert bytes(data) == text
        assert list(ends) == [len(text)]


@pytest.mark.parametrize("text", [MUCH, NOISE, b""])
def test_frames_of_kafkas_clients_are_taken_apart(text: bytes) -> None:
    blocks = lz4_blocks(memoryview(compress(LZ4, text)))
    assert blocks is not None
    assert len(blocks) == -(-len(text) // BLOCK_BYTES)


@pytest.mark.parametrize(
    "words", [{"block_linked": True}, {"content_checksum": True}, {"store_size": True}]
)
def test_other_frames_go_the_long_way(words: dict[str, bool]) -> None:
    settings = {"block_linked": False, "store_size": False} | words
    frame = lz4.frame.compress(MUCH, **settings)
    assert lz4_blocks(memoryview(frame)) is None
    assert together([(LZ4, frame)]) == [MUCH]


@given(st.data())
def test_what_is_broken_is_refused_as_everywhere(data: st.DataObject) -> None:
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
