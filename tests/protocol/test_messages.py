"""The compiled codec of kio's schemas: its bytes and entities equal kio's, for every version."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from odradek.protocol import messages
from odradek.protocol.apis import (
    API_VERSIONS,
    APIS,
    DELETE_GROUPS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    Api,
)
from odradek.protocol.codec.primitives import MAX_STRING_BYTES
from odradek.protocol.codec.reading import ELEMENTS_PER_STEP, MAX_ELEMENTS
from odradek.protocol.codec.structure import Structure, kio_structure
from odradek.protocol.codec.writing import LONG_ARRAY
from odradek.protocol.errors import ErrorCode, InvalidFrame
from odradek.protocol.messages import REQUEST_ELEMENTS_MAX
from tests.protocol.generated import as_values, draw_entity

READ = {"request": messages.read_request, "response": messages.read_response}
WRITE = {"request": messages.write_request, "response": messages.write_response}


def structure_of(entity_type: type[Any]) -> Structure:
    return kio_structure(entity_type, lambda _type, names: names)


def kio_bytes(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def run(steps: Generator[None, None, Any]) -> tuple[Any, int]:
    """Result of a generator, and how often it yields."""
    yields = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, yields
        yields += 1


def read_in_steps(key: int, version: int, raw: memoryview) -> Any:
    return run(messages.read_request_in_steps(key, version, raw))[0]


def error_of(
    read: Callable[[int, int, memoryview], object], key: int, version: int, raw: memoryview
) -> str | None:
    try:
        read(key, version, raw)
    except InvalidFrame as error:
        return str(error)
    return None


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_request_read_in_steps_equals_request_read_at_once(api: Api) -> None:
    for version in api.versions:
        structure = structure_of(messages.load(api.key, version, "request"))
        for seed in range(3):
            raw = memoryview(kio_bytes(draw_entity(structure, random.Random(seed))))
            found = read_in_steps(api.key, version, raw)
            assert found == messages.read_request(api.key, version, raw)
            for end in range(0, len(raw), 7):
                args = (api.key, version, raw[:end])
                error = error_of(messages.read_request, *args)
                assert error_of(read_in_steps, *args) == error


def test_long_request_is_read_in_steps_of_64_elements() -> None:
    partitions = [{"partition_index": index, "timestamp": -1} for index in range(640)]
    values = {"topics": [{"name": "t", "partitions": partitions}] * 10}
    raw = memoryview(messages.write_request(LIST_OFFSETS.key, 6, values))
    request, yields = run(messages.read_request_in_steps(LIST_OFFSETS.key, 6, raw))
    assert request == messages.read_request(LIST_OFFSETS.key, 6, raw)
    assert yields == (640 * 10 + 10) // ELEMENTS_PER_STEP


def test_long_response_is_written_in_steps_of_16_structs() -> None:
    """The long array may be at any depth."""
    partitions = [{"partition_index": index} for index in range(160)]
    values = {"topics": [{"name": "short"}, {"name": "long", "partitions": partitions}]}
    steps = messages.write_response_in_steps(LIST_OFFSETS.key, 6, values)
    assert steps is not None
    written, yields = run(steps)
    assert written == messages.write_response(LIST_OFFSETS.key, 6, values)
    assert yields == 160 // 16


def test_short_response_is_not_written_in_steps() -> None:
    partitions = [{"partition_index": index} for index in range(LONG_ARRAY)]
    values = {"topics": [{"name": "t", "partitions": partitions}]}
    assert messages.write_response_in_steps(LIST_OFFSETS.key, 6, values) is None


@pytest.mark.parametrize("direction", ["request", "response"])
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_version_equals_kio(api: Api, direction: str) -> None:
    for version in api.versions:
        entity_type = messages.load(api.key, version, direction)
        structure = structure_of(entity_type)
        for seed in range(3):
            entity = draw_entity(structure, random.Random(seed))
            raw = kio_bytes(entity)
            assert WRITE[direction](api.key, version, entity) == raw
            assert WRITE[direction](api.key, version, as_values(entity, structure)) == raw
            assert READ[direction](api.key, version, memoryview(raw)) == entity
            assert entity_reader(entity_type)(raw, 0) == (entity, len(raw))


@pytest.mark.parametrize("direction", ["request", "response"])
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_version_is_written_with_defaults(api: Api, direction: str) -> None:
    for version in api.versions:
        raw = WRITE[direction](api.key, version, {})
        entity = READ[direction](api.key, version, memoryview(raw))
        assert WRITE[direction](api.key, version, entity) == raw


@pytest.mark.parametrize("direction", ["request", "response"])
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_corrupt_message_is_invalid(api: Api, direction: str) -> None:
    """Truncate a message of the newest version at every byte, and change random bytes."""
    version = api.max_version
    structure = structure_of(messages.load(api.key, version, direction))
    source = random.Random(api.key)
    raw = WRITE[direction](api.key, version, draw_entity(structure, source))
    read = READ[direction]
    for end in range(0, len(raw), max(1, len(raw) // 30)):
        with pytest.raises(InvalidFrame):
            read(api.key, version, memoryview(raw[:end]))
    read(api.key, version, memoryview(raw + b"\0"))  # librdkafka sends bytes left over
    for _ in range(40):
        changed = bytearray(raw)
        for _ in range(source.choice((1, 1, 3))):
            if changed:
                changed[source.randrange(len(changed))] = source.choice((0, 0x7F, 0x80, 0xFF))
        with suppress(InvalidFrame):
            read(api.key, version, memoryview(changed))


FUZZED = [METADATA, FETCH, LIST_OFFSETS, OFFSET_COMMIT, API_VERSIONS]


@given(api=st.sampled_from(FUZZED), data=st.data(), raw=st.binary(max_size=120))
def test_random_bytes_are_a_message_or_invalid(api: Api, data: st.DataObject, raw: bytes) -> None:
    version = data.draw(st.sampled_from(list(api.versions)))
    for read in READ.values():
        with suppress(InvalidFrame):
            read(api.key, version, memoryview(raw))


@pytest.mark.parametrize(
    ("api", "version", "raw"),
    [
        (METADATA, 1, struct.pack(">i", 2**31 - 1)),
        (METADATA, 0, struct.pack(">i", -5)),
        (METADATA, 9, b"\xff\xff\xff\xff\x0f"),
        (METADATA, 9, b"\xff\xff\xff\xff\x0f" + bytes(1000)),
        (METADATA, 1, struct.pack(">ih", 1, -1)),
        (METADATA, 1, struct.pack(">ih", 1, 2) + b"\xff\xfe"),
        (DELETE_GROUPS, 2, b"\xff\xff\xff\xff\x0f" + b"\1" * 100),
        (API_VERSIONS, 3, b"\x02a\x02b\xff\xff\xff\xff\x0f"),
        (API_VERSIONS, 3, b"\x02a\x02b\x01\x05\xff\xff\xff\xff\x0f"),
        (API_VERSIONS, 3, b"\x02a\x02b\x01\x05\xff\xff\xff\xff\xff\xff\x0f"),
    ],
)
def test_huge_counts_are_rejected_without_allocation(api: Api, version: int, raw: bytes) -> None:
    with pytest.raises(InvalidFrame):
        messages.read_request(api.key, version, memoryview(raw))


def test_array_elements_of_a_message_are_limited() -> None:
    """An element takes a byte on the wire and dozens of bytes in memory: 100 MB must not become gigabytes.

    Elements of a request also take time, so requests have a lower limit.
    """

    def groups(count: int) -> memoryview:
        return memoryview(struct.pack(">i", count) + b"\0\0" * count)

    def partitions(count: int) -> memoryview:
        topic = struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", count)
        return memoryview(topic + struct.pack(">ih", 0, 0) * count)

    most = REQUEST_ELEMENTS_MAX
    read = messages.read_request(DELETE_GROUPS.key, 0, groups(most))
    assert len(read.groups_names) == most
    with pytest.raises(InvalidFrame, match=f"more than {most} array elements"):
        messages.read_request(DELETE_GROUPS.key, 0, groups(most + 1))
    response = messages.read_response(OFFSET_COMMIT.key, 2, partitions(most + 1))
    assert len(response.topics[0].partitions) == most + 1
    with pytest.raises(InvalidFrame, match=f"more than {MAX_ELEMENTS} array elements"):
        messages.read_response(OFFSET_COMMIT.key, 2, partitions(MAX_ELEMENTS))


def test_string_limit_is_the_same_in_flexible_versions() -> None:
    longest = "g" * MAX_STRING_BYTES
    raw = messages.write_request(DELETE_GROUPS.key, 2, {"groups_names": [longest]})
    read = messages.read_request(DELETE_GROUPS.key, 2, memoryview(raw))
    assert read.groups_names == (longest,)
    with pytest.raises(struct.error, match="more than a string"):
        messages.write_request(DELETE_GROUPS.key, 2, {"groups_names": [longest + "g"]})
    longer = raw.replace(b"\x80\x80\x02g", b"\x81\x80\x02gg")
    with pytest.raises(InvalidFrame, match="more than a string"):
        messages.read_request(DELETE_GROUPS.key, 2, memoryview(longer))


def test_tagged_field_with_wrong_size_is_invalid() -> None:
    raw = messages.write_request(FETCH.key, 17, {"cluster_id": "abc"})
    assert messages.read_request(FETCH.key, 17, memoryview(raw)).cluster_id == "abc"
    at = raw.index(b"\x04abc")
    longer = raw[: at - 1] + b"\x05\x04abcd" + raw[at + 4 :]
    with pytest.raises(InvalidFrame, match="size"):
        messages.read_request(FETCH.key, 17, memoryview(longer))


def test_too_many_tagged_fields_are_rejected() -> None:
    raw = messages.write_request(API_VERSIONS.key, 3, {})
    many = raw[:-1] + b"\x41" + b"\x63\x00" * 0x41
    with pytest.raises(InvalidFrame, match="65 tagged fields"):
        messages.read_request(API_VERSIONS.key, 3, memoryview(many))


def test_unknown_tagged_fields_are_skipped() -> None:
    raw = messages.write_request(API_VERSIONS.key, 3, {"client_software_name": "x"})
    tagged = raw[:-1] + b"\x01\x63\x03xyz"
    read = messages.read_request(API_VERSIONS.key, 3, memoryview(tagged))
    assert read.client_software_name == "x"


def test_names_of_newer_versions_are_ignored() -> None:
    values = {
        "throttle_time": 7,
        "error_code": ErrorCode.none,
        "topics": [{"name": "t", "topic_id": UUID(int=3), "partitions": []}],
    }
    old = messages.read_response(3, 0, memoryview(messages.write_response(3, 0, values)))
    assert old.topics[0].name == "t"
    new = messages.read_response(3, 13, memoryview(messages.write_response(3, 13, values)))
    assert new.throttle_time == timedelta(milliseconds=7)
    assert new.topics[0].topic_id == UUID(int=3)


def test_names_of_older_versions_are_ignored() -> None:
    """Up to version 3, FindCoordinator returns one coordinator in top-level fields."""
    values = {"node_id": 1, "host": "h", "port": 9, "coordinators": [{"key": "g", "node_id": 1}]}
    old = messages.read_response(10, 1, memoryview(messages.write_response(10, 1, values)))
    assert (old.node_id, old.host, old.port) == (1, "h", 9)
    new = messages.read_response(10, 6, memoryview(messages.write_response(10, 6, values)))
    assert new.coordinators[0].key == "g"


def test_name_of_no_version_raises() -> None:
    with pytest.raises(KeyError, match="thottle"):
        messages.write_response(3, 5, {"thottle_time": 7})
    with pytest.raises(KeyError, match="partitoins"):
        messages.write_response(3, 5, {"topics": [{"partitoins": []}]})


def test_null_in_a_non_nullable_field_raises() -> None:
    with pytest.raises(TypeError, match="name"):
        messages.write_response(3, 5, {"topics": [{"name": None}]})


@pytest.mark.parametrize("length", [-1, -2, -(2**31)])
def test_any_negative_length_of_a_nullable_field_is_null(length: int) -> None:
    """Kafka's generated readers test `length < 0`; the field `topics` of Metadata 0 is not nullable."""
    raw = struct.pack(">i", length)
    assert messages.read_request(METADATA.key, 1, memoryview(raw)).topics is None
    with pytest.raises(InvalidFrame):
        messages.read_request(METADATA.key, 0, memoryview(raw))
    producer = struct.pack(">hi", max(length, -(2**15)), 1000)
    assert (
        messages.read_request(INIT_PRODUCER_ID.key, 0, memoryview(producer)).transactional_id
        is None
    )


def test_zero_uuid_is_none_in_a_message() -> None:
    for zero in (None, UUID(int=0)):
        raw = messages.write_request(3, 12, {"topics": [{"topic_id": zero, "name": None}]})
        assert messages.read_request(3, 12, memoryview(raw)).topics[0].topic_id is None


def test_unknown_error_code_is_unknown_server_error() -> None:
    raw = messages.write_response(API_VERSIONS.key, 0, {"error_code": 32000})
    read = messages.read_response(API_VERSIONS.key, 0, memoryview(raw))
    assert read.error_code is ErrorCode.unknown_server_error


def test_records_are_slices_of_the_frame() -> None:
    values = {"topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"abc"}]}]}
    frame = bytearray(messages.write_request(0, 7, values))
    read = messages.read_request(0, 7, memoryview(frame), 0)
    records = read.topic_data[0].partition_data[0].records
    frame[frame.index(b"abc")] = ord("z")
    assert records == b"zbc"


def test_written_response_is_read_as_kio_entity() -> None:
    values = {"throttle_time": 5, "topics": [{"error_code": 3, "name": "t"}], "error_code": 1}
    raw = messages.write_response(METADATA.key, 12, values)
    read = messages.read_response(METADATA.key, 12, memoryview(raw))
    assert read.throttle_time == timedelta(milliseconds=5)
    assert read.topics[0].error_code is ErrorCode.unknown_topic_or_partition
    assert read.topics[0].topic_id is None
    assert read.controller_id == -1
    with pytest.raises(KeyError):
        messages.write_response(METADATA.key, 12, {"nonsense": 1})


def test_field_returns_default_for_older_version() -> None:
    raw = messages.write_request(FETCH.key, 4, {})
    read = messages.read_request(FETCH.key, 4, memoryview(raw))
    assert messages.field(read, "rack_id", "") == ""
    assert messages.field(read, "max_bytes") is not None
