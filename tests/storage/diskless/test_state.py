"""Suite of the state of a coordinator of diskless topics: SQLite and the in-memory model (D-16, D-21, D-25)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch,
    DisklessTopicDeletedRecord,
)
from odradek.seams.real_files import RealFiles
from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.storage.diskless.sqlite_check import StateIdentity
from odradek.storage.diskless.sqlite_state import database_path, open_state
from odradek.storage.diskless.state import (
    DisklessState,
    FileStatus,
    LogEntry,
    PartitionState,
    ProducerBatch,
    StateCounts,
)
from tests.support.diskless_states import (
    COORDINATOR,
    TOPIC,
    batch,
    committed,
    created,
    deleted,
    from_producer,
    key,
    owned,
    removed,
)

OTHER_TOPIC = UUID(int=9)
EXPIRATION_MS = 60_000
MAX = 1 << 62


@pytest.fixture(params=["memory", "sqlite"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DisklessState]:
    made: DisklessState
    if request.param == "memory":
        made = MemoryDisklessState(COORDINATOR, producer_expiration_ms=EXPIRATION_MS)
    else:
        identity = StateIdentity("cluster", UUID(int=5), COORDINATOR)
        path = database_path(tmp_path, COORDINATOR)
        made = open_state(RealFiles(), path, identity, producer_expiration_ms=EXPIRATION_MS)
    yield made
    made.close()


class Log:
    """Log of a coordinator whose records are applied one by one, at increasing times."""

    def __init__(self, state: DisklessState) -> None:
        self.state = state
        self.now_ms = 1000

    def __call__(self, *records: Any) -> None:
        for record in records:
            offset = self.state.applied_offset + 1
            self.state.apply([LogEntry(offset, self.now_ms, record)], offset)
            while self.state.remove_deleted_batches():
                pass


@pytest.fixture
def log(state: DisklessState) -> Log:
    return Log(state)


def found(state: DisklessState, offset: int = 0, **limits: int) -> list[tuple[int, int]]:
    limits = {"max_batches": 0, "max_bytes": MAX, **limits}
    return [(b.base_offset, b.last_offset) for b in state.find_batches(TOPIC, 0, offset, **limits)]


# --- apply ---


def test_empty_state_has_nothing(state: DisklessState) -> None:
    assert state.applied_offset == -1
    assert state.partition(TOPIC, 0) is None
    assert state.partitions() == []
    assert state.producer(TOPIC, 0, 77) is None
    assert found(state) == []
    assert state.first_batch_from_timestamp(TOPIC, 0, 0) is None
    assert state.batch_with_largest_timestamp(TOPIC, 0) is None
    assert state.expired_before(TOPIC, 0, 99) == 0
    assert state.oversized_before(TOPIC, 0, 0) == 0
    assert state.file("a") is None
    assert state.files() == state.unused_files() == state.file_batches("a") == []
    assert state.oldest_file_ms() is None
    assert not state.remove_deleted_batches()


def test_apply_skips_applied_entries_and_moves_the_applied_offset(state: DisklessState) -> None:
    create, more = created(partitions=2)
    state.apply([LogEntry(4, 1, create)], 6)
    assert state.applied_offset == 6
    state.apply([LogEntry(6, 1, removed("x")), LogEntry(7, 1, more)], 7)
    state.apply([], 3)
    state.apply([LogEntry(2, 1, DisklessTopicDeletedRecord(topic_id=TOPIC))], 2)
    assert state.applied_offset == 7
    assert [partition.index for partition in state.partitions()] == [0, 1]
    state.apply([], 9)
    assert state.applied_offset == 9


@pytest.mark.parametrize(
    ("offsets", "record", "through"),
    [((3, 2), None, 9), ((2, 2), None, 9), ((2, 3), None, 2), ((2, 3), "unknown", 9)],
)
def test_entries_that_cannot_be_applied_change_nothing(
    state: DisklessState, offsets: tuple[int, int], record: Any, through: int
) -> None:
    first, second = offsets
    entries = [LogEntry(first, 1, created()[0]), LogEntry(second, 1, record or created()[0])]
    with pytest.raises(ValueError, match="offset"):
        state.apply(entries, through)
    assert state.applied_offset == -1
    assert state.partitions() == []


# --- partitions ---


def test_partitions_are_sorted_and_created_once(log: Log, state: DisklessState) -> None:
    log(*created(OTHER_TOPIC), *created(partitions=2), committed(key(1), batch(0, 4)), *created())
    assert [(p.topic_id, p.index) for p in state.partitions()] == [
        (TOPIC, 0),
        (TOPIC, 1),
        (OTHER_TOPIC, 0),
    ]
    assert [p.index for p in state.partitions(TOPIC)] == [0, 1]
    assert state.partition(TOPIC, 0) == PartitionState(TOPIC, 0, "t7", 0, 5, 1, 100)
    assert state.partition(TOPIC, 2) is None


def test_deleting_a_topic_removes_partitions_batches_and_producers(
    log: Log, state: DisklessState
) -> None:
    """D-25: the files of a deleted topic lose their live batches."""
    log(*created(partitions=2), *created(OTHER_TOPIC))
    log(committed(key(1), from_producer(0, 4, 0)), committed(key(1), batch(0, 1), index=1))
    log(committed(key(1), batch(0, 2), topic_id=OTHER_TOPIC), committed(key(2), batch(5, 9)))
    log.now_ms = 2000
    log(DisklessTopicDeletedRecord(topic_id=TOPIC))
    assert [p.topic_id for p in state.partitions()] == [OTHER_TOPIC]
    assert state.producer(TOPIC, 0, 77) is None
    assert found(state) == []
    shared, freed = state.files()
    assert (shared.live_batches, shared.live_bytes, shared.unused_since_ms) == (1, 100, -1)
    assert (freed.live_batches, freed.live_bytes, freed.unused_since_ms) == (0, 0, 2000)
    assert [each.topic_id for each in state.file_batches(key(1))] == [OTHER_TOPIC]
    log(*created(), committed(key(3), batch(0, 0)))
    assert found(state) == [(0, 0)]


# --- batches ---


def test_found_batches_have_the_fields_of_the_record(log: Log, state: DisklessState) -> None:
    """D-10, D-12."""
    log(*created(partitions=2))
    log(committed(key(1), batch(0, 1), index=1))
    log(committed(key(2), batch(0, 3), batch(4, 4, timestamp_type=1, byte_size=7)))
    first, second = state.find_batches(TOPIC, 0, 0, max_batches=9, max_bytes=MAX)
    assert (first.batch_id, second.batch_id) == (3 << 20, (3 << 20) + 1)
    assert (first.object_key, first.magic, first.byte_offset, first.byte_size) == (
        key(2),
        2,
        0,
        100,
    )
    assert (first.log_append_ms, first.max_timestamp_ms, first.timestamp_type) == (5000, 4000, 0)
    assert (second.log_append_ms, second.max_timestamp_ms, second.timestamp_type) == (5000, 5000, 1)
    assert (second.base_offset, second.last_offset, second.byte_offset) == (4, 4, 40)


def test_find_batches_begins_with_the_batch_of_the_offset(log: Log, state: DisklessState) -> None:
    log(*created(), committed(key(1), batch(0, 3), batch(4, 4), batch(5, 9)))
    assert found(state, -5) == found(state, 0) == found(state, 3) == [(0, 3), (4, 4), (5, 9)]
    assert found(state, 4) == [(4, 4), (5, 9)]
    assert found(state, 9) == [(5, 9)]
    assert found(state, 10) == found(state, MAX) == []


def test_find_batches_returns_at_least_one_batch_within_its_limits(
    log: Log, state: DisklessState
) -> None:
    log(*created(), committed(key(1), batch(0, 3), batch(4, 4), batch(5, 9)))
    assert found(state, max_batches=2) == [(0, 3), (4, 4)]
    assert found(state, max_batches=1) == found(state, max_bytes=199) == [(0, 3)]
    assert found(state, max_bytes=0) == found(state, max_bytes=-1) == [(0, 3)]
    assert found(state, max_bytes=200) == [(0, 3), (4, 4)]
    assert len(found(state, max_batches=-1)) == 3


def test_batches_that_do_not_append_are_ignored(log: Log, state: DisklessState) -> None:
    log(*created(), committed(key(1), batch(0, 3)))
    log(committed(key(2), from_producer(3, 5, 0), batch(9, 8), batch(6, 7), index=0))
    log(
        committed(key(3), batch(0, 3), index=5),
        committed(key(4), batch(0, 3), topic_id=UUID(int=1)),
    )
    assert found(state) == [(0, 3), (6, 7)]
    assert state.producer(TOPIC, 0, 77) is None
    assert [file.live_batches for file in state.files()] == [1, 1, 0, 0]
    (last,) = state.find_batches(TOPIC, 0, 6, max_batches=0, max_bytes=MAX)
    assert last.batch_id == (2 << 20) + 2


def test_deleting_records_removes_the_batches_below(log: Log, state: DisklessState) -> None:
    """D-12, D-25: a batch is removed if its last offset is below the log start offset."""
    log(*created(), committed(key(1), batch(0, 3)), committed(key(2), batch(4, 7), batch(8, 9)))
    log.now_ms = 2000
    log(deleted(3))
    assert state.partition(TOPIC, 0) == PartitionState(TOPIC, 0, "t7", 3, 10, 3, 300)
    log(deleted(5))
    assert state.partition(TOPIC, 0) == PartitionState(TOPIC, 0, "t7", 5, 10, 2, 200)
    assert found(state) == [(4, 7), (8, 9)]
    log(deleted(2), deleted(0), deleted(-1), deleted(5, index=4))
    assert state.partition(TOPIC, 0) == PartitionState(TOPIC, 0, "t7", 5, 10, 2, 200)
    freed, live = state.files()
    assert (freed.live_batches, freed.live_bytes, freed.unused_since_ms) == (0, 0, 2000)
    assert (live.live_batches, live.live_bytes, live.unused_since_ms) == (2, 200, -1)


def test_log_start_offset_does_not_exceed_the_high_watermark(
    log: Log, state: DisklessState
) -> None:
    log(*created(), committed(key(1), batch(0, 3)), deleted(99))
    assert state.partition(TOPIC, 0) == PartitionState(TOPIC, 0, "t7", 4, 4, 0, 0)
    log(committed(key(2), batch(4, 5)))
    assert found(state) == [(4, 5)]


# --- timestamps, retention ---


def test_offsets_by_timestamp(log: Log, state: DisklessState) -> None:
    log(*created(), committed(key(1), *(_at(base, ms) for base, ms in enumerate([5, 9, 3, 9]))))

    def first(timestamp_ms: int) -> int | None:
        batch = state.first_batch_from_timestamp(TOPIC, 0, timestamp_ms)
        return batch and batch.base_offset

    assert [first(ms) for ms in (0, 5, 6, 9, 10)] == [0, 0, 1, 1, None]
    largest = state.batch_with_largest_timestamp(TOPIC, 0)
    assert largest
    assert largest.base_offset == 1
    log(deleted(2))
    assert [first(ms) for ms in (0, 5, 9)] == [2, 3, 3]
    largest = state.batch_with_largest_timestamp(TOPIC, 0)
    assert largest
    assert largest.base_offset == 3


def _at(base: int, max_timestamp_ms: int) -> DisklessCommittedBatch:
    return batch(base, base, batch_max_timestamp=max_timestamp_ms)


def test_retention_by_time_stops_at_the_first_batch_in_time(log: Log, state: DisklessState) -> None:
    log(*created(), committed(key(1), *(_at(base, ms) for base, ms in enumerate([5, 9, 3, 9]))))
    expired = [state.expired_before(TOPIC, 0, ms) for ms in (0, 5, 6, 9, 10)]
    assert expired == [0, 0, 1, 1, 4]
    log(deleted(2))
    assert [state.expired_before(TOPIC, 0, ms) for ms in (3, 4, 10)] == [2, 3, 4]


def test_retention_of_batches_without_timestamps_uses_the_append_time(
    log: Log, state: DisklessState
) -> None:
    """D-25: as Kafka uses the time of the segment's file. The records would be deleted at once otherwise."""
    values = {"batch_max_timestamp": -1, "log_append_timestamp": 7}
    log(*created(), committed(key(1), batch(0, 0, **values), _at(1, 9)))
    assert [state.expired_before(TOPIC, 0, ms) for ms in (7, 8, 10)] == [0, 1, 2]


def test_retention_by_size_keeps_at_least_the_limit(log: Log, state: DisklessState) -> None:
    log(*created(), committed(key(1), batch(0, 1), batch(2, 3), batch(4, 5)))
    limits = (-1, 0, 1, 100, 101, 200, 201, 300, MAX)
    deleted_to = [state.oversized_before(TOPIC, 0, limit) for limit in limits]
    assert deleted_to == [0, 6, 4, 4, 2, 2, 0, 0, 0]
    log(deleted(3))
    assert [state.oversized_before(TOPIC, 0, limit) for limit in (200, 100, 0)] == [3, 4, 6]


# --- producers ---


def test_producer_remembers_its_last_five_batches(log: Log, state: DisklessState) -> None:
    log(*created())
    for number in range(7):
        log.now_ms += 1
        log(committed(key(number), from_producer(number, number, number)))
    producer = state.producer(TOPIC, 0, 77)
    assert producer
    assert (producer.epoch, producer.last_append_ms) == (0, log.now_ms)
    assert producer.batches == tuple(ProducerBatch(n, n, n, n, 5000) for n in range(2, 7))
    assert state.producer(TOPIC, 1, 77) is None
    assert state.producer(TOPIC, 0, 78) is None


def test_batches_of_one_record_are_added_to_their_producer_in_order(
    log: Log, state: DisklessState
) -> None:
    log(*created(), committed(key(1), from_producer(0, 1, 0), from_producer(2, 3, 2)))
    producer = state.producer(TOPIC, 0, 77)
    assert producer
    assert [batch.base_sequence for batch in producer.batches] == [0, 2]


def test_new_epoch_of_a_producer_replaces_its_batches(log: Log, state: DisklessState) -> None:
    log(*created(), committed(key(1), from_producer(0, 1, 0), from_producer(2, 3, 0, epoch=1)))
    producer = state.producer(TOPIC, 0, 77)
    assert producer
    assert (producer.epoch, [b.base_offset for b in producer.batches]) == (1, [2])


def test_producer_is_kept_when_its_records_are_deleted(log: Log, state: DisklessState) -> None:
    log(*created(), committed(key(1), from_producer(0, 1, 0)), deleted(2))
    assert state.producer(TOPIC, 0, 77)


def test_producer_expires_at_the_append_time_of_a_later_record(
    log: Log, state: DisklessState
) -> None:
    log(*created(), committed(key(1), from_producer(0, 1, 0)))
    log.now_ms += EXPIRATION_MS - 1
    log(removed("none"))
    assert state.producer(TOPIC, 0, 77)
    log.now_ms += 1
    log(removed("none"))
    assert state.producer(TOPIC, 0, 77) is None
    log.now_ms -= 10
    log(removed("none"))
    assert state.producer(TOPIC, 0, 77) is None
    log(committed(key(2), from_producer(2, 2, 2)))
    producer = state.producer(TOPIC, 0, 77)
    assert producer
    assert [batch.base_offset for batch in producer.batches] == [2]


# --- files ---


def test_commit_without_batches_adds_the_file(log: Log, state: DisklessState) -> None:
    """D-21: the first of the owner ids owns the file."""
    log(committed(key(5, broker_id=8), owners=(COORDINATOR, 1)), committed(key(6), owners=(1, 3)))
    first, second = state.files()
    assert (first.object_key, first.object_format, first.size) == (key(5, broker_id=8), 1, 1234)
    assert (first.uploader_broker_id, first.uploaded_ms, first.unused_since_ms) == (1, 5, 1000)
    assert (first.is_owner, first.status(COORDINATOR)) == (True, FileStatus.HANDING_OVER)
    assert (second.is_owner, second.status(COORDINATOR)) == (False, FileStatus.WAITING)
    assert state.unused_files() == [first]
    assert state.unused_files(is_owner=False) == [second]
    assert state.unused_files(after=first.object_key) == state.unused_files(limit=0) == []


def test_ownership_of_an_unknown_file_adds_it(log: Log, state: DisklessState) -> None:
    log(owned(key(5, broker_id=8)), owned("someone else's"))
    file = state.file(key(5, broker_id=8))
    assert file
    assert (file.uploader_broker_id, file.uploaded_ms, file.unused_since_ms) == (8, 5, 1000)
    assert (file.is_owner, file.status(COORDINATOR)) == (True, FileStatus.DELETING)
    strange = state.file("someone else's")
    assert strange
    assert (strange.uploader_broker_id, strange.uploaded_ms) == (-1, 1000)


def test_ownership_of_a_known_file_restarts_its_grace_period(
    log: Log, state: DisklessState
) -> None:
    """D-22: the grace period begins when the previous owner's batches are gone."""
    log(*created(), committed(key(1), owners=(1, COORDINATOR)))
    log(committed(key(2), batch(0, 0), owners=(1, COORDINATOR)))
    log.now_ms = 2000
    log(owned(key(1), (9, 9)), owned(key(2)))
    unused, live = state.files()
    assert (unused.is_owner, unused.unused_since_ms, unused.owner_ids) == (True, 2000, (1, 3))
    assert (live.is_owner, live.unused_since_ms, live.status(3)) == (True, -1, FileStatus.LIVE)


def test_second_commit_of_a_file_adds_its_batches_only(log: Log, state: DisklessState) -> None:
    log(*created(), committed(key(1), batch(0, 0), owners=(1, COORDINATOR)), deleted(1))
    log.now_ms = 2000
    log(committed(key(1), owners=(COORDINATOR,)))
    (file,) = state.files()
    assert (file.unused_since_ms, file.owner_ids, file.is_owner) == (1000, (1, 3), False)
    log(committed(key(1), batch(1, 1)))
    (file,) = state.files()
    assert (file.live_batches, file.unused_since_ms) == (1, -1)
    assert [each.batch.base_offset for each in state.file_batches(key(1))] == [1]


def test_live_batches_of_a_file_are_sorted_by_byte_offset(log: Log, state: DisklessState) -> None:
    log(*created(partitions=2))
    log(committed(key(1), batch(0, 0, byte_offset=50), batch(1, 1, byte_offset=7)))
    log(committed(key(1), batch(0, 0, byte_offset=20), index=1), committed(key(2), batch(2, 2)))
    batches = state.file_batches(key(1))
    assert [(each.index, each.batch.byte_offset) for each in batches] == [(0, 7), (1, 20), (0, 50)]
    assert batches[0].batch == state.find_batches(TOPIC, 0, 1, max_batches=1, max_bytes=1)[0]


def test_file_with_live_batches_is_not_removed(log: Log, state: DisklessState) -> None:
    log(*created(), committed(key(1), batch(0, 0)), removed(key(1)), removed(key(9)))
    assert state.file(key(1))
    log(deleted(1), removed(key(1)))
    assert state.file(key(1)) is None


def test_empty_owner_ids_are_this_coordinator(log: Log, state: DisklessState) -> None:
    log(committed(key(1), owners=()))
    (file,) = state.files()
    assert (file.owner_ids, file.is_owner) == ((COORDINATOR,), True)


def test_files_are_listed_by_key_in_pages(log: Log, state: DisklessState) -> None:
    log(*(committed(key(number)) for number in (3, 1, 2)))
    assert [file.uploaded_ms for file in state.files(limit=2)] == [1, 2]
    assert [file.uploaded_ms for file in state.files(key(2), limit=2)] == [3]
    assert state.files(limit=0) == []


def test_oldest_file_is_that_of_the_earliest_upload(log: Log, state: DisklessState) -> None:
    """D-23."""
    log.now_ms = 2
    log(committed(key(3)), owned("no time in this key"))
    assert state.oldest_file_ms() == 2
    log(removed("no time in this key"))
    assert state.oldest_file_ms() == 3


def test_counts(log: Log, state: DisklessState) -> None:
    log(*created(partitions=2), committed(key(1), batch(0, 0), batch(1, 1)), committed(key(2)))
    log(committed(key(3), owners=(COORDINATOR, 1)), committed(key(4), owners=(1, COORDINATOR)))
    counts = state.counts()
    assert (counts.partitions, counts.batches, counts.live_bytes, counts.files) == (2, 2, 200, 4)
    assert (counts.files_to_hand_over, counts.files_to_delete) == (1, 1)
    assert isinstance(counts, StateCounts)
