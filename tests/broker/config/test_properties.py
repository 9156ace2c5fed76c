"""Tests of server.properties files, as java.util.Properties reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.broker.config.properties import parse_properties
from odradek.broker.config.types import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a : 1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t=\t1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("  a=1 ", {"a": "1 "}),
        ("a==1", {"a": "=1"}),
        ("a= = 1", {"a": "= 1"}),
        ("# a=1\n! b=2\n\n   # c\nd=4", {"d": "4"}),
        ("a=1\nA=2\na=3", {"a": "3", "A": "2"}),
        ("a=1,\\\n   2,\\\r\n3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a\\ b\\=c\\:d = e", {"a b=c:d": "e"}),
        ("a=\\u00e9\\t\\n\\r\\f\\q", {"a": "é\t\n\r\fq"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=é", {"a": "é"}),
        ("a=1\\\n#2", {"a": "1#2"}),
        ("\\\n# no key yet\na=1", {"a": "1"}),
        ("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
        ("", {}),
    ],
)
def test_properties_syntax(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text.encode()) == expected


def test_file_that_is_not_utf8_is_latin_1() -> None:
    assert parse_properties(b"a=\xe9") == {"a": "é"}


def test_byte_order_mark_is_ignored() -> None:
    assert parse_properties(b"\xef\xbb\xbfa=1") == {"a": "1"}


def test_invalid_unicode_escape_is_rejected() -> None:
    with pytest.raises(ConfigError, match="unicode escape"):
        parse_properties(b"a=\\u00g1")


def _written(text: str) -> str:
    """Text as java.util.Properties.store writes it."""
    return "".join(
        f"\\u{unit:04x}" for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    )


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_escaped_text_is_parsed_back(properties: dict[str, str]) -> None:
    lines = [f"{_written(key)}={_written(value)}" for key, value in properties.items()]
    assert parse_properties("\n".join(lines).encode()) == properties


@given(st.binary())
def test_arbitrary_bytes_raise_only_config_errors(data: bytes) -> None:
    try:
        parse_properties(data)
    except ConfigError:
        assert b"\\u" in data
