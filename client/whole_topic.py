"""Consumer of all records of a topic, up to its current end; each call continues from the previous one.

It is used for topics that contain a state, such as `__remote_log_metadata`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from odradek.client.consumer import EARLIEST, ConsumedRecord, Reader, ReaderOptions, list_offsets
from odradek.client.metadata import Cluster
from odradek.protocol.topics import TopicPartition


class WholeTopic:
    """Reads a topic from its beginning, and then the records added since the last call."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        selected: Callable[[int], Collection[int]] = range,
    ) -> None:
        """`selected` returns the partitions to read of a topic with that number of partitions."""
        self._cluster = cluster
        self._topic = topic
        self._selected = selected
        self._positions: dict[TopicPartition, int] | None = None
        self.begins_late: list[tuple[TopicPartition, int]] = []
        """Partitions with a log start offset above 0, and that offset."""

    @property
    def partitions(self) -> int:
        """Number of partitions that are read; 0 before the first read."""
        return len(self._positions or ())

    async def read_to_end(self, take: Callable[[ConsumedRecord], None]) -> None:
        """Call `take` with each record since the last call.

        Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION if the topic does not exist) and ClientError.
        """
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
        selected = self._selected(len(topic.partitions))
        where = [
            TopicPartition(self._topic, index) for index in topic.partitions if index in selected
        ]
        found = await list_offsets(self._cluster, dict.fromkeys(where, EARLIEST))
        self.begins_late = [(each, at.offset) for each, at in found.items() if at.offset > 0]
        return {each: offset.offset for each, offset in found.items()}
