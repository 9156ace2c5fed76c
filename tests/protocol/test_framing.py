"""Frames and headers: they equal kio's, and random bytes are rejected."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_writer

from odradek.protocol import framing
from odradek.protocol.apis import API_VERSIONS, APIS, FETCH, METADATA, Api
from odradek.protocol.codec.primitives import MAX_STRING_BYTES, append_uvarint
from odradek.protocol.errors import InvalidFrame
from odradek.seams.files import FileSlice


def kio_header(api: Api, version: int, correlation_id: int, client_id: str | None) -> bytes:
    kind = HeaderV2 if api.flexible(version) else HeaderV1
    out = io.BytesIO()
    header = kind(
        request_api_key=api.key,  # type: ignore[arg-type]
        request_api_version=version,  # type: ignore[arg-type]
        correlation_id=correlation_id,  # type: ignore[arg-type]
        client_id=client_id,
    )
    entity_writer(kind)(out, header)
    return out.getvalue()


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_request_header_equals_kio_and_is_read(api: Api) -> None:
    for version in api.versions:
        for client_id in (None, "", "rdkafka", "größer"):
            raw = kio_header(api, version, 7, client_id)
            assert framing.request_header(api, version, 7, client_id) == raw
            header = framing.read_request_header(memoryview(raw + b"body"))
            assert header.api is api
            assert header.api is api
            assert header.api_version == version
            assert header.correlation_id == 7
            assert header.client_id == client_id
            assert header.body == len(raw)


def test_unknown_tagged_fields_of_header_are_skipped() -> None:
    raw = framing.request_header(METADATA, 12, 1, "c")[:-1] + b"\x02\x63\x03xyz\x7f\x00"
    header = framing.read_request_header(memoryview(raw + b"rest"))
    assert header.body == len(raw)


def test_too_many_tagged_fields_of_header_are_rejected_early() -> None:
    """A tagged field takes two bytes: skipping those of a 100 MB frame would block the event loop for long."""
    most = framing.MAX_TAGGED_FIELDS
    for count, is_read in ((most, True), (most + 1, False)):
        tags = bytearray()
        append_uvarint(tags, count)
        tags += b"\x63\x00" * count
        raw = framing.request_header(METADATA, 12, 1, "c")[:-1] + tags
        if is_read:
            assert framing.read_request_header(memoryview(raw)).body == len(raw)
        else:
            with pytest.raises(InvalidFrame, match=f"{count} tagged fields"):
                framing.read_request_header(memoryview(raw))


def test_unsupported_version_is_returned_to_the_caller() -> None:
    header = framing.read_request_header(memoryview(kio_header(API_VERSIONS, 99, 1, "c")))
    assert header.api_version == 99


def test_client_id_that_is_not_utf_8_has_replacements() -> None:
    raw = struct.pack(">hhih", 3, 1, 1, 6) + "größe".encode("latin-1") + b"!"
    header = framing.read_request_header(memoryview(raw))
    assert (header.client_id, header.body) == ("gr\ufffd\ufffde!", len(raw))


def test_client_id_with_replacements_is_limited_to_a_string() -> None:
    """A longer client id in a group's records could not be read, and its partition could not be loaded."""
    for name, is_read in (
        (b"a" * MAX_STRING_BYTES, True),
        (b"\xff" * (MAX_STRING_BYTES // 3), True),
        (b"\xff" * (MAX_STRING_BYTES // 3 + 1), False),
        (b"\xff" * 20_000, False),
    ):
        raw = struct.pack(">hhih", 3, 1, 1, len(name)) + name
        if is_read:
            found = framing.read_request_header(memoryview(raw)).client_id
            assert found == name.decode(errors="replace")
        else:
            with pytest.raises(InvalidFrame, match=f"a client id of {len(name)} bytes"):
                framing.read_request_header(memoryview(raw))


@pytest.mark.parametrize("length", [-1, -2, -32768])
def test_client_id_of_any_negative_length_is_null(length: int) -> None:
    header = framing.read_request_header(memoryview(struct.pack(">hhih", 3, 1, 1, length)))
    assert (header.client_id, header.body) == (None, 10)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\3\0\1\0\0\0\1",
        struct.pack(">hhih", 3, 1, 1, 5) + b"four",
        struct.pack(">hhih", 3, 12, 1, -1),
        struct.pack(">hhih", 3, 12, 1, -1) + b"\x01\x00\x05xyz",
        struct.pack(">hhih", 3, 12, 1, -1) + b"\xff\xff\xff\xff\x7f",
        struct.pack(">hhih", 3, 12, 1, -1) + b"\xff\xff\xff\xff\xff\x01",
    ],
)
def test_malformed_header_is_invalid(raw: bytes) -> None:
    with pytest.raises(InvalidFrame):
        framing.read_request_header(memoryview(raw))


def test_unknown_api_key_is_rejected() -> None:
    with pytest.raises(framing.UnknownApi):
        framing.read_request_header(memoryview(struct.pack(">hhih", 4, 0, 1, -1)))


@given(raw=st.binary(max_size=60), key=st.sampled_from([*APIS, 4, 999]), version=st.integers(0, 20))
def test_random_bytes_are_a_header_or_invalid(raw: bytes, key: int, version: int) -> None:
    frame = memoryview(struct.pack(">hh", key, version) + raw)
    try:
        header = framing.read_request_header(frame)
    except InvalidFrame:
        return
    assert 10 <= header.body <= len(frame)


@pytest.mark.parametrize("version", [0, 3, 4, 99])
def test_api_versions_response_header_is_version_0(version: int) -> None:
    assert framing.response_header(API_VERSIONS, version, 7) == b"\0\0\0\7"


def test_response_header_is_read_as_written() -> None:
    for version in FETCH.versions:
        raw = framing.response_header(FETCH, version, 2**31 - 1)
        assert len(raw) == (5 if version >= 12 else 4)
        read = framing.read_response_header(FETCH, version, memoryview(raw + b"x"))
        assert read == (2**31 - 1, len(raw))


class NoFile:
    """A file that must not be read."""


def test_frame_size_includes_unread_file_slices() -> None:
    part = FileSlice(NoFile(), 100, 1_000_000)  # type: ignore[arg-type]
    parts: list[bytes | bytearray | memoryview | FileSlice] = [b"abc", memoryview(b"de"), part]
    head, size_bytes = framing.frame_head(b"head", parts)
    assert head == struct.pack(">i", 1_000_009) + b"head"
    assert size_bytes == 1_000_013


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**21, 2**32 - 1])
def test_unsigned_varint_is_read_as_written(number: int) -> None:
    from odradek.protocol.codec.primitives import append_uvarint

    out = bytearray()
    append_uvarint(out, number)
    assert framing.read_uvarint(out, 0) == (number, len(out))
    with pytest.raises(InvalidFrame):
        framing.read_uvarint(out[:-1], 0)
