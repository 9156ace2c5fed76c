"""Frames (a size of four bytes, then a message) and the headers of requests and responses.

Readers get a frame without its size. The table of APIs determines the header versions: 1 or 2 for a request, 0 or
1 for a response. The response header of ApiVersions is always version 0, so that a client which sent an unsupported
version can still read the response (KIP-511).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from odradek.protocol.apis import API_VERSIONS, APIS, Api, find_api
from odradek.protocol.codec.primitives import MAX_STRING_BYTES
from odradek.protocol.errors import InvalidFrame
from odradek.seams.files import Buffer, FileSlice

MAX_TAGGED_FIELDS = 64
"""Limit of tagged fields in one section. No message has ten; 100 MB of them would block the loop for 30 s."""

_REPLACED_BYTES_MAX = MAX_STRING_BYTES // 3
"""Limit in bytes of a client id: if each byte is replaced by U+FFFD (three bytes), it still fits a string."""

_FIXED = Struct(">hhih")
_SIZE = Struct(">i")
_CORRELATION = Struct(">i")
_CORRELATION_AND_NO_TAGS = Struct(">ib")
_SIZE_AND_CORRELATION = Struct(">ii")
_SIZE_CORRELATION_AND_NO_TAGS = Struct(">iib")


class UnknownApi(InvalidFrame):
    """A request with an API key that Kafka 4.3 does not have."""


class RequestHeader:
    """Header of a request. `body` is the offset in the frame at which the message starts."""

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
    """Read the header of a request, without checking that the API has its version.

    Raises UnknownApi for an unknown API key, and InvalidFrame for a malformed header.
    """
    size = len(frame)
    if size < 10:
        raise InvalidFrame(f"a request of {size} bytes is too short for a header")
    api_key, version, correlation_id, length = _FIXED.unpack_from(frame)
    api = APIS.get(api_key) or find_api(api_key)
    if api is None:
        raise UnknownApi(f"unknown API key {api_key}")
    body = 10
    client_id = None
    if length >= 0:
        body += length
        if body > size:
            raise InvalidFrame(f"a client id of {length} bytes in a request of {size}")
        client_id = str(frame[10:body], "utf-8", "replace")  # as Java decodes it
        if length > _REPLACED_BYTES_MAX and len(client_id.encode()) > MAX_STRING_BYTES:
            raise InvalidFrame(f"a client id of {length} bytes that are not UTF-8")
    if version >= api.flexible_version:
        if body < size and frame[body] == 0:
            body += 1
        else:
            try:
                body = skip_tagged_fields(frame, body)
            except InvalidFrame as error:
                raise InvalidFrame(f"header of {api.title} version {version}: {error}") from None
    return RequestHeader(api, version, correlation_id, client_id, body)


def response_header(api: Api, version: int, correlation_id: int) -> bytes:
    """The header of a response, without the size of the frame."""
    if version >= api.flexible_version and api is not API_VERSIONS:
        return _CORRELATION_AND_NO_TAGS.pack(correlation_id, 0)
    return _CORRELATION.pack(correlation_id)


def response_head(api: Api, version: int, correlation_id: int, body_bytes: int) -> bytes:
    """The size of the frame and the header, which precede the body of a response."""
    if version >= api.flexible_version and api is not API_VERSIONS:
        return _SIZE_CORRELATION_AND_NO_TAGS.pack(5 + body_bytes, correlation_id, 0)
    return _SIZE_AND_CORRELATION.pack(4 + body_bytes, correlation_id)


def read_response_header(api: Api, version: int, frame: memoryview) -> tuple[int, int]:
    """The correlation id of a response, and the offset in the frame at which its message starts."""
    if len(frame) < 4:
        raise InvalidFrame(f"a response of {len(frame)} bytes is too short for a header")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    if version >= api.flexible_version and api is not API_VERSIONS:
        return correlation_id, skip_tagged_fields(frame, 4)
    return correlation_id, 4


def request_header(api: Api, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request, without the size of the frame."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\0" if version >= api.flexible_version else b""
    return _FIXED.pack(api.key, version, correlation_id, length) + name + tags


def frame_head(header: bytes, parts: Sequence[Buffer | FileSlice]) -> tuple[bytes, int]:
    """The size and the header that precede `parts`, and the total bytes of the frame."""
    size = len(header) + parts_bytes(parts)
    return _SIZE.pack(size) + header, _SIZE.size + size


def parts_bytes(parts: Sequence[Buffer | FileSlice]) -> int:
    """The total bytes of `parts`, without reading file slices."""
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
    """The count of a section of tagged fields, and the position of the first field.

    Raises InvalidFrame for more than MAX_TAGGED_FIELDS, because skipping each takes time.
    """
    count, position = read_uvarint(view, position)
    if count > MAX_TAGGED_FIELDS:
        raise InvalidFrame(f"{count} tagged fields; the limit is {MAX_TAGGED_FIELDS}")
    return count, position


def skip_tagged_fields(view: Buffer, position: int) -> int:
    """The position after a section of tagged fields, whose contents are ignored."""
    count, position = read_tag_count(view, position)
    size = len(view)
    for _ in range(count):
        _tag, position = read_uvarint(view, position)
        length, position = read_uvarint(view, position)
        position += length
        if position > size:
            raise InvalidFrame("cut short in a tagged field")
    return position
