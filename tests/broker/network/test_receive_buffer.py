"""Tests that frames are received unchanged in any fragmentation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.broker.network.receive_buffer import (
    BUSY_BYTES,
    FIRST_BYTES,
    GROWTH,
    KEPT_BYTES,
    ReceiveBuffer,
)
from odradek.protocol.errors import InvalidFrame


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def feed(buffer: ReceiveBuffer, data: bytes) -> list[bytes]:
    """Write `data` into the buffer as far as there is space, and take out each complete frame."""
    frames = []
    position = 0
    while position < len(data):
        free_space = buffer.free_space()
        piece = data[position : position + len(free_space)]
        free_space[: len(piece)] = piece
        buffer.received(len(piece))
        position += len(piece)
        while (frame := buffer.next_frame()) is not None:
            frames.append(bytes(frame))
    return frames


@given(
    payloads=st.lists(st.binary(max_size=40_000), max_size=8),
    cuts=st.lists(st.integers(1, 5_000), min_size=1),
)
def test_frames_survive_any_fragmentation(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, payloads))
    buffer = ReceiveBuffer(100_000)
    frames, position, turn = [], 0, 0
    while position < len(stream):
        cut = cuts[turn % len(cuts)]
        frames += feed(buffer, stream[position : position + cut])
        position, turn = position + cut, turn + 1
    assert frames == payloads


def test_buffer_grows_with_received_bytes_only() -> None:
    buffer = ReceiveBuffer(100_000_000)
    feed(buffer, (50_000_000).to_bytes(4, "big"))
    assert len(buffer.free_space()) <= FIRST_BYTES
    feed(buffer, bytes(1_000_000))
    assert 1_000_000 <= len(buffer.free_space()) <= GROWTH * 1_000_004


def test_grown_buffer_receives_next_large_frame_at_once() -> None:
    buffer = ReceiveBuffer(10_000_000)
    feed(buffer, framed(bytes(3_000_000)))
    assert len(buffer.free_space()) >= 3_000_004


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "frames", [[bytes(2 * BUSY_BYTES)], [bytes(100)] * 20_000], ids=["a large one", "many"]
)
def test_memory_of_taken_frames_is_released_on_request(frames: list[bytes]) -> None:
    buffers = [ReceiveBuffer(10 * BUSY_BYTES) for _ in range(32)]
    stream = b"".join(map(framed, frames))
    before = resident_bytes()
    for buffer in buffers:
        feed(buffer, stream)
    taken = resident_bytes() - before
    assert taken > 20 * BUSY_BYTES
    for buffer in buffers:
        free_space = buffer.free_space()
        buffer.give_back()
        free_space[:5] = framed(b"x")
        buffer.received(5)
        assert buffer.next_frame() == b"x", "the space that was returned before stays valid"
    assert resident_bytes() - before < taken / 10


def test_memory_of_incomplete_frame_is_not_released() -> None:
    buffer = ReceiveBuffer(10 * BUSY_BYTES)
    large = framed(bytes(range(256)) * 10_000)
    assert feed(buffer, large[:-1]) == []
    buffer.give_back()
    assert feed(buffer, large[-1:]) == [large[4:]]


def test_memory_of_huge_frame_is_released() -> None:
    buffer = ReceiveBuffer(2 * KEPT_BYTES)
    feed(buffer, framed(bytes(2 * KEPT_BYTES)))
    assert len(buffer.free_space()) <= BUSY_BYTES


@pytest.mark.parametrize("size", [-1, 101, 0x47455420])  # the last is "GET "
def test_invalid_size_is_rejected_before_allocation(size: int) -> None:
    buffer = ReceiveBuffer(100)
    with pytest.raises(InvalidFrame, match="limit is 100"):
        feed(buffer, size.to_bytes(4, "big", signed=True) + b"/")


@pytest.mark.parametrize(
    ("start", "name"), [(b"GET / HTTP/1.1\r\n", "HTTP"), (b"\x16\x03\x01\x02\x00\x01", "TLS")]
)
def test_other_protocol_is_named_in_the_error(start: bytes, name: str) -> None:
    with pytest.raises(InvalidFrame, match=f"the client uses {name}"):
        feed(ReceiveBuffer(100), start)


def test_oversized_frame_is_rejected_when_complete() -> None:
    buffer = ReceiveBuffer(100)
    assert feed(buffer, framed(bytes(100))) == [bytes(100)]
    with pytest.raises(InvalidFrame, match="limit is 100"):
        feed(buffer, framed(bytes(101)))
