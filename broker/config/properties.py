"""Java properties files, read as `java.util.Properties` reads them.

Comments start with `#` or `!`; a key ends at the first `=`, `:` or white space that is not escaped;
a line that ends in an odd number of backslashes goes on in the next, whose leading white space is
dropped; `\\uXXXX`, `\\t`, `\\n`, `\\r`, `\\f` are escapes, a backslash before anything else is
dropped. A later line for the same key wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from odradek.broker.config.types import ConfigError

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(data: bytes) -> dict[str, str]:
    """Keys and values of a file. Raises ConfigError for a broken unicode escape.

    Java takes the bytes for Latin-1; a file that is valid UTF-8 was meant as that, which makes a
    difference only where Java would have shown other characters than its author wrote.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    found: dict[str, str] = {}
    for line in _logical_lines(text.removeprefix("\ufeff")):
        key, value = _split(line)
        found[_unescape(key)] = _unescape(value)
    return found


def _logical_lines(text: str) -> Iterator[str]:
    natural_lines = _LINE_END.split(text)
    if not natural_lines[-1]:
        natural_lines.pop()
    carried = ""
    going_on = False
    for natural in natural_lines:
        line = natural.lstrip(_BLANKS)
        if not carried and (not line or line[0] in "#!"):
            going_on = False
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        going_on = backslashes % 2 == 1
        carried += line[:-1] if going_on else line
        if not going_on:
            yield carried
            carried = ""
    if going_on:
        yield carried


def _split(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    key, rest = line[:position], line[position:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        if text[position] != "\\":
            parts.append(text[position])
            position += 1
            continue
        escaped = text[position + 1 : position + 2]
        if escaped == "u":
            digits = text[position + 2 : position + 6]
            if not re.fullmatch("[0-9a-fA-F]{4}", digits):
                raise ConfigError(f"Broken unicode escape \\u{digits}: four hex digits expected")
            parts.append(chr(int(digits, 16)))
            position += 6
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
            position += 2
    # Characters outside the basic plane are written as two escapes, as in UTF-16.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
