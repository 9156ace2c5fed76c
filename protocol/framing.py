"""Frames and headers: the four-byte size, who asks for what, and how an answer starts.

A frame is handed in without its size prefix. Header versions follow from the table of APIs
(request header 1 or 2, response header 0 or 1), but for ApiVersions, whose response header is always
0, so that a client that asked in a version we don't know can still read the answer (KIP-511).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from odradek.protocol.apis import API_VERSIONS, APIS, Api
from odradek.protocol.codec.primitives import MAX_STRING_BYTES
from odradek.protocol.errors import InvalidFrame
from odradek.seams.files import Buffer, FileSlice

MAX_TAGGED_FIELDS = 64
"""Of one section. No message has ten; 100 MB of them would hold the loop for half a minute."""

_REPLACED_BYTES_MAX = MAX_STRING_BYTES // 3
"""Of a client id that is still a string where each of its bytes becomes U+FFFD, which has three."""

_FIXED = Struct(">hhih")
_SIZE = Struct(">i")
_CORRELATION = Struct(">i")
_CORRELATION_AND_NO_TAGS = Struct(">ib")
_SIZE_AND_CORRELATION = Struct(">ii")
_SIZE_CORRELATION_AND_NO_TAGS = Struct(">iib")


class UnknownApi(InvalidFrame):
    """A request for an API that Kafka 4.3 does not have."""


class RequestHeader:
    """Who asks for what; `body` is the offset in the frame at which the message starts."""

    __slots__ = ("api", "api_version", "body", "client_id", "correlation_id")

    def __init__(
        self, api: Api, api_version: int, correlation_id: int, client_id: str | None, body: int
    ) -> None:
        self.api = api
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body

    def __repr__(self) -> str:
        return (
            f"RequestHeader({self.api.name} v{self.api_version}, "
            f"correlation {self.correlation_id}, client {self.client_id!r})"
        )


def read_request_header(frame: memoryview) -> RequestHeader:
    """Read the header of a request; the version is not checked against what the API has.

    Raises UnknownApi for an unknown key, InvalidFrame for anything else that is no header.
    """
    size = len(frame)
    if size < 10:
        raise InvalidFrame(f"a request of {size} bytes is too short for a header")
    api_key, version, correlation_id, length = _FIXED.unpack_from(frame)
    api = APIS.get(api_key)
    if api is None:
        raise UnknownApi(f"unknown API key {api_key}")
    body = 10
    client_id = None
    if length >= 0:
        body += length
        if body > size:
            raise InvalidFrame(f"a client id of {length} bytes in a request of {size}")
        client_id = str(frame[10:body], "utf-8", "replace")  # as Java reads it
        if length > _REPLACED_BYTES_MAX and len(client_id.encode()) > MAX_STRING_BYTES:
            raise InvalidFrame(f"a client id of {length} bytes that are not UTF-8")
    elif length != -1:
        raise InvalidFrame(f"a client id of {length} bytes")
    if version >= api.flexible_version:
        if body < size and frame[body] == 0:
            body += 1
        else:
            body = skip_tagged_fields(frame, body)
    return RequestHeader(api, version, correlation_id, client_id, body)


def response_header(api: Api, version: int, correlation_id: int) -> bytes:
    """The header of an answer, without the frame's size."""
    if version >= api.flexible_version and api is not API_VERSIONS:
        return _CORRELATION_AND_NO_TAGS.pack(correlation_id, 0)
    return _CORRELATION.pack(correlation_id)


def respond_head(api: Api, version: int, correlation_id: int, body_bytes: int) -> bytes:
    """What comes before the body of an answer: the frame's size and the header."""
    if version >= api.flexible_version and api is not API_VERSIONS:
        return _SIZE_CORRELATION_AND_NO_TAGS.pack(5 + body_bytes, correlation_id, 0)
    return _SIZE_AND_CORRELATION.pack(4 + body_bytes, correlation_id)


def read_response_header(api: Api, version: int, frame: memoryview) -> tuple[int, int]:
    """The correlation id of an answer, and the offset at which its message starts."""
    if len(frame) < 4:
        raise InvalidFrame(f"an answer of {len(frame)} bytes is too short for a header")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    if version >= api.flexible_version and api is not API_VERSIONS:
        return correlation_id, skip_tagged_fields(frame, 4)
    return correlation_id, 4


def request_header(api: Api, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request, without the frame's size."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\0" if version >= api.flexible_version else b""
    return _FIXED.pack(api.key, version, correlation_id, length) + name + tags


def frame_head(header: bytes, parts: Sequence[Buffer | FileSlice]) -> tuple[bytes, int]:
    """What comes before `parts`: the size, and the header. And the bytes of the whole frame."""
    size = len(header) + parts_bytes(parts)
    return _SIZE.pack(size) + header, _SIZE.size + size


def parts_bytes(parts: Sequence[Buffer | FileSlice]) -> int:
    """How many bytes `parts` are together; slices are not read."""
    return sum([part.size if isinstance(part, FileSlice) else len(part) for part in parts])


def read_uvarint(view: Buffer, position: int) -> tuple[int, int]:
    """An unsigned 32-bit varint (KIP-482) and the position after it."""
    try:
        value = view[position]
        position += 1
        if value < 0x80:
            return value, position
        value &= 0x7F
        shift = 7
        while True:
            byte = view[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise InvalidFrame("a varint longer than five bytes")
    except IndexError:
        raise InvalidFrame("cut short in a varint") from None
    if value > 0xFFFFFFFF:
        raise InvalidFrame("a varint of more than 32 bits")
    return value, position


def read_tag_count(view: Buffer, position: int) -> tuple[int, int]:
    """How many tagged fields a section has, and the position of the first.

    Raises InvalidFrame for more than MAX_TAGGED_FIELDS: each takes two bytes of a frame, and time.
    """
    count, position = read_uvarint(view, position)
    if count > MAX_TAGGED_FIELDS:
        raise InvalidFrame(f"{count} tagged fields; the limit is {MAX_TAGGED_FIELDS}")
    return count, position


def skip_tagged_fields(view: Buffer, position: int) -> int:
    """The position after a section of tagged fields, whatever is in them."""
    count, position = read_tag_count(view, position)
    size = len(view)
    for _ in range(count):
        _tag, position = read_uvarint(view, position)
        length, position = read_uvarint(view, position)
        position += length
        if position > size:
            raise InvalidFrame("cut short in a tagged field")
    return position
