"""Tests of ResponseBuffer: responses are independent of the received chunks."""

from __future__ import annotations

import pytest

from odradek.client.connection import MAX_RESPONSE_BYTES, RECEIVE_BYTES, ResponseBuffer
from odradek.protocol.errors import InvalidFrame


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def receive(incoming: ResponseBuffer, data: bytes) -> list[bytes]:
    """Feed `data` in pieces of the receive space, and yield every complete response."""
    responses = []
    while data:
        space = incoming.receive_space()
        piece = data[: len(space)]
        space[: len(piece)] = piece
        incoming.received(len(piece))
        data = data[len(piece) :]
        while (response := incoming.next_response()) is not None:
            responses.append(bytes(response))
    return responses


BODIES = [b"once", b"and again.", (bytes(range(251)) * 300)[: RECEIVE_BYTES + 5]]
STREAM = b"".join(map(framed, BODIES))
ENDS = (8, 22, len(STREAM))
EDGES = (0, *ENDS, RECEIVE_BYTES)
"""Sizes at the end of a response, and at the end of the receive chunk."""
CUTS = sorted({cut for edge in EDGES for cut in range(edge - 8, edge + 9) if 0 < cut < len(STREAM)})


@pytest.mark.parametrize("cut", CUTS)
def test_responses_survive_any_chunking(cut: int) -> None:
    incoming = ResponseBuffer()
    before = receive(incoming, STREAM[:cut])
    assert before == BODIES[: sum(cut >= end for end in ENDS)]
    incoming.receive_space()  # by one who was cancelled
    assert before + receive(incoming, STREAM[cut:]) == BODIES


def test_response_has_its_own_memory() -> None:
    incoming = ResponseBuffer()
    incoming.receive_space()[:8] = framed(b"once")
    incoming.received(8)
    kept = incoming.next_response()
    receive(incoming, framed(b"more"))
    assert kept == b"once"


@pytest.mark.parametrize("size", [-1, 3, MAX_RESPONSE_BYTES + 1])
def test_invalid_size_is_raised_after_valid_responses(size: int) -> None:
    incoming = ResponseBuffer()
    data = framed(b"once") + size.to_bytes(4, "big", signed=True)
    incoming.receive_space()[: len(data)] = data
    incoming.received(len(data))
    assert incoming.next_response() == b"once"
    with pytest.raises(InvalidFrame, match="is this a Kafka listener"):
        incoming.next_response()
