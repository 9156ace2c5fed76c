"""Brokers in memory with a few partitions, whose log start and end offsets are set by the test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import pytest

from odradek.client.batch_reader import FetchedBatches
from odradek.client.metadata import Partition, Topic
from odradek.client.special_timestamps import EARLIEST_LOCAL
from odradek.pipeline.brokers import EARLIEST, LATEST, Brokers
from odradek.pipeline.errors import BrokersUnavailable
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.topics import TopicPartition
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition

TOPIC_ID = UUID(int=1)
RECORDS_A_FETCH = 5


class OutOfRange(KafkaError):
    code = ErrorCode.offset_out_of_range


class AnotherTopic(KafkaError):
    code = ErrorCode.inconsistent_topic_id


@dataclass
class PartitionLog:
    """Offsets of a partition: log start offset and log end offset."""

    start: int
    end: int
    undecided: int | None = None
    """From there on a transaction is open."""
    tiered_end: int | None = None
    """Behind the last offset that the store has; None where the leader does not know."""
    local_start: int | None = None
    """Where the leader's own log begins; None where all of it is there."""
    epoch: int = 0
    """The leader's; of this one are all records from `written_from` on."""
    written_from: int = 0

    def readable(self, *, committed: bool) -> int:
        return self.end if self.undecided is None or not committed else self.undecided

    def found(self, at: int, *, committed: bool) -> int:
        """Return the offset for a timestamp, as ListOffsets does. Timestamps are 1000 ms + offset."""
        readable = self.readable(committed=committed)
        if at == EARLIEST_LOCAL:
            return self.start if self.local_start is None else self.local_start
        if at in (EARLIEST, LATEST):
            return self.start if at == EARLIEST else readable
        assert at >= 0
        offset = max(self.start, at - 1000)
        return offset if offset < readable else -1


class VirtualLeader(Brokers):
    """Leader of all partitions of the topic "t"; an internal topic also exists."""

    def __init__(self, *partitions: tuple[int, int]) -> None:
        self.topic_id: UUID | None = TOPIC_ID
        self.logs = {
            TopicPartition("t", n): PartitionLog(*each) for n, each in enumerate(partitions)
        }
        self.finished: list[RemoteLogSegmentMetadata] = []
        """Copied segments of the only partition, in the remote log metadata."""
        self.metadata_error: BrokersUnavailable | None = None
        self.metadata_reads = 0

    def topics(self) -> dict[str, Topic]:
        partitions = {each: Partition(each, 1, 0, (1,), (1,), ()) for _, each in self.logs}
        offsets = {0: Partition(0, 1, 0, (1,), (1,), ())}
        return {
            "__consumer_offsets": Topic("__consumer_offsets", UUID(int=9), True, offsets),
            "t": Topic("t", self.topic_id, False, partitions),
        }

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        return {
            where: self.logs[where].found(which, committed=read_committed)
            for where, which in wanted.items()
        }

    def remote_log_end_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        ends = {where: self.logs[where].tiered_end for where in partitions}
        return {where: end for where, end in ends.items() if end is not None}

    def local_log_start_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return self.offsets(dict.fromkeys(partitions, EARLIEST_LOCAL))

    def finished_segments(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        self.metadata_reads += 1
        if self.metadata_error is not None:
            raise self.metadata_error
        return list(self.finished)

    def lineage(self, where: TopicPartition, epochs: Iterable[int]) -> list[EpochStart]:
        return [EpochStart(0, 0)]

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {where: self.logs[where].epoch for where in partitions}

    def fetch(
        self,
        where: TopicPartition,
        offset: int,
        *,
        topic_id: UUID | None,
        read_committed: bool,
        max_bytes: int,
    ) -> FetchedBatches:
        if topic_id is not None and topic_id != self.topic_id:
            raise AnotherTopic(f"{where.topic} was deleted and recreated")
        held = self.logs[where]
        end = held.readable(committed=read_committed)
        if not held.start <= offset <= held.end:
            raise OutOfRange(f"{where} at offset {offset}")
        records = [
            Record(each, 1000 + each, None, b"value %d" % each)
            for each in range(offset, min(offset + RECORDS_A_FETCH, end))
        ]
        parts = [
            bytes(build_batch(part, base_offset=part[0].offset, leader_epoch=epoch))
            for part, epoch in (
                ([each for each in records if each.offset < held.written_from], 0),
                ([each for each in records if each.offset >= held.written_from], held.epoch),
            )
            if part
        ]
        return FetchedBatches(b"".join(parts), (), end, held.start)

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Replace the brokers that options name by this leader."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("odradek.pipeline.brokers.brokers_at", lambda *options: self)
            yield
