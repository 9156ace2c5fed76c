"""Whether a topic that the remote tier has something of was deleted, or is not known here yet.

That the cluster's image has no topic of an id may mean either: images lag, and what a lagging node took
for deleted would be gone for good. So it takes evidence: this node saw the deletion, or its image is of
a time well after the first record about the topic, and must have had it if it lived.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final
from uuid import UUID

from odradek.replication.controller.image import MetadataDelta, MetadataImage

SKEW_MS: Final = 60_000
"""By how much the clocks of two nodes may differ."""
REMEMBERED: Final = 10_000


class Verdict(Enum):
    LIVES = "lives"
    DELETED = "deleted"
    TOO_EARLY = "too early to tell"


class DeletedTopics:
    """See the module."""

    def __init__(self) -> None:
        self._seen: OrderedDict[UUID, None] = OrderedDict()

    def metadata_changed(self, delta: MetadataDelta) -> bool:
        """Whether topics were deleted."""
        for topic_id in delta.deleted_topics:
            self._seen[topic_id] = None
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return bool(delta.deleted_topics)

    def verdict(
        self, image: MetadataImage, topic_id: UUID, first_ms: int, *, now_ms: int | None
    ) -> Verdict:
        """`first_ms` is when the topic was first heard of in the remote tier. `now_ms` is the time on
        the active controller, whose image is of the present; None anywhere else."""
        if topic_id in image.topics_by_id:
            return Verdict.LIVES
        if topic_id in self._seen:
            return Verdict.DELETED
        as_of_ms = image.timestamp_ms if now_ms is None else now_ms
        return Verdict.DELETED if as_of_ms >= first_ms + SKEW_MS else Verdict.TOO_EARLY
