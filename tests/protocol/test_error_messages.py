"""Error messages that quote long names from requests."""

from __future__ import annotations

import pytest

from odradek.protocol import messages
from odradek.protocol.apis import CREATE_TOPICS
from odradek.protocol.codec.primitives import ERROR_MESSAGE_MAX_CHARS
from odradek.protocol.produce_response_writer import ProducedPartition, write_produce_response

LONG = "é" * 40_000


@pytest.mark.parametrize("version", [2, 5, 7])
def test_error_message_longer_than_a_string_is_cut(version: int) -> None:
    """32,767 bytes is the limit of a string before flexible versions, and of clients after them."""
    topic = {"name": "t", "error_code": 17, "error_message": LONG}
    body = messages.write_response(CREATE_TOPICS.key, version, {"topics": [topic]})
    assert LONG[:ERROR_MESSAGE_MAX_CHARS].encode() in body
    assert len(body) < 32_767


def test_error_message_of_normal_length_is_written_whole() -> None:
    message = "x" * ERROR_MESSAGE_MAX_CHARS
    topic = {"name": "t", "error_code": 17, "error_message": message}
    body = messages.write_response(CREATE_TOPICS.key, 5, {"topics": [topic]})
    assert message.encode() in body
    assert "…".encode() not in body


@pytest.mark.parametrize("version", [8, 9, 12])
def test_error_messages_of_a_produce_response_are_cut(version: int) -> None:
    partition = ProducedPartition(0, 87, record_errors=((0, LONG),), error_message=LONG)
    body = write_produce_response(version, [("t", None, [partition])])
    assert len(body) < 32_767
