"""Segments of one partition, Hypothesis strategies for them, and a simple model of their metadata cache."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from hypothesis import strategies as st

from odradek.storage.tiered.errors import (
    InvalidRemoteState,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
    is_valid_transition,
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
    """Return a segment whose copy starts. An epoch with start -1 starts with the segment."""
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
    """Model of RemoteLogMetadataCache that examines every segment."""

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
        if not is_valid_transition(None if before is None else before.state, event.state):
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
                if last >= each.start_offset:
                    self.highest[each.epoch] = max(self.highest.get(each.epoch, -1), last)

    def segments(self, epoch: int | None = None) -> list[RemoteLogSegmentMetadata]:
        found = [
            each
            for each in self.known.values()
            if epoch is None or each.last_offset_of(epoch) is not None
        ]
        return sorted(found, key=lambda each: (each.start_offset, each.id.id.bytes))

    def readable(self, epoch: int) -> list[tuple[int, int, RemoteLogSegmentMetadata]]:
        """Return offset range and segment of the segments that no other covers; of equal ranges, the newest segment."""
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


int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


@st.composite
def segments(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start = draw(st.integers(0, 2**62))
    lengths = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=4))
    epochs = sorted(
        draw(st.sets(st.integers(0, 2**31 - 1), min_size=len(lengths), max_size=len(lengths)))
    )
    starts = [start + sum(lengths[:at]) for at in range(len(lengths))]
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(FOO_0, UUID(int=draw(st.integers(0, 2**128 - 1)))),
        start,
        start + sum(lengths) - 1,
        draw(int32),
        draw(int64),
        draw(int64),
        tuple(map(EpochStart, epochs, starts)),
        draw(st.integers(0, 2**31 - 1)),
        draw(st.sampled_from(SegmentState)),
        draw(st.none() | st.binary(max_size=200)),
        draw(st.booleans()),
        draw(st.just(0) | st.integers(0, 2**31 - 1)),
    )


offsets = st.integers(0, 30)


@st.composite
def any_segment(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start = draw(offsets)
    lengths = draw(st.lists(st.integers(0, 8), min_size=1, max_size=3).filter(any))
    epochs = sorted(draw(st.sets(st.integers(0, 4), min_size=len(lengths), max_size=len(lengths))))
    starts = [start + sum(lengths[:at]) for at in range(len(lengths))]
    return segment(
        draw(st.integers(1, 8)),
        start,
        start + sum(lengths) - 1,
        list(zip(epochs, starts, strict=True)),
        size=draw(st.integers(1, 9)),
        txn_index_empty=draw(st.booleans()),
    )


@st.composite
def any_update(draw: st.DrawFn) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        RemoteLogSegmentId(FOO_0, UUID(int=draw(st.integers(1, 8)))),
        draw(st.integers(0, 2)),
        draw(st.integers(0, 3)),
        draw(st.sampled_from(SegmentState)),
        draw(st.none() | st.just(b"custom")),
    )


Events = list[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate]
any_events = st.lists(any_segment() | any_update(), min_size=8, max_size=40)


def check_against(model: Model, metadata: RemoteLogMetadataCache) -> None:
    assert list(metadata.segments()) == model.segments()
    assert metadata.unfinished() == [x for x in model.segments() if x.state is not FINISHED]
    for timestamp in range(0, 60, 7):
        reaching = [x for x in model.segments() if x.max_timestamp_ms >= timestamp]
        assert list(metadata.segments_reaching(timestamp)) == reaching
    for epoch in range(5):
        readable = model.readable(epoch)
        assert list(metadata.segments(epoch)) == model.segments(epoch)
        assert metadata.size_bytes(epoch) == sum(x.size_bytes for _, _, x in readable)
        for offset in range(0, 60, 3):
            holding = [x for start, end, x in readable if start <= offset <= end]
            assert (metadata.find(epoch, offset) is None) == (not holding)
            assert not holding or metadata.find(epoch, offset) == holding[-1]
            ending = [x for _, end, x in readable if end >= offset and not x.txn_index_empty]
            found = metadata.find_with_transactions(epoch, offset)
            assert found == (ending[0] if ending else None)


def play(events: Events, model: Model, metadata: RemoteLogMetadataCache) -> None:
    for event in events:
        refused: list[type[Exception] | None] = []
        for one in (model.apply, metadata.apply):
            try:
                one(event)
                refused.append(None)
            except RemoteStorageError as error:
                refused.append(type(error))
        assert refused[0] == refused[1], event


def with_copies(*copies: RemoteLogSegmentMetadata) -> RemoteLogMetadataCache:
    metadata = RemoteLogMetadataCache(FOO_0)
    for each in copies:
        metadata.apply(each)
        metadata.apply(becomes(each, FINISHED, each.event_timestamp_ms))
    return metadata
