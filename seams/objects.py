"""Objects seam: object storage. `object_store.py` implements it with obstore.

Calls are synchronous and run through `Offload` (OBJECTS_LANE) only. When `put` returns, the object is durable and
visible to all readers. An object changes atomically.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from odradek.seams.files import Buffer
from odradek.seams.values import value_class


class ObjectMissing(Exception):
    """No object has that key."""


class ObjectsUnavailable(Exception):
    """The store did not respond or refused the request; the text contains its error."""


class ObjectDenied(ObjectsUnavailable):
    """The store denies access; retrying does not help."""


@value_class
class ObjectInfo:
    key: str
    size: int
    modified_ms: int = 0
    """Time of the put by the store's clock: ms since 1970 with a resolution of one second."""


@value_class
class StoreTimeouts:
    """Timeouts and retries of requests to a store.

    Requests are retried after 5xx, throttling and broken connections, with exponential backoff and jitter. No request
    starts after `all_retries_seconds`. Callers have retries of their own, and a stopping node waits for running calls,
    so these limits are short.
    """

    connect_seconds: float = 5.0
    request_seconds: float = 20.0
    retries: int = 4
    first_backoff_seconds: float = 0.1
    longest_backoff_seconds: float = 5.0
    all_retries_seconds: float = 20.0


DEFAULT_STORE_TIMEOUTS = StoreTimeouts()


class Objects(Protocol):
    """Operations of an object store. Subclasses inherit those that are based on others."""

    def put(self, key: str, parts: Iterable[Buffer]) -> None:
        """Store the concatenated parts under `key`, atomically replacing an existing object.

        Parts are read while they are sent, so an object may be larger than the memory. An error of reading a part is
        raised, and nothing is stored.
        """
        ...

    def get(self, key: str) -> Buffer: ...

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Return up to `size` bytes from `start`; fewer at the end of the object."""
        ...

    def get_range_into(self, key: str, start: int, into: memoryview) -> int:
        """Read bytes from `start` into a buffer; return how many. Reusing a buffer is cheaper than allocating."""
        data = self.get_range(key, start, len(into))
        into[: len(data)] = data
        return len(data)

    def head(self, key: str) -> ObjectInfo: ...

    def delete(self, key: str) -> None:
        """Delete an object. A missing object is not an error."""
        ...

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete several objects with few requests, in any order. After an error, some may be deleted."""
        ...

    def list(self, prefix: str) -> list[ObjectInfo]:
        """List all objects below `prefix`, sorted by key. "a/b/c" is below "a/b", "a/bc" is not."""
        return [info for page in self.pages(prefix) for info in page]

    def pages(self, prefix: str, after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        """List objects page by page; each step is a blocking call.

        Objects that are put or deleted in the meantime may or may not be listed. With `after`, only keys that sort after
        it are listed, without cost for the others.
        """
        ...

    def directories(self, prefix: str) -> Sequence[str]:
        """List the distinct parts of keys between `prefix` and the next "/", sorted.

        A request returns up to a thousand of them, regardless of the number of objects.
        """
        ...

    def outside_directories(self, prefix: str) -> Sequence[ObjectInfo]:
        """List the objects whose keys have no further "/" after `prefix`, sorted."""
        ...

    def sweep(self, put_before_ms: int) -> Sequence[str]:
        """Remove incomplete uploads of killed processes that started before a time (ms since 1970); return them.

        They are not objects and are not listed. Incomplete multipart uploads in S3 are not visible here; configure the
        bucket to abort them.
        """
        ...


class OpenObjects(Protocol):
    def __call__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        timeouts: StoreTimeouts = ...,
        identity_file: str | None = None,
    ) -> Objects:
        """Open the store at `url` with the options of its kind. Raises ValueError for an invalid one.

        `identity_file` is the file in which the node stores the identity of a directory (`store_directory`).
        """
        ...
