"""`export` of a topic with segments missing in the store: an error that names them, or dead letters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.export import ExportJob, export
from odradek.pipeline.jobs.export_values import ExportValues
from odradek.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]

RECORDS = 1200
QUICK = {
    "remote.log.manager.task.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "100",
}
TIERED = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "10000",
    "local.retention.bytes": "1",
}
TIMEOUT_SECONDS = 60.0


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def broker(tier: Path) -> Iterator[Broker]:
    """Broker with a topic of several segments, all of which but the active one are only in the store."""
    with Broker(configs=QUICK, tiered=tier) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic("events", 1, config=TIERED)]).values():
            made.result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 2000})
        for number in range(RECORDS):
            producer.produce("events", value=b'{"n": %d, "padding": "%030d"}' % (number, number))
            producer.poll(0)
        producer.flush()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        partition = broker.node.partitions.opened("events", 0)
        assert partition is not None
        while len(partition.log.segments) > 1 or not partition.log.local_log_start_offset:
            assert time.monotonic() < deadline, "nothing was tiered"
            time.sleep(0.1)
        yield broker


def _job(broker: Broker, tier: Path, out: Path, unreadable: str) -> ExportJob:
    source = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": "events",
        "tiered.url": str(tier),
        "maxBytesPerTask": "15000",
    }
    return ExportJob(
        source,
        str(out),
        values=ExportValues("json", "n int"),
        unreadable=unreadable,
        offsets_a_batch=700,
    )


def test_missing_segment_fails_the_export_or_is_a_dead_letter(
    spark: SparkSession, broker: Broker, tier: Path, tmp_path: Path
) -> None:
    lost, broken = sorted(tier.rglob("*.log"))[:2]
    lost.unlink()
    log = bytearray(broken.read_bytes())
    log[len(log) // 2] ^= 1
    broken.write_bytes(log)
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    message = f"({lost.name}|{broken.name}).* \\(--unreadable dead-letters "
    with pytest.raises(PipelineError, match=message):
        export(spark, _job(broker, tier, out, "fail"))
    for where in (out, fresh):  # the first one repeats a batch that was started
        batches = export(spark, _job(broker, tier, where, "dead-letters"))
        assert [batch.offsets for batch in batches] == [700, 500]
        assert sum(batch.gaps for batch in batches) >= 2
        rows = spark.read.parquet(str(where)).select("offset", "n").collect()
        assert all(row["offset"] == row["n"] for row in rows)
        dead = spark.read.parquet(str(where / "_dead_letters")).collect()
        accounted = Counter(row["offset"] for row in rows)
        for row in dead:
            assert row["value"] is None
            assert Path(row["object"]).name in (lost.name, broken.name)
            assert Path(row["object"]).name in row["reason"]
            accounted.update(range(row["offset"], row["lastOffset"] + 1))
        assert accounted == Counter(range(RECORDS))
        assert sum(batch.records for batch in batches) == len(rows) > RECORDS // 2
