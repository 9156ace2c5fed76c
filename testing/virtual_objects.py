"""Object storage in memory, that can be away, refuse, or lose its answers.

The store (`VirtualBucket`) outlives the nodes; `VirtualObjects` is one node's door to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from odradek.seams.files import Buffer
from odradek.seams.objects import ObjectInfo, ObjectMissing, ObjectsUnavailable
from odradek.testing.power import Power


class VirtualBucket:
    """What is stored, and what goes wrong."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        """(operation, key) of every request that came, failed or not."""
        self._failing: list[tuple[str, frozenset[str], bool]] = []

    def fail(
        self,
        pattern: str = "*",
        operations: Iterable[str] = ("put", "get", "get_range", "head", "delete", "list"),
        *,
        after_effect: bool = False,
    ) -> None:
        """Requests on keys like `pattern` raise ObjectsUnavailable until `heal`; `after_effect`:
        they are done all the same, and only the answer is lost."""
        self._failing.append((pattern, frozenset(operations), after_effect))

    def heal(self) -> None:
        self._failing.clear()

    def failing(self, operation: str, key: str, *, after_effect: bool) -> bool:
        return any(
            operation in operations and fnmatchcase(key, pattern) and after == after_effect
            for pattern, operations, after in self._failing
        )


class VirtualObjects:
    def __init__(self, bucket: VirtualBucket | None = None, power: Power | None = None) -> None:
        self.bucket = bucket or VirtualBucket()
        self._power = power or Power()

    def put(self, key: str, parts: Iterable[Buffer]) -> None:
        self._enter("put", key)
        self.bucket.objects[key] = b"".join(parts)
        self._leave("put", key)

    def get(self, key: str) -> Buffer:
        self._enter("get", key)
        return memoryview(self._found(key))

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        self._enter("get_range", key)
        return memoryview(self._found(key))[start : start + size]

    def head(self, key: str) -> ObjectInfo:
        self._enter("head", key)
        return ObjectInfo(key, len(self._found(key)))

    def delete(self, key: str) -> None:
        self._enter("delete", key)
        self.bucket.objects.pop(key, None)
        self._leave("delete", key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        self._enter("list", prefix)
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        return [
            ObjectInfo(key, len(data))
            for key, data in sorted(self.bucket.objects.items())
            if key.startswith(below)
        ]

    def _enter(self, operation: str, key: str) -> None:
        self._power.check()
        self.bucket.requests.append((operation, key))
        if self.bucket.failing(operation, key, after_effect=False):
            raise ObjectsUnavailable(f"{key}: the store is away")

    def _leave(self, operation: str, key: str) -> None:
        if self.bucket.failing(operation, key, after_effect=True):
            raise ObjectsUnavailable(f"{key}: the store's answer was lost")

    def _found(self, key: str) -> bytes:
        data = self.bucket.objects.get(key)
        if data is None:
            raise ObjectMissing(key)
        return data
