"""Parser of Java properties files, compatible with `java.util.Properties`.

Comments start with `#` or `!`. A key ends at the first unescaped `=`, `:` or white space. A line that ends in
an odd number of backslashes continues on the next line, whose leading white space is dropped. `\\uXXXX`, `\\t`,
`\\n`, `\\r` and `\\f` are escapes; another backslash is dropped. The last line of a key applies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from odradek.broker.config.types import ConfigError

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(data: bytes) -> dict[str, str]:
    """Parse keys and values. Raises ConfigError for an invalid unicode escape.

    Java decodes the bytes as Latin-1. A file that is valid UTF-8 is decoded as UTF-8, which differs only where
    Java would show wrong characters.
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
    continues = False
    for natural in natural_lines:
        line = natural.lstrip(_BLANKS)
        if not carried and (not line or line[0] in "#!"):
            continues = False
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        continues = backslashes % 2 == 1
        carried += line[:-1] if continues else line
        if not continues:
            yield carried
            carried = ""
    if continues:
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
    # Characters outside the basic plane have two escapes, as in UTF-16.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
