"""Answers come out as they went in, whatever pieces they arrive in."""

from __future__ import annotations

import pytest

from odradek.client.connection import MAX_RESPONSE_BYTES, RECEIVE_BYTES, ResponseBuffer
from odradek.protocol.errors import InvalidFrame


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def receive(incoming: ResponseBuffer, data: bytes) -> list[bytes]:
    """Put `data` in as far as each room reaches, taking out every answer that is whole."""
    responses = []
    while data:
        room = incoming.receive_space()
        piece = data[: len(room)]
        room[: len(piece)] = piece
        incoming.received(len(piece))
        data = data[len(piece) :]
        while (respond := incoming.next_response()) is not None:
            responses.append(bytes(respond))
    return responses


BODIES = [b"once", b"and again.", (bytes(range(251)) * 300)[: RECEIVE_BYTES + 5]]
STREAM = b"".join(map(framed, BODIES))
ENDS = (8, 22, len(STREAM))
EDGES = (0, *ENDS, RECEIVE_BYTES)
"""Where an answer ends, and the memory that the small ones are received into."""
CUTS = sorted({cut for edge in EDGES for cut in range(edge - 8, edge + 9) if 0 < cut < len(STREAM)})


@pytest.mark.parametrize("cut", CUTS)
def test_answers_survive_any_cut(cut: int) -> None:
    incoming = ResponseBuffer()
    before = receive(incoming, STREAM[:cut])
    assert before == BODIES[: sum(cut >= end for end in ENDS)]
    incoming.receive_space()  # by one who was cancelled
    assert before + receive(incoming, STREAM[cut:]) == BODIES


def test_an_answer_is_its_owners_to_keep() -> None:
    incoming = ResponseBuffer()
    incoming.receive_space()[:8] = framed(b"once")
    incoming.received(8)
    kept = incoming.next_response()
    receive(incoming, framed(b"more"))
    assert kept == b"once"


@pytest.mark.parametrize("size", [-1, 3, MAX_RESPONSE_BYTES + 1])
def test_garbage_is_told_behind_what_came_before_it(size: int) -> None:
    incoming = ResponseBuffer()
    data = framed(b"once") + size.to_bytes(4, "big", signed=True)
    incoming.receive_space()[: len(data)] = data
    incoming.received(len(data))
    assert incoming.next_response() == b"once"
    with pytest.raises(InvalidFrame, match="is this a Kafka listener"):
        incoming.next_response()
