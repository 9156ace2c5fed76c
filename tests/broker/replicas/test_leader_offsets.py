"""Tests of ListOffsets and DeleteRecords on a leader with other replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from odradek.broker.apis.delete_records import delete_records
from odradek.broker.apis.list_offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    list_offsets,
)
from odradek.protocol import apis, messages
from odradek.protocol.errors import ErrorCode
from tests.support.two_replicas import EPOCH, OTHER, TIMEOUT_SECONDS, Stage, stage

CONSUMER, DEBUGGER = -1, -2


async def ask(on: Stage, timestamp: int, *, replica_id: int = CONSUMER, version: int = 9) -> Any:
    values = {
        "replica_id": replica_id,
        "isolation_level": 0,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}],
    }
    body = memoryview(messages.write_request(apis.LIST_OFFSETS.key, version, values))
    request = messages.read_request(apis.LIST_OFFSETS.key, version, body)
    response = await list_offsets(request, on.context(version))
    ((found,),) = [topic["partitions"] for topic in response["topics"]]
    return found


async def new_leader(on: Stage) -> None:
    """New leader with two records of an earlier epoch, of which one is known to be replicated."""
    on.append()
    on.append()
    await on.follow(1)
    on.partition.update(replace(on.image, leader_epoch=EPOCH + 1, partition_epoch=6))


@pytest.mark.parametrize(
    ("timestamp", "version", "error"),
    [
        (LATEST, 9, ErrorCode.offset_not_available),
        (LATEST, 4, ErrorCode.leader_not_available),
        (MAX_TIMESTAMP, 9, ErrorCode.none),  # of the replicated record
        (2**60, 9, ErrorCode.offset_not_available),
        (EARLIEST, 9, ErrorCode.none),
    ],
)
async def test_latest_offset_waits_for_high_watermark_of_epoch(
    timestamp: int, version: int, error: ErrorCode
) -> None:
    async with stage() as on:
        await new_leader(on)
        assert (await ask(on, timestamp, version=version))["error_code"] == error
        await on.follow(2, epoch=EPOCH + 1)
        assert (await ask(on, timestamp, version=version))["error_code"] == ErrorCode.none


async def test_follower_gets_log_end_offset_as_latest() -> None:
    async with stage() as on:
        await new_leader(on)
        for replica_id in (OTHER, DEBUGGER):
            assert (await ask(on, LATEST, replica_id=replica_id))["offset"] == 2
        on.partition.update(replace(on.image, leader=OTHER, leader_epoch=11, partition_epoch=7))
        not_leader = ErrorCode.not_leader_or_follower
        assert (await ask(on, LATEST, replica_id=OTHER))["error_code"] == not_leader
        assert (await ask(on, LATEST, replica_id=DEBUGGER))["offset"] == 2


@pytest.mark.parametrize("timestamp", [0, MAX_TIMESTAMP])
@pytest.mark.parametrize("leads_again", [False, True])
async def test_offset_found_before_leader_change_is_not_returned(
    monkeypatch: pytest.MonkeyPatch, timestamp: int, leads_again: bool
) -> None:
    """The search reads the disk; the records may be truncated and replaced meanwhile."""
    async with stage() as on:
        on.append()
        await on.follow(1)
        log = on.partition.log
        find, find_max = log.find_timestamp, log.max_timestamp
        loop = trio.lowlevel.current_trio_token()

        def another_leads() -> None:
            lost = replace(on.image, leader=OTHER, leader_epoch=EPOCH + 1, partition_epoch=6)
            on.partition.update(lost)
            if leads_again:
                on.partition.update(replace(on.image, leader_epoch=EPOCH + 2, partition_epoch=7))

        def found(search: Callable[[], Any]) -> Any:
            response = search()
            trio.from_thread.run_sync(another_leads, trio_token=loop)
            return response

        monkeypatch.setattr(log, "find_timestamp", lambda time: found(partial(find, time)))
        monkeypatch.setattr(log, "max_timestamp", lambda: found(find_max))
        response = await ask(on, timestamp)
        assert (response["error_code"], response["offset"]) == (
            ErrorCode.not_leader_or_follower,
            -1,
        )


async def delete_before(on: Stage, offset: int, timeout_s: float) -> dict[str, Any]:
    partition = SimpleNamespace(partition_index=0, offset=offset)
    request = SimpleNamespace(
        topics=[SimpleNamespace(name="t", partitions=[partition])],
        timeout=timedelta(seconds=timeout_s),
    )
    response = await delete_records(request, on.context(2))
    ((found,),) = [topic["partitions"] for topic in response["topics"]]
    return dict(found)


async def replicated(on: Stage, known: bool = True) -> None:
    """Leader with two replicated records, and the log start offset of the follower if it is `known`."""
    on.append()
    on.append()
    await on.follow(2)
    if known:
        await on.register_other()


async def test_delete_records_waits_for_replicas() -> None:
    async with stage() as on:
        await replicated(on)
        responses: list[dict[str, Any]] = []

        async def asking() -> None:
            responses.append(await delete_before(on, 1, TIMEOUT_SECONDS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking)
            await trio.sleep(0.05)
            assert on.partition.log.log_start_offset == 1
            assert responses == []
            assert on.partition.leader_role is not None
            on.partition.leader_role.fetched(OTHER, offset=2, start_offset=1, broker_epoch=-1)
        assert responses == [{"partition_index": 0, "low_watermark": 1, "error_code": 0}]


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("", ErrorCode.none),
        ("delete", ErrorCode.none),
        ("compact,delete", ErrorCode.none),
        ("compact", ErrorCode.policy_violation),
    ],
)
async def test_delete_records_of_compacted_topic_is_rejected(policy: str, error: ErrorCode) -> None:
    async with stage({"log.cleanup.policy": policy}) as on:
        await replicated(on, known=False)
        response = await delete_before(on, 1, TIMEOUT_SECONDS)
        assert response["error_code"] == error
        assert on.partition.log.log_start_offset == (0 if error else 1)


async def test_delete_records_times_out_for_slow_replica() -> None:
    async with stage() as on:
        await replicated(on)
        response = await delete_before(on, 1, 0.01)
        assert (response["low_watermark"], response["error_code"]) == (
            0,
            ErrorCode.request_timed_out,
        )


async def test_delete_records_ignores_fenced_replica() -> None:
    async with stage() as on:
        await replicated(on, known=False)
        assert (await delete_before(on, 1, TIMEOUT_SECONDS))["low_watermark"] == 1
