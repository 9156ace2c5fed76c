"""Which task reads what: stretches of remote segments by bytes, the rest of a partition from its broker.

A stretch is cut at offsets, in proportion to its bytes; whoever reads it finds the position of its first
offset by the segment's own index. Pieces stay in the order of their offsets, and a task takes as many as
make up its bytes, so that neither one partition nor one segment decides how many tasks there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from odradek.pipeline.history import Stretch

TASKS_MAX = 20_000
"""More than that are the driver's burden; tasks become larger instead."""
RECORD_BYTES = 1024
"""What a record on a broker is taken for: how large those are is known when they are read."""


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """Offsets of a partition that are fetched from whoever leads it: from `low` on, before `high`."""

    topic: str
    partition: int
    low: int
    high: int

    @property
    def size_bytes(self) -> int:
        return (self.high - self.low) * RECORD_BYTES


Piece = Stretch | BrokerRange


def tasks_of(
    pieces: Sequence[Piece],
    *,
    task_bytes: int,
    min_tasks: int | None = None,
    max_records: int | None = None,
) -> list[tuple[Piece, ...]]:
    """The pieces of each task: about `task_bytes` each, at least `min_tasks` of them as far as there are
    offsets enough, none with more than `max_records` offsets."""
    total = sum(piece.size_bytes for piece in pieces)
    limit = max(task_bytes, total // TASKS_MAX, 1)
    if min_tasks is not None:
        limit = max(1, min(limit, -(-total // min_tasks)))
    records = max_records if max_records is not None else 1 << 62
    return list(_packed(_cut(pieces, limit, records), limit, records))


def _cut(pieces: Iterable[Piece], limit: int, records: int) -> Iterator[Piece]:
    """Each at most so large, as far as offsets allow."""
    for piece in pieces:
        offsets = piece.high - piece.low
        parts = max(-(-piece.size_bytes // limit), -(-offsets // records), 1)
        parts = min(parts, offsets)
        for number in range(parts):
            low = piece.low + offsets * number // parts
            high = piece.low + offsets * (number + 1) // parts
            if isinstance(piece, Stretch):
                yield Stretch(piece.segment, low, high)
            else:
                yield BrokerRange(piece.topic, piece.partition, low, high)


def _packed(pieces: Iterable[Piece], limit: int, records: int) -> Iterator[tuple[Piece, ...]]:
    taken: list[Piece] = []
    size = count = 0
    for piece in pieces:
        offsets = piece.high - piece.low
        if taken and (size + piece.size_bytes > limit or count + offsets > records):
            yield tuple(taken)
            taken, size, count = [], 0, 0
        taken.append(piece)
        size += piece.size_bytes
        count += offsets
    if taken:
        yield tuple(taken)
