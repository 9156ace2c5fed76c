"""Test of a tiered log without its checkpoints: it is restored from the remote tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiered_topic_broker import VALUES, stage

HIGH_WATERMARK = "replication-offset-checkpoint"
RECOVERY_POINT = "recovery-point-offset-checkpoint"
CLEAN_MARK = ".kafka_cleanshutdown"
LOG_START = "log-start-offset-checkpoint"
EPOCHS = "leader-epoch-checkpoint"
START = 5


@pytest.mark.parametrize(
    "lost",
    [
        [HIGH_WATERMARK, RECOVERY_POINT, CLEAN_MARK],
        [EPOCHS],
        [HIGH_WATERMARK, RECOVERY_POINT, CLEAN_MARK, LOG_START, EPOCHS],
    ],
    ids=["same as Kafka's test", "leader epochs", "all checkpoints"],
)
async def test_tiered_log_survives_loss_of_checkpoints(tmp_path: Path, lost: list[str]) -> None:
    """E9, also without the leader epoch checkpoint."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        partition = tiered.node.partitions.opened("orders", 0)
        assert partition is not None
        partition.delete_before(START, "test")
        await tiered.until(lambda: tiered.remote_segments()[0] > 0)
        remote = tiered.remote_segments()
    gone = [path for name in lost for path in (tmp_path / "data").rglob(name)]
    assert len(gone) >= len(lost)
    for path in gone:
        path.unlink()
    async with stage(tmp_path) as tiered:
        await tiered.until(lambda: tiered.log.highest_copied_offset >= 0)
        # The expiration task finds a lost log start offset.
        await tiered.until(lambda: tiered.log.log_start_offset > 0)
        start = tiered.log.log_start_offset
        assert start in (START, remote[0])
        assert await tiered.read(start) == VALUES[start:]
        assert [each.start_offset for each in tiered.log.epochs.entries] == [start, len(VALUES)]
        await tiered.produce(VALUES)
        await tiered.until(lambda: len(tiered.remote_segments()) > len(remote) + 5)
        await tiered.until(tiered.is_copied)
        assert await tiered.read(start) == [*VALUES[start:], *VALUES]
