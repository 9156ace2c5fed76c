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

TopicIdPartition = tuple[UUID, int]
"""A topic's id, and the partition."""

NEW_PARTITIONS_MAX = 500
"""New partitions in one request, at most, as long as there is a session."""

_INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1


@value_class
class FetchRequestData:
    """What one request says."""

    session_id: int
    session_epoch: int
    wanted: Sequence[tuple[TopicIdPartition, Fetch]]
    forgotten: Sequence[TopicIdPartition]
    is_complete: bool
    """Whether the broker knows all that is wanted, then; else there is more to be told at once."""


class FetchSessionHandler:
    """See the module. One request at a time: `plan`, then `responded` or `lost`."""

    def __init__(self) -> None:
        self._fetches: dict[TopicIdPartition, Fetch] = {}
        self._unsent: dict[TopicIdPartition, None] = {}
        self._changed: dict[TopicIdPartition, None] = {}
        """Told before, and not as it stands now."""
        self._to_forget: dict[TopicIdPartition, None] = {}
        """Told before, and wanted no longer."""
        self._sent: set[TopicIdPartition] = set()
        self._id = 0
        self._epoch = _INITIAL_EPOCH
        self._is_refused = False
        """The broker made no session of the last full request."""

    def __len__(self) -> int:
        return len(self._fetches)

    def fetch_of(self, key: TopicIdPartition) -> Fetch | None:
        """The one that stands."""
        return self._fetches.get(key)

    def want(self, key: TopicIdPartition, fetch_of: Fetch) -> None:
        before = self._fetches.pop(key, None)
        self._fetches[key] = fetch_of
        if key not in self._sent:
            self._unsent[key] = None
        elif fetch_of != before:
            self._changed[key] = None
        self._to_forget.pop(key, None)

    def forget(self, key: TopicIdPartition) -> None:
        """Nothing is asked of it any more."""
        if self._fetches.pop(key, None) is None:
            return
        self._unsent.pop(key, None)
        self._changed.pop(key, None)
        if key in self._sent:
            self._to_forget[key] = None

    # Requests and answers

    def plan(self) -> FetchRequestData:
        """The next request."""
        if self._epoch == _INITIAL_EPOCH:
            self._sent.clear()
            self._to_forget.clear()
            self._changed.clear()
            self._unsent = dict.fromkeys(self._fetches)
        limit = len(self._unsent) if self._is_refused else NEW_PARTITIONS_MAX
        new = list(islice(self._unsent, limit))
        keys = [*self._changed, *new]
        forgotten = tuple(self._to_forget)
        self._changed.clear()
        for key in new:
            del self._unsent[key]
        self._to_forget.clear()
        self._sent.difference_update(forgotten)
        self._sent.update(keys)
        wanted = [(key, self._fetches[key]) for key in keys]
        return FetchRequestData(self._id, self._epoch, wanted, forgotten, not self._unsent)

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
