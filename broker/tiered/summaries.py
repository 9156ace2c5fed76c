"""What a leader does to have a summary of its partition's remote segments beside them (`summary.py`), for
who reads history without asking brokers.

It is put before the leader's first copy, so that a reader does not go by one of a leader before, whose
history may have gone another way: where nothing is copied yet, that one only goes. Then it is put after every few copies, and has what is finished up to where this
one has copied. What lies behind, readers list. Its rows are taken from the metadata some at a time, with
turns of others in between.
"""

from __future__ import annotations

import logging

import trio

from odradek.broker.tiered.segment_work import SegmentWork
from odradek.protocol.errors import KafkaError
from odradek.storage.tiered.metadata import SegmentState, TopicIdPartition
from odradek.storage.tiered.remote_metadata import RemoteLogMetadataManager
from odradek.storage.tiered.summary import SummaryBuilder

log = logging.getLogger("odradek.tiered")

COPIES_BEHIND_MIN, BEHIND_OF_ROWS = 8, 1024
"""So many copies may lie behind a summary, or a 1024th of what it has: it is written whole each time, and
readers open what lies behind one by one."""
LOOKED_AT_A_STEP = 32


class SummaryUpkeep:
    """Of one partition, in one leadership, which began in `leader_epoch`."""

    def __init__(
        self,
        id: TopicIdPartition,
        leader_epoch: int,
        metadata: RemoteLogMetadataManager,
        work: SegmentWork,
    ) -> None:
        self._id = id
        self._leader_epoch = leader_epoch
        self._metadata = metadata
        self._work = work
        self._rows: int | None = None
        """Of the one that was put last; None before that."""
        self._copies_behind = 0

    async def before_copy(self, start_offset: int) -> None:
        """A segment that begins there is about to be copied. Raises what the store does: a copy that readers
        cannot see would be worse than none."""
        if self._rows is None:
            self._rows = 0
            try:
                await self._put(start_offset)
            except BaseException:
                self._rows = None
                raise

    async def copied(self, end_offset: int) -> None:
        """A segment that ends there was copied. If a summary is due and cannot be put, a later copy will
        have it put."""
        self._copies_behind += 1
        if self._copies_behind > max(COPIES_BEHIND_MIN, (self._rows or 0) // BEHIND_OF_ROWS):
            try:
                await self._put(end_offset + 1)
            except KafkaError as error:
                log.info("the summary of %s is put later: %s", self._id, error)

    async def _put(self, before_offset: int) -> None:
        """In place of those of leaders before, which may tell of what is not our history. Where nothing is
        finished there is none."""
        builder = await self._built(before_offset)
        if len(builder):
            await self._work.put_summary(self._id, self._leader_epoch, builder)
        else:
            await self._work.remove_summaries(self._id)
        self._rows, self._copies_behind = len(builder), 0

    async def _built(self, before_offset: int) -> SummaryBuilder:
        """An empty one also if the segments are of no kind that has one."""
        builder = SummaryBuilder()
        for number, segment in enumerate(self._metadata.segments(self._id), 1):
            if segment.start_offset >= before_offset:
                break
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED:
                try:
                    builder.add(segment)
                except ValueError as error:
                    log.info("%s has no summary: %s", self._id, error)
                    return SummaryBuilder()
            if number % LOOKED_AT_A_STEP == 0:
                await trio.lowlevel.checkpoint()
        return builder
