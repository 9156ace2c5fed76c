"""Tests of Java's string hash and the order of Java's hash maps."""

from __future__ import annotations

import pytest

from odradek.broker.java_hash import hash_map_order, java_string_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("test-group", 627841412),
        ("console-consumer-12345", 158455506),
        ("été", 227742),
        ("\U0001f600", 1772899),  # outside the BMP: two code units
        ("polygenelubricants", -(2**31)),
    ],
)
def test_java_string_hash(text: str, expected: int) -> None:
    """Values from Java's String.hashCode."""
    assert java_string_hash(text) == expected


@pytest.mark.parametrize(
    "listed",
    [
        "producer_byte_rate consumer_byte_rate controller_mutation_rate request_percentage",
        "interval.ms match metrics",
    ],
)
def test_hash_map_order(listed: str) -> None:
    """The order in which Kafka 4.3 lists the quotas of a client and the configs of a subscription."""
    assert hash_map_order(tuple(sorted(listed.split()))) == tuple(listed.split())
