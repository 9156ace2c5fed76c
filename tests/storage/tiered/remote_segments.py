"""Segments of one partition for tests, and a model of what is known of them that is easy to believe."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from odradek.storage.tiered.errors import InvalidRemoteState, RemoteResourceNotFound
from odradek.storage.tiered.metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
    may_follow,
)

FOO_0 = TopicIdPartition(UUID(int=1), "foo", 0)
STARTED, FINISHED, DELETING, DELETED = SegmentState


def segment(
    number: int,
    start: int,
    end: int,
    epochs: Sequence[tuple[int, int]] = ((0, -1),),
    *,
    size: int = 100,
    partition: TopicIdPartition = FOO_0,
    txn_index_empty: bool = True,
) -> RemoteLogSegmentMetadata:
    """One whose copy starts; an epoch that starts at -1 starts with the segment."""
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, UUID(int=number)),
        start,
        end,
        broker_id=1,
        max_timestamp_ms=end,
        event_timestamp_ms=number,
        epochs=tuple(EpochStart(epoch, start if at < 0 else at) for epoch, at in epochs),
        size_bytes=size,
        txn_index_empty=txn_index_empty,
    )


def becomes(
    of: RemoteLogSegmentMetadata,
    state: SegmentState,
    at_ms: int = 1000,
    custom_metadata: bytes | None = None,
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(of.id, 1, at_ms, state, custom_metadata)


class Model:
    """PartitionMetadata, by looking at every segment."""

    def __init__(self) -> None:
        self.known: dict[UUID, RemoteLogSegmentMetadata] = {}
        self.highest: dict[int, int] = {}

    def apply(self, event: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> None:
        before = self.known.get(event.id.id)
        is_new = isinstance(event, RemoteLogSegmentMetadata)
        if is_new != (event.state is STARTED):
            raise InvalidRemoteState
        if before is None and not is_new:
            raise RemoteResourceNotFound
        if not may_follow(None if before is None else before.state, event.state):
            raise InvalidRemoteState
        if isinstance(event, RemoteLogSegmentMetadata):
            self.known[event.id.id] = event
            return
        assert before is not None
        if before.state is event.state:
            return
        after = self.known[event.id.id] = before.updated(event)
        if after.state is DELETED:
            del self.known[event.id.id]
        if after.state is FINISHED:
            for each in after.epochs:
                last = after.last_offset_of(each.epoch)
                assert last is not None
                self.highest[each.epoch] = max(self.highest.get(each.epoch, -1), last)

    def segments(self, epoch: int | None = None) -> list[RemoteLogSegmentMetadata]:
        found = [
            each
            for each in self.known.values()
            if epoch is None or each.last_offset_of(epoch) is not None
        ]
        return sorted(found, key=lambda each: (each.start_offset, each.id.id.bytes))

    def readable(self, epoch: int) -> list[tuple[int, int, RemoteLogSegmentMetadata]]:
        """Range and segment of those that lie within no other; of equal ones the last."""
        finished = []
        for each in self.segments(epoch):
            if each.state is FINISHED:
                (start,) = (one.start_offset for one in each.epochs if one.epoch == epoch)
                last = each.last_offset_of(epoch)
                assert last is not None
                finished.append((start, last, each))

        def covers(a: tuple[int, int, RemoteLogSegmentMetadata], b: object) -> bool:
            assert isinstance(b, tuple)
            if a[:2] == b[:2]:
                return _age(a[2]) > _age(b[2])
            return bool(a[0] <= b[0] and a[1] >= b[1])

        return sorted(
            (
                each
                for each in finished
                if not any(covers(other, each) for other in finished if other[2] is not each[2])
            ),
            key=lambda each: each[0],
        )


def _age(of: RemoteLogSegmentMetadata) -> tuple[int, bytes]:
    return of.event_timestamp_ms, of.id.id.bytes
