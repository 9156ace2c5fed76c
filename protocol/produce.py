"""Produce requests, versions 3 to 13, read by hand: records are slices of the frame."""

from __future__ import annotations

from uuid import UUID


class ProduceTopic:
    """A topic's part of a request: named up to version 12, by id from 13 on."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(
        self,
        name: str | None,
        topic_id: UUID | None,
        partitions: list[tuple[int, memoryview | None]],
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


class ProduceRequest:
    """`acks` is -1, 0 or 1 (or garbage: the handler answers INVALID_REQUIRED_ACKS)."""

    __slots__ = ("acks", "timeout_ms", "topics", "transactional_id")

    def __init__(
        self, transactional_id: str | None, acks: int, timeout_ms: int, topics: list[ProduceTopic]
    ) -> None:
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topics = topics


def read_produce(body: memoryview, version: int, offset: int = 0) -> ProduceRequest:
    """Read a Produce request that starts at `offset`; its records are views of `body`.

    Raises InvalidFrame for anything malformed, and for bytes left over.
    """
    raise NotImplementedError
