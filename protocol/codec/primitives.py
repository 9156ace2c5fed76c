"""What the hand-written messages and the compiled ones write alike: varints, counts and strings."""

from __future__ import annotations

from struct import Struct

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
        append_uvarint(out, len(data) + 1)
    else:
        out += _INT16.pack(len(data))
    out += data
