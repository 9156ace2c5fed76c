"""Reader of the whole topic `__remote_log_metadata`, for tools and checks outside a broker."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.client.consumer import ConsumedRecord
from odradek.client.metadata import Cluster
from odradek.client.whole_topic import WholeTopic
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class
from odradek.storage.tiered import metadata_records
from odradek.storage.tiered.audit import KnownSegments
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata_records import METADATA_TOPIC, metadata_partition
from odradek.storage.tiered.segment_metadata import TopicIdPartition

KEPT_BYTES = 24
"""First bytes of an unreadable record that are kept for its error message."""


@value_class
class UnreadableMetadata:
    """A record of the metadata topic that cannot be decoded."""

    partition: int
    offset: int
    timestamp_ms: int
    size_bytes: int
    first_bytes: bytes
    error: str


class WholeMetadataTopicReader:
    """Reads the metadata topic from its beginning into `known`, on each call up to the current end.

    An unreadable record may contain a segment, because brokers of a later version may have written it. Its
    partition of the metadata topic is known, but not its segment. Therefore segments that are not in `known`
    have an unclear status if the metadata of their partition is in that partition of the topic. The user can
    exclude such records by partition and offset (`passed_over`).
    """

    def __init__(self, cluster: Cluster, passed_over: Iterable[tuple[int, int]] = ()) -> None:
        self._topic = WholeTopic(cluster, METADATA_TOPIC)
        self._passed_over = frozenset(passed_over)
        self._unreadable: dict[tuple[int, int], UnreadableMetadata] = {}
        self.known = KnownSegments()

    async def read_to_end(self) -> None:
        """Read up to the current end.

        Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION if the topic does not exist) and ClientError.
        """
        await self._topic.read_to_end(self._apply)

    @property
    def begins_late(self) -> list[tuple[TopicPartition, int]]:
        """Partitions with a log start offset above 0, and that offset."""
        return self._topic.begins_late

    @property
    def unreadable(self) -> list[UnreadableMetadata]:
        """Unreadable records that are not passed over."""
        return [
            record for where, record in self._unreadable.items() if where not in self._passed_over
        ]

    @property
    def wrongly_passed_over(self) -> list[tuple[int, int]]:
        """Partitions and offsets that are passed over, but have no unreadable record."""
        return sorted(self._passed_over - self._unreadable.keys())

    def may_have_more_metadata(self, partition: TopicIdPartition) -> bool:
        """Whether unreadable metadata may contain segments of the partition."""
        doubtful = {each.partition for each, _ in self.begins_late}
        doubtful.update(record.partition for record in self.unreadable)
        return metadata_partition(partition, self._topic.partitions) in doubtful

    def _apply(self, record: ConsumedRecord) -> None:
        if record.value is None:
            return
        try:
            self.known.apply(metadata_records.decode(record.value))
        except RemoteStorageError as error:
            self._unreadable[record.partition, record.offset] = UnreadableMetadata(
                record.partition,
                record.offset,
                record.timestamp,
                len(record.value),
                record.value[:KEPT_BYTES],
                str(error),
            )
