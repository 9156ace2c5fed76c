"""Which segments a partition's leader copies to the remote tier next, and from where on.

Logs are copied in order and without gaps: a segment that can't be copied holds up those after it, and
is tried again, for what was copied last is what local retention goes by, here and on the followers. So
much is copied as is closed and decided: below the last stable offset (T-28). A new leader finds by its
own lineage of epochs how far the leaders before have come (T-31, T-62):

| highest copied offset of the epoch, newest epoch first | copied so far |
|---|---|
| none | see the epoch before |
| below the epoch's end in this log | that |
| at or past it: an unclean leader copied what this log never had (E15) | the epoch's end |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from odradek.storage.log.epochs import EpochStart

NOTHING = -1
"""As a copied offset."""


class Sealed(Protocol):
    """A segment that is not written to any more; offsets, the last one inclusive."""

    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


S = TypeVar("S", bound=Sealed)


def highest_copied(
    epochs: Sequence[EpochStart],
    log_end_offset: int,
    highest_of: Callable[[int], int | None],
) -> int:
    """The last offset of this log that is in the remote tier, or NOTHING; `epochs` is its whole cache,
    `highest_of` an epoch's highest copied offset."""
    end_offset = log_end_offset
    for each in reversed(epochs):
        highest = highest_of(each.epoch)
        if highest is not None:
            return min(highest, end_offset - 1)
        end_offset = each.start_offset
    return NOTHING


def start_of_log(
    epochs: Sequence[EpochStart],
    first_of: Callable[[int], int | None],
    local_start_offset: int,
) -> int:
    """Where a new leader's log starts: at the first finished segment of its earliest epoch that has
    one (`first_of`), where the leader before may have deleted further than this replica knows; never
    past what it has on its own disks."""
    for each in epochs:
        first = first_of(each.epoch)
        if first is not None:
            return min(first, local_start_offset)
    return local_start_offset


def to_be_copied(
    sealed: Iterable[S], *, copied_offset: int, log_start_offset: int, last_stable_offset: int
) -> list[S]:
    """Of the sealed segments, ascending, those to be copied now (T-28, E15).

    One that begins at or below `copied_offset` and ends past it is copied whole: another leader had
    closed its segment elsewhere.
    """
    first_wanted = max(copied_offset + 1, log_start_offset)
    return [
        each
        for each in sealed
        if each.end_offset >= first_wanted and each.end_offset < last_stable_offset
    ]
