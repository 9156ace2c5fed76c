"""Rows that Spark reads from the store and the broker equal those of a consumer."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from odradek.pipeline.data_source import BatchReader
from odradek.pipeline.errors import MissingSegment, UnreadableSegment
from odradek.pipeline.options import LATEST, OffsetSpec, parse_options
from odradek.pipeline.planning import BrokerRange, flatten_ranges
from odradek.pipeline.query import Query
from odradek.pipeline.segment_columns import SegmentSlice
from odradek.storage.tiered.custom_metadata import is_dense
from odradek.storage.tiered.manifest import Manifest
from odradek.testing import Broker
from tests.pipeline.tiering import QUICK, TIERED
from tests.support.random_records import transaction
from tests.support.spark_reading import by_consumer, by_spark, by_tasks, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

PARTITIONS = (0, 1)
NARROW = StructType([StructField("partition", IntegerType()), StructField("offset", LongType())])
TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def broker(tier: Path) -> Iterator[Broker]:
    """Broker with a mostly tiered topic that has all kinds of records, transactions and leader epochs."""
    with Broker(configs=QUICK, tiered=tier) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic("events", 2, config=TIERED)]).values():
            made.result(30)
        random = Random(9)
        for _ in range(12):
            ends = random.choice(("", "", "commit", "abort"))
            _produce(broker, random, 300, random.choice(("none", "lz4", "zstd", "snappy")), ends)
        _wait(lambda: _local_start(broker, 0) > 1000 and _local_start(broker, 1) > 1000)
        yield broker


def _produce(broker: Broker, random: Random, count: int, codec: str, ends: str) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "compression.type": codec,
        "batch.size": 3000,
        "linger.ms": 2,
    }
    producer = Producer({**config, "transactional.id": "t"} if ends else config)
    with transaction(producer, ends):
        for number in range(count):
            producer.produce(
                "events",
                key=b"key %d" % number,
                value=random.randbytes(random.randrange(200)),
                partition=number % 2,
            )


def _local_start(broker: Broker, partition: int) -> int:
    found = broker.node.partitions.opened("events", partition)
    return 0 if found is None else found.log.local_log_start_offset


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not done():
        assert time.monotonic() < deadline, "nothing was tiered"
        time.sleep(0.1)


def options(broker: Broker, tier: Path, **more: Any) -> dict[str, Any]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap,
        "tiered.url": str(tier),
        "subscribe": "events",
        **more,
    }


ISOLATIONS = ("read_uncommitted", "read_committed")
SPLITS: tuple[dict[str, int], ...] = ({}, {"maxBytesPerTask": 7_000})


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_rows_of_both_tiers_equal_those_of_a_consumer_for_any_split(
    broker: Broker, tier: Path, isolation: str, split: dict[str, int]
) -> None:
    expected = by_consumer(broker.bootstrap, "events", PARTITIONS, isolation=isolation)
    given = options(broker, tier, **split, **{"kafka.isolation.level": isolation})
    assert by_tasks(given) == expected
    assert offsets(given) == [row[:2] for row in expected]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_rows_of_both_tiers_in_spark_equal_those_of_a_consumer(
    spark: SparkSession, broker: Broker, tier: Path, isolation: str, split: dict[str, int]
) -> None:
    expected = by_consumer(broker.bootstrap, "events", PARTITIONS, isolation=isolation)
    given = options(broker, tier, **split, **{"kafka.isolation.level": isolation})
    assert by_spark(spark, given) == expected


def test_store_is_read_up_to_its_last_segment(broker: Broker, tier: Path) -> None:
    query = Query(parse_options(options(broker, tier), streaming=False))
    pieces = list(flatten_ranges(query.plan(query.ranges()).pieces))
    for partition in PARTITIONS:
        mine = [each for each in pieces if isinstance(each, SegmentSlice)]
        mine = [each for each in mine if each.segment.partition.partition == partition]
        rest = [e for e in pieces if isinstance(e, BrokerRange) and e.partition == partition]
        assert mine[0].low == 0
        assert all(one.high == two.low for one, two in pairwise(mine))
        assert mine[-1].high >= _local_start(broker, partition)
        assert [each.low for each in rest] == [mine[-1].high]


def test_timestamp_lookup_in_store_and_broker_agree(broker: Broker, tier: Path) -> None:
    both = options(broker, tier)
    alone = {name: value for name, value in both.items() if name == "tiered.url"}
    asked = Query(parse_options(both, streaming=False))
    of_store = Query(parse_options({**alone, "subscribe": "events"}, streaming=False))
    partitions = list(of_store.partitions)
    ends = of_store.resolve(partitions, OffsetSpec(everywhere=LATEST))
    rows = by_consumer(broker.bootstrap, "events", PARTITIONS)
    for _, _, ms, *_ in rows[:: len(rows) // 8]:
        at = OffsetSpec(timestamp_ms=ms)
        expected = asked.resolve(partitions, at)
        found = of_store.resolve(partitions, at, is_end=True)
        assert found == {where: min(expected[where], ends[where]) for where in partitions}


def test_aborted_transaction_across_a_gap_in_the_store_is_excluded(
    broker: Broker, tier: Path, tmp_path: Path
) -> None:
    """Its marker may exist only on the broker."""
    rows = by_consumer(broker.bootstrap, "events", PARTITIONS, isolation="read_committed")
    expected = [row[:2] for row in rows]
    shutil.copytree(tier, tmp_path / "tier")
    for summary in tmp_path.rglob("*.summary"):
        summary.unlink()
    given = options(broker, tmp_path / "tier", **{"kafka.isolation.level": "read_committed"})
    manifests = sorted(tmp_path.rglob("events-*/*.manifest"))
    for manifest in manifests:
        data = manifest.read_bytes()
        manifest.unlink()
        found = offsets(given)
        manifest.write_bytes(data)
        assert found == expected, manifest.name


@pytest.mark.parametrize("what", ["*.txnindex", "*"])
def test_transaction_index_lost_during_planning_is_named(
    broker: Broker, tier: Path, tmp_path: Path, what: str
) -> None:
    """The index alone, or with its segment: without it aborted records would be returned."""
    shutil.copytree(tier, tmp_path / "tier")
    alone = {"tiered.url": str(tmp_path / "tier"), "subscribe": "events"}
    query = Query(
        parse_options({**alone, "kafka.isolation.level": "read_committed"}, streaming=False)
    )
    ranges = query.ranges()
    lost = sorted(tmp_path.rglob("events-*/*.txnindex"))[0]
    for each in lost.parent.glob(what if what == "*.txnindex" else f"{lost.stem}.*"):
        each.unlink()
    with pytest.raises(UnreadableSegment, match=lost.name):
        query.plan(ranges)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_store_only_query_returns_the_tiered_records(
    broker: Broker, tier: Path, isolation: str
) -> None:
    expected = by_consumer(broker.bootstrap, "events", PARTITIONS, isolation=isolation)
    given = options(broker, tier, **{"kafka.isolation.level": isolation})
    del given["kafka.bootstrap.servers"]
    found = by_tasks(given)
    for partition in PARTITIONS:
        rows = [row for row in found if row[0] == partition]
        assert len(rows) > 500
        assert rows == [row for row in expected if row[0] == partition][: len(rows)]


def offsets(given: dict[str, Any]) -> list[tuple[int, int]]:
    """Return (partition, offset) of all rows of a query for these columns."""
    reader = BatchReader(
        parse_options({name: str(value) for name, value in given.items()}, streaming=False), NARROW
    )
    tables = [table for task in reader.partitions() for table in reader.read(task)]
    return sorted(row for each in tables for row in zip(*each.to_pydict().values(), strict=True))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_offsets_of_dense_segments_need_no_reading(
    broker: Broker, tier: Path, tmp_path: Path, isolation: str
) -> None:
    """Except for segments with aborted transactions, whose records are excluded."""
    rows = by_consumer(broker.bootstrap, "events", PARTITIONS, isolation=isolation)
    shutil.copytree(tier, tmp_path / "tier")
    given = options(broker, tmp_path / "tier", **{"kafka.isolation.level": isolation})
    kept = {(row[0], row[1]) for row in rows}
    taken = 0
    for manifest in sorted(tmp_path.rglob("events-*/*.manifest")):
        segment = Manifest.parse(manifest.read_bytes()).metadata
        its = range(segment.start_offset, segment.end_offset + 1)
        all_kept = all((segment.partition.partition, offset) in kept for offset in its)
        assert is_dense(segment.custom_metadata) or not all_kept
        if is_dense(segment.custom_metadata) and all_kept:
            manifest.with_suffix(".log").unlink()
            taken += 1
    assert taken
    assert offsets(given) == [row[:2] for row in rows]
    with pytest.raises(MissingSegment):
        by_tasks(given)
    skipping = {**given, "onCorruptSegment": "skip"}
    assert offsets(skipping) == [row[:2] for row in by_tasks(skipping)]


def test_corrupt_segment_is_named_or_skipped(broker: Broker, tier: Path) -> None:
    victim = sorted(tier.rglob("*.log"))[1]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    try:
        with pytest.raises(UnreadableSegment, match=victim.name):
            by_tasks(options(broker, tier))
        left = by_tasks(options(broker, tier, onCorruptSegment="skip"))
    finally:
        victim.write_bytes(whole)
    all_rows = by_tasks(options(broker, tier))
    assert 0 < len(all_rows) - len(left) < 200
    assert set(left) < set(all_rows)
    victim.unlink()
    try:
        with pytest.raises(UnreadableSegment, match=victim.name):
            by_tasks(options(broker, tier))
    finally:
        victim.write_bytes(whole)


@pytest.mark.slow
def test_corrupt_segment_in_spark_is_named_or_skipped(
    spark: SparkSession, broker: Broker, tier: Path
) -> None:
    victim = sorted(tier.rglob("*.log"))[1]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    given = options(broker, tier)
    try:
        with pytest.raises(Exception, match=victim.name):
            table(spark, given).collect()
        skipping = {**given, "onCorruptSegment": "skip"}
        assert by_spark(spark, skipping) == by_tasks(skipping)
    finally:
        victim.write_bytes(whole)
    narrow = spark.read.format("odradek").options(**given).schema(NARROW).load()
    assert sorted(map(tuple, narrow.collect())) == [row[:2] for row in by_tasks(given)]
