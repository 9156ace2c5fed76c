"""Remote retention: segments to delete, the reasons, and the new log start offset (T-36, T-37,
S-02, S-03, E15)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from odradek.storage.tiered.remote_retention import (
    LOOKED_AT_A_STEP,
    DeletionReason,
    ExpirationDecision,
    RetentionInput,
    decide_expiration,
)
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, SegmentState
from tests.support.finished_segments import epochs, segment

STARTED = SegmentState.COPY_SEGMENT_STARTED
DELETING = SegmentState.DELETE_SEGMENT_STARTED

LOG = RetentionInput(
    epochs=epochs((0, 0)),
    log_start_offset=0,
    log_end_offset=100,
    retention_ms=-1,
    retention_bytes=-1,
    local_only_bytes=50,
    remote_bytes=300,
    now_ms=2_000_000,
)


def decide(*args: Any, **more: Any) -> ExpirationDecision:
    """All steps of a decision."""
    *_, decided = decide_expiration(*args, **more)
    assert decided is not None
    return decided


THREE = [segment(0, 9), segment(10, 19), segment(20, 29)]


def reasons(log: RetentionInput, *segments: RemoteLogSegmentMetadata) -> dict[int, DeletionReason]:
    """Reasons by start offset."""
    found = decide(log, segments)
    return {each.segment.start_offset: each.reason for each in found.expired}


def test_no_segment_expires_without_limits() -> None:
    found = decide(LOG, THREE)
    assert found.expired == ()
    assert found.log_start_offset is None
    assert not found.more


@pytest.mark.parametrize(
    ("retention", "gone", "start"),
    [
        (350, 0, None),
        (349, 0, None),
        (251, 0, None),
        (250, 1, 10),
        (151, 1, 10),
        (150, 2, 20),
        (0, 3, 30),
    ],
)
def test_oldest_segments_expire_by_retention_bytes(
    retention: int, gone: int, start: int | None
) -> None:
    """S-03, E7: remote and local-only bytes together; never below the limit."""
    found = decide(replace(LOG, retention_bytes=retention), THREE)
    assert [each.segment for each in found.expired] == THREE[:gone]
    assert {each.reason for each in found.expired} <= {DeletionReason.RETENTION_BYTES}
    assert found.log_start_offset == start


def test_oldest_segments_expire_by_retention_ms() -> None:
    """T-36, E7."""
    old = [segment(0, 9, newest_ms=999_999), segment(10, 19), segment(20, 29, newest_ms=999_999)]
    found = decide(replace(LOG, retention_ms=1_000_000), old)
    assert [(each.segment.start_offset, each.reason) for each in found.expired] == [
        (0, DeletionReason.RETENTION_MS)
    ]
    assert found.log_start_offset == 10


def test_empty_segment_does_not_keep_following_segments() -> None:
    """S-03: the topic was compacted before; Kafka deletes the segment with the following expired
    ones."""
    empty, *more = replace(THREE[0], size_bytes=0), *THREE[1:]
    found = decide(replace(LOG, retention_bytes=250), [empty, *more])
    assert [each.segment for each in found.expired] == [empty, THREE[1]]
    assert found.log_start_offset == 20
    assert decide(replace(LOG, retention_bytes=350), [empty, *more]).expired == ()


def test_segment_expired_by_time_counts_once_for_size() -> None:
    """S-03: deleted once, counted once."""
    old = [segment(0, 9, newest_ms=1), *THREE[1:]]
    log = replace(LOG, retention_ms=1_000_000, retention_bytes=250)
    assert reasons(log, *old) == {0: DeletionReason.RETENTION_MS}


def test_segments_below_log_start_offset_are_deleted() -> None:
    """T-37, E6: DeleteRecords(15) deletes segments that end before 15; the log start offset stays
    15."""
    log = replace(LOG, epochs=epochs((0, 15)), log_start_offset=15)
    found = decide(log, THREE)
    assert [(each.segment.start_offset, each.reason) for each in found.expired] == [
        (0, DeletionReason.LOG_START)
    ]
    assert found.log_start_offset is None


def test_segment_below_log_start_counts_once_for_size() -> None:
    """S-03: 350 bytes, of which 100 are below the log start offset: a limit of 250 deletes no
    more."""
    log = replace(LOG, epochs=epochs((0, 10)), log_start_offset=10, retention_bytes=250)
    assert reasons(log, *THREE) == {0: DeletionReason.LOG_START}


def test_segment_below_log_start_with_later_epoch_is_kept() -> None:
    """E15: its epoch may be of a lost lineage."""
    log = replace(LOG, epochs=epochs((1, 30)), log_start_offset=30)
    assert reasons(log, segment(0, 9, (2, 0))) == {}
    assert reasons(log, segment(0, 9, (0, 0), (1, 5))) == {0: DeletionReason.LOG_START}


def test_segments_outside_lineage_are_skipped() -> None:
    """E15: they neither expire by retention nor keep other segments."""
    log = replace(LOG, epochs=epochs((0, 0), (2, 10)), retention_bytes=250)
    lost = segment(5, 19, (0, 5), (1, 8))
    mine = [segment(0, 9), lost, segment(10, 19, (2, 10))]
    assert reasons(log, *mine) == {0: DeletionReason.RETENTION_BYTES}
    assert reasons(replace(log, retention_bytes=150), *mine) == {
        0: DeletionReason.RETENTION_BYTES,
        10: DeletionReason.RETENTION_BYTES,
    }


def test_unfinished_segments_do_not_advance_log_start() -> None:
    """E15: failed copies are no reason to let the log start later."""
    log = replace(LOG, retention_ms=1, retention_bytes=0)
    found = decide(log, [segment(0, 9, state=STARTED), segment(0, 9, state=DELETING, id=4)])
    assert found.expired == ()
    assert found.log_start_offset is None


def test_unfinished_dangling_and_unreferenced_segments_are_deleted() -> None:
    """T-36, E15, E16: deletions are completed, dangling copies deleted, and lost lineages
    removed."""
    log = replace(LOG, epochs=epochs((3, 20)), log_start_offset=20)
    going_on = segment(40, 49, (3, 40), state=STARTED)
    dangling = segment(30, 39, (3, 30), state=STARTED)
    left_over = [
        segment(20, 29, (3, 20), state=DELETING),
        dangling,
        going_on,
        segment(50, 59, (1, 50)),
        segment(50, 59, (1, 50)),  # listed under each of its epochs
        segment(15, 29, (2, 15), (3, 20), id=9),
    ]
    found = decide(log, [], left_over, is_dangling=lambda each: each is dangling)
    assert [(each.segment.start_offset, each.reason) for each in found.expired] == [
        (20, DeletionReason.UNFINISHED),
        (30, DeletionReason.DANGLING),
        (50, DeletionReason.UNREFERENCED),
    ]
    assert found.log_start_offset is None


def test_segments_in_progress_are_kept() -> None:
    """E15: neither a copy nor a deletion in progress is started again."""
    log = replace(LOG, retention_bytes=0)
    busy = segment(0, 9)
    deleting = segment(10, 19, state=DELETING)
    found = decide(
        log,
        [busy, segment(20, 29)],
        [deleting],
        in_progress=lambda each: each in (busy, deleting),
        is_dangling=lambda each: True,
    )
    assert [each.segment.start_offset for each in found.expired] == [20]


def test_decision_is_limited_in_number_of_segments() -> None:
    """The next run continues."""
    many = [segment(10 * at, 10 * at + 9, size=1) for at in range(1000)]
    taken = 0

    def counted() -> Iterator[RemoteLogSegmentMetadata]:
        nonlocal taken
        for each in many:
            taken += 1
            yield each

    log = replace(LOG, log_end_offset=100_000, retention_bytes=0, remote_bytes=1000)
    found = decide(log, counted(), limit=10)
    assert len(found.expired) == 10
    assert found.more
    assert found.log_start_offset == 100
    assert taken == 11
    taken = 0
    decide(replace(log, retention_bytes=-1), counted())
    assert taken == 1


def test_decision_yields_between_steps() -> None:
    """Segments of epochs before the log's first (a new leader, then DeleteRecords), or of other
    lineages."""
    log = replace(LOG, epochs=epochs((3, 10_000)), log_start_offset=10_000, log_end_offset=10_001)
    forgotten = [segment(10 * at, 10 * at + 9) for at in range(1000)]
    *steps, found = decide_expiration(log, [], forgotten, limit=100)
    assert found is not None
    assert len(found.expired) == 100
    assert found.more
    assert len(steps) == 100 // LOOKED_AT_A_STEP
    of_others = [segment(10_000 + at, 10_000 + at, (2, 10_000 + at)) for at in range(1000)]
    *steps, found = decide_expiration(replace(log, retention_bytes=0), of_others)
    assert found is not None
    assert found.expired == ()
    assert not found.more
    assert len(steps) == 1000 // LOOKED_AT_A_STEP


def test_age_of_segment_without_timestamps_is_age_of_copy() -> None:
    """They do not expire because of timestamp -1; Kafka uses the modification time of the file."""
    copied = replace(segment(0, 9), max_timestamp_ms=-1, event_timestamp_ms=1_500_000)
    assert decide(replace(LOG, retention_ms=500_000), [copied]).expired == ()
    assert len(decide(replace(LOG, retention_ms=499_999), [copied]).expired) == 1
