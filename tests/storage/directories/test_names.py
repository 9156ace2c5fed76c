"""Names of partition directories: formatted names are parsed back, other names are refused."""

from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.topics import TopicPartition
from odradek.storage.directories import names
from odradek.storage.directories.names import NotAPartition, PartitionDirectoryState, parse

UNIQUE = UUID("0123456789abcdef0123456789abcdef")

topics = st.from_regex(r"\A[a-zA-Z0-9._-]{1,249}\Z").filter(lambda name: name not in (".", ".."))
partitions = st.integers(0, 2**31 - 1)


@given(topic=topics, partition=partitions)
def test_live_name_is_parsed_for_any_topic(topic: str, partition: int) -> None:
    parsed = parse(names.live_name(topic, partition))
    assert parsed.topic_partition == TopicPartition(topic, partition)
    assert parsed.state is PartitionDirectoryState.LIVE


@given(topic=topics, partition=partitions, unique=st.uuids())
def test_deleted_and_stray_names_are_at_most_255_bytes(
    topic: str, partition: int, unique: UUID
) -> None:
    for name, state in (
        (names.deleted_name(topic, partition, unique), PartitionDirectoryState.DELETED),
        (names.stray_name(topic, partition, unique), PartitionDirectoryState.STRAY),
    ):
        assert len(name.encode()) <= names.NAME_BYTES_MAX
        parsed = parse(name)
        assert parsed.state is state
        assert parsed.topic_partition.partition == partition
        assert topic.startswith(parsed.topic_partition.topic)


def test_deleted_name_has_kafka_format() -> None:
    assert (
        names.deleted_name("flights", 3, UNIQUE)
        == "flights-3.0123456789abcdef0123456789abcdef-delete"
    )
    assert names.deleted_name("x" * 249, 11, UNIQUE) == "x" * 212 + f"-11.{UNIQUE.hex}-delete"


@pytest.mark.parametrize(
    ("name", "topic", "partition", "state"),
    [
        ("a-0", "a", 0, PartitionDirectoryState.LIVE),
        ("a-b-c-12", "a-b-c", 12, PartitionDirectoryState.LIVE),
        ("a.b-0", "a.b", 0, PartitionDirectoryState.LIVE),
        ("orders-delete-0", "orders-delete", 0, PartitionDirectoryState.LIVE),
        ("orders.move-0", "orders.move", 0, PartitionDirectoryState.LIVE),
        (f"a-0.{UNIQUE.hex}-delete", "a", 0, PartitionDirectoryState.DELETED),
        (f"a-0.{UNIQUE.hex}-stray", "a", 0, PartitionDirectoryState.STRAY),
        (f"a.b-7.{UNIQUE.hex}-future", "a.b", 7, PartitionDirectoryState.FUTURE),
        ("a-0.move", "a", 0, PartitionDirectoryState.MOVING),
        ("a-0.delete", "a", 0, PartitionDirectoryState.MOVED_AWAY),
        (f"a-0.{UNIQUE.hex}.delete", "a", 0, PartitionDirectoryState.MOVED_AWAY),
    ],
)
def test_each_suffix_is_parsed_to_its_state(
    name: str, topic: str, partition: int, state: PartitionDirectoryState
) -> None:
    assert parse(name) == names.PartitionDirectory(TopicPartition(topic, partition), state)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "lost+found",
        "topic",
        "-0",
        "topic-",
        "topic-x",
        "topic-0x1",
        "topic-+1",
        "topic-٣",
        "topic-2147483648",
        "topic-0-delete",
        "topic-0.-delete",
        "topic-0..x-delete",
        "to pic-0",
        "..-0",
        "topic-0.moved",
    ],
)
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(NotAPartition, match="'"):
        parse(name)


@given(st.text(max_size=300))
def test_any_name_raises_only_not_a_partition(name: str) -> None:
    with contextlib.suppress(NotAPartition):
        parse(name)
