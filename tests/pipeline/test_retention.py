"""What-ifs of retention are what brokers decide."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from odradek.pipeline.jobs.retention import GIB, Held, Outcome, Rule, what_if
from odradek.storage.log.epochs import EpochStart
from odradek.storage.tiered.expiry import Reason, Retained, decide_expiry
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

NOW = 1000
PARTITION = TopicIdPartition(UUID(int=1), "t", 0)
times = st.integers(NOW - 60, NOW)
limits = st.integers(-1, 60)


def held_of(start: int, segments: list[tuple[int, int, int, int]], local: int) -> Held:
    columns = np.array(segments, np.int64).reshape(-1, 4).T
    return Held("t", 0, start, *columns, local)


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 20), st.just(-1) | times, times), max_size=8
    ),
    limits,
    limits,
    st.integers(0, 30),
)
def test_what_a_leader_would_delete(
    rows: list[tuple[int, int, int, int]], ms: int, size: int, local: int
) -> None:
    segments, held, start = [], [], 5
    for number, (count, size_bytes, newest_ms, copied_ms) in enumerate(rows):
        id = RemoteLogSegmentId(PARTITION, UUID(int=number + 1))
        segments.append(
            RemoteLogSegmentMetadata(
                id, start, start + count - 1, 0, newest_ms, copied_ms, (EpochStart(0, start),),
                size_bytes, SegmentState.COPY_SEGMENT_FINISHED,
            )
        )  # fmt: skip
        start += count
        held.append((start, size_bytes, newest_ms, copied_ms))
    log = held_of(5, held, local)
    retained = Retained(
        epochs=(EpochStart(0, 5),),
        log_start_offset=5,
        log_end_offset=start + 1,
        retention_ms=ms,
        retention_bytes=size,
        local_only_bytes=local,
        remote_bytes=log.remote_bytes,
        now_ms=NOW,
    )
    *_, expiry = decide_expiry(retained, segments)
    assert expiry is not None
    assert {each.reason for each in expiry.expired} <= {Reason.RETENTION_MS, Reason.RETENTION_BYTES}
    outcome = what_if(log, Rule(ms, size), NOW)
    assert outcome.segments_deleted == len(expiry.expired)
    assert outcome.bytes_deleted == sum(each.segment.size_bytes for each in expiry.expired)
    assert outcome.start_offset == (expiry.log_start_offset or 5)


def test_what_is_kept_and_what_it_costs() -> None:
    log = held_of(10, [(20, GIB, 100, 0), (30, GIB, -1, 200), (40, GIB, 300, 0)], GIB)
    outcome = what_if(log, Rule(retention_bytes=3 * GIB), NOW)
    assert outcome == Outcome("t", 0, Rule(retention_bytes=3 * GIB), 1, GIB, 10, 3 * GIB, 20)
    assert outcome.cost(0.02) == pytest.approx(0.06)


def test_a_segment_without_timestamps_is_as_old_as_its_copy() -> None:
    log = held_of(0, [(10, 1, 100, 0), (20, 1, -1, 200), (30, 1, -1, 300)], 0)
    deleted = [what_if(log, Rule(retention_ms=NOW - each), NOW) for each in (100, 200, 201, 301)]
    assert [each.segments_deleted for each in deleted] == [0, 1, 2, 3]
