"""Tests of murmur2, the range assignor, and the encoding of subscriptions and assignments."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from odradek.client.assignors import (
    assign_range,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from odradek.client.partitioner import StickyPartitions, murmur2, partition_for_key
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.topics import TopicPartition
from odradek.seams.entropy import RealEntropy

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
members = st.dictionaries(names, st.lists(names, max_size=4, unique=True), min_size=1, max_size=6)
counts = st.dictionaries(names, st.integers(0, 20), max_size=5)


@pytest.mark.parametrize(
    ("key", "hashed"),  # as org.apache.kafka.common.utils.Utils.murmur2 has them
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_matches_java(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF
    assert partition_for_key(key, 7) == (hashed & 0x7FFFFFFF) % 7


def test_sticky_partition_changes_with_the_batch() -> None:
    sticky = StickyPartitions(RealEntropy())
    first = sticky.current("t", 1000)
    assert {sticky.current("t", 1000) for _ in range(10)} == {first}
    assert sticky.current("t", first) < first  # it has fewer partitions now
    seen = set()
    for _ in range(10):
        seen.add(sticky.current("t", 1000))
        sticky.move_on("t", sticky.current("t", 1000))
    assert len(seen) > 1


def test_range_gives_first_members_an_extra_partition() -> None:
    found = assign_range({"b": ["t", "u"], "a": ["t", "u"], "c": ["u"]}, {"t": 3, "u": 3})
    assert {member: list(map(str, parts)) for member, parts in found.items()} == {
        "a": ["t-0", "t-1", "u-0"],
        "b": ["t-2", "u-1"],
        "c": ["u-2"],
    }


@given(members, counts)
def test_range_assigns_every_partition_to_a_subscriber(
    subscriptions: dict[str, list[str]], partitions: dict[str, int]
) -> None:
    found = assign_range(subscriptions, partitions)
    assert set(found) == set(subscriptions)
    given_away = [part for parts in found.values() for part in parts]
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert sorted(given_away) == sorted(
        TopicPartition(topic, index)
        for topic in wanted
        for index in range(partitions.get(topic, 0))
    )
    for member, parts in found.items():
        assert {part.topic for part in parts} <= set(subscriptions[member])
    for topic in wanted:
        shares = [
            sum(part.topic == topic for part in found[member])
            for member, topics in subscriptions.items()
            if topic in topics
        ]
        assert max(shares) - min(shares) <= 1


def kio(kind: str, version: int) -> Any:
    module = import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")
    return getattr(module, f"ConsumerProtocol{kind.title()}")


def reread(entity_type: Any, data: bytes) -> Any:
    entity, _ = entity_reader(entity_type)(data, 2)
    return entity


@given(st.lists(names, unique=True))
def test_subscription_encoding_is_kafkas(topics: list[str]) -> None:
    data = write_subscription(topics)
    assert read_subscription(data) == sorted(topics)
    assert sorted(reread(kio("subscription", 0), data).topics) == sorted(topics)


@given(st.lists(st.builds(TopicPartition, names, st.integers(0, 99)), unique=True))
def test_assignment_encoding_is_kafkas(parts: list[TopicPartition]) -> None:
    data = write_assignment(parts)
    assert sorted(read_assignment(data)) == sorted(parts)
    theirs = reread(kio("assignment", 0), data).assigned_partitions
    assert sorted((row.topic, p) for row in theirs for p in row.partitions) == sorted(parts)


def test_later_subscription_versions_are_decoded() -> None:
    more: list[dict[str, Any]] = [
        {},
        {"owned_partitions": ()},
        {"owned_partitions": (), "generation_id": 7},
        {"owned_partitions": (), "generation_id": 7, "rack_id": "r"},
    ]
    for version, fields in enumerate(more):
        entity_type = kio("subscription", version)
        buffer = BytesIO(version.to_bytes(2, "big"))
        buffer.seek(2)
        entity = entity_type(topics=("a", "b"), user_data=b"x", **fields)
        entity_writer(entity_type)(buffer, entity)
        assert read_subscription(buffer.getvalue()) == ["a", "b"]


def test_empty_assignment_has_no_partitions() -> None:
    assert read_assignment(b"") == []


@given(st.binary(min_size=1, max_size=40))
def test_invalid_member_data_raises_invalid_frame(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        with suppress(InvalidFrame):
            read(data)
