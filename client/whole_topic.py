"""Reading all of a topic, from its beginning to its end of that moment, and later on from there.

For topics that say how something stands: whoever has read all of it knows that.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.client.consumer import (
    EARLIEST,
    ConsumedRecord,
    Reader,
    ReaderOptions,
    TopicPartition,
    list_offsets,
)
from odradek.client.metadata import Cluster


class WholeTopic:
    """See the module."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._positions: dict[TopicPartition, int] | None = None
        self.begins_late: list[tuple[TopicPartition, int]] = []
        """Partitions whose first records are gone, and where they begin."""

    @property
    def partitions(self) -> int:
        """How many it has, once it is read."""
        return len(self._positions or ())

    async def read_on(self, take: Callable[[ConsumedRecord], None]) -> None:
        """Hand on the records that came since the last time. Raises KafkaError
        (UNKNOWN_TOPIC_OR_PARTITION if there is no such topic) and ClientError."""
        if self._positions is None:
            self._positions = await self._beginnings()
        reader = Reader(self._cluster, ReaderOptions())
        reader.assign(self._positions)
        while not await reader.at_end():
            for record in await reader.poll():
                take(record)
        self._positions = reader.positions

    async def _beginnings(self) -> dict[TopicPartition, int]:
        topic = await self._cluster.topic(self._topic)
        where = [TopicPartition(self._topic, index) for index in topic.partitions]
        found = await list_offsets(self._cluster, dict.fromkeys(where, EARLIEST))
        self.begins_late = [(each, at.offset) for each, at in found.items() if at.offset > 0]
        return {each: offset.offset for each, offset in found.items()}
