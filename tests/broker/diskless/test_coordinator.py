"""One coordinator: order of decisions, appends, high watermark, state and responses (KIP-1164, D-13 to D-19)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from odradek.broker.diskless.coordinators import DisklessCoordinators
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessDeleteRecordsPartition,
    DisklessDeleteRecordsRequest,
    DisklessDeleteRecordsTopic,
)
from odradek.storage.diskless import queries
from odradek.storage.diskless.queries import FindPosition, TimestampPosition
from odradek.storage.diskless.state import DisklessState
from tests.support.diskless_coordinators import (
    TOPIC_ID,
    Call,
    KeptStates,
    MemoryReplicaLog,
    begin_commit,
    commit_batch,
    commit_request,
    image_of,
    leading,
    new_replica,
    offsets,
    refused,
    running,
    settle,
)


async def test_response_is_sent_only_after_the_high_watermark_and_the_apply() -> None:
    """D-17: append in one batch, wait for the high watermark, apply, respond."""
    async with leading() as replica, trio.open_nursery() as nursery:
        end = replica.log.end_offset
        call = begin_commit(nursery, replica)
        await settle()
        assert replica.log.end_offset == end + 1
        assert not call.is_done
        assert replica.coordinator.applied_offset == end - 1
        replica.commit_through(end)
        await settle()
        assert offsets(call) == [0]
        assert replica.coordinator.applied_offset == end
        assert replica.state.transactions[-1] == (1, end)
        assert replica.applied[-1] == (TOPIC_ID, 0)


async def test_operations_are_pipelined_and_see_pending_ones() -> None:
    """D-17, D-18: decisions do not wait for earlier operations, and use their results."""
    async with leading() as replica, trio.open_nursery() as nursery:
        end = replica.log.end_offset
        calls = []
        for number in range(4):
            sequence = 3 * number
            calls.append(
                begin_commit(nursery, replica, number, records=3, producer_id=5, sequence=sequence)
            )
            await settle()
        assert replica.log.end_offset == end + 4
        assert not any(call.is_done for call in calls)
        replica.commit_through(end + 1)
        await settle()
        assert [call.is_done for call in calls] == [True, True, False, False]
        replica.commit_through(end + 3)
        await settle()
        assert [offsets(call) for call in calls] == [[0], [3], [6], [9]]
        assert all(call.result.batches[0].error_code is ErrorCode.none for call in calls)


async def test_one_operation_is_one_batch_of_the_log() -> None:
    """D-17: the records of one operation are appended in one batch."""
    image = image_of({TOPIC_ID: ("t", [0] * 5)})
    async with leading(image=image) as replica, trio.open_nursery():
        assert replica.log.appended == [0]
        assert replica.log.end_offset == 5
        assert replica.state.transactions == [(5, 4)]


async def test_operation_without_records_waits_for_the_records_before_it() -> None:
    """D-19: the response to a duplicate is sent when everything before it is applied."""
    async with leading() as replica, trio.open_nursery() as nursery:
        first = begin_commit(nursery, replica, 1, producer_id=5, sequence=0)
        await settle()
        again = begin_commit(nursery, replica, 1, producer_id=5, sequence=0)
        await settle()
        assert not first.is_done
        assert not again.is_done
        replica.commit_through(replica.log.end_offset - 1)
        await settle()
        assert offsets(first) == offsets(again) == [0]
        assert again.result.batches[0].is_duplicate
        assert len(replica.log.appended) == 2  # the partition and the file


async def test_strict_reads_wait_and_stale_reads_do_not() -> None:
    """D-19: ListOffsets includes pending operations; FindBatches reads the applied state at once."""

    def latest(state: DisklessState) -> int:
        return queries.list_offsets(state, [TimestampPosition(TOPIC_ID, 0, -1)])[0].offset

    async with leading() as replica, trio.open_nursery() as nursery:
        begin_commit(nursery, replica, records=4)
        await settle()
        strict = Call(nursery, lambda: replica.coordinator.query_strictly(latest))
        await settle()
        assert not strict.is_done
        assert await replica.coordinator.query(latest) == 0
        replica.commit_through(replica.log.end_offset - 1)
        await settle()
        assert strict.result == 4


async def test_pending_operations_fail_on_the_loss_of_leadership() -> None:
    """D-13, D-17: NOT_COORDINATOR; the operation may still take effect, and its repetition does not twice."""
    async with leading() as replica, trio.open_nursery() as nursery:
        call = begin_commit(nursery, replica)
        await settle()
        replica.coordinator.lead_since(-1)
        await settle()
        assert call.error is not None
        assert call.error.code is ErrorCode.not_coordinator
        with refused(ErrorCode.not_coordinator):
            await replica.coordinator.commit_file(commit_request(replica.clock.wall_ms()))
        with refused(ErrorCode.not_coordinator):
            await replica.coordinator.query_strictly(lambda state: None)
        # it was committed all the same, and this broker is elected again
        replica.coordinator.lead_since(2)
        replica.commit_through(replica.log.end_offset - 1)
        await settle()
        again = begin_commit(nursery, replica)
        await settle()
        assert offsets(again) == [0]
        assert again.result.batches[0].is_duplicate


async def test_truncated_operation_is_decided_again_by_the_next_leader() -> None:
    """D-17: what was not committed is not in the state, so that nothing has to be undone."""
    async with leading() as replica, trio.open_nursery() as nursery:
        committed = replica.log.end_offset
        lost = begin_commit(nursery, replica, 1, records=5)
        await settle()
        replica.coordinator.lead_since(-1)
        replica.log.truncate(committed)
        await settle()
        assert lost.error is not None
        replica.coordinator.lead_since(3)
        await settle()
        other = begin_commit(nursery, replica, 2, records=2)
        await settle()
        replica.commit_through(replica.log.end_offset - 1)
        await settle()
        assert offsets(other) == [0]


async def test_new_leader_serves_after_its_whole_log_is_committed_and_applied() -> None:
    """D-17: COORDINATOR_LOAD_IN_PROGRESS until then; stale reads are served."""
    async with leading() as replica, trio.open_nursery() as nursery:
        call = begin_commit(nursery, replica, records=3)
        await settle()
        assert not call.is_done
        replica.coordinator.lead_since(-1)
        await settle()
    log = replica.log
    successor = new_replica(log, clock=replica.clock)
    successor.coordinator.lead_since(1)
    async with running(successor), trio.open_nursery() as nursery:
        assert successor.coordinator.is_leader
        assert not successor.coordinator.serves
        with refused(ErrorCode.coordinator_load_in_progress):
            await successor.coordinator.commit_file(commit_request(replica.clock.wall_ms()))
        assert successor.coordinator.has_state
        successor.commit_through(log.end_offset - 1)
        await settle()
        assert successor.coordinator.serves
        again = begin_commit(nursery, successor, records=3)
        await settle()
        following = begin_commit(nursery, successor, 9)
        await settle()
        successor.commit_through(log.end_offset - 1)
        await settle()
        assert offsets(again) == [0]
        assert again.result.batches[0].is_duplicate
        assert offsets(following) == [3]


async def test_follower_applies_committed_records_and_serves_stale_reads() -> None:
    """D-10, D-19: a follower has the state up to its high watermark."""

    def find(state: DisklessState) -> Any:
        position = FindPosition(TOPIC_ID, 0, 0, 1000)
        return queries.find_batches(state, [position], max_bytes=1000, max_batches=0)[0]

    async with leading() as replica, trio.open_nursery() as nursery:
        follower = new_replica(replica.log, KeptStates())
        async with running(follower):
            begin_commit(nursery, replica)
            await settle()
            follower.coordinator.wake()
            await settle()
            assert (await follower.coordinator.query(find)).high_watermark == 0
            replica.commit_through(replica.log.end_offset - 1)
            follower.coordinator.wake()
            await settle()
            found = await follower.coordinator.query(find)
            assert found.high_watermark == 1
            assert len(found.batches) == 1
            assert follower.applied == [(TOPIC_ID, 0)]
            assert follower.coordinator.applied_offset == replica.coordinator.applied_offset


async def test_state_continues_from_its_applied_offset() -> None:
    """D-16: records up to the applied offset are not applied again after a restart."""
    states, log = KeptStates(), MemoryReplicaLog()
    log.commits_at_once = True
    async with leading(new_replica(log, states)) as replica, trio.open_nursery() as nursery:
        begin_commit(nursery, replica)
        await settle()
    before = list(replica.state.transactions)
    assert replica.state.is_closed
    async with leading(new_replica(log, states, clock=replica.clock)) as restarted:
        assert restarted.state.transactions == before
        assert restarted.coordinator.applied_offset == log.end_offset - 1


@pytest.mark.parametrize("elected", ["before the start", "later"])
async def test_state_ahead_of_its_leaders_log_is_rebuilt(
    elected: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D-16: the state is a cache. A log that lost records gives their offsets to others."""
    states, log = KeptStates(), MemoryReplicaLog()
    log.commits_at_once = True
    async with leading(new_replica(log, states)) as replica, trio.open_nursery() as nursery:
        begin_commit(nursery, replica)
        await settle()
    before = replica.state
    log.truncate(1)
    log.high_watermark = 1
    restarted = new_replica(log, states, clock=replica.clock)
    if elected == "before the start":
        restarted.coordinator.lead_since(0)
    async with running(restarted):
        restarted.coordinator.lead_since(0)
        await settle()
        assert restarted.coordinator.serves
        assert restarted.state is not before
        assert restarted.state.applied_offset == 0
    assert "built again from the log" in caplog.text


async def test_refused_append_fails_only_its_operation() -> None:
    """D-17: after an error of the log nothing is pending."""
    async with leading() as replica, trio.open_nursery() as nursery:
        replica.log.fails_with = KafkaError(ErrorCode.not_enough_replicas, "one replica")
        call = begin_commit(nursery, replica, records=7)
        await settle()
        assert call.error is not None
        assert call.error.code is ErrorCode.coordinator_not_available
        replica.log.fails_with = None
        replica.log.commits_at_once = True
        following = begin_commit(nursery, replica, 2)
        await settle()
        assert offsets(following) == [0]


async def test_cancelled_caller_does_not_undo_its_operation() -> None:
    """D-17: an appended operation takes effect, also if its caller stops waiting."""
    async with leading() as replica, trio.open_nursery() as nursery:
        with trio.CancelScope() as waiting:
            nursery.start_soon(_cancel_soon, waiting)
            await replica.coordinator.commit_file(
                commit_request(replica.clock.wall_ms(), commit_batch(4))
            )
        replica.commit_through(replica.log.end_offset - 1)
        following = begin_commit(nursery, replica, 2)
        await settle()
        replica.commit_through(replica.log.end_offset - 1)
        await settle()
        assert offsets(following) == [4]


async def _cancel_soon(scope: trio.CancelScope) -> None:
    await settle()
    scope.cancel()


async def test_undecodable_record_fails_the_coordinator_with_one_error(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.abc.Clock
) -> None:
    """An undecodable record stops this coordinator, with one log line; requests get COORDINATOR_NOT_AVAILABLE."""
    async with leading() as replica:
        replica.log.append_raw(b"\xff\xffgarbage")
        replica.commit_through(replica.log.end_offset - 1)
        await trio.sleep(300)
        assert replica.coordinator.failed
        with refused(ErrorCode.coordinator_not_available):
            await replica.coordinator.commit_file(commit_request(replica.clock.wall_ms()))
        assert not replica.coordinator.has_state
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "__diskless_metadata-0" in caplog.text
    assert "offset 1 cannot be decoded" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("disk I/O error"), OSError("disk I/O error")])
async def test_coordinator_serves_again_after_an_error_of_its_state(
    error: Exception, caplog: pytest.LogCaptureFixture, autojump_clock: trio.abc.Clock
) -> None:
    """An error of the state fails the pending operations; the state is opened again after a pause. The log has a
    traceback only if the cause is not the log directory."""
    async with leading() as replica, trio.open_nursery() as nursery:
        replica.state.fails_with = error
        call = begin_commit(nursery, replica)
        await settle()
        replica.commit_through(replica.log.end_offset - 1)
        await settle()
        assert call.error is not None
        assert call.error.code is ErrorCode.coordinator_not_available
        replica.state.fails_with = None
        await trio.sleep(2)
        assert replica.coordinator.serves
        again = begin_commit(nursery, replica)
        await settle()
        assert offsets(again) == [0]
    assert "disk I/O error" in caplog.text
    assert ("Traceback" in caplog.text) is isinstance(error, RuntimeError)


async def test_partitions_of_the_image_are_created_and_deleted_topics_removed() -> None:
    """D-14, D-25: the leader compares its state with the metadata image when it begins to serve."""
    other = TOPIC_ID.__class__(int=2)
    log = MemoryReplicaLog()
    log.commits_at_once = True
    image = image_of({TOPIC_ID: ("t", [0, 1, 0]), other: ("u", [1])})
    async with leading(new_replica(log, image=image)) as replica:
        assert [(each.topic_id, each.index) for each in replica.state.partitions()] == [
            (TOPIC_ID, 0),
            (TOPIC_ID, 2),
        ]
    async with leading(new_replica(log, replica.states, image=image_of({}))) as restarted:
        assert not restarted.state.partitions()


async def test_commit_creates_a_partition_that_only_the_image_has() -> None:
    """D-14: a producer may be the first to need a new partition."""
    log = MemoryReplicaLog()
    log.commits_at_once = True
    async with leading(new_replica(log, image=image_of({}))) as replica:
        replica.image = image_of({TOPIC_ID: ("t", [0])})
        async with trio.open_nursery() as nursery:
            call = begin_commit(nursery, replica)
            await settle()
            assert offsets(call) == [0]
        unknown = TOPIC_ID.__class__(int=77)
        async with trio.open_nursery() as nursery:
            call = begin_commit(nursery, replica, 2, topic_id=unknown)
            await settle()
            assert call.result.batches[0].error_code is ErrorCode.unknown_topic_id


async def test_delete_records_is_seen_by_the_next_operation() -> None:
    """D-08, D-18: a pending deletion counts for the operations after it."""
    async with leading() as replica, trio.open_nursery() as nursery:
        begin_commit(nursery, replica, records=6)
        await settle()
        request = DisklessDeleteRecordsRequest(
            topics=(
                DisklessDeleteRecordsTopic(
                    topic_id=TOPIC_ID,
                    partitions=(DisklessDeleteRecordsPartition(partition_index=0, offset=4),),
                ),
            )
        )
        deletion = Call(nursery, lambda: replica.coordinator.delete_records(request))
        await settle()
        following = begin_commit(nursery, replica, 2)
        await settle()
        replica.commit_through(replica.log.end_offset - 1)
        await settle()
        assert deletion.result.topics[0].partitions[0].low_watermark == 4
        assert following.result.batches[0].log_start_offset == 4
        assert offsets(following) == [6]


def test_coordinators_without_replicas_are_not_coordinators() -> None:
    """D-13: NOT_COORDINATOR on brokers that do not lead the partition."""
    coordinators = DisklessCoordinators.__new__(DisklessCoordinators)
    coordinators._replicas = {}
    with refused(ErrorCode.not_coordinator):
        coordinators.leader(3)
    with refused(ErrorCode.not_coordinator):
        coordinators.with_state(3)
