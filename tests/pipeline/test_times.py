"""Where a query looks for the first record of a time: never behind it, whatever the times of records are."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.pipeline.segment_columns import Stretch
from odradek.pipeline.segments import narrowed_to_time
from odradek.seams.entropy import SeededEntropy
from odradek.storage.log.time_index import ENTRY
from odradek.storage.tiered.metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from odradek.storage.tiered.object_names import segment_key
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.remote_storage import IndexType
from odradek.testing.virtual_objects import VirtualObjects

START = 100


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=30),
    st.integers(0, 31),
    st.data(),
)
def test_the_first_record_as_late_is_where_it_is_looked_for(
    records: list[tuple[int, bool]], at_ms: int, data: st.DataObject
) -> None:
    """An entry is of the batch's end, after some batches, whenever the largest time so far has risen."""
    index, indexed, newest = b"", -1, -1
    for number, (timestamp, ends_entry) in enumerate(records):
        newest = max(newest, timestamp)
        if ends_entry and newest > indexed:
            index += ENTRY.pack(newest, number)
            indexed = newest
    low = data.draw(st.integers(START, START + len(records) - 1))
    high = data.draw(st.integers(low + 1, START + len(records)))
    segment = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "t", 0), UUID(int=2)),
        START,
        START + len(records) - 1,
        1,
        newest,
        0,
        (EpochStart(0, START),),
        1000,
    )
    objects = VirtualObjects()
    objects.put(segment_key(segment, IndexType.TIMESTAMP.value), [index])
    storage = ObjectStoreStorage(objects, SeededEntropy(1))
    found = narrowed_to_time(storage, Stretch(segment, low, high), at_ms)
    assert low <= found.low < found.high <= high
    late = [START + n for n, (timestamp, _) in enumerate(records) if timestamp >= at_ms]
    wanted = next((offset for offset in late if low <= offset < high), None)
    if wanted is not None:
        assert found.low <= wanted
        assert wanted < found.high or late[0] < low, "the index knows of none before it"


def test_without_an_index_all_of_it_is_looked_through() -> None:
    segment = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "t", 0), UUID(int=2)),
        0,
        9,
        1,
        5,
        0,
        (EpochStart(0, 0),),
        1000,
    )
    stretch = Stretch(segment, 0, 10)
    storage = ObjectStoreStorage(VirtualObjects(), SeededEntropy(1))
    assert narrowed_to_time(storage, stretch, 3) is stretch
