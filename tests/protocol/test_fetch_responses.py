"""The writer of Fetch responses is compared with kio's, for every version, and the reader with the writer."""

from __future__ import annotations

import io
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from odradek.protocol import messages
from odradek.protocol.apis import FETCH
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.fetch_response_reader import OLDEST_VERSION, read_fetch_response
from odradek.protocol.fetch_response_writer import (
    FetchedPartition,
    FetchedTopic,
    NodeEndpoint,
    Part,
    write_fetch_response,
)
from odradek.seams.files import FileSlice

VERSIONS = list(FETCH.versions)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
natural = st.integers(0, 2**31 - 1)
partitions = st.builds(
    FetchedPartition,
    index=int32,
    error_code=st.integers(-1, 133),
    high_watermark=int64,
    last_stable_offset=int64,
    log_start_offset=int64,
    aborted_transactions=st.none() | st.lists(st.tuples(int64, int64), max_size=3),
    preferred_read_replica=int32,
    diverging_epoch=st.none() | st.tuples(natural, natural),
    current_leader=st.none() | st.tuples(natural, natural),
    snapshot_id=st.none() | st.tuples(natural, natural),
    records=st.lists(st.binary(max_size=150), max_size=3),
)
topics = st.builds(
    FetchedTopic,
    name=st.text(max_size=150),
    topic_id=st.none() | st.uuids(),
    partitions=st.lists(partitions, max_size=3),
)
endpoints = st.builds(
    NodeEndpoint,
    node_id=int32,
    host=st.text(max_size=150),
    port=int32,
    rack=st.none() | st.text(max_size=5),
)


def joined(parts: list[Part]) -> bytes:
    return b"".join(part for part in parts if not isinstance(part, FileSlice))


def as_values(topic: FetchedTopic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [partition_values(partition) for partition in topic.partitions],
    }


def partition_values(partition: FetchedPartition) -> dict[str, Any]:
    aborted = partition.aborted_transactions
    values: dict[str, Any] = {
        "partition_index": partition.index,
        "error_code": partition.error_code,
        "high_watermark": partition.high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        "log_start_offset": partition.log_start_offset,
        "aborted_transactions": None
        if aborted is None
        else [{"producer_id": who, "first_offset": first} for who, first in aborted],
        "preferred_read_replica": partition.preferred_read_replica,
        "records": b"".join(partition.records),  # type: ignore[arg-type]
    }
    if partition.diverging_epoch is not None:
        epoch, end_offset = partition.diverging_epoch
        values["diverging_epoch"] = {"epoch": epoch, "end_offset": end_offset}
    if partition.current_leader is not None:
        leader_id, leader_epoch = partition.current_leader
        values["current_leader"] = {"leader_id": leader_id, "leader_epoch": leader_epoch}
    if partition.snapshot_id is not None:
        end_offset, epoch = partition.snapshot_id
        values["snapshot_id"] = {"epoch": epoch, "end_offset": end_offset}
    return values


@given(
    version=st.sampled_from(VERSIONS),
    fetched=st.lists(topics, max_size=3),
    nodes=st.lists(endpoints, max_size=2),
    throttle_time_ms=natural,
    error_code=st.integers(-1, 133),
    session_id=int32,
)
def test_written_bytes_equal_those_of_kio(
    version: int,
    fetched: list[FetchedTopic],
    nodes: list[NodeEndpoint],
    throttle_time_ms: int,
    error_code: int,
    session_id: int,
) -> None:
    parts = write_fetch_response(
        version,
        throttle_time_ms=throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        topics=fetched,
        node_endpoints=nodes,
    )
    values = {
        "throttle_time": throttle_time_ms,
        "error_code": error_code,
        "session_id": session_id,
        "responses": [as_values(topic) for topic in fetched],
        "node_endpoints": [
            {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in nodes
        ],
    }
    raw = joined(parts)
    assert raw == messages.write_response(FETCH.key, version, values)
    entity_type = messages.load(FETCH.key, version, "response")
    entity, size = entity_reader(entity_type)(raw, 0)
    assert size == len(raw)
    out = io.BytesIO()
    entity_writer(entity_type)(out, entity)
    assert out.getvalue() == raw


class NoFile:
    """A file that must not be read."""


@pytest.mark.parametrize("version", VERSIONS)
def test_file_slices_are_returned_unchanged(version: int) -> None:
    slices: list[Part] = [FileSlice(NoFile(), 0, 300), FileSlice(NoFile(), 900, 5)]  # type: ignore[arg-type]
    topic_id = UUID(int=1)
    first = FetchedPartition(index=0, records=slices)
    second = FetchedPartition(index=1, records=[b"bytes"])
    parts = write_fetch_response(
        version, topics=[FetchedTopic(name="t", topic_id=topic_id, partitions=[first, second])]
    )
    assert [part for part in parts if isinstance(part, FileSlice)] == slices
    filled = b"".join(bytes(p.size) if isinstance(p, FileSlice) else p for p in parts)
    read = messages.read_response(FETCH.key, version, memoryview(filled))
    one, two = read.responses[0].partitions
    assert one.records == bytes(305)
    assert two.records == b"bytes"
    assert read.error_code == 0 if version >= 7 else True


@pytest.mark.parametrize("version", VERSIONS)
def test_response_without_topics_equals_kio(version: int) -> None:
    raw = joined(write_fetch_response(version, session_id=77))
    read = messages.read_response(FETCH.key, version, memoryview(raw))
    assert read.responses == ()
    assert messages.field(read, "session_id", 77) == 77


@pytest.mark.parametrize("version", range(OLDEST_VERSION, FETCH.max_version + 1))
@given(
    head=st.tuples(int32, st.integers(-1, 133), int32),
    topics=st.lists(topics, max_size=3),
    endpoints=st.lists(endpoints, max_size=2),
)
def test_follower_reader_returns_written_partitions(
    version: int,
    head: tuple[int, int, int],
    topics: list[FetchedTopic],
    endpoints: list[NodeEndpoint],
) -> None:
    throttle_time_ms, error_code, session_id = head
    parts = write_fetch_response(
        version,
        throttle_time_ms=throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        topics=topics,
        node_endpoints=endpoints,
    )
    response = read_fetch_response(memoryview(joined(parts)))
    assert response[:3] == head
    assert [(*data[:-1], bytes(data.records)) for data in response.partitions] == [
        (
            topic.topic_id or UUID(int=0),
            each.index,
            each.error_code,
            each.high_watermark,
            each.log_start_offset,
            each.diverging_epoch,
            joined(list(each.records)),
        )
        for topic in topics
        for each in topic.partitions
    ]


def test_truncated_response_is_invalid() -> None:
    partition = FetchedPartition(
        index=1, aborted_transactions=[(1, 2)], diverging_epoch=(1, 2), records=[b"x" * 200]
    )
    topic = FetchedTopic(name="", topic_id=UUID(int=1), partitions=[partition])
    whole = memoryview(joined(write_fetch_response(18, topics=[topic])))
    assert len(list(read_fetch_response(whole).partitions)) == 1
    for size in range(len(whole) - 2):
        with pytest.raises(InvalidFrame):
            list(read_fetch_response(whole[:size]).partitions)
