"""`stats` on a broker's topic, compared with the produced records."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.pipeline.cli import stats as stats_cli
from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs import job_progress
from odradek.pipeline.jobs import stats as stats_job
from odradek.pipeline.jobs.retention import RetentionRule, retention
from odradek.pipeline.jobs.stats import StatsJob, stats
from odradek.pipeline.options import parse_options
from odradek.pipeline.query import Query
from odradek.protocol.topics import TopicPartition
from odradek.testing import Broker
from tests.pipeline.tiering import QUICK, TIERED
from tests.pipeline.virtual_leader import PartitionLog, VirtualLeader
from tests.support.brokers import broker_fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]

HOUR = 3_600_000
START = (round(time.time() * 1000) // HOUR - 12) * HOUR
"""Timestamp in ms, recent enough not to be deleted by retention."""


broker = broker_fixture(topics={"events": 2, "void": 2, "wide": 1})


@pytest.fixture(scope="module")
def produced(broker: Broker) -> list[tuple[int, int, bytes | None, int]]:
    """Partition, offset, key and timestamp of each record; every tenth is three hours older than the others."""
    rows = []
    for codec, first in (("none", 0), ("zstd", 500)):
        config = {"bootstrap.servers": broker.bootstrap, "compression.type": codec}
        producer = Producer({**config, "batch.num.messages": 10})
        for number in range(first, first + 500):
            partition, offset = number % 2, number // 2
            key = None if number % 5 == 0 else b"key \xff%d" % (number % 3)
            at = START + number * 20_000 - (3 * HOUR if number % 10 == 9 else 0)
            producer.produce("events", b"x" * 200, key, partition, timestamp=at)
            rows.append((partition, offset, key, at))
        producer.flush()
    return rows


def test_sizes_keys_and_late_records_by_partition_and_hour(
    spark: SparkSession,
    broker: Broker,
    produced: list[tuple[int, int, bytes | None, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stats_job, "BLOCK", 100)
    source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events"}
    found = stats(spark, StatsJob(source, top_keys=2)).collect()
    assert [(row.topic, row.partition, row.records) for row in found] == [
        ("events", 0, 500),
        ("events", 1, 500),
    ]
    for row in found:
        mine = [each for each in produced if each[0] == row.partition]
        keys = Counter(key for _, _, key, _ in mine if key is not None)
        assert row.keyless == sum(key is None for _, _, key, _ in mine)
        assert row.distinctKeys == len(keys)
        assert sorted(top.records for top in row.topKeys) == sorted(
            count for _, count in keys.most_common(2)
        )
        assert {bytes(top.key) for top in row.topKeys} <= set(keys)
        assert row.late == sum(
            max((other[3] for other in mine if other[1] // 100 < offset // 100), default=0) - at
            > HOUR
            for _, offset, _, at in mine
        )
        assert row.late > 0 or row.partition == 0
        assert set(row.codecs) == {"none", "zstd"}
        assert row.codecs["zstd"] < row.codecs["none"] / 5
        assert sum(row.codecs.values()) == row.bytes < row.uncompressedBytes
    by_hour = stats(spark, StatsJob(source, by="hour")).collect()
    assert sum(row.records or 0 for row in by_hour) == 1000
    assert len({row.hour for row in by_hour}) == len({at // HOUR for *_, at in produced})
    (quick,) = stats(spark, StatsJob(source, by="topic", records=False)).collect()
    assert (quick.records, quick.uncompressedBytes, "late" in quick) == (1000, None, False)
    assert quick.bytes == sum(row.bytes for row in found)


def test_late_records_of_a_batch_larger_than_a_block_are_counted(
    spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some blocks contain records of the batch but no end of a batch."""
    monkeypatch.setattr(stats_job, "BLOCK", 100)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1000})
    producer.produce("wide", b"early", timestamp=START + 5 * HOUR)
    producer.flush()
    for _ in range(300):
        producer.produce("wide", b"late", timestamp=START)
    producer.flush()
    source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "wide"}
    (row,) = stats(spark, StatsJob(source)).collect()
    assert (row.records, row.batches, row.late) == (301, 2, 301 - 100)


def test_hours_are_in_utc_in_any_time_zone(
    spark: SparkSession, broker: Broker, produced: list[tuple[int, int, bytes | None, int]]
) -> None:
    zone = "spark.sql.session.timeZone"
    source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events"}
    spark.conf.set(zone, "Asia/Kolkata")
    try:
        found = stats(spark, StatsJob(source, by="hour"))
        rows = found.selectExpr("partition", "unix_millis(hour)", "keyless").collect()
    finally:
        spark.conf.set(zone, "UTC")
    keyless = Counter(
        (partition, at // HOUR * HOUR) for partition, _, key, at in produced if not key
    )
    assert {(row[0], row[1]): row[2] for row in rows if row[2]} == keyless
    assert all(row[1] % HOUR == 0 for row in rows)


@pytest.mark.parametrize(
    "words", [["--by", "hour", "--headers-only"], ["--what-if", "retention.ms=1d"]]
)
def test_progress_is_reported_to_callers(
    words: list[str],
    spark: SparkSession,
    broker: Broker,
    produced: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(job_progress, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(stats_cli, "session_of", lambda args, name: nullcontext(spark))
    parser = argparse.ArgumentParser()
    stats_cli.add_arguments(parser)
    given = ["-t", "events", "--bootstrap", broker.bootstrap, "--json", *words]
    assert stats_cli.run(parser.parse_args(given)) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    reported = [row["progress"] for row in rows if "progress" in row]
    assert reported[-1]["done"] > 0
    assert {row["topic"] for row in rows[len(reported) :]} == {"events"}


def test_both_passes_end_at_the_offsets_at_the_start_of_the_job() -> None:
    leader = VirtualLeader((0, 10), (3, 7))
    source = {"kafka.bootstrap.servers": "unused:9092", "subscribe": "t", "endingTimestamp": "9999"}
    with leader.reachable():
        fixed = stats_job._up_to_now(source)
        leader.logs["t", 0].end = 20  # type: ignore[index]
        leader.logs[TopicPartition("t", 2)] = PartitionLog(0, 5)
        options = parse_options(fixed, streaming=False)
        assert Query(options).ranges() == {("t", 0): (0, 10), ("t", 1): (3, 7)}


def test_row_format_options_are_ignored() -> None:
    source = {
        "kafka.bootstrap.servers": "unused:9092",
        "subscribe": "t",
        "startingOffsets": '{"t":{"0":4}}',
        "rows": "records",
        "valueFormat": "json",
        "includeHeaders": "true",
    }
    with VirtualLeader((0, 10)).reachable():
        assert stats_job._up_to_now(source) == {
            "kafka.bootstrap.servers": "unused:9092",
            "assign": '{"t": [0]}',
            "startingoffsets": '{"t":{"0":4}}',
            "endingoffsets": '{"t": {"0": 10}}',
        }
    with pytest.raises(BadOption, match="have no rows for gaps"):
        StatsJob(source | {"onCorruptSegment": "report"}).check()


def test_empty_partitions_have_rows(spark: SparkSession, broker: Broker) -> None:
    source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "void"}
    rows = stats(spark, StatsJob(source)).collect()
    assert [(row.topic, row.partition, row.records, row.bytes, row.late) for row in rows] == [
        ("void", 0, 0, 0, 0),
        ("void", 1, 0, 0, 0),
    ]
    (row,) = stats(spark, StatsJob(source, by="topic", records=False)).collect()
    assert (row.topic, row.records, row.newest) == ("void", 0, None)


def test_invalid_grouping_is_refused(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(BadOption, match="by topic, partition, hour, not by day"):
        stats(spark, StatsJob({"subscribe": "events"}, by="day"))
    with pytest.raises(BadOption, match="most frequent keys must be 1 to 1000, not 0"):
        stats(spark, StatsJob({"subscribe": "events"}, top_keys=0))


def test_retention_of_a_tiered_topic(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(configs=QUICK, tiered=tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic("history", 1, config=TIERED)]).values():
            made.result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 10})
        for _ in range(2000):
            producer.produce("history", b"x" * 100)
        producer.flush()
        deadline = time.monotonic() + 60
        while (
            log := broker.node.partitions.opened("history", 0).log
        ).local_log_start_offset < 1800:
            assert time.monotonic() < deadline, "the topic was not tiered"
            time.sleep(0.1)
        source = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": "history",
            "tiered.url": str(tmp_path),
        }
        rules = [
            RetentionRule(),
            RetentionRule(retention_bytes=0),
            RetentionRule(retention_ms=HOUR),
        ]
        nothing, all_of_it, recent = retention(spark, source, rules, round(time.time() * 1000))
        segments = list(tmp_path.rglob("*.log"))
        assert (all_of_it.segments_deleted, all_of_it.bytes_deleted) == (
            len(segments),
            sum(each.stat().st_size for each in segments),
        )
        assert all_of_it.start_offset == log.local_log_start_offset
        assert 0 < all_of_it.bytes_kept < 20_000
        assert nothing.segments_deleted == recent.segments_deleted == 0
        assert nothing.bytes_kept == all_of_it.bytes_deleted + all_of_it.bytes_kept
