"""Compaction by a broker in a worker process, which runs while a log is due."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from odradek.seams.clock import RealClock
from odradek.storage.log.partition_log import PartitionLog
from odradek.testing import Broker
from tests.storage.compaction.compacted_logs import latest_values
from tests.storage.compaction.random_log_content import content
from tests.support.log_managers import append_keyed

CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "internal.segment.bytes": "20000",
}


async def filled(broker: Broker) -> PartitionLog:
    await broker.node.ensure_topic("t", 1, -1, CONFIGS)
    log = (await broker.node.partitions.get("t", None, 0)).log
    rng = random.Random(1)
    now_ms = RealClock().wall_ms()
    for _ in range(200):
        append_keyed(log, {b"%d" % rng.randrange(50): rng.randbytes(100)}, now_ms=now_ms)
    log.roll()
    log.flush()
    return log


async def test_broker_compacts_log_in_worker_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configs = {"log.cleaner.backoff.ms": "3600000", "log.cleaner.dedupe.buffer.size": "2000000"}
    async with Broker(configs=configs, data=tmp_path) as broker:
        log = await filled(broker)
        latest, size_bytes = latest_values(log), log.size_bytes
        log_cleaner = broker.node.logs.log_cleaner
        assert log_cleaner is not None
        with caplog.at_level(logging.INFO, "odradek.log_cleaner"):
            assert await log_cleaner.clean_due_logs() == 1
        assert "cleaned log t-0: dirty section [0, 200)" in caplog.text
        assert "200 records read, 47 written" in caplog.text
        assert log.size_bytes < size_bytes / 2
        assert latest_values(log) == latest
        assert sum(len(batch.records) for batch in content(log)) == 47
        assert log_cleaner.statistics.passes == 1
        assert await log_cleaner.clean_due_logs() == 0
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n1\nt 0 200\n"


async def test_log_cleaner_finds_due_logs_periodically(tmp_path: Path) -> None:
    async with Broker(configs={"log.cleaner.backoff.ms": "10"}, data=tmp_path) as broker:
        log = await filled(broker)
        clock = RealClock()
        while log.cleaned_to != 200:
            await clock.sleep(0.01)
        assert len(content(log)) == 47
