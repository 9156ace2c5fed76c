"""`rows=batches`: each batch once for any split of the log into pieces, with the columns that `protocol.records`
decodes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.records.batch import HEADER_SIZE, batches
from odradek.protocol.records.compression import NAMES, decompress

pa = pytest.importorskip("pyarrow")

from odradek.pipeline.decoding.arrow_columns import BATCH_TYPES  # noqa: E402
from odradek.pipeline.decoding.batch_decoder import decoder_of  # noqa: E402
from odradek.pipeline.decoding.record_decoder import RecordSelection  # noqa: E402
from odradek.pipeline.decoding.schema import BATCHES  # noqa: E402
from odradek.pipeline.errors import CorruptSegment  # noqa: E402
from tests.pipeline.log_strategies import cut, logs, small  # noqa: E402

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(data: bytes, low: int, high: int, places: list[int]) -> list[dict[str, Any]]:
    wanted = RecordSelection("t", 3, tuple(BATCH_TYPES), low, high, rows=BATCHES)
    decoder = decoder_of(wanted, "a segment")
    return [
        row
        for piece in cut(data, places)
        for table in decoder.feed(piece)
        for row in table.to_pylist()
    ]


def expected(data: bytes) -> list[dict[str, Any]]:
    found = []
    for batch in batches(memoryview(data)):
        plain = decompress(batch.compression, batch.view[HEADER_SIZE:], 1 << 30)
        found.append(
            {
                "topic": "t",
                "partition": 3,
                "offset": batch.last_offset,
                "timestamp": EPOCH + timedelta(milliseconds=batch.max_timestamp),
                "timestampType": batch.timestamp_type,
                "baseOffset": batch.base_offset,
                "records": batch.record_count,
                "bytes": batch.size,
                "uncompressedBytes": HEADER_SIZE + len(plain),
                "codec": NAMES[batch.compression],
                "leaderEpoch": batch.leader_epoch,
                "producerId": batch.producer_id,
                "isTransactional": batch.is_transactional,
                "isControl": batch.is_control,
            }
        )
    return found


@small
@given(logs(), st.lists(st.integers(0, 10_000), max_size=3), st.data())
def test_each_batch_is_returned_once_for_any_split(
    log: list[bytes], places: list[int], data: st.DataObject
) -> None:
    whole = b"".join(log)
    batches = expected(whole)
    low, high = batches[0]["baseOffset"], batches[-1]["offset"] + 1
    middle = data.draw(st.integers(low, high))
    assert rows_of(whole, low, middle, places) + rows_of(whole, middle, high, places) == batches


@small
@given(logs(), st.data())
def test_changed_byte_is_detected(log: list[bytes], data: st.DataObject) -> None:
    batch = bytearray(log[-1])
    batch[data.draw(st.integers(21, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSegment, match="a segment, byte"):
        rows_of(b"".join([*log[:-1], batch]), 0, 1 << 62, [])
