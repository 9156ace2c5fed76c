"""Fetches of diskless partitions: sizes, long polls, stale replicas, faults of the store and of coordinators (D-10)."""

from __future__ import annotations

import logging
import random
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from odradek.broker.diskless import log_reader
from odradek.broker.fetch.log_reading import READ_COMMITTED
from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch_request_reader import ForgottenTopic
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.seams.files import FileSlice
from odradek.storage.diskless.memory_state import MemoryDisklessState
from odradek.testing.virtual_object_store import StoreFault, StoreFaultKind
from tests.support.diskless_fetches import (
    POLL_INTERVAL_MS,
    TOPIC_ID,
    DisklessNode,
    offsets_of,
    partitions_of,
)


async def test_fetch_of_several_partitions_finds_batches_once_and_reads_each_object_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """D-10: one FindBatches for all diskless partitions of a fetch."""
    async with DisklessNode().running() as node:
        for _ in range(3):
            node.commit({0: 2, 1: 3})
        first, second, third = await node.fetch({0: 1, 1: 6, 3: 0})
        assert offsets_of(first) == list(range(6))  # the first batch contains the offset
        assert offsets_of(second) == [6, 7, 8]
        assert offsets_of(third) == []
        assert (first.high_watermark, first.last_stable_offset, first.log_start_offset) == (6, 6, 0)
        assert (second.high_watermark, third.high_watermark) == (9, 0)
        assert len(node.coordinator.calls) == 1
        assert node.gets() == 3


async def test_read_committed_reads_the_same_records_with_an_empty_list_of_aborted_transactions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 2})
        (committed,) = await node.fetch({0: 0}, isolation_level=READ_COMMITTED)
        (uncommitted,) = await node.fetch({0: 0})
        assert offsets_of(committed) == offsets_of(uncommitted) == [0, 1]
        assert (committed.aborted_transactions, uncommitted.aborted_transactions) == ([], None)


async def test_size_limits_cut_partitions_except_for_the_first_batch(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """KIP-74: the first partition with records returns a batch of any size; partitions and the request have limits."""
    async with DisklessNode().running() as node:
        for _ in range(10):
            node.commit({0: 1, 1: 1, 2: 1}, value_bytes=1000)
        reads = await node.fetch({3: 0, 0: 0, 1: 0, 2: 0}, max_bytes=10, partition_bytes=10)
        assert [len(offsets_of(each)) for each in reads] == [0, 1, 0, 0]
        reads = await node.fetch({0: 0, 1: 0, 2: 0}, partition_bytes=3500)
        assert [len(offsets_of(each)) for each in reads] == [3, 3, 3]
        reads = await node.fetch({0: 0, 1: 0, 2: 0}, max_bytes=4700, partition_bytes=3500)
        assert [len(offsets_of(each)) for each in reads] == [3, 1, 0]
        reads = await node.fetch({0: 0}, partition_bytes=0)
        assert [len(offsets_of(each)) for each in reads] == [1]


async def test_response_limit_keeps_memory_bounded(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "RESPONSE_BYTES_MAX", 5000)
    async with DisklessNode().running() as node:
        for _ in range(4):
            node.commit({0: 1, 1: 1}, value_bytes=2000)
        reads = await node.fetch({0: 0, 1: 0})
        assert [len(offsets_of(each)) for each in reads] == [2, 0]


async def test_responses_are_small_while_clients_do_not_receive_theirs(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "UNSENT_BYTES_MAX", 300_000)
    async with DisklessNode().running() as node:
        for _ in range(20):
            node.commit({0: 1}, value_bytes=20_000)
        unsent = []
        while node.reader.unsent_bytes < 300_000:
            (read,) = await node.fetch({0: 0}, partition_bytes=200_000)
            assert len(offsets_of(read)) == 9
            unsent.append(read)
        (read,) = await node.fetch({0: 0}, partition_bytes=200_000)
        assert offsets_of(read) == [0, 1, 2]
        for each in unsent:
            for part in each.records:
                assert isinstance(part, FileSlice)
                part.file.unpin()
        assert node.reader.unsent_bytes == 0
        (read,) = await node.fetch({0: 0}, partition_bytes=200_000)
        assert len(offsets_of(read)) == 9


async def test_negative_size_is_unknown_server_error_if_there_are_records(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 1})
        (read,) = await node.fetch({0: 0}, partition_bytes=-1)
        assert read.error_code == ErrorCode.unknown_server_error


@pytest.mark.parametrize(("offset", "code"), [(1, 1), (2, 0), (7, 0), (8, 1), (-1, 1)])
async def test_offset_out_of_range_below_the_log_start_and_above_the_high_watermark(
    autojump_clock: trio.testing.MockClock, offset: int, code: int
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 7})
        node.delete_records(0, 2)
        (read,) = await node.fetch({0: offset}, max_wait_ms=0)
        assert read.error_code == code
        if code:
            assert trio.current_time() < 1
            assert (read.high_watermark, read.records) == (-1, ())
        else:
            assert read.log_start_offset == 2


async def test_replica_that_is_behind_never_gives_offset_out_of_range(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """D-10: stale state is confirmed by the coordinator before it becomes an error."""
    async with DisklessNode().running() as node:
        node.commit({0: 5})
        node.coordinator.catch_up()
        node.commit({0: 5})
        (read,) = await node.fetch({0: 8})
        assert offsets_of(read) == list(range(5, 10))
        assert [strict for _, strict in node.coordinator.calls] == [False, True]
        node.coordinator.is_available = False
        (read,) = await node.fetch({0: 8}, max_wait_ms=0)
        assert read.error_code == ErrorCode.replica_not_available
        node.coordinator.is_available = True
        await trio.sleep(log_reader.FAILED_SECONDS + 0.1)
        (read,) = await node.fetch({0: 11}, max_wait_ms=0)
        assert read.error_code == ErrorCode.offset_out_of_range


async def test_new_leader_that_is_behind_never_gives_offset_out_of_range(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """D-10: a leader responds to FindBatches before it has applied its whole log."""
    async with DisklessNode().running() as node:
        node.commit({0: 5})
        node.coordinator.lagging = MemoryDisklessState(0)
        node.coordinator.lagging.restore(node.coordinator.leader.snapshot())
        node.commit({0: 5})
        (read,) = await node.fetch({0: 10}, max_wait_ms=0)
        assert read.error_code == ErrorCode.replica_not_available
        responses: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_fetch_into, max_wait_ms=5000), responses, node, {0: 8})
            await trio.sleep(0.5)
            assert not responses
            node.coordinator.lagging = None
        (read,), _ = responses
        assert offsets_of(read) == list(range(5, 10))
        (read,) = await node.fetch({0: 11}, max_wait_ms=0)
        assert read.error_code == ErrorCode.offset_out_of_range


async def test_replaced_leader_never_gives_offset_out_of_range(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """D-10: a leader without contact to the others has an old high watermark, also in strict reads."""
    async with DisklessNode().running() as node:
        node.commit({0: 5})
        node.coordinator.zombie = MemoryDisklessState(0)
        node.coordinator.zombie.restore(node.coordinator.leader.snapshot())
        node.commit({0: 5})
        (read,) = await node.fetch({0: 10}, max_wait_ms=0)
        assert read.error_code == ErrorCode.replica_not_available
        node.coordinator.zombie = None
        (read,) = await node.fetch({0: 10}, max_wait_ms=0)
        assert (read.error_code, read.high_watermark) == (ErrorCode.none, 10)
        (read,) = await node.fetch({0: 11}, max_wait_ms=0)
        assert read.error_code == ErrorCode.offset_out_of_range


async def test_partition_that_the_coordinator_does_not_know_yet_is_not_an_unknown_topic(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.coordinator.catch_up()
        node.create("new", UUID(int=200))  # not in the replica yet
        (read,) = await node.fetch({0: 0}, topic_id=UUID(int=200), max_wait_ms=0)
        assert (read.error_code, read.high_watermark) == (ErrorCode.none, 0)


async def test_wrong_leader_epoch_is_unknown_leader_epoch(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 1})
        (read,) = await node.fetch({0: 0}, epoch=1)
        assert read.error_code == ErrorCode.unknown_leader_epoch
        (read,) = await node.fetch({0: 0}, epoch=-1)
        assert offsets_of(read) == [0]


async def test_follower_fetch_of_a_diskless_partition_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 1})
        (read,) = await node.fetch({0: 0}, replica_id=2, max_wait_ms=0)
        assert read.error_code == ErrorCode.not_leader_or_follower
        assert not node.coordinator.calls


# Long polls


async def _fetch_into(into: list[Any], node: DisklessNode, *args: Any, **fields: Any) -> None:
    into.append(await node.fetch(*args, **fields))
    into.append(trio.current_time())


async def test_long_poll_returns_without_records_after_max_wait_and_reads_no_object(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 2})
        began = trio.current_time()
        (read,) = await node.fetch({0: 2}, max_wait_ms=1000)
        assert offsets_of(read) == []
        assert 1 <= trio.current_time() - began < 1.1
        (read,) = await node.fetch({0: 0}, max_wait_ms=1000, min_bytes=10_000)
        assert offsets_of(read) == [0, 1]
        assert 2 <= trio.current_time() - began < 2.2
        assert node.gets() == 1


async def test_long_poll_is_woken_by_a_commit_that_the_local_replica_applies(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.coordinator.catch_up()
        responses: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fetch_into, responses, node, {0: 0, 1: 0})
            await trio.sleep(0.2)
            calls = len(node.coordinator.calls)
            node.commit({1: 3}, is_local=True)
            node.replicate(1)
            committed_at = trio.current_time()
        (first, second), responded_at = responses
        assert (offsets_of(first), offsets_of(second)) == ([], [0, 1, 2])
        assert responded_at - committed_at < POLL_INTERVAL_MS / 1000 / 2
        assert calls == 1, "no polls while the local replica has not changed"
        assert len(node.coordinator.calls) == 2
        assert node.gets() == 0


async def test_idle_fetches_ask_a_local_replica_only_after_commits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 1})
        node.coordinator.catch_up()
        for _ in range(4):
            (read,) = await node.fetch({0: 1}, max_wait_ms=200)
            assert (offsets_of(read), read.high_watermark) == ([], 1)
        assert len(node.coordinator.calls) == 1
        node.commit({0: 1})
        node.replicate(0)
        (read,) = await node.fetch({0: 1}, max_wait_ms=0)
        assert offsets_of(read) == [1]
        (read,) = await node.fetch({0: 2}, max_wait_ms=0)
        node.commit({0: 1})
        node.coordinator.catch_up()  # without a notification, as after the replica was loaded again
        await trio.sleep(log_reader.END_SECONDS + 0.1)
        (read,) = await node.fetch({0: 2}, max_wait_ms=0)
        assert offsets_of(read) == [2]


async def test_commit_between_the_read_and_the_wait_is_not_missed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.coordinator.catch_up()
        responses: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fetch_into, responses, node, {0: 0})
            while not node.coordinator.calls:
                await trio.sleep(0.0001)
            node.commit({0: 1})
            node.reader.committed(TOPIC_ID, 0)  # before its state is visible to the running request
            await trio.sleep(0.001)
            node.coordinator.catch_up()
        (read,), responded_at = responses
        assert offsets_of(read) == [0]
        assert responded_at < 0.1


async def test_waiting_fetches_without_local_replica_share_one_request_per_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        responses: list[list[Any]] = [[] for _ in range(10)]
        async with trio.open_nursery() as nursery:
            for number, into in enumerate(responses):
                nursery.start_soon(_fetch_into, into, node, {number % 4: 0})
            await trio.sleep(0.01)
            node.coordinator.calls.clear()
            await trio.sleep(0.3)
            assert 4 <= len(node.coordinator.calls) <= 6
            assert {len(positions) for positions, _ in node.coordinator.calls} == {4}
            for index in range(4):
                node.commit({index: 1})
            committed_at = trio.current_time()
        for (read,), responded_at in responses:
            assert offsets_of(read) == [0]
            assert responded_at - committed_at < 2 * POLL_INTERVAL_MS / 1000
        assert len(node.reader.polls) == 0


async def test_long_poll_waits_for_min_bytes_over_several_commits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.coordinator.catch_up()
        responses: list[Any] = []
        async with trio.open_nursery() as nursery:
            waiting = partial(_fetch_into, min_bytes=3000, max_wait_ms=10_000)
            nursery.start_soon(waiting, responses, node, {0: 0, 1: 0})
            for number in range(3):
                await trio.sleep(1)
                assert not responses
                node.commit({number % 2: 1}, value_bytes=1000)
                node.replicate(number % 2)
        (first, second), responded_at = responses
        assert (offsets_of(first), offsets_of(second)) == ([0, 1], [0])
        assert 3 < responded_at < 3.1


async def test_deletion_of_the_topic_ends_a_long_poll(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        responses: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_fetch_into, max_wait_ms=10_000), responses, node, {0: 0})
            await trio.sleep(0.2)
            node.delete("t")
        (read,), responded_at = responses
        assert read.error_code == ErrorCode.unknown_topic_or_partition  # as for a classic topic
        assert responded_at < 0.5


async def test_delete_records_during_a_long_poll_gives_offset_out_of_range(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 3})
        responses: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_fetch_into, max_wait_ms=10_000), responses, node, {0: 3})
            await trio.sleep(0.2)
            node.commit({0: 3})
            node.delete_records(0, 5)
        (read,), _ = responses
        assert read.error_code == ErrorCode.offset_out_of_range


async def test_long_poll_outlives_an_unavailable_coordinator(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.coordinator.is_available = False
        responses: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_fetch_into, max_wait_ms=5000), responses, node, {0: 0})
            await trio.sleep(1)
            assert not responses
            node.coordinator.is_available = True
            node.commit({0: 1})
        (read,), responded_at = responses
        assert offsets_of(read) == [0]
        assert responded_at < 1.2
        node.coordinator.is_available = False
        (read,) = await node.fetch({0: 0}, max_wait_ms=500)
        assert read.error_code == ErrorCode.replica_not_available


async def test_hanging_coordinator_delays_other_partitions_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.coordinator.hanging.add(3)
        for number in range(5):
            node.commit({0: 1})
            began = trio.current_time()
            first, hanging = await node.fetch({0: number, 3: 0})
            assert offsets_of(first) == [number]
            assert hanging.error_code == ErrorCode.replica_not_available
            assert trio.current_time() - began < (0.1 if number else 1.1)
        responses: list[Any] = []
        async with trio.open_nursery() as nursery:
            waiting = partial(_fetch_into, max_wait_ms=10_000)
            nursery.start_soon(waiting, responses, node, {0: 5, 3: 0})
            node.coordinator.calls.clear()
            await trio.sleep(1.5)
            assert len(node.coordinator.calls) <= 3, "one request to a leader is in flight"
            node.coordinator.hanging.clear()
            node.commit({3: 1})
        (_, third), _ = responses
        assert offsets_of(third) == [0]


# Fetch sessions


async def test_incremental_session_returns_only_partitions_with_news(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """KIP-227, as for classic partitions."""
    async with DisklessNode().running() as node:
        node.commit({0: 1})
        full = await node.fetch_response({0: 1, 1: 0}, session_epoch=0, max_wait_ms=0)
        assert [each.index for each in partitions_of(full)] == [0, 1]
        node.commit({1: 2})
        news = await node.fetch_response({}, session_id=full.session_id, session_epoch=1)
        assert [(each.index, offsets_of(each)) for each in partitions_of(news)] == [(1, [0, 1])]
        forgotten = [ForgottenTopic(None, TOPIC_ID, [1])]
        node.commit({0: 1, 1: 1})
        news = await node.fetch_response(
            {}, session_id=full.session_id, session_epoch=2, forgotten=forgotten
        )
        assert [(each.index, offsets_of(each)) for each in partitions_of(news)] == [(0, [1])]


# The object store


async def test_unavailable_store_is_storage_error_and_delays_the_response(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 1})
        node.bucket.inject(StoreFault(StoreFaultKind.THROTTLED))
        began = trio.current_time()
        (read,) = await node.fetch({0: 0})
        assert read.error_code == ErrorCode.kafka_storage_error
        assert trio.current_time() - began >= log_reader.FAILURE_SECONDS
        node.bucket.heal()
        (read,) = await node.fetch({0: 0})
        assert offsets_of(read) == [0]


async def test_hanging_object_does_not_delay_other_partitions_for_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        hanging = node.commit({0: 1})
        node.commit({1: 1})
        node.bucket.inject(StoreFault(StoreFaultKind.HANGS, pattern=hanging))
        first, second = await node.fetch({0: 0, 1: 0})
        assert (first.error_code, offsets_of(first)) == (0, [])
        assert offsets_of(second) == [0]
        assert trio.current_time() < 1


async def test_damaged_object_is_storage_error_of_its_partition_with_one_log_line(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with DisklessNode().running() as node:
        key = node.commit({0: 2})
        node.commit({1: 2})
        damaged = bytearray(node.bucket.objects[key])
        damaged[-1] ^= 1
        node.bucket.store(key, bytes(damaged))
        for _ in range(3):
            first, second = await node.fetch({0: 0, 1: 0})
            assert (first.error_code, offsets_of(first)) == (ErrorCode.kafka_storage_error, [])
            assert offsets_of(second) == [0, 1]
    (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "offsets 0 to 1 of t-0" in line.getMessage()
    assert key in line.getMessage()


async def test_missing_object_is_storage_error_with_one_log_line(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 2})
        key = node.commit({0: 2})
        node.bucket.remove(key)
        for _ in range(2):
            (read,) = await node.fetch({0: 0})
            assert offsets_of(read) == [0, 1]  # all that can be read
            (read,) = await node.fetch({0: 2})
            assert (read.error_code, offsets_of(read)) == (ErrorCode.kafka_storage_error, [])
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert f"offsets 2 to 3 of t-0 cannot be read from byte 0 of object {key}" in line


async def test_object_that_was_deleted_after_delete_records_is_no_damage(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A replica that is behind still has the batches of a deleted object."""
    async with DisklessNode().running() as node:
        key = node.commit({0: 2})
        node.commit({0: 2})
        node.coordinator.catch_up()
        node.delete_records(0, 2)
        node.bucket.remove(key)
        (read,) = await node.fetch({0: 0})
        assert read.error_code == ErrorCode.offset_out_of_range
        assert not caplog.records


async def test_sequential_consumer_finds_the_next_objects_in_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        for _ in range(12):
            node.commit({0: 1}, value_bytes=1000)
        offset = 0
        requests = []
        while offset < 12:
            before = node.gets()
            (read,) = await node.fetch({0: offset}, partition_bytes=2200)
            offset += len(offsets_of(read))
            requests.append(node.gets() - before)
            await trio.sleep(1)
        assert node.gets() == 12
        waited_for = requests[3:]
        assert max(waited_for) <= 2  # only what is read ahead
        before = node.gets()
        (read,) = await node.fetch({0: 0}, partition_bytes=2200)
        await trio.sleep(1)
        assert node.gets() == before


async def test_traffic_counts_fetches_bytes_and_errors(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 1})
        reads = await node.fetch({0: 0, 1: 0, 2: 5}, max_wait_ms=0)
        traffic = node.traffic["t"]
        assert traffic.fetches == 3
        assert traffic.bytes_out == len(reads[0].records[0])  # type: ignore[arg-type]
        assert traffic.failed_fetches == 1


def _check(read: FetchedPartition, offset: int) -> int:
    """Check that the records follow the offset without a gap; return the next offset."""
    found = [each for each in offsets_of(read) if each >= offset]
    assert found == list(range(offset, offset + len(found)))
    return offset + len(found)


@pytest.mark.parametrize("seed", range(8))
async def test_consumers_read_every_record_once_under_faults_of_store_and_coordinators(
    autojump_clock: trio.testing.MockClock,
    seed: int,
) -> None:
    rng = random.Random(seed)
    kinds = [
        StoreFaultKind.THROTTLED,
        StoreFaultKind.HANGS,
        StoreFaultKind.SLOW,
        StoreFaultKind.HALF_DONE,
        StoreFaultKind.FALSE_SUCCESS,
    ]
    total = dict.fromkeys(range(4), 0)
    is_done = False

    def draw(operation: str, key: str) -> StoreFault | None:
        if rng.random() > 0.2:
            return None
        return StoreFault(rng.choice(kinds), seconds=rng.choice([0.2, 3.0, 20.0]))

    async def produce(node: DisklessNode) -> None:
        nonlocal is_done
        for _ in range(80):
            counts = {index: rng.randint(1, 4) for index in rng.sample(range(4), rng.randint(1, 4))}
            node.commit(counts, value_bytes=rng.choice([10, 500]), is_local=rng.random() < 0.3)
            for index, count in counts.items():
                total[index] += count
            if rng.random() < 0.7 and node.coordinator.replica is not None:
                node.replicate(*counts)
            await trio.sleep(rng.random())
            match rng.randrange(10):
                case 0:
                    node.coordinator.catch_up()
                case 1:
                    node.coordinator.replica = None
                case 2:
                    node.coordinator.is_available = not node.coordinator.is_available
        is_done = True
        node.bucket.heal()
        node.coordinator.is_available = True
        node.coordinator.catch_up()

    async def consume(node: DisklessNode) -> None:
        offsets = dict.fromkeys(range(4), 0)
        while not is_done or offsets != total:
            reads = await node.fetch(
                offsets,
                partition_bytes=rng.choice([100, 2000, 1 << 20]),
                max_bytes=rng.choice([1000, 1 << 20]),
                min_bytes=rng.choice([1, 3000]),
                max_wait_ms=rng.choice([0, 100, 500]),
            )
            for read in reads:
                assert read.error_code in (
                    ErrorCode.none,
                    ErrorCode.kafka_storage_error,
                    ErrorCode.replica_not_available,
                )
                offsets[read.index] = _check(read, offsets[read.index])
            await trio.sleep(0.01)

    async with DisklessNode(cache_bytes=8000).running() as node:
        node.bucket.draw = draw
        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce, node)
                for _ in range(3):
                    nursery.start_soon(consume, node)
        assert node.bucket.affected_requests > 5
