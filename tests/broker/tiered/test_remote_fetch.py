"""Tests of fetches from the remote tier: concurrent reads, slow and failed storage, quotas."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio

from odradek.broker.fetch import log_reading
from odradek.broker.tiered import remote_fetch
from odradek.protocol.errors import ErrorCode
from odradek.seams.files import Buffer
from odradek.storage.log.partition_log import AppendOrigin, PartitionLog
from odradek.storage.log.transaction_verification import VERIFICATION_DISABLED
from odradek.storage.tiered.errors import RemoteStorageUnavailable
from odradek.storage.tiered.remote_log_reader import RemoteRead
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, SegmentState
from tests.support.partition_logs import NOW_MS, idempotent, marker
from tests.support.remote_log_reads import EVERYTHING
from tests.support.tiered_brokers import TIMEOUT_SECONDS, TieredStage, tiered_stage

READ_COMMITTED = 1
NOTHING = ErrorCode.none


async def test_consumer_reads_log_in_both_tiers() -> None:
    """T-32: first from the remote tier, then from the disk."""
    async with tiered_stage() as stage:
        await stage.fill(stage.partitions[0])
        log = stage.partitions[0].log
        found: list[int] = []
        while len(found) < log.end_offset:
            (response,) = await stage.fetch(len(found))
            assert response.error_code == NOTHING
            assert response.response.high_watermark == log.end_offset
            assert response.response.log_start_offset == 0
            found += response.offsets
        assert found == list(range(40))


async def test_first_batch_may_exceed_limit_in_both_tiers() -> None:
    """KIP-74: otherwise a consumer with max.partition.fetch.bytes=0 would make no progress."""
    async with tiered_stage(2) as stage:
        for each in stage.partitions:
            await stage.fill(each)
        for offset in (0, stage.partitions[0].log.local_log_start_offset):
            found = await stage.fetch(offset, offset, max_bytes=0)
            assert [each.offsets for each in found] == [[offset, offset + 1], []]


async def test_partitions_of_one_fetch_are_read_concurrently() -> None:
    """Kafka once read one remote partition per fetch."""
    async with tiered_stage(4) as stage:
        for each in stage.partitions[:3]:
            await stage.fill(each)
        stage.store.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_open_gate_after_reads, stage, 3)
            found = await stage.fetch(0, 6, 12)
        assert [each.offsets[0] for each in found] == [0, 6, 12]
        assert all(each.offsets for each in found)


async def _open_gate_after_reads(stage: TieredStage, times: int) -> None:
    with trio.fail_after(TIMEOUT_SECONDS):
        while stage.store.asked < times:
            await trio.lowlevel.checkpoint()
    stage.store.gate.set()


async def test_slow_read_is_completed_for_later_fetch() -> None:
    """Kafka cancels a read after remote.fetch.max.wait.ms and starts it again in the next fetch."""
    async with tiered_stage(configs={"remote.fetch.max.wait.ms": "50"}) as stage:
        await stage.fill(stage.partitions[0])
        stage.store.gate.clear()
        for _ in range(3):
            (response,) = await stage.fetch(0)
            assert response.error_code == NOTHING
            assert response.offsets == []
        stage.store.gate.set()
        (response,) = await stage.fetch(0)
        assert response.offsets[0] == 0
        assert stage.store.asked == 1
        assert stage.node.services.metrics.meter("ExpiresPerSec").count == 3


async def test_fetch_returns_local_and_remote_partitions_together() -> None:
    async with tiered_stage(2) as stage:
        for each in stage.partitions:
            await stage.fill(each)
        local = stage.partitions[1].log.local_log_start_offset
        found = await stage.fetch(0, local)
        assert found[0].offsets[0] == 0
        assert found[1].offsets[0] == local


async def test_failed_storage_fails_only_its_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """T-34: with UNKNOWN_SERVER_ERROR; the failure is logged once."""
    async with tiered_stage(2) as stage:
        for each in stage.partitions:
            await stage.fill(each)
        await stage.fetch(0, 0)
        stage.store.error = RemoteStorageUnavailable("503")
        found = await stage.fetch(0, 12)
        assert found[0].offsets[0] == 0
        assert found[1].error_code == ErrorCode.unknown_server_error
        errors = stage.node.services.metrics.meter("RemoteFetchErrorsPerSec", topic="t")
        assert errors.count == 1
        (failed,) = await stage.fetch(12)
        assert failed.error_code == ErrorCode.unknown_server_error
        (failed,) = await stage.fetch(12)
        assert caplog.text.count("TIERED_STORAGE_NOT_AVAILABLE") == 2
        stage.store.error = None
        (response,) = await stage.fetch(12)
        assert response.offsets[0] == 12
        assert "reads from the remote tier succeed again" in caplog.text


async def test_each_unreadable_segment_is_logged_once_until_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second unreadable segment of the partition is logged too, and a read of another segment does not reset
    the log messages."""
    async with tiered_stage() as stage:
        await stage.fill(stage.partitions[0])
        broken = stage.segments()[1], stage.segments()[3]
        objects = stage.store.objects
        whole = {each.id.id: objects.pop((each.id.id, None)) for each in broken}
        for _ in range(2):
            for segment in broken:
                (response,) = await stage.fetch(segment.start_offset)
                assert response.error_code == ErrorCode.unknown_server_error
            (response,) = await stage.fetch(0)
            assert response.offsets[0] == 0
        assert caplog.text.count("TIERED_STORAGE_NOT_AVAILABLE") == 2
        assert all(str(each.id) in caplog.text for each in broken)
        assert "again" not in caplog.text
        for segment in broken:
            objects[segment.id.id, None] = whole[segment.id.id]
        (response,) = await stage.fetch(broken[0].start_offset)
        assert caplog.text.count("reads from the remote tier succeed again at offset 4") == 1
        assert caplog.text.count("again") == 1


async def test_permanent_failure_is_returned_after_delay() -> None:
    """T-34: a consumer retries immediately after an error."""
    async with tiered_stage() as stage:
        await stage.fill(stage.partitions[0])
        stage.store.objects.pop((stage.segments()[0].id.id, None))
        began = trio.current_time()
        (response,) = await stage.fetch(0)
        assert response.error_code == ErrorCode.unknown_server_error
        assert trio.current_time() - began >= remote_fetch.FAILURE_SECONDS


async def test_transient_failure_is_retried_within_max_wait() -> None:
    """T-33: with backoff."""
    async with tiered_stage(configs={"remote.fetch.max.wait.ms": "15000"}) as stage:
        await stage.fill(stage.partitions[0])
        stage.store.error = RemoteStorageUnavailable("503")

        async def heal() -> None:
            while stage.store.asked < 2:
                await trio.lowlevel.checkpoint()
            stage.store.error = None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(heal)
            (response,) = await stage.fetch(0)
        assert response.offsets[0] == 0


async def test_fetch_before_metadata_is_ready_returns_no_error() -> None:
    """After a leader change: no error and no OFFSET_OUT_OF_RANGE."""
    async with tiered_stage(configs={"remote.fetch.max.wait.ms": "20"}) as stage:
        await stage.fill(stage.partitions[0])
        partition = stage.segments()[0].partition
        stage.metadata.stop_partitions([partition])
        (response,) = await stage.fetch(0)
        assert response.error_code == NOTHING
        assert response.offsets == []
        stage.metadata.partitions_changed([partition], [])
        (response,) = await stage.fetch(0)
        assert response.offsets[0] == 0


async def test_fetch_below_log_start_returns_out_of_range() -> None:
    async with tiered_stage() as stage:
        partition = stage.partitions[0]
        await stage.fill(partition)
        partition.log.advance_log_start(6, "test")
        (response,) = await stage.fetch(0)
        assert response.error_code == ErrorCode.offset_out_of_range
        (response,) = await stage.fetch(6)
        assert response.offsets[0] == 6


async def test_deleted_segment_leaves_the_caches() -> None:
    """T-33."""
    async with tiered_stage() as stage:
        partition = stage.partitions[0]
        await stage.fill(partition)
        await stage.fetch(3)  # by the index
        first = stage.segments()[0]
        assert stage.reads.ranges.find(first.id.id, 0) is not None
        assert stage.reads.indexes.has(first.id.id)
        update = stage.update(first, SegmentState.DELETE_SEGMENT_STARTED)
        await stage.metadata.update_segment(update)
        partition.log.advance_log_start(first.end_offset + 1, "test")
        assert stage.reads.ranges.find(first.id.id, 0) is None
        (response,) = await stage.fetch(3)
        assert response.error_code == ErrorCode.offset_out_of_range
        while stage.reads.indexes.has(first.id.id):
            await trio.lowlevel.checkpoint()


async def test_removed_replica_leaves_the_caches() -> None:
    async with tiered_stage(2) as stage:
        for each in stage.partitions:
            await stage.fill(each)
            offset = stage.segments(each.index)[0].end_offset
            await stage.reads.reads.read(each.log, offset, EVERYTHING, committed=True)
        stage.reads.gone("t", 0)
        with trio.fail_after(TIMEOUT_SECONDS):
            while stage.reads.indexes.segments_of("t", 0):
                await trio.lowlevel.checkpoint()
        gone, kept = stage.segments(0)[0], stage.segments(1)[0]
        assert not stage.reads.indexes.has(gone.id.id)
        assert stage.reads.indexes.has(kept.id.id)
        assert stage.reads.ranges.find(gone.id.id, 0) is None
        assert stage.reads.ranges.segments_of("t", 1) == [kept.id.id]


async def test_offset_that_expires_locally_during_fetch_is_read_remotely() -> None:
    """Only followers receive OFFSET_MOVED_TO_TIERED_STORAGE."""
    async with tiered_stage() as stage:
        await stage.fill(stage.partitions[0])
        reads, read = stage.reads.reads, stage.reads.reads.read
        local = []

        async def first_local(
            partition_log: PartitionLog, offset: int, *args: Any, **more: Any
        ) -> Any:
            if not local:
                local.append(offset)
                return RemoteRead(offset + 2)  # it was on the disk just before
            return await read(partition_log, offset, *args, **more)

        reads.read = first_local  # type: ignore[method-assign]
        (response,) = await stage.fetch(0)
        assert response.error_code == NOTHING
        assert response.offsets[0] == 0


async def test_fetch_over_quota_returns_no_records() -> None:
    """remote.log.manager.fetch.max.bytes.per.second."""
    configs = {
        "remote.log.manager.fetch.max.bytes.per.second": "1",
        "remote.log.manager.fetch.quota.window.num": "1",
    }
    async with tiered_stage(configs=configs) as stage:
        await stage.fill(stage.partitions[0])
        (response,) = await stage.fetch(0)
        assert response.offsets
        (response,) = await stage.fetch(12)
        assert response.error_code == NOTHING
        assert response.offsets == []
        assert stage.store.asked == 1
        values = {
            each[0].name: dict(each[1]) for each in stage.node.services.metrics.collect() if each
        }
        assert 0 < values["remote-fetch-throttle-time-max"][()] <= 1000


async def test_read_committed_fetch_returns_aborted_transactions() -> None:
    """T-35."""
    async with tiered_stage() as stage:
        partition = stage.partitions[0]
        log = partition.log
        log.append_as_leader(
            idempotent(7, 0, transactional=True),
            leader_epoch=0,
            now_ms=NOW_MS,
            guard=VERIFICATION_DISABLED,
        )
        log.append_as_leader(
            marker(7, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
        )
        log.advance_high_watermark(log.end_offset)
        await stage.fill(partition)
        (response,) = await stage.fetch(0, isolation_level=READ_COMMITTED)
        assert response.response.aborted_transactions == [(7, 0)]
        (response,) = await stage.fetch(2, isolation_level=READ_COMMITTED)
        assert response.response.aborted_transactions == []
        (response,) = await stage.fetch(0)
        assert response.response.aborted_transactions is None


async def test_reads_are_counted_in_metrics() -> None:
    """T-54, T-55."""
    async with tiered_stage() as stage:
        await stage.fill(stage.partitions[0])
        (response,) = await stage.fetch(0)
        meter = stage.node.services.metrics.meter
        assert meter("RemoteFetchRequestsPerSec", topic="t").count == 1
        assert meter("RemoteFetchBytesPerSec", topic="t").count == len(response.data)
        assert stage.node.services.metrics.timer("RemoteLogReaderFetchRateAndTimeMs").count == 1
        assert stage.reads.ranges.idle_share == 1.0
        assert stage.reads.waiting == 0


async def test_sent_data_is_released_from_memory() -> None:
    async with tiered_stage() as stage:
        await stage.fill(stage.partitions[0])
        await stage.fetch(0)
        await stage.fetch(12)
        stage.reads.ranges.forget([each.id.id for each in stage.segments()])
        assert stage.reads.ranges.total_bytes == 0


async def test_retried_partition_does_not_cut_off_other_reads() -> None:
    """T-33: the other partition is still being read, and the fetch waits for both."""
    configs = {"remote.fetch.max.wait.ms": "15000"}
    async with tiered_stage(2, configs=configs) as stage:
        for each in stage.partitions:
            await stage.fill(each)
        failing = stage.segments(0)[0].partition
        fetch_segment, failures = stage.store.fetch_segment, []
        may_end = threading.Event()

        def fetch(
            metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
        ) -> Buffer:
            if metadata.partition != failing:
                assert may_end.wait(TIMEOUT_SECONDS)
            elif not failures:
                failures.append(1)
                raise RemoteStorageUnavailable("503")
            return fetch_segment(metadata, start, end_inclusive)

        stage.store.fetch_segment = fetch  # type: ignore[method-assign]

        async def end() -> None:
            read = stage.node.services.metrics.meter("RemoteFetchBytesPerSec", topic="t")
            while not read.count:
                await trio.lowlevel.checkpoint()
            may_end.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            found = await stage.fetch(0, 6)
        assert failures
        assert [each.offsets[:1] for each in found] == [[0], [6]]


async def test_response_is_limited_in_remote_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response stays in memory until the client has received it, so a slow client must not occupy all of it."""
    async with tiered_stage(3) as stage:
        for each in stage.partitions:
            await stage.fill(each)
        (one,) = await stage.fetch(0)
        monkeypatch.setattr(log_reading, "REMOTE_BYTES_MAX", len(one.data) + 1)
        found = await stage.fetch(0, 0, 0, max_bytes=len(one.data))
        assert [each.error_code for each in found] == [NOTHING] * 3
        assert found[0].data == one.data
        assert [each.offsets for each in found[1:]] == [[], []]
