"""Fetches of what is in the remote tier: several partitions at once, slow and failing stores, quotas."""

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


async def test_t32_a_consumer_reads_the_whole_log() -> None:
    """T-32: from the remote tier as far as it goes, and from the disk after that."""
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


async def test_the_first_batch_comes_whatever_the_limit() -> None:
    """KIP-74, in both tiers alike: or a consumer of max.partition.fetch.bytes=0 would ask for ever."""
    async with tiered_stage(2) as stage:
        for each in stage.partitions:
            await stage.fill(each)
        for offset in (0, stage.partitions[0].log.local_log_start_offset):
            found = await stage.fetch(offset, offset, max_bytes=0)
            assert [each.offsets for each in found] == [[offset, offset + 1], []]


async def test_partitions_of_one_fetch_are_read_at_once() -> None:
    """Kafka's once read one remote partition a Fetch."""
    async with tiered_stage(4) as stage:
        for each in stage.partitions[:3]:
            await stage.fill(each)
        stage.store.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_open_once_asked, stage, 3)
            found = await stage.fetch(0, 6, 12)
        assert [each.offsets[0] for each in found] == [0, 6, 12]
        assert all(each.offsets for each in found)


async def _open_once_asked(stage: TieredStage, times: int) -> None:
    with trio.fail_after(TIMEOUT_SECONDS):
        while stage.store.asked < times:
            await trio.lowlevel.checkpoint()
    stage.store.gate.set()


async def test_what_is_slow_is_not_thrown_away() -> None:
    """Kafka gives up a read after remote.fetch.max.wait.ms, and begins it anew for the next fetch."""
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


async def test_the_disk_s_part_of_a_fetch_comes_with_the_other() -> None:
    async with tiered_stage(2) as stage:
        for each in stage.partitions:
            await stage.fill(each)
        local = stage.partitions[1].log.local_log_start_offset
        found = await stage.fetch(0, local)
        assert found[0].offsets[0] == 0
        assert found[1].offsets[0] == local


async def test_t34_a_store_that_fails_is_an_unknown_error_and_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """T-34; and the log says so once."""
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


async def test_each_broken_segment_is_named_once_until_it_is_read_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second of a partition was not, while the first was broken; nor does it take a consumer that reads
    what is whole to have the broken ones named again."""
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


async def test_what_cannot_be_helped_is_not_said_at_once() -> None:
    """T-34: a consumer asks again as soon as it is told."""
    async with tiered_stage() as stage:
        await stage.fill(stage.partitions[0])
        stage.store.objects.pop((stage.segments()[0].id.id, None))
        began = trio.current_time()
        (response,) = await stage.fetch(0)
        assert response.error_code == ErrorCode.unknown_server_error
        assert trio.current_time() - began >= remote_fetch.FAILURE_SECONDS


async def test_a_store_that_is_back_in_time_is_no_error() -> None:
    """T-33: a transient failure backs off."""
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


async def test_metadata_that_is_not_read_yet_resets_nobody() -> None:
    """After a change of the leader: neither an error nor an offset out of range."""
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


async def test_what_is_below_the_start_is_out_of_range() -> None:
    async with tiered_stage() as stage:
        partition = stage.partitions[0]
        await stage.fill(partition)
        partition.log.advance_log_start(6, "test")
        (response,) = await stage.fetch(0)
        assert response.error_code == ErrorCode.offset_out_of_range
        (response,) = await stage.fetch(6)
        assert response.offsets[0] == 6


async def test_a_segment_that_is_deleted_is_forgotten() -> None:
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


async def test_of_a_replica_that_is_gone_nothing_is_kept() -> None:
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


async def test_what_leaves_the_disk_before_it_is_read_there_is_read_remotely() -> None:
    """A consumer never hears that an offset is in the remote tier: that is for followers."""
    async with tiered_stage() as stage:
        await stage.fill(stage.partitions[0])
        reads, read = stage.reads.reads, stage.reads.reads.read
        local = []

        async def first_local(
            partition_log: PartitionLog, offset: int, *args: Any, **more: Any
        ) -> Any:
            if not local:
                local.append(offset)
                return RemoteRead(offset + 2)  # it was there a moment ago
            return await read(partition_log, offset, *args, **more)

        reads.read = first_local  # type: ignore[method-assign]
        (response,) = await stage.fetch(0)
        assert response.error_code == NOTHING
        assert response.offsets[0] == 0


async def test_over_the_quota_a_fetch_brings_nothing_and_waits() -> None:
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
        told = {each[0].name: dict(each[1]) for each in stage.node.services.metrics.look() if each}
        assert 0 < told["remote-fetch-throttle-time-max"][()] <= 1000


async def test_t35_a_reader_of_what_is_committed_hears_of_aborted_transactions() -> None:
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


async def test_what_is_read_is_counted() -> None:
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


async def test_nothing_of_it_stays_in_memory_that_was_sent_and_is_not_needed() -> None:
    async with tiered_stage() as stage:
        await stage.fill(stage.partitions[0])
        await stage.fetch(0)
        await stage.fetch(12)
        stage.reads.ranges.forget([each.id.id for each in stage.segments()])
        assert stage.reads.ranges.total_bytes == 0


async def test_who_fails_first_and_then_does_not_cuts_off_nobody() -> None:
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


async def test_one_answer_leaves_memory_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept until its client took it: a slow one of many partitions is not to have all of it."""
    async with tiered_stage(3) as stage:
        for each in stage.partitions:
            await stage.fill(each)
        (one,) = await stage.fetch(0)
        monkeypatch.setattr(log_reading, "REMOTE_BYTES_MAX", len(one.data) + 1)
        found = await stage.fetch(0, 0, 0, max_bytes=len(one.data))
        assert [each.error_code for each in found] == [NOTHING] * 3
        assert found[0].data == one.data
        assert [each.offsets for each in found[1:]] == [[], []]
