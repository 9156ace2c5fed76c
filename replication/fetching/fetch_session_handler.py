"""An incremental fetch session (KIP-227) as the one who fetches keeps it, without I/O.

The leader's broker remembers what it was asked for: a request tells what changed since the one
before, an answer what is news. So a question about a partition stands until an answer names the
partition, however many requests that takes; nothing is done for those that are idle.

A session begins with a full request. Whatever goes wrong (a connection, an answer that refuses the
session), the next one is full again, names the old session so that the broker may forget it, and has
all questions that stand. A broker that has no room for a session answers with id 0: then every request
is full. A long list of new partitions is told in several requests, none of which takes long to write;
what changed of those told already goes before, or the broker would read them where they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from uuid import UUID

from odradek.replication.partition.follower_state import Fetch
from odradek.seams.values import value_class

Key = tuple[UUID, int]
"""A topic's id, and the partition."""

TOLD_AT_ONCE = 500
"""New partitions in one request, at most, as long as there is a session."""

_INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1


@value_class
class FetchPlan:
    """What one request says."""

    session_id: int
    session_epoch: int
    wanted: Sequence[tuple[Key, Fetch]]
    forgotten: Sequence[Key]
    is_complete: bool
    """Whether the broker knows all that is wanted, then; else there is more to be told at once."""


class FetchSession:
    """See the module. One request at a time: `plan`, then `responded` or `lost`."""

    def __init__(self) -> None:
        self._standing: dict[Key, Fetch] = {}
        self._untold: dict[Key, None] = {}
        self._changed: dict[Key, None] = {}
        """Told before, and not as it stands now."""
        self._to_forget: dict[Key, None] = {}
        """Told before, and wanted no longer."""
        self._told: set[Key] = set()
        self._id = 0
        self._epoch = _INITIAL_EPOCH
        self._is_refused = False
        """The broker made no session of the last full request."""

    def __len__(self) -> int:
        return len(self._standing)

    def question(self, key: Key) -> Fetch | None:
        """The one that stands."""
        return self._standing.get(key)

    def want(self, key: Key, question: Fetch) -> None:
        before = self._standing.pop(key, None)
        self._standing[key] = question
        if key not in self._told:
            self._untold[key] = None
        elif question != before:
            self._changed[key] = None
        self._to_forget.pop(key, None)

    def forget(self, key: Key) -> None:
        """Nothing is asked of it any more."""
        if self._standing.pop(key, None) is None:
            return
        self._untold.pop(key, None)
        self._changed.pop(key, None)
        if key in self._told:
            self._to_forget[key] = None

    # Requests and answers

    def plan(self) -> FetchPlan:
        """The next request."""
        if self._epoch == _INITIAL_EPOCH:
            self._told.clear()
            self._to_forget.clear()
            self._changed.clear()
            self._untold = dict.fromkeys(self._standing)
        limit = len(self._untold) if self._is_refused else TOLD_AT_ONCE
        new = list(islice(self._untold, limit))
        keys = [*self._changed, *new]
        forgotten = tuple(self._to_forget)
        self._changed.clear()
        for key in new:
            del self._untold[key]
        self._to_forget.clear()
        self._told.difference_update(forgotten)
        self._told.update(keys)
        wanted = [(key, self._standing[key]) for key in keys]
        return FetchPlan(self._id, self._epoch, wanted, forgotten, not self._untold)

    def responded(self, session_id: int) -> None:
        """The last request has an answer, in this session; 0 if the broker keeps none."""
        if session_id == 0:
            self._is_refused = True
            self._id, self._epoch = 0, _INITIAL_EPOCH
            return
        self._is_refused = False
        self._id = session_id
        self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def lost(self) -> None:
        """The last request failed as a whole; the next one begins anew."""
        self._epoch = _INITIAL_EPOCH
