"""Reads the subscribed topics from the metadata of the "consumer" protocol type.

Layout: version int16, topics as an array of strings, user data as nullable bytes, then fields of
later versions. Only the part common to all versions is read, to know which topics' offsets are in
use.
"""

from __future__ import annotations

from collections.abc import Iterable

CONSUMER_PROTOCOL = "consumer"
"""Protocol type whose metadata and assignments have this layout."""


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Topics that members with this metadata subscribe to; None if any metadata is invalid."""
    names: set[str] = set()
    try:
        for each in metadata:
            names.update(_topics(each))
    except ValueError:  # UnicodeDecodeError is one
        return None
    return frozenset(names)


def _topics(metadata: bytes) -> list[str]:
    if _int(metadata, 0, 2) < 0:
        raise ValueError("the version is negative")
    count, position = _int(metadata, 2, 4), 6
    topics = []
    for _ in range(count):
        size = _int(metadata, position, 2)
        position += 2
        topics.append(_slice(metadata, position, size).decode())
        position += size
    user_data_size = _int(metadata, position, 4)
    if user_data_size != -1:
        _slice(metadata, position + 4, user_data_size)
    return topics


def _int(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(_slice(data, position, size), "big", signed=True)


def _slice(data: bytes, position: int, size: int) -> bytes:
    if size < 0 or position + size > len(data):
        raise ValueError("the metadata is truncated")
    return data[position : position + size]
