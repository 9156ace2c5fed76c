"""Topic metadata and configuration that consumer groups read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from odradek.broker.groups.assignors import ASSIGNORS
from odradek.broker.groups.assignors.spec import Assign
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.consumer.settings import ConsumerGroupConfig
from odradek.broker.groups.consumer.topic_metadata import TopicMetadata
from odradek.replication.controller.image import MetadataImage

NO_TOPICS = MetadataImage()
CHANGED_TOPICS_MAX = 10_000
"""How many topics' changes are told apart, before all count as changed."""


class ConsumerGroupEnvironment:
    """One for all shards of a node; the driver keeps `topics` current."""

    def __init__(
        self,
        config: GroupConfig,
        image: MetadataImage = NO_TOPICS,
        settings: Callable[[str], ConsumerGroupConfig] = lambda group_id: ConsumerGroupConfig(),
    ) -> None:
        """`settings` is asked for a group's own settings whenever they are needed."""
        self.config = config
        self.topics = TopicMetadata(image)
        self.settings = settings
        self.new_topics_version = image.offset
        """The offset of the metadata log at which topics were created last: expressions that were
        resolved before may match more."""
        self._changed: dict[str, int] = {}
        """Of topics that came, went or changed, the offset of the metadata log at which they did."""
        self._known_since = image.offset
        """What changed up to there is not in it (any more)."""

    def topics_changed(
        self, image: MetadataImage, topics: Collection[str], *, created: bool
    ) -> None:
        """`image` has these topics created, deleted or changed."""
        self.topics = TopicMetadata(image, self.topics)
        if len(self._changed) > CHANGED_TOPICS_MAX:
            self._changed.clear()
            self._known_since = image.offset
        self._changed.update(dict.fromkeys(topics, image.offset))
        if created:
            self.new_topics_version = image.offset

    def is_changed(self, topics: Iterable[str], version: int) -> bool:
        """Whether any of them may be another one than it was at that offset of the metadata log.

        Groups ask when they are heard of: however many there are, a change costs them nothing.
        """
        if version >= self.topics.version:
            return False
        if version < self._known_since:
            return True
        return any(self._changed.get(name, -1) > version for name in topics)

    def assignor(self, name: str | None) -> Assign:
        """The one that members prefer, or else the broker's first."""
        names = self.config.consumer_assignors
        return ASSIGNORS[name if name in names and name is not None else names[0]]
