"""Disabling tiered storage of a topic in the form of KIP-950, on one broker that is the controller too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from odradek.broker.apis.disable_remote_topic import _find_reason_of
from odradek.broker.node import CannotStart
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import (
    NO_LEADER,
    DisablePolicy,
    TieredState,
    TopicTiering,
    image_delta,
)
from odradek.replication.partition.partition import Partition
from odradek.testing import Broker
from tests.support.tiered_topic_broker import VALUES, TieredBroker, stage

ENABLE, POLICY = "remote.storage.enable", "remote.log.disable.policy"


def tiering(tiered: TieredBroker) -> TopicTiering:
    image = tiered.node.metadata.image
    return image.tiering_of(image.topics_by_name["orders"].id)


async def disabled(tiered: TieredBroker, policy: str) -> None:
    await tiered.alter({ENABLE: "false", POLICY: policy})
    await tiered.until(lambda: tiering(tiered).state is TieredState.DISABLED)


async def test_retain_keeps_remote_data_readable_and_copies_nothing(tmp_path: Path) -> None:
    """X-04, X-06; also after a restart. Remote data then expires by retention."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        await disabled(tiered, "retain")
        assert tiering(tiered) == TopicTiering(1, TieredState.DISABLED, DisablePolicy.RETAIN, 0)
        remote = tiered.remote_segments()
        await tiered.produce(VALUES)
        assert await tiered.read() == 2 * VALUES
    async with stage(tmp_path) as tiered:
        assert await tiered.read() == 2 * VALUES
        await tiered.until(lambda: tiered.log.highest_copied_offset >= 0)
        await tiered.until(lambda: tiered.remote_segments() == remote)
        await tiered.alter({"retention.bytes": "1"})
        await tiered.until(lambda: tiered.objects() == [])


async def test_delete_starts_the_log_at_the_local_data_and_empties_the_store(
    tmp_path: Path,
) -> None:
    """X-05: nothing is left when the state is DISABLED."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        start = tiered.log.local_log_start_offset
        await disabled(tiered, "delete")
        assert tiered.objects() == []
        assert tiered.log.log_start_offset == start
        assert await tiered.read(start) == VALUES[start:]


@pytest.mark.parametrize("policy", ["retain", "delete"])
async def test_topic_that_is_enabled_again_copies_again(tmp_path: Path, policy: str) -> None:
    """X-13."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        start = 0 if policy == "retain" else tiered.log.local_log_start_offset
        await disabled(tiered, policy)
        await tiered.alter({ENABLE: "true"})
        assert tiering(tiered).state is TieredState.ENABLED
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        assert await tiered.read(start) == (2 * VALUES)[start:]


async def test_change_while_the_store_is_away_is_refused(tmp_path: Path) -> None:
    """X-11: the state stays DISABLING until the remote data is deleted."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        store = tmp_path / "tier"
        store.rename(tmp_path / "away")
        await tiered.alter({ENABLE: "false", POLICY: "delete"})
        for configs in ({ENABLE: "true"}, {ENABLE: "false", POLICY: "retain"}):
            with pytest.raises(KafkaError, match="is being disabled"):
                await tiered.alter(configs)
        assert tiering(tiered).state is TieredState.DISABLING
        (tmp_path / "away").rename(store)
        await tiered.until(lambda: tiering(tiered).state is TieredState.DISABLED)
        assert tiered.objects() == []


async def test_leader_that_remains_in_the_next_leader_epoch_finishes(tmp_path: Path) -> None:
    """A reassignment starts a leader epoch with the same leader."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await disabled(tiered, "retain")
        services, image = tiered.node.services, tiered.node.metadata.image
        topic = image.topics_by_name["orders"]
        partition = await services.partitions.get(topic.name, topic.id, 0)
        later = replace(topic.partitions[0], leader_epoch=partition.leader_epoch + 1)
        assert await _find_reason_of(topic, 0, later, services)
        partition.update(later)
        assert await _find_reason_of(topic, 0, later, services) is None


@pytest.mark.parametrize("is_busy", [False, True])
async def test_copy_of_a_follower_in_an_offline_log_directory_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    """X-04: the log directory failed during the copy, and its objects are still being written or deleted."""

    async def get(topic: str, topic_id: UUID, index: int) -> Partition:
        raise KafkaError(ErrorCode.kafka_storage_error)

    async with stage(tmp_path) as tiered:
        await tiered.create()
        services = tiered.node.services
        topic = tiered.node.metadata.image.topics_by_name["orders"]
        assert services.tiered_storage is not None
        follower = replace(topic.partitions[0], leader=NO_LEADER)
        with monkeypatch.context() as patch:
            patch.setattr(services.partitions, "get", get)
            patch.setattr(services.tiered_storage.manager.work, "is_busy", lambda id: is_busy)
            reason = await _find_reason_of(topic, 0, follower, services)
        assert reason == ("a segment is being copied or deleted" if is_busy else None)


async def test_snapshot_with_a_later_tiered_epoch_starts_the_tasks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-10: the configs in the snapshot are those before the disablement, because the topic was enabled again."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)  # the broker opens the partition
        tiered_storage, before = tiered.node.services.tiered_storage, tiered.node.metadata.image
        assert tiered_storage is not None
        topic_id = before.topics_by_name["orders"].id
        after = replace(before, tiering={topic_id: TopicTiering(2, first_epoch=1)})
        monkeypatch.setattr(tiered_storage.manager, "_tiering_of", after.tiering_of)
        tiered_storage.metadata_changed(image_delta(before, after))
        assert tiered_storage.manager._table["orders", 0].tiered_epoch == 2


async def test_broker_without_tiered_storage_does_not_start_with_retained_data(
    tmp_path: Path,
) -> None:
    """X-06: it would lose the log start offset."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await disabled(tiered, "retain")
    with pytest.raises(CannotStart, match=r"topic orders has remote\.log\.disable\.policy=retain"):
        async with Broker(data=tmp_path / "data"):
            pass
