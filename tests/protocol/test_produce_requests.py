"""The reader of Produce requests is compared with the compiled codec, for every version."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol import messages
from odradek.protocol.apis import PRODUCE
from odradek.protocol.codec.primitives import append_uvarint
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.produce_request_reader import (
    MAX_PARTITIONS,
    ProduceRequest,
    read_produce_request,
)

VERSIONS = list(PRODUCE.versions)

partitions = st.builds(
    lambda index, records: {"index": index, "records": records},
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.binary(max_size=200),
)
topics = st.builds(
    lambda name, topic_id, partition_data: {
        "name": name,
        "topic_id": topic_id,
        "partition_data": partition_data,
    },
    st.text(max_size=200),
    st.uuids(),
    st.lists(partitions, max_size=3),
)
requests = st.builds(
    lambda transactional_id, acks, timeout, topic_data: {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timeout,
        "topic_data": topic_data,
    },
    st.none() | st.text(max_size=150),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.lists(topics, max_size=3),
)


def as_values(request: ProduceRequest, version: int) -> dict[str, Any]:
    return {
        "transactional_id": request.transactional_id,
        "acks": request.acks,
        "timeout": request.timeout_ms,
        "topic_data": [
            {
                ("topic_id" if version >= 13 else "name"): (
                    topic.topic_id if version >= 13 else topic.name
                ),
                "partition_data": [
                    {"index": index, "records": records} for index, records in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


@given(version=st.sampled_from(VERSIONS), values=requests, before=st.binary(max_size=9))
def test_reader_equals_codec_for_every_version(
    version: int, values: dict[str, Any], before: bytes
) -> None:
    raw = messages.write_request(PRODUCE.key, version, values)
    request = read_produce_request(memoryview(before + raw), version, len(before))
    assert messages.write_request(PRODUCE.key, version, as_values(request, version)) == raw
    for topic in request.topics:
        assert (topic.name is None) == (version >= 13)
        assert (topic.topic_id is None) == (version < 13)


@given(version=st.sampled_from(VERSIONS), raw=st.binary(max_size=150))
def test_random_bytes_are_a_request_or_invalid(version: int, raw: bytes) -> None:
    with suppress(InvalidFrame):
        read_produce_request(memoryview(raw), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_reader_accepts_the_same_bytes_as_codec(version: int) -> None:
    """For randomly truncated and changed requests, both readers have the same result."""
    source = random.Random(version)
    values = {
        "transactional_id": "id",
        "topic_data": [
            {
                "name": "topic",
                "topic_id": UUID(int=9),
                "partition_data": [{"index": 1, "records": b"abcdef"}] * 2,
            }
        ],
    }
    raw = messages.write_request(PRODUCE.key, version, values)
    for end in range(len(raw)):
        with pytest.raises(InvalidFrame):
            read_produce_request(memoryview(raw[:end]), version)
    read_produce_request(memoryview(raw + b"\0"), version)  # librdkafka sends bytes left over
    for _ in range(400):
        changed = bytearray(raw)
        changed[source.randrange(len(raw))] = source.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        assert accepts(read_produce_request, memoryview(changed), version) == accepts(
            lambda view, version: messages.read_request(PRODUCE.key, version, view),
            memoryview(changed),
            version,
        )


def accepts(read: Any, view: memoryview, version: int) -> bool:
    try:
        read(view, version)
    except InvalidFrame:
        return False
    return True


@pytest.mark.parametrize("where", ["transactional id", "topic"])
def test_string_above_the_limit_is_rejected(where: str) -> None:
    """Kafka cannot read a longer one: a broker that gets such a transactional id closes the connection."""
    for length, is_read in ((32_767, True), (32_768, False)):
        text = bytearray()
        append_uvarint(text, length + 1)
        text += b"n" * length
        transactional_id, topic = (text, b"\x02t") if where == "transactional id" else (b"\0", text)
        raw = transactional_id + struct.pack(">hi", 1, 0) + b"\x02" + topic + b"\x01\0\0"
        if is_read:
            read_produce_request(memoryview(raw), 9)
        else:
            with pytest.raises(InvalidFrame, match="a string of 32768 bytes"):
                read_produce_request(memoryview(raw), 9)


def test_records_are_slices_of_the_frame() -> None:
    values = {"topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"abc"}]}]}
    frame = bytearray(messages.write_request(PRODUCE.key, 9, values))
    ((_, records),) = read_produce_request(memoryview(frame), 9).topics[0].partitions
    assert records is not None
    records[0] = ord("z")
    assert b"zbc" in frame


def test_partitions_of_a_request_are_limited() -> None:
    count = MAX_PARTITIONS + 1
    raw = struct.pack(">hhii", -1, 1, 1, 1) + struct.pack(">hi", 0, count)
    raw += struct.pack(">ii", 0, -1) * count
    with pytest.raises(InvalidFrame, match="partitions"):
        read_produce_request(memoryview(raw), 3)


@pytest.mark.parametrize(
    ("version", "raw"),
    [
        (3, struct.pack(">hhii", -1, 1, 1, 2**31 - 1)),
        (3, struct.pack(">hhii", -1, 1, 1, -1)),
        (9, b"\0" + struct.pack(">hi", 1, 1) + b"\xff\xff\xff\xff\x0f"),
        (9, b"\0" + struct.pack(">hi", 1, 1) + b"\0\0"),
    ],
)
def test_huge_and_negative_counts_are_rejected(version: int, raw: bytes) -> None:
    with pytest.raises(InvalidFrame):
        read_produce_request(memoryview(raw), version)


def test_any_negative_length_of_a_nullable_field_is_null() -> None:
    raw = struct.pack(">hhii", -2, 1, 1, 1) + struct.pack(">h1siii", 1, b"t", 1, 0, -2)
    request = read_produce_request(memoryview(raw), 3)
    assert request.transactional_id is None
    assert request.topics[0].partitions == [(0, None)]


def test_too_many_tagged_fields_are_rejected() -> None:
    version = VERSIONS[-1]
    values = {"transactional_id": None, "acks": 1, "timeout": 1, "topic_data": []}
    raw = messages.write_request(PRODUCE.key, version, values)
    many = raw[:-1] + b"\x41" + b"\x63\x00" * 0x41
    with pytest.raises(InvalidFrame, match="65 tagged fields"):
        read_produce_request(memoryview(many), version)
