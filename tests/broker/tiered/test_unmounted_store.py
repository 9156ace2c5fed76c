"""A broker that starts while the directory of its store is not mounted: the store is away, not empty."""

from __future__ import annotations

from pathlib import Path

from tests.broker.tiered.test_tiered_broker import VALUES, stage


async def test_nothing_is_copied_into_another_directory(tmp_path: Path) -> None:
    """What is copied there would be hidden when the mount comes back, and gone from the disk by then."""
    tier, elsewhere = tmp_path / "tier", tmp_path / "elsewhere"
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        remote = tiered.remote_segments()
    tier.rename(elsewhere)
    tier.mkdir()
    async with stage(tmp_path) as tiered:
        await tiered.produce(VALUES)
        failed = tiered.node.metrics.meter("RemoteCopyErrorsPerSec", topic="orders")
        await tiered.until(lambda: failed.count > 0)
        assert list(tier.rglob("*")) == []
        tier.rmdir()
        elsewhere.rename(tier)
        await tiered.until(lambda: len(tiered.remote_segments()) > len(remote) + 5)
        await tiered.until(tiered.is_copied)
        assert await tiered.read(0) == [*VALUES, *VALUES]
