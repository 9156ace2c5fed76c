"""Finds segments that the brokers list as copied and the store does not have.

A query reads from brokers what the store does not have: the end of each log, which is not copied yet. If the store
does not have copied segments either, it is another store than the brokers use, or it lost objects. The brokers would
return these offsets, or fail at the same objects, so the query would not fail by name.

Only offsets that the leader reports as copied are checked, so a query of an intact store sends no request. Others are
compared with `__remote_log_metadata`. Retention is no loss: brokers advance the log start offset, then publish that a
segment is being deleted, and then delete its objects. So the log start offset is requested again, and the metadata is
read again after a segment was found missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from odradek.client.special_timestamps import EARLIEST
from odradek.pipeline.errors import BrokersUnavailable, MissingSegment
from odradek.pipeline.leader_epoch_lineage import UnresolvedOffsets, select_slices
from odradek.pipeline.segment_columns import Segments, SegmentSlice
from odradek.protocol.topics import TopicPartition
from odradek.storage.tiered.segment_metadata import TopicIdPartition

if TYPE_CHECKING:
    from odradek.pipeline.brokers import Brokers
    from odradek.pipeline.store import Store

log = logging.getLogger("odradek.pipeline")

URL_HINT = "check that tiered.url is the store that the brokers use"


class MissingSegments:
    """Check of the offsets that the store does not have, for one plan. Thread-safe."""

    def __init__(
        self, store: Store, brokers: Brokers, copied_ends: Mapping[TopicPartition, int]
    ) -> None:
        """`copied_ends` are the offsets up to which segments are copied, by partition."""
        self._store = store
        self._brokers = brokers
        self._copied_ends = copied_ends

    def among(self, partition: TopicIdPartition, low: int, high: int) -> list[UnresolvedOffsets]:
        """Return the parts of the offsets `low` <= offset < `high`, which the store does not have, that the brokers
        list in a copied segment. Raises BrokersUnavailable.
        """
        tp = TopicPartition(partition.topic, partition.partition)
        high = min(high, self._copied_ends.get(tp, low))
        if low >= high:
            return []
        low = max(low, self._brokers.offsets({tp: EARLIEST})[tp])
        if low >= high:
            return []
        try:
            return self._compared(partition, tp, low, high)
        except BrokersUnavailable as error:
            raise BrokersUnavailable(
                f"{self._store.url} has no segment with offsets {low} to {high - 1} of {tp}, which are copied"
                f" according to the leader, and the segments of the brokers cannot be listed: {error}; {URL_HINT}"
            ) from error

    def _compared(
        self, partition: TopicIdPartition, tp: TopicPartition, low: int, high: int
    ) -> list[UnresolvedOffsets]:
        copied = Segments.of(partition, self._brokers.finished_segments(partition))
        if not len(copied):
            return []
        lineage = self._brokers.lineage(tp, copied.epochs())
        lacking = self._store.lacking(select_slices(copied, lineage, low, high))
        if not lacking:
            return []
        still_copied = {each.id for each in self._brokers.finished_segments(partition)}
        return [
            UnresolvedOffsets(each.low, each.high, self._error(tp, each, key))
            for each, key in lacking
            if each.segment.id in still_copied
        ]

    def _error(self, tp: TopicPartition, slice_: SegmentSlice, key: str) -> MissingSegment:
        segment = slice_.segment
        error = MissingSegment(
            f"offsets {slice_.low} to {slice_.high - 1} of {tp}: the brokers list a copied segment with offsets"
            f" {segment.start_offset} to {segment.end_offset}, but {self._store.url} has no object {key}: {URL_HINT}"
        )
        error.key = key
        return error


def copied_ends(
    brokers: Brokers,
    remote_ends: Mapping[TopicPartition, int],
    partitions: Iterable[TopicPartition],
) -> dict[TopicPartition, int]:
    """Return the offsets up to which segments are copied.

    `remote_ends` are those that leaders report. A new leader does not know it yet, and brokers before Kafka 3.9 do not
    report it: offsets before the local log start offset are copied, too.
    """
    unknown = [tp for tp in partitions if tp not in remote_ends]
    return {**remote_ends, **(brokers.local_log_start_offsets(unknown) if unknown else {})}
