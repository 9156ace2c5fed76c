"""Tests of ListOffsets for a log in both tiers (T-39, E5)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.storage.tiered.errors import RemoteStorageUnavailable
from tests.support.partition_logs import NOW_MS
from tests.support.tiered_brokers import tiered_stage

EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -2, -1, -3, -4, -5


async def test_list_offsets_by_special_and_plain_timestamps() -> None:
    """T-39, E5: offsets in both tiers."""
    async with tiered_stage() as stage:
        partition = stage.partitions[0]
        await stage.fill(partition)
        local = partition.log.local_log_start_offset
        for wanted, offset in (
            (EARLIEST, 0),
            (LATEST, 40),
            (EARLIEST_LOCAL, local),
            (LATEST_TIERED, local - 1),
            (MAX_TIMESTAMP, 38),
            *((NOW_MS + number, 2 * number) for number in range(20)),
        ):
            response = await stage.list_offsets(wanted)
            assert (response["error_code"], response["offset"]) == (ErrorCode.none, offset), wanted
            assert response["leader_epoch"] == partition.leader_epoch
        response = await stage.list_offsets(NOW_MS + 20)
        assert (response["error_code"], response["offset"]) == (ErrorCode.none, -1)
        partition.log.advance_log_start(9, "test")
        response = await stage.list_offsets(NOW_MS)
        assert (response["offset"], response["timestamp"]) == (9, NOW_MS + 4)


@pytest.mark.parametrize("by_request", [False, True])
async def test_remote_lookup_times_out(by_request: bool) -> None:
    """The timeout is remote.list.offsets.request.timeout.ms or that of the request (KIP-1075)."""
    configs = {"remote.list.offsets.request.timeout.ms": "60000" if by_request else "50"}
    more = {"timeout": timedelta(milliseconds=50)} if by_request else {}
    async with tiered_stage(configs=configs) as stage:
        await stage.fill(stage.partitions[0])
        stage.store.gate.clear()
        response = await stage.list_offsets(NOW_MS, **more)
        assert response["error_code"] == ErrorCode.request_timed_out
        stage.store.gate.set()
        response = await stage.list_offsets(NOW_MS)
        assert (response["error_code"], response["offset"]) == (ErrorCode.none, 0)


async def test_failed_storage_returns_unknown_server_error() -> None:
    async with tiered_stage() as stage:
        await stage.fill(stage.partitions[0])
        stage.store.error = RemoteStorageUnavailable("503")
        response = await stage.list_offsets(NOW_MS)
        assert response["error_code"] == ErrorCode.unknown_server_error
        assert (await stage.list_offsets(EARLIEST))["offset"] == 0


async def test_list_offsets_waits_for_remote_log_metadata() -> None:
    configs = {"remote.list.offsets.request.timeout.ms": "50"}
    async with tiered_stage(configs=configs) as stage:
        await stage.fill(stage.partitions[0])
        partition = stage.segments()[0].partition
        stage.metadata.stop_partitions([partition])
        response = await stage.list_offsets(NOW_MS)
        assert response["error_code"] == ErrorCode.request_timed_out
        stage.metadata.partitions_changed([partition], [])
        assert (await stage.list_offsets(NOW_MS))["offset"] == 0
