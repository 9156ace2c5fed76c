"""Object storage: interface. The real one, over obstore, is `object_store.py`.

Synchronous and called through `Offload` (OBJECTS_LANE) alone. What was put is durable and seen by
everyone once `put` returns; an object changes whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from odradek.seams.files import Buffer
from odradek.seams.values import value_class


class ObjectMissing(Exception):
    """No object has that key."""


class ObjectsUnavailable(Exception):
    """The store did not answer, or refused; the text says what it said."""


class ObjectDenied(ObjectsUnavailable):
    """The store does not let us: asking again is no use."""


@value_class
class ObjectInfo:
    key: str
    size: int
    modified_ms: int = 0
    """When it was put, by the store's clock: ms since 1970, exact to a second."""


@value_class
class Patience:
    """How long a store may take over a request, and how often it is asked again: after 5xx, throttling
    and broken connections, with exponential back-off and jitter. No request begins after
    `all_retries_seconds`. Who calls has a policy of its own above this one, and a node that stops
    waits for the call: so both are short."""

    connect_seconds: float = 5.0
    request_seconds: float = 20.0
    retries: int = 4
    first_backoff_seconds: float = 0.1
    longest_backoff_seconds: float = 5.0
    all_retries_seconds: float = 20.0


USUAL_PATIENCE = Patience()


class Objects(Protocol):
    """Stores inherit from it what follows from the rest."""

    def put(self, key: str, parts: Iterable[Buffer]) -> None:
        """Store the parts, joined, under `key`; replaces what was there, whole or not at all.

        Parts are taken as they go out, some ahead: an object may be larger than memory. What taking one
        raises is raised here, and nothing is stored.
        """
        ...

    def get(self, key: str) -> Buffer: ...

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """At most `size` bytes from `start`; fewer at the end of the object."""
        ...

    def get_range_into(self, key: str, start: int, into: memoryview) -> int:
        """The same, as many as `into` has room for, to where its memory is; how many. For who reads much:
        memory that is used again costs less than filling it."""
        data = self.get_range(key, start, len(into))
        into[: len(data)] = data
        return len(data)

    def head(self, key: str) -> ObjectInfo: ...

    def delete(self, key: str) -> None:
        """No error if there is none."""
        ...

    def delete_all(self, keys: Iterable[str]) -> None:
        """Several, in few requests where the store can; in no order. After an error some may be gone."""
        ...

    def list(self, prefix: str) -> list[ObjectInfo]:
        """All below `prefix`, sorted by key; "a/b" has "a/b/c" below it, not "a/bc"."""
        return [info for page in self.pages(prefix) for info in page]

    def pages(self, prefix: str, after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        """As `list`, some at a time, for stores of millions: each step is a call that waits. What is put
        or deleted meanwhile may be in it or not. With `after` only keys that sort behind it: what lies
        before costs nothing."""
        ...

    def directories(self, prefix: str) -> Sequence[str]:
        """What keys have between `prefix` and the next "/", once each, sorted; one request for a thousand
        of them, however many objects they have."""
        ...

    def outside_directories(self, prefix: str) -> Sequence[ObjectInfo]:
        """Those whose keys have no other "/" behind `prefix`, sorted; what `directories` has not."""
        ...

    def sweep(self, put_before_ms: int) -> Sequence[str]:
        """Remove what puts left that were never finished (their process was killed) and began before
        then; what that was. Such remains are no objects, and in no listing. Where the store alone can
        see them (parts of uploads to S3), a rule there has to."""
        ...


class OpenObjects(Protocol):
    def __call__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        patience: Patience = ...,
        memory: str | None = None,
    ) -> Objects:
        """The store at `url`; `options` are those of its kind. ValueError for either, if unknown.

        `memory` is a file in which the node remembers which directory that is (`store_directory`)."""
        ...
