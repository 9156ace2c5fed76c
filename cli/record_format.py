"""Format strings of kcat, and JSON, for the output of `odradek consume`.

A format string is compiled once to a list of functions from a record to bytes.

    %s value     %S its length (-1 for NULL)    %R the same as 4 bytes, big-endian
    %k key       %K its length (-1 for NULL)    %T timestamp (ms)
    %t topic     %p partition    %o offset      %h headers as name=value,name=value
    %% a percent sign            \\n \\r \\t \\\\ \\xHH as in C
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

from odradek.client.consumer import ConsumedRecord

Step = Callable[[ConsumedRecord], bytes]

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}


def compile_format(text: str, *, null: bytes = b"") -> Callable[[ConsumedRecord], bytes]:
    """Compile a format string to a function from a record to bytes.

    `null` is the output for a null key or value. Raises ValueError for an unknown escape.
    """
    fields = _fields(null)
    steps: list[Step | bytes] = []
    position = 0
    while position < len(text):
        char = text[position]
        if char == "%" and position + 1 < len(text):
            letter = text[position + 1]
            if letter != "%" and letter not in fields:
                known = ", ".join(f"%{name}" for name in fields)
                raise ValueError(f"%{letter} is not one of {known}, %%")
            steps.append(b"%" if letter == "%" else fields[letter])
            position += 2
        elif char == "\\":
            literal, position = unescape_at(text, position)
            steps.append(literal)
        else:
            steps.append(as_given(char))
            position += 1
    return lambda record: b"".join(s if isinstance(s, bytes) else s(record) for s in steps)


def as_given(text: str) -> bytes:
    """Encode an argument or a header name to its original bytes.

    Bytes that are not UTF-8 were decoded to surrogates.
    """
    return text.encode(errors="surrogateescape")


def unescape(text: str) -> bytes:
    """Encode text with C escapes, such as a delimiter, to bytes."""
    parts = []
    position = 0
    while position < len(text):
        if text[position] == "\\":
            literal, position = unescape_at(text, position)
            parts.append(literal)
        else:
            parts.append(as_given(text[position]))
            position += 1
    return b"".join(parts)


def unescape_at(text: str, position: int) -> tuple[bytes, int]:
    """Return the bytes of the escape that starts at `position`, and the position after it."""
    letter = text[position + 1 : position + 2]
    if letter == "x":
        digits = text[position + 2 : position + 4]
        try:
            return bytes.fromhex(digits), position + 2 + len(digits)
        except ValueError:
            raise ValueError(f"\\x{digits} needs two hexadecimal digits") from None
    if letter not in _ESCAPES or not letter:
        raise ValueError(f"\\{letter} is not an escape; the escapes are \\n \\r \\t \\0 \\\\ \\xHH")
    return _ESCAPES[letter], position + 2


def json_line(record: ConsumedRecord) -> bytes:
    """Format a record as one line of JSON; bytes that are not UTF-8 become {"base64": …}."""
    row = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "append" if record.timestamp_type else "create",
        "key": _json_value(record.key),
        "value": _json_value(record.value),
        "headers": [
            [_json_value(as_given(name)), _json_value(value)] for name, value in record.headers
        ],
    }
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _json_value(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _fields(null: bytes) -> dict[str, Step]:
    def length(value: bytes | None) -> int:
        return -1 if value is None else len(value)

    def text(value: bytes | None) -> bytes:
        return null if value is None else value

    def headers(record: ConsumedRecord) -> bytes:
        return b",".join(as_given(name) + b"=" + text(value) for name, value in record.headers)

    return {
        "s": lambda record: text(record.value),
        "S": lambda record: b"%d" % length(record.value),
        "R": lambda record: struct.pack(">i", length(record.value)),
        "k": lambda record: text(record.key),
        "K": lambda record: b"%d" % length(record.key),
        "T": lambda record: b"%d" % record.timestamp,
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "h": headers,
    }
