"""Decisions of a coordinator of diskless topics, case by case (KIP-1164, D-03 to D-08, D-17, D-21, D-22, D-25)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.diskless_apis import DisklessCommitBatchResult
from odradek.protocol.schemas.diskless_records import (
    DisklessFileCommittedRecord,
    DisklessFileOwnershipRecord,
    DisklessFileRemovedRecord,
    DisklessRecordsDeletedRecord,
)
from odradek.replication.diskless.coordinator_state_machine import read_state
from tests.replication.diskless.coordinator_harness import (
    COORDINATOR,
    EXPIRATION_MS,
    FILE_SIZE,
    START_MS,
    WINDOW_MS,
    CoordinatorHarness,
    commit_batch,
    commit_request,
    file_key,
)

TOPIC = UUID(int=7)
OTHER = UUID(int=8)
MAX_SEQUENCE = 0x7FFFFFFF


@pytest.fixture(params=["pending", "applied"])
def coordinator(request: pytest.FixtureRequest) -> CoordinatorHarness:
    """A coordinator with two partitions of one topic. Its operations stay pending, or are applied at once."""
    made = CoordinatorHarness()
    if request.param == "applied":
        run = made.run

        def run_and_apply(*arguments: Any) -> Any:
            response = run(*arguments)
            made.apply()
            return response

        made.run = run_and_apply  # type: ignore[method-assign]
    made.create(TOPIC, 0, 1)
    return made


def outcome(result: DisklessCommitBatchResult) -> tuple[str, int, bool]:
    return result.error_code.name, result.assigned_base_offset, result.is_duplicate


def commit(coordinator: CoordinatorHarness, number: int, *producers: tuple[int, int, int]) -> Any:
    """Commit a file with one batch of one record per producer (id, epoch, sequence) to partition 0."""
    batches = [
        commit_batch(TOPIC, 0, 10 * position, producer=producer)
        for position, producer in enumerate(producers)
    ]
    request = commit_request(file_key(number, coordinator.now_ms), *batches)
    return [outcome(each) for each in coordinator.commit(request)]


def test_offsets_follow_each_other_per_partition(coordinator: CoordinatorHarness) -> None:
    """D-07: offsets are assigned in the order of the request, also within one partition."""
    request = commit_request(
        file_key(1),
        commit_batch(TOPIC, 0, 0, records=5),
        commit_batch(TOPIC, 1, 10, records=2),
        commit_batch(TOPIC, 0, 20, records=3),
    )
    results = coordinator.commit(request)
    assert [each.assigned_base_offset for each in results] == [0, 0, 5]
    assert [each.log_append_time for each in results] == [START_MS] * 3
    second = coordinator.commit(commit_request(file_key(2), commit_batch(TOPIC, 0, 0)))
    assert second[0].assigned_base_offset == 8


def test_record_has_accepted_batches_grouped(coordinator: CoordinatorHarness) -> None:
    """D-12: one record per file, its batches grouped by topic and partition; the uploader is in the object key."""
    coordinator.create(OTHER, 4)
    coordinator.commit(
        commit_request(
            file_key(1, broker_id=9),
            commit_batch(TOPIC, 0, 0, records=2),
            commit_batch(OTHER, 4, 10, timestamp_type=1),
            commit_batch(TOPIC, 3, 20),
            commit_batch(TOPIC, 0, 30, producer=(5, 1, 0)),
        )
    )
    record = coordinator.records[-1]
    assert isinstance(record, DisklessFileCommittedRecord)
    assert (record.uploader_broker_id, record.owner_ids) == (9, (COORDINATOR, 1))
    assert (record.object_format, record.file_size) == (1, FILE_SIZE)
    grouped = [
        (topic.topic_id, each.partition_index, [batch.byte_offset for batch in each.batches])
        for topic in record.topics
        for each in topic.partitions
    ]
    assert grouped == [(TOPIC, 0, [0, 30]), (OTHER, 4, [10])]
    first, second = record.topics[0].partitions[0].batches
    assert (first.assigned_base_offset, first.assigned_last_offset) == (0, 1)
    assert (second.producer_id, second.producer_epoch, second.base_sequence) == (5, 1, 0)
    append_time = record.topics[1].partitions[0].batches[0]
    assert first.batch_max_timestamp == 77
    assert append_time.batch_max_timestamp == append_time.log_append_timestamp == START_MS


def test_file_without_accepted_batches_has_a_record(coordinator: CoordinatorHarness) -> None:
    """D-21: the coordinator is an owner of the file, also if it refused all of its batches."""
    results = coordinator.commit(commit_request(file_key(1), commit_batch(OTHER, 0, 0)))
    assert outcome(results[0]) == ("unknown_topic_id", -1, False)
    assert coordinator.records[-1].object_key == file_key(1)
    assert coordinator.records[-1].topics == ()


def test_failures_are_per_batch(coordinator: CoordinatorHarness) -> None:
    """D-07: a refused batch does not affect the others."""
    results = coordinator.commit(
        commit_request(
            file_key(1),
            commit_batch(TOPIC, 5, 0),
            commit_batch(TOPIC, 0, 10, producer=(1, 0, 0)),
            commit_batch(TOPIC, 0, 20, producer=(1, 0, 7)),
            commit_batch(OTHER, 0, 30),
            commit_batch(TOPIC, 0, FILE_SIZE, size=1),
            commit_batch(TOPIC, 0, 40, producer=(1, 0, 1)),
        )
    )
    assert [outcome(each) for each in results] == [
        ("unknown_topic_or_partition", -1, False),
        ("none", 0, False),
        ("out_of_order_sequence_number", -1, False),
        ("unknown_topic_id", -1, False),
        ("invalid_request", -1, False),
        ("none", 1, False),
    ]
    assert all(each.error_message for each in results if each.error_code)


NONE, OUT_OF_ORDER, OLD_EPOCH = "none", "out_of_order_sequence_number", "invalid_producer_epoch"
UNKNOWN_PRODUCER = "unknown_producer_id"
IDEMPOTENCE: list[tuple[str, list[tuple[int, int]], list[tuple[str, int, bool]]]] = [
    ("in sequence", [(0, 0), (0, 1)], [(NONE, 0, False), (NONE, 1, False)]),
    ("duplicate", [(0, 0), (0, 0)], [(NONE, 0, False), (NONE, 0, True)]),
    ("gap", [(0, 0), (0, 2)], [(NONE, 0, False), (OUT_OF_ORDER, -1, False)]),
    ("retry after a gap", [(0, 0), (0, 2), (0, 1)], [(NONE, 0, False), (OUT_OF_ORDER, -1, False), (NONE, 1, False)]),
    ("unknown producer", [(0, 1), (0, 0), (0, 1)], [(UNKNOWN_PRODUCER, -1, False), (NONE, 0, False), (NONE, 1, False)]),
    ("new epoch", [(0, 0), (1, 0)], [(NONE, 0, False), (NONE, 1, False)]),
    ("new epoch with a gap", [(0, 0), (1, 1)], [(NONE, 0, False), (OUT_OF_ORDER, -1, False)]),
    ("old epoch", [(3, 0), (2, 1)], [(NONE, 0, False), (OLD_EPOCH, -1, False)]),
    ("old epoch, same sequence", [(3, 0), (2, 0)], [(NONE, 0, False), (OLD_EPOCH, -1, False)]),
    (
        "five batches are kept",
        [*((0, each) for each in range(6)), (0, 1), (0, 0)],
        [*((NONE, each, False) for each in range(6)), (NONE, 1, True), (OUT_OF_ORDER, -1, False)],
    ),
    (
        "duplicates of an earlier epoch are unknown",
        [(0, 0), (0, 1), (1, 0), (1, 1), (0, 1)],
        [*((NONE, each, False) for each in range(4)), (OLD_EPOCH, -1, False)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [each[1:] for each in IDEMPOTENCE],
    ids=[each[0].replace(" ", "-") for each in IDEMPOTENCE],
)
@pytest.mark.parametrize("files", ["one", "several"])
def test_sequences_of_idempotent_producers(
    coordinator: CoordinatorHarness, sequences: Any, expected: Any, files: str
) -> None:
    """D-07: as Kafka's ProducerStateManager, between files and between the batches of one file. An unknown producer
    begins with 0: its first batch may be on its way through another broker."""
    producers = [(9, epoch, sequence) for epoch, sequence in sequences]
    if files == "one":
        assert commit(coordinator, 1, *producers) == expected
    else:
        found = [commit(coordinator, n, each)[0] for n, each in enumerate(producers, start=1)]
        assert found == expected


INVALID_BATCHES: list[dict[str, Any]] = [
    {"magic": 1},
    {"timestamp_type": 7},
    {"producer_id": 5},
    {"producer": (5, 0, -1)},
    {"producer": (5, 0, 0), "last_sequence": 10},
    {"producer": (-2, 0, 0)},
    {"base_sequence": 3},
]


@pytest.mark.parametrize("values", INVALID_BATCHES)
def test_batch_that_no_file_can_have_is_refused(
    coordinator: CoordinatorHarness, values: dict[str, Any]
) -> None:
    """D-05"""
    invalid, valid = commit_batch(TOPIC, 0, 0, **values), commit_batch(TOPIC, 0, 10)
    results = coordinator.commit(commit_request(file_key(1), invalid, valid))
    assert [outcome(each) for each in results] == [("invalid_request", -1, False), (NONE, 0, False)]


@pytest.mark.parametrize("change", [{"object_format": 9}, {"owner_ids": (COORDINATOR, -1)}])
def test_file_of_unknown_format_or_owner_is_refused(
    coordinator: CoordinatorHarness, change: dict[str, Any]
) -> None:
    request = replace(commit_request(file_key(1), commit_batch(TOPIC, 0, 0)), **change)
    assert coordinator.commit(request)[0].error_code == ErrorCode.invalid_request
    assert not any(each.__api_key__ == 102 for each in coordinator.records)


def test_unknown_producer_gets_the_log_start_offset(coordinator: CoordinatorHarness) -> None:
    """Kafka's producer begins a new epoch after UNKNOWN_PRODUCER_ID only if it gets the log start offset."""
    commit(coordinator, 1, (1, 0, 0), (1, 0, 1))
    coordinator.delete_records(TOPIC, 0, 1)
    batches = [commit_batch(TOPIC, 0, 10 * n, producer=(n, 0, 2)) for n in (1, 2)]
    known, unknown = coordinator.commit(commit_request(file_key(2), *batches))
    assert not known.error_code
    assert outcome(unknown) == (UNKNOWN_PRODUCER, -1, False)
    assert unknown.log_start_offset == 1


def test_sequence_after_the_largest_is_0(coordinator: CoordinatorHarness) -> None:
    batch = commit_batch(TOPIC, 0, 0, records=MAX_SEQUENCE + 1, producer=(1, 0, 0))
    result = coordinator.commit(commit_request(file_key(1), batch))[0]
    assert outcome(result) == (NONE, 0, False)
    assert commit(coordinator, 2, (1, 0, 1)) == [(OUT_OF_ORDER, -1, False)]
    assert commit(coordinator, 3, (1, 0, 0)) == [(NONE, MAX_SEQUENCE + 1, False)]


def test_producers_are_independent_per_partition_and_id(coordinator: CoordinatorHarness) -> None:
    assert commit(coordinator, 1, (1, 0, 0), (2, 0, 0)) == [(NONE, 0, False), (NONE, 1, False)]
    batch = commit_batch(TOPIC, 1, 0, producer=(1, 0, 0))
    result = coordinator.commit(commit_request(file_key(2), batch))[0]
    assert outcome(result) == (NONE, 0, False)


def test_duplicate_has_the_time_of_its_first_commit(coordinator: CoordinatorHarness) -> None:
    commit(coordinator, 1, (1, 0, 0))
    coordinator.now_ms += 500
    batch = commit_batch(TOPIC, 0, 0, producer=(1, 0, 0))
    result = coordinator.commit(commit_request(file_key(2), batch))[0]
    assert result.is_duplicate
    assert (result.assigned_base_offset, result.log_append_time) == (0, START_MS)


def test_expired_producers_are_unknown(coordinator: CoordinatorHarness) -> None:
    commit(coordinator, 1, (1, 0, 0))
    coordinator.now_ms += EXPIRATION_MS - 1
    assert commit(coordinator, 2, (1, 0, 9)) == [(OUT_OF_ORDER, -1, False)]
    coordinator.now_ms += 1
    assert commit(coordinator, 3, (1, 0, 1)) == [(UNKNOWN_PRODUCER, -1, False)]
    assert commit(coordinator, 4, (1, 0, 0)) == [(NONE, 1, False)]


def test_repeated_commit_has_the_results_of_the_first(coordinator: CoordinatorHarness) -> None:
    """D-07: a broker that retries a commit after a timeout does not commit its batches twice, also without
    idempotence."""
    request = commit_request(
        file_key(1),
        commit_batch(TOPIC, 0, 0, records=4),
        commit_batch(TOPIC, 1, 10),
        commit_batch(TOPIC, 0, 20, producer=(4, 0, 0)),
    )
    first = coordinator.commit(request)
    commit(coordinator, 2, *[(4, 0, each) for each in range(1, 8)])
    records = len(coordinator.records)
    coordinator.now_ms += 100
    repeated = coordinator.commit(request)
    assert len(coordinator.records) == records
    assert [each.is_duplicate for each in repeated] == [True] * 3
    for each, earlier in zip(repeated, first, strict=True):
        assert each.assigned_base_offset == earlier.assigned_base_offset
        assert each.log_append_time == earlier.log_append_time
    coordinator.become_leader()
    assert coordinator.commit(request) == repeated


def test_repeated_commit_accepts_what_was_unknown_before(coordinator: CoordinatorHarness) -> None:
    """A broker creates the partition that the coordinator lacks, and commits the same file again."""
    request = commit_request(
        file_key(1), commit_batch(TOPIC, 0, 0), commit_batch(OTHER, 2, 10, records=3)
    )
    assert [outcome(each)[0] for each in coordinator.commit(request)] == [NONE, "unknown_topic_id"]
    coordinator.create(OTHER, 2)
    assert [outcome(each) for each in coordinator.commit(request)] == [
        (NONE, 0, True),
        (NONE, 0, False),
    ]
    assert [len(each.topics) for each in coordinator.records[-1:]] == [1]
    coordinator.apply()
    file = coordinator.state.file(file_key(1))
    assert file is not None
    assert file.live_batches == 2


def test_deleted_batch_is_not_committed_again(coordinator: CoordinatorHarness) -> None:
    """A repeated commit does not bring back a batch of a producer without idempotence that was deleted meanwhile."""
    request = commit_request(file_key(1), commit_batch(TOPIC, 0, 0))
    coordinator.commit(request)
    coordinator.delete_records(TOPIC, 0, -1)
    result = coordinator.commit(request)[0]
    assert result.error_code == ErrorCode.invalid_request  # the writer does not repeat it


def test_file_is_refused_after_the_commit_window(coordinator: CoordinatorHarness) -> None:
    """D-23: an old file may have been removed as an orphan."""
    coordinator.now_ms += WINDOW_MS
    records = len(coordinator.records)
    late = commit_request(file_key(1, START_MS - 1), commit_batch(TOPIC, 0, 0))
    result = coordinator.commit(late)[0]
    assert result.error_code == ErrorCode.invalid_timestamp
    assert len(coordinator.records) == records
    in_time = commit_request(file_key(2, START_MS), commit_batch(TOPIC, 0, 0))
    assert not coordinator.commit(in_time)[0].error_code


def test_file_from_the_future_is_refused(coordinator: CoordinatorHarness) -> None:
    """Clocks may differ by the commit window."""
    late = commit_request(file_key(1, START_MS + WINDOW_MS + 1), commit_batch(TOPIC, 0, 0))
    assert coordinator.commit(late)[0].error_code == ErrorCode.invalid_timestamp
    tolerated = commit_request(file_key(2, START_MS + WINDOW_MS), commit_batch(TOPIC, 0, 0))
    assert not coordinator.commit(tolerated)[0].error_code


def test_commits_of_new_files_read_no_state() -> None:
    """A leader knows which young files it has committed; those of the previous leader are read."""
    coordinator = CoordinatorHarness()
    coordinator.create(TOPIC, 0)
    previous = commit_request(file_key(1, START_MS + WINDOW_MS), commit_batch(TOPIC, 0, 0))
    first = coordinator.commit(previous)
    coordinator.become_leader()
    commit(coordinator, 2, (1, 0, 0))
    coordinator.now_ms += 2 * WINDOW_MS
    assert coordinator.commit(previous)[0].is_duplicate
    assert coordinator.commit(previous)[0].assigned_base_offset == first[0].assigned_base_offset
    coordinator.now_ms += 1
    coordinator.apply()
    reads = coordinator.reads
    commit(coordinator, 3, (1, 1, 0))
    request = commit_request(file_key(3, coordinator.now_ms), commit_batch(TOPIC, 0, 0))
    assert coordinator.reads == reads
    coordinator.apply()
    for number in range(4, 20):
        coordinator.now_ms += 1000
        commit(coordinator, number, (1, 1, number - 3))
    assert coordinator.reads == reads
    coordinator.apply()
    assert outcome(coordinator.commit(request)[0]) == ("none", 2, True)
    assert coordinator.reads == reads + 1


@pytest.mark.parametrize(
    ("key", "owner_ids"),
    [
        ("somewhere/else", (COORDINATOR,)),
        (file_key(1), (1, 2)),
        (file_key(1), ()),
        (file_key(1), (COORDINATOR, 1, COORDINATOR)),
    ],
)
def test_malformed_commit_is_refused(
    coordinator: CoordinatorHarness, key: str, owner_ids: tuple[int, ...]
) -> None:
    records = len(coordinator.records)
    request = commit_request(key, commit_batch(TOPIC, 0, 0), owner_ids=owner_ids)
    assert coordinator.commit(request)[0].error_code == ErrorCode.invalid_request
    assert len(coordinator.records) == records


def test_owners_of_a_file_are_fixed(coordinator: CoordinatorHarness) -> None:
    """D-21: a repeated commit with another permutation could make two coordinators the first owner."""
    batch = commit_batch(TOPIC, 0, 0)
    coordinator.commit(commit_request(file_key(1), batch, owner_ids=(1, COORDINATOR)))
    repeated = commit_request(file_key(1), batch, owner_ids=(COORDINATOR, 1))
    assert coordinator.commit(repeated)[0].error_code == ErrorCode.invalid_request


def test_partitions_are_created_once(coordinator: CoordinatorHarness) -> None:
    """D-03: new topics and growth; what exists is no error. D-14: the image has the partitions of this coordinator."""
    assert coordinator.create(OTHER, 0, 3, 9, partitions=6).error_code == ErrorCode.none
    assert [each.partition_index for each in coordinator.records[-2:]] == [0, 3]
    assert coordinator.create(OTHER, 0, 3, 9, partitions=10).error_code == ErrorCode.none
    assert coordinator.records[-1].partition_index == 9
    records = len(coordinator.records)
    assert coordinator.create(OTHER, 0, 3, 9).error_code == ErrorCode.none
    assert len(coordinator.records) == records


def test_topic_that_the_image_lacks_is_not_created(coordinator: CoordinatorHarness) -> None:
    result = coordinator.create(OTHER, 0, in_image=False)
    assert result.error_code == ErrorCode.unknown_topic_id
    assert result.error_message


def test_deleted_topic_is_unknown(coordinator: CoordinatorHarness) -> None:
    """D-04, D-25"""
    commit(coordinator, 1, (1, 0, 0))
    assert coordinator.delete_topic(TOPIC).error_code == ErrorCode.none
    assert coordinator.delete_topic(TOPIC).error_code == ErrorCode.unknown_topic_id
    assert commit(coordinator, 2, (1, 0, 1)) == [("unknown_topic_id", -1, False)]
    assert coordinator.delete_records(TOPIC, 0, 0).error_code == ErrorCode.unknown_topic_id
    coordinator.create(TOPIC, 0)
    assert commit(coordinator, 3, (1, 0, 1)) == [(UNKNOWN_PRODUCER, -1, False)]
    assert commit(coordinator, 4, (1, 0, 0)) == [(NONE, 0, False)]
    coordinator.apply()
    assert commit(coordinator, 5, (1, 0, 1)) == [(NONE, 1, False)]


def test_producers_of_a_deleted_partition_are_not_read() -> None:
    """The state still has them while the deletion is pending."""
    coordinator = CoordinatorHarness(heads_max=0)
    coordinator.create(TOPIC, 0)
    commit(coordinator, 1, (1, 5, 0))
    coordinator.become_leader()
    coordinator.delete_topic(TOPIC)
    coordinator.create(TOPIC, 0)
    assert commit(coordinator, 2, (1, 0, 0)) == [(NONE, 0, False)]
    coordinator.apply()
    assert commit(coordinator, 3, (1, 0, 0)) == [(NONE, 0, True)]


DELETIONS = [
    (3, (NONE, 3), True),
    (0, (NONE, 0), False),
    (-1, (NONE, 6), True),
    (6, (NONE, 6), True),
    (7, ("offset_out_of_range", -1), False),
    (-2, ("offset_out_of_range", -1), False),
]


@pytest.mark.parametrize(("offset", "expected", "has_record"), DELETIONS)
def test_records_are_deleted_below_an_offset(
    coordinator: CoordinatorHarness, offset: int, expected: Any, has_record: bool
) -> None:
    """D-08, D-25"""
    coordinator.commit(commit_request(file_key(1), commit_batch(TOPIC, 0, 0, records=6)))
    result = coordinator.delete_records(TOPIC, 0, offset)
    assert (result.error_code.name, result.low_watermark) == expected
    assert isinstance(coordinator.records[-1], DisklessRecordsDeletedRecord) == has_record
    below = coordinator.delete_records(TOPIC, 0, 0)
    assert below.low_watermark == max(expected[1], 0)
    after = coordinator.commit(commit_request(file_key(2), commit_batch(TOPIC, 0, 0)))[0]
    assert (after.assigned_base_offset, after.log_start_offset) == (6, below.low_watermark)


def test_delete_records_of_unknown_partition(coordinator: CoordinatorHarness) -> None:
    unknown = coordinator.delete_records(TOPIC, 9, 0)
    assert unknown.error_code == ErrorCode.unknown_topic_or_partition
    assert coordinator.delete_records(OTHER, 0, 0).error_code == ErrorCode.unknown_topic_id


def test_ownership_is_taken_once(coordinator: CoordinatorHarness) -> None:
    """D-21: of a file that the coordinator knows, and of one that it does not know."""
    known, unknown = file_key(1), file_key(2)
    batch = commit_batch(TOPIC, 0, 0)
    coordinator.commit(commit_request(known, batch, owner_ids=(1, COORDINATOR)))
    for key in (known, unknown):
        assert coordinator.take_ownership(key, (1, COORDINATOR)).error_code == ErrorCode.none
        assert isinstance(coordinator.records[-1], DisklessFileOwnershipRecord)
        records = len(coordinator.records)
        assert coordinator.take_ownership(key, (1, COORDINATOR)).error_code == ErrorCode.none
        assert len(coordinator.records) == records
    coordinator.apply()
    for key, batches in ((known, 1), (unknown, 0)):
        file = coordinator.state.file(key)
        assert file is not None
        assert (file.is_owner, file.live_batches) == (True, batches)


def test_ownership_by_coordinator_that_is_no_owner_is_refused(
    coordinator: CoordinatorHarness,
) -> None:
    result = coordinator.take_ownership(file_key(1), (1, 2))
    assert result.error_code == ErrorCode.invalid_request


def test_file_is_removed_when_nothing_can_use_it(coordinator: CoordinatorHarness) -> None:
    """D-22: a file with live batches, and one that a broker may commit again, stays."""
    key = file_key(1)
    coordinator.commit(commit_request(key, commit_batch(TOPIC, 0, 0)))
    coordinator.now_ms += WINDOW_MS + 1
    assert not coordinator.remove_file(key)
    coordinator.delete_records(TOPIC, 0, -1)
    coordinator.apply()
    young = file_key(2, coordinator.now_ms)
    coordinator.commit(commit_request(young, commit_batch(OTHER, 0, 0)))
    assert not coordinator.remove_file(young)
    assert coordinator.remove_file(key)
    assert isinstance(coordinator.records[-1], DisklessFileRemovedRecord)
    records = len(coordinator.records)
    assert coordinator.remove_file(key)
    assert len(coordinator.records) == records


def test_removed_file_can_be_taken_over_again(coordinator: CoordinatorHarness) -> None:
    """D-21: a hand-over that is retried after its response was lost is harmless."""
    key = file_key(1)
    coordinator.take_ownership(key, (1, COORDINATOR))
    coordinator.now_ms += WINDOW_MS + 1
    coordinator.apply()
    assert coordinator.remove_file(key)
    assert coordinator.take_ownership(key, (1, COORDINATOR)).error_code == ErrorCode.none
    coordinator.apply()
    assert coordinator.state.file(key) is not None


def test_time_does_not_go_back(coordinator: CoordinatorHarness) -> None:
    commit(coordinator, 1, (1, 0, 0))
    coordinator.now_ms -= 1000
    result = coordinator.commit(commit_request(file_key(2), commit_batch(TOPIC, 0, 0)))[0]
    assert result.log_append_time == START_MS


def test_decision_without_accept_changes_nothing(coordinator: CoordinatorHarness) -> None:
    """D-17: if the append fails, the same request is decided in the same way."""
    request = commit_request(file_key(1), commit_batch(TOPIC, 0, 0, producer=(1, 0, 0)))
    machine = coordinator.machine
    decided = []
    for _ in range(2):
        while reads := machine.missing_reads(request):
            machine.fill(read_state(coordinator.state, reads))
        decided.append(machine.decide_commit_file(request, START_MS))
    assert decided[0].records == decided[1].records
    assert outcome(decided[1].response.batches[0]) == (NONE, 0, False)
    assert commit(coordinator, 2, (1, 0, 0)) == [(NONE, 0, False)]


def test_operations_are_accepted_in_the_order_of_decisions(
    coordinator: CoordinatorHarness,
) -> None:
    """D-18: an operation that was decided before another one was accepted does not see that one."""
    machine = coordinator.machine
    request = commit_request(file_key(1), commit_batch(TOPIC, 0, 0))
    coordinator.run(request, lambda: machine.decide_commit_file(request, START_MS))
    again = commit_request(file_key(2), commit_batch(TOPIC, 0, 0))

    def decide_late() -> Any:
        operation = machine.decide_commit_file(again, START_MS)
        coordinator.create(OTHER, 1)
        return operation

    with pytest.raises(RuntimeError, match="another operation was accepted"):
        coordinator.run(again, decide_late)


def test_heads_in_memory_are_limited() -> None:
    coordinator = CoordinatorHarness(heads_max=10)
    coordinator.create(TOPIC, *range(100))
    for number in range(100):
        batch = commit_batch(TOPIC, number, 0, producer=(number, 0, 0))
        coordinator.commit(commit_request(file_key(number), batch))
    assert coordinator.machine.is_pending
    assert coordinator.machine.heads() > 200
    coordinator.apply()
    assert not coordinator.machine.is_pending
    coordinator.commit(commit_request(file_key(1000)))
    assert coordinator.machine.heads() <= 32
