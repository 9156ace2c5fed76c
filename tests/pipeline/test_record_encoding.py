"""Encoded batches have the same records as the columns, in the partitions that clients choose."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek.client.partitioner import partition_for_key
from odradek.protocol.records.batch import batches
from odradek.protocol.records.records import Record, build_batch, decode, frame_batch

pa = pytest.importorskip("pyarrow")
np = pytest.importorskip("numpy")

from odradek.pipeline.decoding.record_decoder import RecordDecoder, RecordSelection  # noqa: E402
from odradek.pipeline.record_encoding import COLUMNS, RecordEncoder, cut  # noqa: E402

small = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
bytes_or_none = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5), bytes_or_none), max_size=3).map(tuple)
some_records = st.lists(
    st.builds(Record, st.just(-1), st.integers(-1, 2**41), bytes_or_none, bytes_or_none, headers),
    min_size=1,
    max_size=12,
)


def columns(records: list[Record]) -> RecordEncoder:
    decoder = RecordDecoder(RecordSelection("t", 0, COLUMNS), "a segment")
    (table,) = decoder.feed(bytes(build_batch(records)))
    return RecordEncoder(table)


@pytest.mark.slow
@small
@given(records=some_records, data=st.data())
def test_encoded_records_equal_their_columns(records: list[Record], data: st.DataObject) -> None:
    rows = sorted(data.draw(st.sets(st.sampled_from(range(len(records))), min_size=1)))
    encoded = columns(records).encode(np.array(rows, np.int64))
    framed = frame_batch(
        encoded.body,
        encoded.count,
        base_timestamp=encoded.base_timestamp,
        max_timestamp=encoded.max_timestamp,
    )
    (batch,) = batches(memoryview(framed), check=True)
    chosen = [records[row]._replace(offset=number) for number, row in enumerate(rows)]
    assert decode(batch) == chosen
    assert bytes(framed) == bytes(build_batch(chosen))


@small
@given(records=some_records, count=st.integers(1, 20))
def test_key_is_assigned_to_the_partition_that_clients_choose(
    records: list[Record], count: int
) -> None:
    expected = [99 if each.key is None else partition_for_key(each.key, count) for each in records]
    found = columns(records)
    assert found.by_key(count, 99, 0, len(records)).tolist() == expected
    middle = len(records) // 2
    assert found.by_key(count, 99, middle, len(records)).tolist() == expected[middle:]


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100), st.integers(1, 10))
def test_batches_are_within_their_limits(sizes: list[int], limit: int, count: int) -> None:
    found = list(cut(np.array(sizes), limit, count))
    assert [n for low, high in found for n in range(low, high)] == list(range(len(sizes)))
    for low, high in found:
        assert high - low == 1 or (sum(sizes[low:high]) <= limit and high - low <= count)
        if high < len(sizes) and high - low < count:
            assert sum(sizes[low : high + 1]) > limit
