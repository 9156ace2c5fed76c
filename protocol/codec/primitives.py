"""Primitive types for compiled codecs and for the messages that are coded without a schema."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from uuid import UUID

from odradek.protocol.errors import InvalidFrame

MAX_STRING_BYTES = (1 << 15) - 1
ERROR_MESSAGE_MAX_CHARS = 4096
"""Limit in bytes of a string in any version, as in Kafka; some formats cannot encode a longer one."""

_INT16 = Struct(">h")
_INT32 = Struct(">i")


def append_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def append_count(out: bytearray, count: int, flexible: bool) -> None:
    """Append the count of an array or the size of records in bytes."""
    if not flexible:
        out += _INT32.pack(count)
    elif count < 0x7F:
        out.append(count + 1)
    else:
        append_uvarint(out, count + 1)


def append_string(out: bytearray, text: str | None, flexible: bool) -> None:
    """Append a string, or null for a nullable field."""
    if text is None:
        out += b"\0" if flexible else b"\xff\xff"
        return
    data = text.encode()
    if flexible:
        if len(data) < 0x7F:
            out.append(len(data) + 1)
        else:
            append_uvarint(out, len(data) + 1)
    else:
        out += _INT16.pack(len(data))
    out += data


def cut_error_message(text: str) -> str:
    """Cut an error message to ERROR_MESSAGE_MAX_CHARS: it may quote a name of up to 32 KiB from the request."""
    if len(text) <= ERROR_MESSAGE_MAX_CHARS:
        return text
    return f"{text[:ERROR_MESSAGE_MAX_CHARS]}… ({len(text)} characters)"


def check_count(count: int, least: int, left: int) -> None:
    """Reject a count before memory is allocated for it, if the items cannot fit the remaining bytes.

    Each item has at least `least` bytes, and `left` bytes remain.
    """
    if count < 0 or count * least > left:
        raise InvalidFrame(f"a count of {count}, {left} bytes are left")


def read_string(body: memoryview, position: int, length: int) -> tuple[str, int]:
    """Read a string of `length` bytes; returns it and the position after it."""
    after = position + length
    if not 0 <= length <= MAX_STRING_BYTES or after > len(body):
        raise InvalidFrame(f"a string of {length} bytes, {len(body) - position} are left")
    return str(body[position:after], "utf-8"), after


def read_uuid(body: memoryview, position: int) -> UUID:
    """Read the UUID at `position`. Raises IndexError if it is truncated."""
    raw = bytes(body[position : position + 16])
    if len(raw) < 16:
        raise IndexError
    return uuid_of(raw)


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> UUID:
    """Make a UUID, with a cache, because requests repeat topic ids and creating a UUID is slow."""
    return UUID(bytes=raw)
