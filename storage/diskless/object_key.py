"""Keys of the objects of diskless topics: `diskless/{uploaded_ms}-{broker_id}-{uuid}`.

`uploaded_ms` is the uploader's wall clock in ms before the upload, in 13 digits, so that a listing is sorted by time
and may begin at a time. The key is all that a coordinator knows of the uploader and the age of a file (KIP-1164 has
fields for neither), so it is parsed strictly.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

PREFIX: Final = "diskless"
"""Directory of all objects of diskless topics."""
MS_DIGITS: Final = 13
"""Digits of the upload time, which are enough until the year 2286."""
_MS_LIMIT: Final = 10**MS_DIGITS
_KEY: Final = re.compile(
    rf"{PREFIX}/([0-9]{{{MS_DIGITS}}})-([0-9]{{1,10}})"
    r"-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)


def object_key(uploaded_ms: int, broker_id: int, uuid: UUID) -> str:
    """Return the key of a new object. Raises ValueError for a time or broker id that no key can contain."""
    if not 0 <= uploaded_ms < _MS_LIMIT or broker_id < 0:
        raise ValueError(f"no object key for time {uploaded_ms} ms and broker {broker_id}")
    return f"{key_prefix(uploaded_ms)}-{broker_id}-{uuid}"


def key_prefix(uploaded_ms: int) -> str:
    """Return what all keys of one time begin with: every key of an earlier time sorts before it."""
    return f"{PREFIX}/{uploaded_ms:0{MS_DIGITS}d}"


def parse_object_key(key: str) -> tuple[int, int]:
    """Return (upload time in ms, broker id) of a key. Raises ValueError if it is not a key of `object_key`."""
    found = _KEY.fullmatch(key)
    if found is None:
        raise ValueError(f"{key!r} is not the key of an object of diskless topics")
    return int(found[1]), int(found[2])
