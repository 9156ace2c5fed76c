"""Tests of requests to the leader of a log whose first segments are in the remote tier (KIP-405)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.broker.apis.delete_records import delete_records
from odradek.broker.apis.list_offsets import list_offsets, offset_for_leader_epoch
from odradek.protocol import apis, messages
from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch_response_writer import FetchedPartition
from tests.support.two_replicas import EPOCH, OTHER, Stage, stage

EARLIEST, LATEST, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -2, -1, -4, -5, -6
OUT_OF_RANGE, MOVED = ErrorCode.offset_out_of_range, ErrorCode.offset_moved_to_tiered_storage


async def tier_partition(on: Stage) -> None:
    """Append six records in three segments. The first segment is only in the remote tier, the second in both
    tiers."""
    log = on.partition.log
    log.update_config(replace(log.config, remote_storage_enable=True))
    for number in range(6):
        on.append()
        if number % 2:
            log.roll()
    await on.follow(6)
    log.flush()
    log.advance_highest_copied_offset(1)
    log.update_config(replace(log.config, local_retention_bytes=0))
    assert log.delete_expired(0) == 1
    log.advance_highest_copied_offset(3)


def offsets_of(response: FetchedPartition) -> tuple[ErrorCode, int, int]:
    return response.error_code, response.high_watermark, response.log_start_offset


async def test_follower_fetch_returns_offset_moved_to_tiered_storage() -> None:
    """T-40."""
    async with stage() as on:
        await tier_partition(on)
        assert offsets_of(await on.follow(1)) == (MOVED, 6, 0)
        assert (await on.follow(2)).error_code == ErrorCode.none
        on.partition.delete_before(1, "test")
        assert (await on.follow(0)).error_code == OUT_OF_RANGE
        assert offsets_of(await on.follow(1)) == (MOVED, 6, 1)


@pytest.mark.parametrize(("version", "error"), [(13, OUT_OF_RANGE), (14, MOVED), (18, MOVED)])
async def test_offset_moved_to_tiered_storage_requires_version_14(
    version: int, error: ErrorCode
) -> None:
    """T-40."""
    async with stage() as on:
        await tier_partition(on)
        assert (await on.follow(1, version=version)).error_code == error


async def test_consumer_fetch_without_remote_tier_returns_out_of_range() -> None:
    """T-40: this broker has no remote tier to read from."""
    async with stage() as on:
        await tier_partition(on)
        assert (await on.ask(1)).error_code == OUT_OF_RANGE


async def test_diverging_epoch_precedes_offset_moved_to_tiered_storage() -> None:
    """T-43: a follower of an earlier epoch truncates its log first, wherever the records are."""
    async with stage() as on:
        await tier_partition(on)
        on.partition.update(replace(on.image, leader_epoch=EPOCH + 2, partition_epoch=6))
        found = await on.follow(7, epoch=EPOCH + 2, last_epoch=EPOCH + 1)
        assert found.diverging_epoch == (EPOCH, 6)
        assert found.error_code == ErrorCode.none


async def list_offset(on: Stage, timestamp: int, version: int = 11) -> tuple[int, int]:
    """Offset and leader epoch, or the error code and -1."""
    values = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}],
    }
    body = memoryview(messages.write_request(apis.LIST_OFFSETS.key, version, values))
    request = messages.read_request(apis.LIST_OFFSETS.key, version, body)
    response = await list_offsets(request, on.context(version))
    ((found,),) = [topic["partitions"] for topic in response["topics"]]
    if found["error_code"]:
        return found["error_code"], -1
    return found["offset"], found["leader_epoch"]


async def test_special_offsets_of_log_in_two_tiers() -> None:
    """T-39, E5."""
    async with stage() as on:
        await tier_partition(on)
        assert await list_offset(on, EARLIEST) == (0, EPOCH)
        assert await list_offset(on, EARLIEST_LOCAL) == (2, EPOCH)
        assert await list_offset(on, LATEST_TIERED) == (3, EPOCH)
        assert await list_offset(on, PENDING_UPLOAD) == (4, EPOCH)
        assert await list_offset(on, LATEST) == (6, EPOCH)
        on.partition.delete_before(5, "test")
        assert await list_offset(on, EARLIEST) == (5, EPOCH)
        assert await list_offset(on, EARLIEST_LOCAL) == (5, EPOCH)
        assert await list_offset(on, LATEST_TIERED) == (3, -1)
        assert await list_offset(on, PENDING_UPLOAD) == (5, EPOCH)


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [(EARLIEST_LOCAL, 6), (LATEST_TIERED, 8), (PENDING_UPLOAD, 10)],
)
async def test_special_timestamps_require_their_version(timestamp: int, version: int) -> None:
    """T-39: -4 requires version 7, as in KIP-405 (version 8 in Kafka)."""
    async with stage() as on:
        await tier_partition(on)
        assert await list_offset(on, timestamp, version) == (ErrorCode.unsupported_version, -1)
        assert (await list_offset(on, timestamp, version + 1))[0] in (2, 3, 4)


async def test_new_leader_does_not_know_tiered_offsets() -> None:
    """As in Kafka; PENDING_UPLOAD is known if the whole log is on the disk."""
    async with stage() as on:
        await tier_partition(on)
        on.partition.log.reset_highest_copied_offset()
        assert await list_offset(on, LATEST_TIERED) == (-1, -1)
        assert await list_offset(on, PENDING_UPLOAD) == (-1, -1)
        on.partition.delete_before(4, "test")
        assert await list_offset(on, PENDING_UPLOAD) == (4, EPOCH)


async def test_special_offsets_without_tiered_storage() -> None:
    async with stage() as on:
        for _ in range(3):
            on.append()
        await on.follow(3)
        on.partition.delete_before(1, "test")
        assert await list_offset(on, EARLIEST_LOCAL) == (1, EPOCH)
        assert await list_offset(on, LATEST_TIERED) == (-1, -1)
        assert await list_offset(on, PENDING_UPLOAD) == (-1, -1)


async def test_offset_for_leader_epoch_knows_epochs_in_remote_tier() -> None:
    """T-41."""
    async with stage() as on:
        log = on.partition.log
        log.update_config(replace(log.config, remote_storage_enable=True))
        for later in range(3):
            on.partition.update(
                replace(on.image, leader_epoch=EPOCH + later, partition_epoch=6 + later)
            )
            on.append()
            log.roll()
        await on.follow(3, epoch=EPOCH + 2)
        log.flush()
        log.advance_highest_copied_offset(2)
        log.update_config(replace(log.config, local_retention_bytes=0))
        assert log.delete_expired(0) == 3
        ends = {EPOCH: 1, EPOCH + 1: 2, EPOCH + 2: 3}
        for epoch, end in ends.items():
            partition = SimpleNamespace(
                partition=0, leader_epoch=epoch, current_leader_epoch=EPOCH + 2
            )
            request = SimpleNamespace(topics=[SimpleNamespace(topic="t", partitions=[partition])])
            response = await offset_for_leader_epoch(request, on.context(4))
            ((found,),) = [topic["partitions"] for topic in response["topics"]]
            assert (found["leader_epoch"], found["end_offset"]) == (epoch, end)


async def delete_before(on: Stage, offset: int) -> dict[str, Any]:
    partition = SimpleNamespace(partition_index=0, offset=offset)
    request = SimpleNamespace(
        topics=[SimpleNamespace(name="t", partitions=[partition])], timeout=timedelta(seconds=0.01)
    )
    response = await delete_records(request, on.context(2))
    ((found,),) = [topic["partitions"] for topic in response["topics"]]
    return dict(found)


async def test_delete_records_in_both_tiers_advances_log_start() -> None:
    """T-37."""
    async with stage() as on:
        await tier_partition(on)
        log = on.partition.log
        assert (await delete_before(on, 1))["low_watermark"] == 1
        assert (log.log_start_offset, log.local_log_start_offset) == (1, 2)
        assert (await delete_before(on, 5))["low_watermark"] == 5
        assert (log.log_start_offset, log.local_log_start_offset) == (5, 5)
        assert log.delete_expired(0) == 1
        assert (await delete_before(on, 7))["error_code"] == OUT_OF_RANGE
        assert OTHER in on.partition.replicas
