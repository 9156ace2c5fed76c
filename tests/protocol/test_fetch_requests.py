"""The reader of Fetch requests is compared with the compiled codec, for every version."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol import messages
from odradek.protocol.apis import FETCH
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.fetch_request_reader import FetchRequest, read_fetch_request
from odradek.protocol.messages import field

VERSIONS = list(FETCH.versions)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
partitions = st.fixed_dictionaries(
    {
        "partition": int32,
        "current_leader_epoch": int32,
        "fetch_offset": int64,
        "last_fetched_epoch": int32,
        "log_start_offset": int64,
        "partition_max_bytes": int32,
        "replica_directory_id": st.none() | st.uuids(),
        "high_watermark": int64,
    }
)
topics = st.fixed_dictionaries(
    {
        "topic": st.text(max_size=150),
        "topic_id": st.uuids(),
        "partitions": st.lists(partitions, max_size=3),
    }
)
forgotten = st.fixed_dictionaries(
    {
        "topic": st.text(max_size=150),
        "topic_id": st.uuids(),
        "partitions": st.lists(int32, max_size=3),
    }
)
requests = st.fixed_dictionaries(
    {
        "cluster_id": st.none() | st.text(max_size=5),
        "replica_id": int32,
        "replica_state": st.fixed_dictionaries({"replica_id": int32, "replica_epoch": int64}),
        "max_wait": st.integers(0, 2**31 - 1),
        "min_bytes": int32,
        "max_bytes": int32,
        "isolation_level": st.integers(-128, 127),
        "session_id": int32,
        "session_epoch": int32,
        "topics": st.lists(topics, max_size=3),
        "forgotten_topics_data": st.lists(forgotten, max_size=3),
        "rack_id": st.text(max_size=150),
    }
)


def assert_equals_codec(request: FetchRequest, version: int, view: memoryview, start: int) -> None:
    """Assert that the codec reads the same request from the same bytes."""
    read = messages.read_request(FETCH.key, version, view, start)
    state = field(read, "replica_state", None)
    assert request.replica_id == (read.replica_id if state is None else state.replica_id)
    assert request.replica_epoch == (-1 if state is None else state.replica_epoch)
    assert request.rack == field(read, "rack_id", "")
    assert timedelta(milliseconds=request.max_wait_ms) == read.max_wait
    assert request.min_bytes == read.min_bytes
    assert request.max_bytes == read.max_bytes
    assert request.isolation_level == read.isolation_level
    assert request.session_id == field(read, "session_id", 0)
    assert request.session_epoch == field(read, "session_epoch", -1)
    assert [topic_key(topic) for topic in request.topics] == [
        codec_topic_key(topic) for topic in read.topics
    ]
    assert [tuple(each) for topic in request.topics for each in topic.partitions] == [
        (
            each.partition,
            field(each, "current_leader_epoch", -1),
            each.fetch_offset,
            field(each, "last_fetched_epoch", -1),
            field(each, "log_start_offset", -1),
            each.partition_max_bytes,
        )
        for topic in read.topics
        for each in topic.partitions
    ]
    left = field(read, "forgotten_topics_data", ())
    assert [(*topic_key(topic), topic.partitions) for topic in request.forgotten] == [
        (*codec_topic_key(topic), list(topic.partitions)) for topic in left
    ]


def topic_key(topic: Any) -> tuple[Any, Any]:
    return topic.name, topic.topic_id if topic.topic_id is None or topic.topic_id.int else None


def codec_topic_key(topic: Any) -> tuple[Any, Any]:
    return field(topic, "topic", None), field(topic, "topic_id", None)


@given(version=st.sampled_from(VERSIONS), values=requests, before=st.binary(max_size=9))
def test_reader_equals_codec_for_every_version(
    version: int, values: dict[str, Any], before: bytes
) -> None:
    view = memoryview(before + messages.write_request(FETCH.key, version, values))
    assert_equals_codec(read_fetch_request(view, version, len(before)), version, view, len(before))


@given(version=st.sampled_from(VERSIONS), raw=st.binary(max_size=150))
def test_random_bytes_are_a_request_or_invalid(version: int, raw: bytes) -> None:
    with suppress(InvalidFrame):
        read_fetch_request(memoryview(raw), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_corrupt_request_is_rejected_or_equals_codec(version: int) -> None:
    source = random.Random(version)
    names = {"topic": "flights", "topic_id": None}
    partition = {"partition": 3, "fetch_offset": 12, "partition_max_bytes": 1 << 20}
    values = {
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "replica_state": {"replica_id": 4, "replica_epoch": 9},
        "topics": [{**names, "partitions": [partition] * 3}] * 2,
        "forgotten_topics_data": [{**names, "partitions": [1, 2]}],
        "rack_id": "here",
    }
    raw = messages.write_request(FETCH.key, version, values)
    for _ in range(400):
        damaged = bytearray(raw[: source.randint(0, len(raw))] if source.random() < 0.3 else raw)
        for _ in range(source.randint(0, 2) if damaged else 0):
            damaged[source.randrange(len(damaged))] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
        view = memoryview(bytes(damaged))
        try:
            request = read_fetch_request(view, version)
        except InvalidFrame:
            continue
        with suppress(InvalidFrame):  # the codec also checks fields that this reader skips
            assert_equals_codec(request, version, view, 0)


def test_too_many_tagged_fields_are_rejected() -> None:
    version = VERSIONS[-1]
    values = {"topics": [], "forgotten_topics_data": []}
    raw = messages.write_request(FETCH.key, version, values)
    many = raw[:-1] + b"\x41" + b"\x63\x00" * 0x41
    with pytest.raises(InvalidFrame, match="65 tagged fields"):
        read_fetch_request(memoryview(many), version)
