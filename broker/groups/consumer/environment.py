"""What consumer groups know of the world outside their partition: topics, and how they are configured."""

from __future__ import annotations

from collections.abc import Callable

from odradek.broker.groups.assignors import ASSIGNORS
from odradek.broker.groups.assignors.spec import Assign
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.consumer.settings import ConsumerSettings
from odradek.broker.groups.consumer.topics import Topics
from odradek.replication.controller.image import MetadataImage

NO_TOPICS = MetadataImage()


class Environment:
    """One for all shards of a node; the driver keeps `topics` current."""

    def __init__(
        self,
        config: GroupConfig,
        image: MetadataImage = NO_TOPICS,
        settings: Callable[[str], ConsumerSettings] = lambda group_id: ConsumerSettings(),
    ) -> None:
        """`settings` is asked for a group's own settings whenever they are needed."""
        self.config = config
        self.topics = Topics(image)
        self.settings = settings
        self.new_topics_version = image.offset
        """The offset of the metadata log at which topics were created last: expressions that were
        resolved before may match more."""

    def topics_changed(self, image: MetadataImage, *, created: bool) -> None:
        self.topics = Topics(image, self.topics)
        if created:
            self.new_topics_version = image.offset

    def assignor(self, name: str | None) -> Assign:
        """The one that members prefer, or else the broker's first."""
        names = self.config.consumer_assignors
        return ASSIGNORS[name if name in names and name is not None else names[0]]
