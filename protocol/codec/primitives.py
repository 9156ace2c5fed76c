"""What messages read and written by hand have in common with the compiled ones."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from uuid import UUID

from odradek.protocol.errors import InvalidFrame

MAX_STRING_BYTES = (1 << 15) - 1
"""Of a string in whatever version: Kafka reads no longer ones, and not all records have room for them."""

_INT16 = Struct(">h")
_INT32 = Struct(">i")


def append_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def append_count(out: bytearray, count: int, flexible: bool) -> None:
    """How many items an array has, or how many bytes records have."""
    if not flexible:
        out += _INT32.pack(count)
    elif count < 0x7F:
        out.append(count + 1)
    else:
        append_uvarint(out, count + 1)


def append_string(out: bytearray, text: str | None, flexible: bool) -> None:
    """A string, or null where the field may be."""
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


def check_count(count: int, least: int, left: int) -> None:
    """A count is refused before anything is made for it, if so many cannot be there.

    Each item has `least` bytes, `left` are there.
    """
    if count < 0 or count * least > left:
        raise InvalidFrame(f"a count of {count}, {left} bytes are left")


def read_string(body: memoryview, position: int, length: int) -> tuple[str, int]:
    """The string of `length` bytes, and the position after it."""
    after = position + length
    if not 0 <= length <= MAX_STRING_BYTES or after > len(body):
        raise InvalidFrame(f"a string of {length} bytes, {len(body) - position} are left")
    return str(body[position:after], "utf-8"), after


def read_uuid(body: memoryview, position: int) -> UUID:
    """The UUID there. IndexError if it is cut short."""
    raw = bytes(body[position : position + 16])
    if len(raw) < 16:
        raise IndexError
    return uuid_of(raw)


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> UUID:
    """Topic ids come again and again, and a UUID takes long to make."""
    return UUID(bytes=raw)
