"""Incremental fetch session (KIP-227) of a fetcher, without I/O.

The leader's broker remembers the fetched partitions: a request has the changes since the request
before, a response has the partitions with news. So the fetch of a partition stays pending until a
response has the partition, in any number of requests; idle partitions cost nothing.

A session begins with a full request. After any error (a lost connection, a rejected session) the
next request is full again. It names the old session, so that the broker can remove it, and has all
pending fetches. If the broker's session cache is full, it returns session id 0, and every request
is full. Many new partitions are spread over several requests, each of which takes little time to
encode. Changes of partitions that the broker knows are sent first, because otherwise the broker
would read at their old offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from uuid import UUID

from odradek.replication.partition.follower_state import Fetch
from odradek.seams.values import value_class

TopicIdAndPartition = tuple[UUID, int]
"""Topic id and partition."""

NEW_PARTITIONS_MAX = 500
"""Limit of new partitions in one request of a session."""

_INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1


@value_class
class FetchRequestData:
    """Session fields and partitions of one Fetch request."""

    session_id: int
    session_epoch: int
    wanted: Sequence[tuple[TopicIdAndPartition, Fetch]]
    forgotten: Sequence[TopicIdAndPartition]
    is_complete: bool
    """Whether the broker then knows all fetches; if not, the next request follows immediately."""


class FetchSessionHandler:
    """Session with one broker. One request at a time: `plan`, then `responded` or `lost`."""

    def __init__(self) -> None:
        self._fetches: dict[TopicIdAndPartition, Fetch] = {}
        self._unsent: dict[TopicIdAndPartition, None] = {}
        self._changed: dict[TopicIdAndPartition, None] = {}
        """Partitions that the broker knows with an outdated fetch."""
        self._to_forget: dict[TopicIdAndPartition, None] = {}
        """Partitions that the broker knows and that are no longer fetched."""
        self._sent: set[TopicIdAndPartition] = set()
        self._id = 0
        self._epoch = _INITIAL_EPOCH
        self._is_refused = False
        """Whether the broker created no session for the last full request."""

    def __len__(self) -> int:
        return len(self._fetches)

    def fetch_of(self, key: TopicIdAndPartition) -> Fetch | None:
        """Return the pending fetch of the partition."""
        return self._fetches.get(key)

    def want(self, key: TopicIdAndPartition, fetch: Fetch) -> None:
        before = self._fetches.pop(key, None)
        self._fetches[key] = fetch
        if key not in self._sent:
            self._unsent[key] = None
        elif fetch != before:
            self._changed[key] = None
        self._to_forget.pop(key, None)

    def forget(self, key: TopicIdAndPartition) -> None:
        """Stop fetching the partition."""
        if self._fetches.pop(key, None) is None:
            return
        self._unsent.pop(key, None)
        self._changed.pop(key, None)
        if key in self._sent:
            self._to_forget[key] = None

    # Requests and responses

    def plan(self) -> FetchRequestData:
        """Return the data of the next request."""
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
        """Handle a response; `session_id` is 0 if the broker has no session."""
        if session_id == 0:
            self._is_refused = True
            self._id, self._epoch = 0, _INITIAL_EPOCH
            return
        self._is_refused = False
        self._id = session_id
        self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def lost(self) -> None:
        """Handle a failure of the whole request: the next one is full."""
        self._epoch = _INITIAL_EPOCH
