"""Offset checkpoints: Kafka's format, and the errors for corrupt files."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.topics import TopicPartition
from odradek.storage.directories import checkpoints
from odradek.storage.directories.checkpoints import CorruptCheckpoint

entries = st.dictionaries(
    st.builds(
        TopicPartition,
        st.from_regex(r"\A[a-zA-Z0-9._-]{1,30}\Z"),
        st.integers(0, 2**31 - 1),
    ),
    st.integers(0, 2**63 - 1),
    max_size=8,
)


def test_checkpoint_has_kafka_format() -> None:
    text = checkpoints.format({TopicPartition("flights", 0): 4711, TopicPartition("b", 12): 0})
    assert text == b"0\n2\nflights 0 4711\nb 12 0\n"
    assert checkpoints.format({}) == b"0\n0\n"


@given(entries)
def test_written_checkpoint_is_parsed_back(offsets: dict[TopicPartition, int]) -> None:
    assert checkpoints.parse(checkpoints.format(offsets)) == offsets


@pytest.mark.parametrize("text", [b"", b"0\n", b"0\n0\n", b"0\r\n1\r\na  0   5\r\n"])
def test_checkpoint_variants_read_by_kafka_are_parsed(text: bytes) -> None:
    assert checkpoints.parse(text) in ({}, {TopicPartition("a", 0): 5})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"1\n0\n", "line 1: unrecognized version 1"),
        (b"x\n0\n", "line 1: 'x'"),
        (b"0\nmany\n", "line 2: 'many'"),
        (b"0\n2\na 0 5\n", "line 2: expected 2 entries, but found 1"),
        (b"0\n1\na 0 5\nb 0 5\n", "line 2: expected 1 entries, but found 2"),
        (b"0\n1\na 0\n", "line 3"),
        (b"0\n1\na zero 5\n", "line 3: 'zero'"),
        (b"0\n1\na 0 -5\n", "line 3: '-5'"),
        (b"\xff\xfe", "not text"),
        (b"0\n1\na 0 99999999999999999999\n", "line 3"),
    ],
)
def test_corrupt_checkpoint_error_contains_reason(text: bytes, reason: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=reason):
        checkpoints.parse(text)


@given(st.binary(max_size=200), entries)
def test_any_bytes_raise_only_corrupt_checkpoint(
    data: bytes, offsets: dict[TopicPartition, int]
) -> None:
    for text in (data, checkpoints.format(offsets) + data, data + checkpoints.format(offsets)):
        with contextlib.suppress(CorruptCheckpoint):
            checkpoints.parse(text)
