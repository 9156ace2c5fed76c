"""Requests between brokers and coordinators: routing, bundling, repetition and results (KIP-1164, D-01 to D-24)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.broker.diskless.coordinator_service import DeletePosition
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatchResult,
    DisklessCommitFileRequest,
    DisklessCreatablePartitions,
    DisklessCreatePartitionsRequest,
    DisklessDeletableTopicState,
    DisklessDeleteTopicsRequest,
    DisklessDescribeCoordinatorsRequest,
    DisklessDescribeFileEntry,
    DisklessDescribeFilesRequest,
    DisklessFetchSnapshotRequest,
    DisklessHandOverFileRequest,
    DisklessListFilesRequest,
)
from odradek.storage.diskless.object_key import object_key
from odradek.storage.diskless.queries import FindPosition, TimestampPosition
from odradek.testing.virtual_clock import VirtualClock
from tests.support.diskless_brokers import DisklessBrokers
from tests.support.diskless_coordinators import (
    commit_batch,
    commit_request,
    refused,
    settle,
)

T, U = UUID(int=1), UUID(int=2)
LEADERS = {0: 1, 1: 2, 2: 2, 3: 3}
"""Broker of each coordinator."""
TOPICS = {T: ("t", [0, 1, 2, 3]), U: ("u", [3, 0])}


@pytest.fixture
def clock() -> VirtualClock:
    clock = VirtualClock()
    clock.jumping = True
    return clock


@pytest.fixture
async def brokers(clock: VirtualClock) -> AsyncIterator[DisklessBrokers]:
    async with trio.open_nursery() as nursery:
        brokers = DisklessBrokers(nursery, dict(LEADERS), dict(TOPICS), clock)
        await brokers.start()
        yield brokers
        nursery.cancel_scope.cancel()


def a_commit(
    brokers: DisklessBrokers, *indexes: int, number: int = 0, **more: Any
) -> DisklessCommitFileRequest:
    """A commit of one batch in each of these partitions of `t`."""
    batches = [
        commit_batch(2, topic_id=T, index=index, byte_offset=100 * position, **more)
        for position, index in enumerate(indexes)
    ]
    owners = sorted({TOPICS[T][1][index] for index in indexes})
    return commit_request(brokers.clock.wall_ms(), *batches, number=number, owners=owners)


def codes(results: Sequence[DisklessCommitBatchResult]) -> list[str]:
    return [result.error_code.name for result in results]


async def test_commit_is_split_by_coordinator_and_bundled_by_broker(
    brokers: DisklessBrokers,
    clock: VirtualClock,
) -> None:
    """D-24: one request per broker that has coordinators of the file; none for those on this broker."""
    results = await brokers.brokers[1].requests.commit_file(a_commit(brokers, 0, 1, 2, 3, 1))
    assert codes(results) == ["none"] * 5
    assert [result.assigned_base_offset for result in results] == [0, 0, 0, 0, 2]
    assert sorted(brokers.sent) == [(2, "diskless_commit_file"), (3, "diskless_commit_file")]
    assert brokers.brokers[1].requests.sent == 2


async def test_commit_to_a_local_coordinator_sends_no_request(
    brokers: DisklessBrokers, clock: VirtualClock
) -> None:
    """D-24: a coordinator on the same broker costs no network call."""
    results = await brokers.brokers[2].requests.commit_file(a_commit(brokers, 1, 2))
    assert codes(results) == ["none"] * 2
    assert not brokers.sent


async def test_commit_whose_response_is_lost_is_not_committed_twice(
    brokers: DisklessBrokers,
    clock: VirtualClock,
) -> None:
    """D-07: the outcome is unknown. The same object key is sent again, and the coordinator recognises the file."""
    brokers.loses_responses["diskless_commit_file"] = 2
    results = await brokers.brokers[1].requests.commit_file(a_commit(brokers, 1, 3))
    assert codes(results) == ["none"] * 2
    assert [result.assigned_base_offset for result in results] == [0, 0]
    assert all(result.is_duplicate for result in results)
    follow = await brokers.brokers[1].requests.commit_file(a_commit(brokers, 1, 3, number=1))
    assert [result.assigned_base_offset for result in follow] == [2, 2]


async def test_duplicate_is_recognised_by_the_next_coordinator(
    brokers: DisklessBrokers, clock: VirtualClock
) -> None:
    """D-07, D-13: also after another broker has become the leader, and before this broker's image has it."""
    first = await brokers.brokers[1].requests.commit_file(
        a_commit(brokers, 3, producer_id=5, sequence=0)
    )
    await brokers.elect(3, 2)
    asked = trio.Event()

    async def learn() -> None:
        await asked.wait()
        brokers.brokers[1].image = brokers.image()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(learn)
        async with trio.open_nursery() as committing:
            results: list[DisklessCommitBatchResult] = []

            async def commit() -> None:
                request = a_commit(brokers, 3, number=8, producer_id=5, sequence=0)
                results.extend(await brokers.brokers[1].requests.commit_file(request))

            committing.start_soon(commit)
            await settle()
            assert not results
            asked.set()
    assert codes(results) == ["none"]
    assert results[0].is_duplicate
    assert results[0].assigned_base_offset == first[0].assigned_base_offset


async def test_unreachable_broker_fails_only_its_batches_with_a_retriable_error(
    brokers: DisklessBrokers,
    clock: VirtualClock,
) -> None:
    """D-07: the errors are per batch; `commit_file` does not raise."""
    brokers.unreachable.add(3)
    request = a_commit(brokers, 0, 3, 1)
    results = await brokers.brokers[1].requests.commit_file(
        DisklessCommitFileRequest(
            object_key=request.object_key,
            object_format=1,
            file_size=request.file_size,
            owner_ids=request.owner_ids,
            batches=request.batches,
            timeout_ms=2000,
        )
    )
    assert codes(results) == ["none", "network_exception", "none"]
    assert len(brokers.sent) > 3


async def test_coordinator_without_leader_is_waited_for(
    brokers: DisklessBrokers, clock: VirtualClock
) -> None:
    """D-13: COORDINATOR_NOT_AVAILABLE after the time limit, and the commit takes place if there is a leader before."""
    brokers.leaders[3] = -1
    brokers.brokers[1].image = brokers.image()
    request = a_commit(brokers, 3)
    results: list[DisklessCommitBatchResult] = []

    async def commit() -> None:
        results.extend(await brokers.brokers[1].requests.commit_file(request))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await settle()
        brokers.leaders[3] = 3
        brokers.brokers[1].image = brokers.image()
    assert codes(results) == ["none"]


async def test_partition_that_the_coordinators_image_lacks_is_retried_until_it_has_it(
    brokers: DisklessBrokers,
    clock: VirtualClock,
) -> None:
    """D-03, D-14: a broker may have newer metadata than the coordinator."""
    new = UUID(int=7)
    brokers.topics[new] = ("n", [1])
    brokers.brokers[1].image = brokers.image()
    results: list[DisklessCommitBatchResult] = []
    request = commit_request(brokers.clock.wall_ms(), commit_batch(3, topic_id=new), owners=[1])

    async def commit() -> None:
        results.extend(await brokers.brokers[1].requests.commit_file(request))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await settle()
        assert not results
        image = brokers.image()
        brokers.brokers[2].image = image
        brokers.replicas[1, 2].image = image
    assert codes(results) == ["none"]
    assert (2, "diskless_create_partitions") in brokers.sent


async def test_topic_without_metadata_is_refused_at_once(
    brokers: DisklessBrokers, clock: VirtualClock
) -> None:
    """D-07: UNKNOWN_TOPIC_ID for the batches of a deleted topic."""
    request = commit_request(
        brokers.clock.wall_ms(), commit_batch(topic_id=UUID(int=99)), owners=[1]
    )
    results = await brokers.brokers[1].requests.commit_file(request)
    assert codes(results) == ["unknown_topic_id"]
    assert not brokers.sent


async def test_find_batches_uses_the_local_replica_unless_it_is_strict(
    brokers: DisklessBrokers,
    clock: VirtualClock,
) -> None:
    """D-10, D-19: a follower serves stale reads; a strict one is sent to the leader."""
    requests = brokers.brokers[1].requests
    brokers.add_replica(3, 1)
    await settle()
    await requests.commit_file(a_commit(brokers, 3))
    brokers.sent.clear()
    position = FindPosition(T, 3, 0, 1 << 20)
    stale = await requests.find_batches([position], max_bytes=1 << 20)
    assert stale[0].high_watermark == 0  # nothing has woken the follower
    assert not brokers.sent
    fresh = await requests.find_batches([position], max_bytes=1 << 20, strict=True)
    assert fresh[0].high_watermark == 2
    assert brokers.sent == [(3, "diskless_find_batches")]
    brokers.brokers[1].coordinators.replicas[3].wake()
    await settle()
    local = await requests.find_batches([position], max_bytes=1 << 20)
    assert local[0].batches == fresh[0].batches


async def test_find_at_isr_returns_the_result_of_each_member(
    brokers: DisklessBrokers, clock: VirtualClock
) -> None:
    requests = brokers.brokers[1].requests
    found = await requests.find_at_isr(
        [FindPosition(T, index, 0, 1) for index in (3, 0)], timeout_s=5.0
    )
    assert [[each.partition_index for each in of_isr] for of_isr in found] == [[3], [0]]
    assert {each.error_code for of_isr in found for each in of_isr} == {ErrorCode.none}
    assert await requests.find_at_isr([FindPosition(UUID(int=9), 0, 0, 1)]) == [[]]


async def test_find_batches_limits_the_bytes_of_all_partitions_together(
    brokers: DisklessBrokers,
    clock: VirtualClock,
) -> None:
    """D-10: the request-wide limit also holds for several brokers, and the first batch may exceed it."""
    requests = brokers.brokers[1].requests
    await requests.commit_file(a_commit(brokers, 0, 1, 2, 3))
    positions = [FindPosition(T, index, 0, 1 << 20) for index in (3, 0, 2, 1)]
    found = await requests.find_batches(positions, max_bytes=250)
    assert [result.partition_index for result in found] == [3, 0, 2, 1]
    assert [len(result.batches) for result in found] == [1, 1, 0, 0]
    found = await requests.find_batches(positions, max_bytes=1)
    assert [len(result.batches) for result in found] == [1, 0, 0, 0]


async def test_results_are_in_the_order_of_the_positions(
    brokers: DisklessBrokers, clock: VirtualClock
) -> None:
    """D-08, D-09: a request has each topic once, the results are in the order of the caller."""
    requests = brokers.brokers[1].requests
    await requests.commit_file(a_commit(brokers, 0, 1, 3))
    order = [(T, 1), (U, 1), (T, 0), (U, 0), (T, 3), (T, 2)]
    offsets = await requests.list_offsets([TimestampPosition(*each, -1) for each in order])
    assert [each.offset for each in offsets] == [2, 0, 2, 0, 2, 0]
    assert [each.partition_index for each in offsets] == [index for _, index in order]
    deleted = await requests.delete_records(
        [DeletePosition(*each, 1 if each == (T, 3) else 0) for each in order]
    )
    assert [each.low_watermark for each in deleted] == [0, 0, 0, 0, 1, 0]
    assert [each.error_code for each in deleted] == [ErrorCode.none] * 6


async def test_commit_at_another_broker_notifies_the_listeners_here(
    brokers: DisklessBrokers,
    clock: VirtualClock,
) -> None:
    """Long polls of the uploader are woken by its own commits."""
    await brokers.brokers[1].requests.commit_file(a_commit(brokers, 3))
    assert brokers.brokers[1].coordinators.notified == [(T, 3)]


async def test_files_are_described_by_the_coordinator_that_was_asked(
    brokers: DisklessBrokers,
    clock: VirtualClock,
) -> None:
    """D-11, D-23: RESOURCE_NOT_FOUND if it does not track the file; an error if its leader may have changed."""
    requests = brokers.brokers[1].requests
    commit = a_commit(brokers, 3)
    await requests.commit_file(commit)
    other = object_key(5, 6, UUID(int=7))
    for coordinator_id, expected in ((3, ErrorCode.none), (1, ErrorCode.resource_not_found)):
        known, unknown = await requests.describe_files(coordinator_id, [commit.object_key, other])
        assert known.error_code is expected
        assert known.has_live_batches == (coordinator_id == 3)
        assert unknown.error_code is ErrorCode.resource_not_found
    await brokers.elect(3, 2)
    with refused(ErrorCode.not_coordinator):
        await requests.describe_files(3, [commit.object_key])


async def test_file_is_handed_over_and_listed(
    brokers: DisklessBrokers, clock: VirtualClock
) -> None:
    """D-21: the receiver may not know the file."""
    requests = brokers.brokers[1].requests
    key = object_key(brokers.clock.wall_ms(), 9, UUID(int=3))
    request = DisklessHandOverFileRequest(
        coordinator_id=3, object_key=key, object_format=1, file_size=10, owner_ids=(1, 3)
    )
    assert (await requests.hand_over_file(request)).error_code is ErrorCode.none
    assert (await requests.hand_over_file(request)).error_code is ErrorCode.none
    listed = await requests.list_files(3)
    assert [file.object_key for file in listed.files] == [key]
    described = await requests.describe_coordinator(3)
    assert described.is_leader
    assert described.files == 1
    brokers.unreachable.add(3)
    assert (await requests.hand_over_file(request)).error_code is ErrorCode.network_exception
    assert (await requests.list_files(3)).error_code is ErrorCode.network_exception
    unreachable = await requests.describe_coordinator(3)
    assert unreachable.error_code is ErrorCode.network_exception
    assert not unreachable.is_leader


async def test_not_coordinator_is_returned_for_each_item(
    brokers: DisklessBrokers, clock: VirtualClock
) -> None:
    """D-13: a broker that does not lead the coordinators returns NOT_COORDINATOR."""
    commit = await brokers.handle(1, apis.DISKLESS_COMMIT_FILE, a_commit(brokers, 3, 0))
    assert codes(commit.batches) == ["not_coordinator", "none"]
    created = await brokers.handle(
        2,
        apis.DISKLESS_CREATE_PARTITIONS,
        DisklessCreatePartitionsRequest(
            topics=(
                DisklessCreatablePartitions(topic_id=T, name="t", num_partitions=4),
                DisklessCreatablePartitions(topic_id=U, name="u", num_partitions=2),
                DisklessCreatablePartitions(topic_id=UUID(int=9), name="x", num_partitions=1),
            )
        ),
    )
    assert [topic.error_code for topic in created.topics] == [
        ErrorCode.none,
        ErrorCode.not_coordinator,
        ErrorCode.unknown_topic_id,
    ]
    described = await brokers.handle(
        1,
        apis.DISKLESS_DESCRIBE_COORDINATORS,
        DisklessDescribeCoordinatorsRequest(coordinator_ids=(0, 3)),
    )
    assert [each.error_code for each in described.coordinators] == [
        ErrorCode.none,
        ErrorCode.not_coordinator,
    ]


async def test_existing_topic_is_not_deleted_from_its_coordinators(
    brokers: DisklessBrokers,
    clock: VirtualClock,
) -> None:
    """D-04: the metadata image decides which topics exist."""
    request = DisklessDeleteTopicsRequest(
        topics=tuple(DisklessDeletableTopicState(topic_id=each) for each in (T, UUID(int=44)))
    )
    response = await brokers.handle(2, apis.DISKLESS_DELETE_TOPICS, request)
    assert [each.error_code for each in response.responses] == [
        ErrorCode.invalid_request,
        ErrorCode.unknown_topic_id,
    ]


class DenyAll:
    """Authorizer that allows nothing."""

    def allows(self, *arguments: object) -> bool:
        return False


async def test_requests_need_cluster_action(brokers: DisklessBrokers, clock: VirtualClock) -> None:
    """D-01: every API returns CLUSTER_AUTHORIZATION_FAILED (31) without CLUSTER_ACTION."""
    brokers.brokers[1].authorizer = DenyAll()
    commit = a_commit(brokers, 0)
    key = commit.object_key
    requests: dict[apis.Api, Any] = {
        apis.DISKLESS_COMMIT_FILE: commit,
        apis.DISKLESS_CREATE_PARTITIONS: DisklessCreatePartitionsRequest(
            topics=(DisklessCreatablePartitions(topic_id=T, name="t", num_partitions=1),)
        ),
        apis.DISKLESS_DELETE_TOPICS: DisklessDeleteTopicsRequest(
            topics=(DisklessDeletableTopicState(topic_id=T),)
        ),
        apis.DISKLESS_DESCRIBE_FILES: DisklessDescribeFilesRequest(
            files=(DisklessDescribeFileEntry(object_key=key),)
        ),
        apis.DISKLESS_HAND_OVER_FILE: DisklessHandOverFileRequest(
            coordinator_id=0, object_key=key, object_format=1, file_size=1, owner_ids=(0,)
        ),
        apis.DISKLESS_DESCRIBE_COORDINATORS: DisklessDescribeCoordinatorsRequest(
            coordinator_ids=(0,)
        ),
        apis.DISKLESS_FETCH_SNAPSHOT: DisklessFetchSnapshotRequest(
            coordinator_id=0, position=0, max_bytes=1
        ),
        apis.DISKLESS_LIST_FILES: DisklessListFilesRequest(coordinator_id=0, after=""),
    }
    for api, request in requests.items():
        response = await brokers.handle(1, api, request)
        assert _first_code(response) is ErrorCode.cluster_authorization_failed, api.title
    for api, more, partition in (
        (
            apis.DISKLESS_FIND_BATCHES,
            {"fetch_max_bytes": 1, "max_batches_per_partition": 1},
            {"offset": 0, "max_partition_fetch_bytes": 1},
        ),
        (apis.DISKLESS_LIST_OFFSETS, {}, {"timestamp": 0}),
        (apis.DISKLESS_DELETE_RECORDS, {}, {"offset": 0}),
    ):
        topic = {"topic_id": T, "partitions": [{"partition_index": 0, **partition}]}
        values = {**more, "topics": [topic], "timeout_ms": 1000}
        response = await brokers.handle(1, api, values)
        (result,) = response.topics[0].partitions
        assert result.error_code is ErrorCode.cluster_authorization_failed, api.title


def _first_code(response: Any) -> ErrorCode:
    for name in ("batches", "topics", "responses", "files", "coordinators"):
        items = getattr(response, name, ())
        if items:
            code: ErrorCode = items[0].error_code
            return code
    found: ErrorCode = response.error_code
    return found


@pytest.mark.parametrize("timeout_ms", [0, -5])
async def test_request_without_time_is_timed_out(
    brokers: DisklessBrokers, clock: VirtualClock, timeout_ms: int
) -> None:
    """D-02: REQUEST_TIMED_OUT, and not an exception, for a time limit that is over at once."""
    brokers.logs[0].commits_at_once = False
    commit = a_commit(brokers, 0)
    request = DisklessCommitFileRequest(
        object_key=commit.object_key,
        object_format=1,
        file_size=commit.file_size,
        owner_ids=commit.owner_ids,
        batches=commit.batches,
        timeout_ms=timeout_ms,
    )
    response = await brokers.handle(1, apis.DISKLESS_COMMIT_FILE, request)
    assert codes(response.batches) == ["request_timed_out"]


INT64_MAX = (1 << 63) - 1


@pytest.mark.parametrize(
    "changes",
    [
        {"base_offset": -5, "last_offset": INT64_MAX - 6},
        {"base_offset": 10, "last_offset": 3},
        {"byte_offset": -1},
        {"size": 0},
        {"size": -7},
        {"size": 100_000},
        {"partition_index": -1},
        {"partition_index": 1 << 30},
        {"topic_id": UUID(int=0)},
        {"producer_id": -9, "producer_epoch": -3, "base_sequence": -8},
        {"producer_id": 4, "producer_epoch": -1, "base_sequence": -1, "last_sequence": -1},
        {"timestamp_type": 77, "batch_max_timestamp": -INT64_MAX},
        {"magic": -128},
    ],
    ids=str,
)
async def test_invalid_batch_gets_an_error_or_harms_no_other_commit(
    brokers: DisklessBrokers, clock: VirtualClock, changes: dict[str, Any]
) -> None:
    """D-07: the coordinator responds to invalid batches, and continues."""
    commit = a_commit(brokers, 0)
    wrong = replace(commit, batches=(replace(commit.batches[0], **changes),))
    response = await brokers.handle(1, apis.DISKLESS_COMMIT_FILE, wrong)
    assert len(response.batches) == 1
    following = await brokers.handle(
        1, apis.DISKLESS_COMMIT_FILE, a_commit(brokers, 0, number=1, producer_id=77, sequence=0)
    )
    assert codes(following.batches) == ["none"]
    coordinator = brokers.brokers[1].coordinators.replicas[0]
    assert coordinator.serves
    assert not coordinator.failed


@pytest.mark.parametrize(
    "changes",
    [
        {"object_key": ""},
        {"object_key": "../../etc/passwd"},
        {"object_key": "x" * 30_000},
        {"owner_ids": ()},
        {"owner_ids": (5, 5, -1)},
        {"owner_ids": (1,)},
        {"file_size": -1},
        {"batches": ()},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_invalid_file_is_refused(
    brokers: DisklessBrokers, clock: VirtualClock, changes: dict[str, Any]
) -> None:
    """D-05: no record is written for a file without a coordinator that could delete it."""
    end = brokers.logs[0].end_offset
    commit = replace(a_commit(brokers, 0), **changes)
    response = await brokers.handle(1, apis.DISKLESS_COMMIT_FILE, commit)
    assert len(response.batches) == len(commit.batches)
    assert all(each.error_code is not ErrorCode.none for each in response.batches)
    assert brokers.logs[0].end_offset == end or "file_size" in changes


async def test_requests_with_invalid_numbers_get_errors(
    brokers: DisklessBrokers, clock: VirtualClock
) -> None:
    """D-08 to D-11: negative limits, unknown partitions and offsets outside the partition."""
    await brokers.brokers[1].requests.commit_file(a_commit(brokers, 0))
    requests = brokers.brokers[1].requests
    for offset, expected in (
        (-1, ErrorCode.offset_out_of_range),
        (3, ErrorCode.offset_out_of_range),
        (INT64_MAX, ErrorCode.offset_out_of_range),
    ):
        (found,) = await requests.find_batches([FindPosition(T, 0, offset, 100)], max_bytes=100)
        assert found.error_code is expected
        assert (found.log_start_offset, found.high_watermark) == (0, 2)
    (found,) = await requests.find_batches(
        [FindPosition(T, 0, 0, -5)], max_bytes=-5, max_batches=-5
    )
    assert len(found.batches) == 1
    (listed,) = await requests.list_offsets([TimestampPosition(T, 0, -77)])
    assert listed.offset == -1
    for offset in (-2, 3, INT64_MAX):
        (deleted,) = await requests.delete_records([DeletePosition(T, 0, offset)])
        assert deleted.error_code is ErrorCode.offset_out_of_range
    described = await brokers.handle(
        1,
        apis.DISKLESS_DESCRIBE_COORDINATORS,
        DisklessDescribeCoordinatorsRequest(coordinator_ids=(-1, 0, 0, 1 << 30)),
    )
    assert [each.error_code.name for each in described.coordinators] == [
        "not_coordinator",
        "none",
        "none",
        "not_coordinator",
    ]
    files = await brokers.handle(
        1,
        apis.DISKLESS_LIST_FILES,
        DisklessListFilesRequest(coordinator_id=0, after="", max_files=-4),
    )
    assert not files.files
