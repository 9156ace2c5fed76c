"""A broker that starts while the directory of its store is not mounted, or empty: the store is away, or is not it."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.broker.tiered.tiered_storage import REMEMBERED_STORE
from tests.broker.tiered.tiered_broker import AWAY, LACKING, VALUES, Stage, copied, stage, told

AGAIN = "the remote store is available again"


async def is_missed(tiered: Stage) -> bool:
    """What the gauge says."""
    metrics = tiered.node.services.metrics
    await metrics.prepare()
    told = {metric.name: dict(found) for metric, found in filter(None, metrics.look())}
    return bool(told["RemoteStoreUnavailable"][()])


async def test_nothing_is_copied_into_another_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is copied there would be hidden when the mount comes back, and gone from the disk by then."""
    tier, elsewhere = tmp_path / "tier", tmp_path / "elsewhere"
    await copied(tmp_path)
    tier.rename(elsewhere)
    tier.mkdir()
    async with stage(tmp_path) as tiered:
        await tiered.until(told(caplog, *AWAY))  # before anything is to be copied
        assert await is_missed(tiered)
        remote = tiered.remote_segments()
        await tiered.produce(VALUES)
        failed = tiered.node.services.metrics.meter("RemoteCopyErrorsPerSec", topic="orders")
        await tiered.until(lambda: failed.count > 0)
        assert list(tier.rglob("*")) == []
        tier.rmdir()
        elsewhere.rename(tier)
        await tiered.until(lambda: len(tiered.remote_segments()) > len(remote) + 5)
        await tiered.until(tiered.is_copied)
        await tiered.until(told(caplog, AGAIN))
        assert not await is_missed(tiered)
        assert await tiered.read(0) == [*VALUES, *VALUES]


async def test_nor_by_who_has_never_seen_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was copied is known from the metadata, and nothing of it is there: this is not the store."""
    tier, elsewhere = tmp_path / "tier", tmp_path / "elsewhere"
    await copied(tmp_path)
    tier.rename(elsewhere)
    tier.mkdir()
    (tmp_path / "data" / REMEMBERED_STORE).unlink()
    async with stage(tmp_path) as tiered:
        await tiered.until(told(caplog, *LACKING))
        assert await is_missed(tiered)
        await tiered.produce(VALUES)
        assert tiered.log.highest_copied_offset == -1
        assert len(tiered.log.segment_list.all) > 5
        assert [each.name for each in tier.rglob("*")] == ["kafka-tiered-storage"]
        (tier / "kafka-tiered-storage").rmdir()
        tier.rmdir()
        elsewhere.rename(tier)
        await tiered.until(told(caplog, AGAIN))
        await tiered.until(tiered.is_copied)
        assert not await is_missed(tiered)
        assert await tiered.read(0) == [*VALUES, *VALUES]
