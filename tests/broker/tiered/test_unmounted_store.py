"""Tests of a broker that starts while the directory of its remote storage is not mounted, or is empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.broker.tiered.tiered_storage import REMEMBERED_STORE
from tests.support.tiered_topic_broker import (
    AWAY,
    LACKING,
    VALUES,
    TieredBroker,
    copy_segments,
    is_logged,
    stage,
)

AGAIN = "the object store is available again"


async def is_reported_unavailable(tiered: TieredBroker) -> bool:
    """Value of the gauge RemoteStoreUnavailable."""
    metrics = tiered.node.services.metrics
    await metrics.prepare()
    values = {metric.name: dict(found) for metric, found in filter(None, metrics.collect())}
    return bool(values["RemoteStoreUnavailable"][()])


async def test_unmounted_storage_gets_no_copies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The mount would hide the copies, whose segments would have expired locally by then."""
    tier, elsewhere = tmp_path / "tier", tmp_path / "elsewhere"
    await copy_segments(tmp_path)
    tier.rename(elsewhere)
    tier.mkdir()
    async with stage(tmp_path) as tiered:
        await tiered.until(is_logged(caplog, *AWAY))  # before anything is to be copied
        assert await is_reported_unavailable(tiered)
        remote = tiered.remote_segments()
        await tiered.produce(VALUES)
        failed = tiered.node.services.metrics.meter("RemoteCopyErrorsPerSec", topic="orders")
        await tiered.until(lambda: failed.count > 0)
        assert list(tier.rglob("*")) == []
        tier.rmdir()
        elsewhere.rename(tier)
        await tiered.until(lambda: len(tiered.remote_segments()) > len(remote) + 5)
        await tiered.until(tiered.is_copied)
        await tiered.until(is_logged(caplog, AGAIN))
        assert not await is_reported_unavailable(tiered)
        assert await tiered.read(0) == [*VALUES, *VALUES]


async def test_empty_storage_gets_no_copies_without_remembered_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata has copied segments that are not in the storage, so it is another storage."""
    tier, elsewhere = tmp_path / "tier", tmp_path / "elsewhere"
    await copy_segments(tmp_path)
    tier.rename(elsewhere)
    tier.mkdir()
    (tmp_path / "data" / REMEMBERED_STORE).unlink()
    async with stage(tmp_path) as tiered:
        await tiered.until(is_logged(caplog, *LACKING))
        assert await is_reported_unavailable(tiered)
        await tiered.produce(VALUES)
        assert tiered.log.highest_copied_offset == -1
        assert len(tiered.log.segment_list.all) > 5
        assert [each.name for each in tier.rglob("*")] == ["kafka-tiered-storage"]
        (tier / "kafka-tiered-storage").rmdir()
        tier.rmdir()
        elsewhere.rename(tier)
        await tiered.until(is_logged(caplog, AGAIN))
        await tiered.until(tiered.is_copied)
        assert not await is_reported_unavailable(tiered)
        assert await tiered.read(0) == [*VALUES, *VALUES]
