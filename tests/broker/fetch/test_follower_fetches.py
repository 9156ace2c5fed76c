"""Tests of fetches of followers from their leader, and of consumers from followers (KIP-392)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.topic_records import ConfigRecord
from odradek.replication.controller.image import BROKER, TOPIC
from tests.support.two_replicas import (
    EPOCH,
    OTHER,
    SIZE,
    STRANGER,
    TIMEOUT_SECONDS,
    records_size,
    stage,
    waits_for,
)


async def test_follower_reads_to_log_end_consumer_to_high_watermark() -> None:
    async with stage() as on:
        on.append()
        on.append()
        assert records_size(await on.ask(0)) == 0
        found = await on.follow(0)
        assert (records_size(found), found.high_watermark) == (2 * SIZE, 0)
        found = await on.follow(1)
        # Its fetch offset shows that it has the first record
        assert (records_size(found), found.high_watermark) == (SIZE, 1)
        assert records_size(await on.ask(0)) == SIZE


async def test_follower_fetch_waits_for_appends_consumer_for_high_watermark() -> None:
    async with stage() as on:
        waits_long = {"max_wait_ms": int(2000 * TIMEOUT_SECONDS)}
        found = await waits_for(lambda: on.follow(0, **waits_long), on.append)
        assert (records_size(found), found.high_watermark) == (SIZE, 0)
        found = await waits_for(lambda: on.ask(0, **waits_long), lambda: on.follow(1))
        assert (records_size(found), found.high_watermark) == (SIZE, 1)


async def test_reread_does_not_count_as_progress() -> None:
    async with stage() as on:
        await waits_for(lambda: on.follow(0, max_wait_ms=60_000), on.append)
        assert on.partition.leader_role is not None
        assert on.partition.leader_role.state.progress_of(OTHER).end_offset == 0


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (EPOCH, ErrorCode.unknown_leader_epoch),
        (-1, ErrorCode.not_leader_or_follower),
        (EPOCH - 1, ErrorCode.fenced_leader_epoch),
        (EPOCH + 1, ErrorCode.unknown_leader_epoch),
    ],
)
async def test_fetch_of_non_replica_is_rejected(epoch: int, error: ErrorCode) -> None:
    async with stage() as on:
        assert (await on.follow(0, replica_id=STRANGER, epoch=epoch)).error_code == error


async def test_later_last_fetched_epoch_is_out_of_range() -> None:
    async with stage() as on:
        on.append()
        found = await on.follow(1, last_epoch=EPOCH + 1)
        assert found.error_code == ErrorCode.offset_out_of_range


async def test_diverging_epoch_is_returned_without_progress() -> None:
    async with stage() as on:
        on.append()
        on.partition.update(replace(on.image, leader_epoch=EPOCH + 1, partition_epoch=6))
        on.append()
        found = await on.follow(2, epoch=EPOCH + 1, last_epoch=EPOCH)
        assert found.diverging_epoch == (EPOCH, 1)
        assert on.partition.log.high_watermark == 0
        assert records_size(await on.follow(1, epoch=EPOCH + 1, last_epoch=EPOCH)) == SIZE


async def test_consumer_reads_follower_up_to_its_high_watermark() -> None:
    async with stage() as on:
        on.append()
        on.append()
        on.partition.update(replace(on.image, leader=OTHER, leader_epoch=10, partition_epoch=6))
        on.partition.replicated(1, 0)
        assert records_size(await on.ask(0, epoch=10)) == SIZE
        found = await waits_for(
            lambda: on.ask(1, epoch=10, max_wait_ms=60_000), lambda: on.partition.replicated(2, 0)
        )
        assert records_size(found) == SIZE
        assert (await on.ask(0, epoch=10, version=10)).error_code == (
            ErrorCode.not_leader_or_follower
        )
        assert (await on.follow(0, epoch=10)).error_code == ErrorCode.not_leader_or_follower


async def test_not_leader_response_has_current_leader_and_endpoint() -> None:
    async with stage() as on:
        await on.register_other()
        on.partition.update(replace(on.image, leader=OTHER, leader_epoch=10, partition_epoch=6))
        found = await on.whole_response(0)
        ((_, response),) = found.chosen
        assert response.error_code == ErrorCode.fenced_leader_epoch
        assert response.current_leader == (OTHER, 10)
        assert [each.node_id for each in found.endpoints] == [OTHER]


@pytest.mark.parametrize(
    ("rack", "offset", "preferred"),
    [("there", 1, OTHER), ("here", 1, -1), ("nowhere", 1, -1), ("", 1, -1), ("there", 2, -1)],
    ids=["nearer", "the leader is there", "no leader", "no rack", "it lags"],
)
async def test_consumer_is_redirected_to_replica_in_its_rack(
    rack: str, offset: int, preferred: int
) -> None:
    selector = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    }
    async with stage(selector) as on:
        await on.register_other("there")
        on.append()
        on.append()
        await on.follow(1)
        found = await on.ask(offset, rack=rack)
        assert found.preferred_read_replica == preferred
        if preferred >= 0:
            assert (records_size(found), found.high_watermark) == (0, 1)


def set_config(kind: int, resource: str, name: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)


async def test_out_of_sync_follower_of_throttled_topic_gets_no_records() -> None:
    async with stage() as on:
        on.append()
        on.append()
        partition, image = on.partition, on.image
        partition.update(replace(image, isr=(on.me,), partition_epoch=6))
        assert records_size(await on.follow(0)) == 2 * SIZE  # not throttled
        await on.node.metadata.commit(
            [
                set_config(BROKER, "", "leader.replication.throttled.rate", "1"),
                set_config(TOPIC, "t", "leader.replication.throttled.replicas", f"0:{on.me}"),
            ]
        )
        # The burst is allowed; later fetches are throttled
        assert records_size(await on.follow(0)) == 2 * SIZE
        found = await on.follow(0)
        assert (records_size(found), found.error_code, found.high_watermark) == (0, 0, 2)
        partition.update(replace(image, isr=(on.me, OTHER), partition_epoch=7))
        assert records_size(await on.follow(0)) == 2 * SIZE
