"""Object storage: interface. The real one, over obstore, is `object_store.py`.

Synchronous and called through `Offload` (lane "objects") alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from odradek.seams.files import Buffer
from odradek.seams.values import value_class


class ObjectMissing(Exception):
    """No object has that key."""


class ObjectsUnavailable(Exception):
    """The store did not answer, or refused; the text says what it said."""


@value_class
class ObjectInfo:
    key: str
    size: int


class Objects(Protocol):
    def put(self, key: str, parts: Iterable[Buffer]) -> None:
        """Store the parts, joined, under `key`; replaces what was there, whole or not at all."""
        ...

    def get(self, key: str) -> Buffer: ...

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """At most `size` bytes from `start`; fewer at the end of the object."""
        ...

    def head(self, key: str) -> ObjectInfo: ...

    def delete(self, key: str) -> None:
        """No error if there is none."""
        ...

    def list(self, prefix: str) -> list[ObjectInfo]:
        """All below `prefix`, sorted by key; "a/b" has "a/b/c" below it, not "a/bc"."""
        ...
