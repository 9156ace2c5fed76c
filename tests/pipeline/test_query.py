"""Offsets that a query reads, and errors of planning: with only a store, and with brokers."""

from __future__ import annotations

import gc
import re
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from odradek.pipeline.data_source import BatchReader
from odradek.pipeline.errors import (
    BadOption,
    CorruptSegment,
    DataLoss,
    DeniedSegment,
    MissingSegment,
    PipelineError,
)
from odradek.pipeline.filters import PushedFilters
from odradek.pipeline.options import parse_options
from odradek.pipeline.planning import RECORD_BYTES, TASK_BYTES, BrokerRange, LostOffsets
from odradek.pipeline.query import Query, QueryPlan
from odradek.pipeline.table_reader import ReadTask, _freeze_imports
from odradek.seams.objects import ObjectDenied
from odradek.storage.tiered.object_names import (
    LOG_SUFFIX,
    MANIFEST_SUFFIX,
    partition_directory,
    segment_key,
)
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentId
from odradek.testing.virtual_object_store import VirtualObjectStore
from tests.pipeline.tiered_queries import (
    COMMITTED,
    HOW,
    ONLY,
    DenyingStore,
    query,
    snapshot,
    unreadable,
    with_transaction_indexes,
)
from tests.pipeline.virtual_leader import TOPIC_ID, VirtualLeader
from tests.pipeline.virtual_store import WHERE, SegmentStore, segment
from tests.support.virtual_reading import FULL

pytestmark = pytest.mark.usefixtures("denied_object_reset")


def broker_range(low: int, high: int, partition: int = 0) -> BrokerRange:
    """Return a range as planned with a `VirtualLeader`."""
    return BrokerRange("t", partition, low, high, TOPIC_ID, 0)


@pytest.mark.parametrize(
    "ending", [{"endingOffsets": '{"t":{"0":10}}'}, {"endingOffsets": '{"t":{"0":6}}'}], ids=str
)
def test_store_only_query_ends_at_the_last_stable_offset(
    ending: dict[str, str],
) -> None:
    """A transaction is open from offset 5 on."""
    remote = SegmentStore()
    remote.has(segment(1, 0, 9))
    snapshot(remote, segment(1, 0, 9), 5)
    with pytest.raises(DataLoss, match="is 5, and the query ends at"):
        query(remote, **COMMITTED, **ending).ranges()
    for more in ({**ending, "failOnDataLoss": False}, {}, {"endingOffsets": '{"t":{"0":5}}'}):
        assert query(remote, **COMMITTED, **more).ranges() == {ONLY: (0, 5)}
    assert query(remote, endingOffsets='{"t":{"0":10}}').ranges() == {ONLY: (0, 10)}
    left = query(
        remote, **COMMITTED, **ending, failOnDataLoss=False, startingOffsets='{"t":{"0":3}}'
    )
    pieces = left.plan(left.ranges()).pieces
    assert [(each.low, isinstance(each, LostOffsets)) for each in pieces] == [(3, False), (5, True)]
    assert pieces[-1].high in (6, 10)
    behind = query(
        remote, **COMMITTED, failOnDataLoss=False,
        startingOffsets='{"t":{"0":7}}', endingOffsets='{"t":{"0":9}}',
    )  # fmt: skip
    (lost,) = behind.plan(behind.ranges()).pieces
    assert (lost.low, lost.high) == (7, 9)


def test_missing_producer_snapshot_is_an_error_with_read_committed() -> None:
    remote = SegmentStore()
    remote.has(segment(1, 0, 9))
    with pytest.raises(MissingSegment, match=r"\.snapshot"):
        query(remote, **COMMITTED).ranges()
    assert query(remote).ranges() == {ONLY: (0, 10)}


def test_gap_in_the_store_below_the_log_start_is_data_loss() -> None:
    """The store has no segment with 10 to 19, which may have markers. The log start offset is higher now."""
    remote, leader = SegmentStore(), VirtualLeader((30, 40))
    remote.has(segment(1, 0, 9), segment(2, 20, 29))
    with leader.reachable():
        asked = query(remote, leader, **COMMITTED)
        with pytest.raises(DataLoss, match="offset 10"):
            asked.plan({ONLY: (0, 40)})


def test_log_that_ends_before_the_store_has_no_open_transaction() -> None:
    remote, leader = SegmentStore(), VirtualLeader((0, 5))
    remote.has(segment(1, 0, 9))
    with leader.reachable():
        assert query(remote, leader, **COMMITTED).plan({ONLY: (0, 5)}).aborted == {("t", 0): []}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"assign": '{"t":[0,9,7]}'},
            r"there is no partition t-7, t-9 .*(give another one|name other topics) \(subscribe, assign\)",
        ),
        ({"assign": '{"u":[0]}'}, r"there is no topic u (at unused:9092|with .* in memory:///): "),
        (
            {"startingOffsets": '{"t":{"0":0,"9":1}}'},
            "given for t-9, .* remove them, or add these",
        ),
        ({"endingOffsets": '{"t":{"0":0},"u":{"0":4}}'}, "given for u-0"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":0,"9":1}}'}, "given for t-9"),
        ({"assign": '{"t":[0]}', "startingOffsets": '{"t":{"0":0,"1":1}}'}, "given for t-1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("leader", [None, VirtualLeader((0, 10), (0, 10))], ids=["store", "both"])
def test_missing_partitions_are_named(
    options: dict[str, str], message: str, leader: VirtualLeader | None
) -> None:
    remote = SegmentStore()
    other = replace(WHERE, partition=1)
    second = RemoteLogSegmentId(other, UUID(int=2))
    remote.has(segment(1, 0, 9), replace(segment(2, 0, 9), id=second))
    given = {"subscribe": None, **options} if "assign" in options else options
    with (leader or VirtualLeader()).reachable(), pytest.raises(BadOption, match=message):
        query(remote, leader, **given).ranges()


class UnlistableStore(VirtualObjectStore):
    """Store that denies listings."""

    def directories(self, prefix: str) -> Any:
        return self.pages(prefix or "all")

    def pages(self, prefix: str, after: str = "") -> Any:
        raise ObjectDenied(f"{prefix}: 403 Forbidden")


@pytest.mark.parametrize("has_brokers", [True, False])
def test_denied_listing_is_named(has_brokers: bool) -> None:
    """Whatever onCorruptSegment is: the listing determines which offsets exist."""
    leader = VirtualLeader((0, 30))
    what = partition_directory(WHERE) if has_brokers else "the list of"
    message = f"{re.escape(what)}.* was denied, so it could not be (listed|read): give .* credentials .*403 Forbidden"
    with leader.reachable():
        asked = query(
            SegmentStore(objects=UnlistableStore()),
            leader if has_brokers else None,
            onCorruptSegment="skip",
        )
        with pytest.raises(DeniedSegment, match=message):
            asked.plan({ONLY: (0, 30)})


def store_with_unreadable_manifest(how: str) -> tuple[SegmentStore, str]:
    """Store with segments of 10 offsets, the second of which has an unreadable manifest; return its key."""
    remote = SegmentStore(objects=DenyingStore())
    segments = [segment(number, 10 * number, 10 * number + 9) for number in range(3)]
    remote.has(*segments)
    for each in segments:
        snapshot(remote, each)
    key = segment_key(segments[1], MANIFEST_SUFFIX)
    if how == "corrupt":
        remote.objects.put(key, [b"{"])
    else:
        DenyingStore.denied = key
    return remote, key


@pytest.mark.parametrize(("how", "kind"), [("corrupt", CorruptSegment), ("denied", DeniedSegment)])
def test_unreadable_manifest_is_named_or_is_a_gap(how: str, kind: type[PipelineError]) -> None:
    remote, key = store_with_unreadable_manifest(how)
    with pytest.raises(kind, match=key):
        query(remote).ranges()
    leader = VirtualLeader((0, 30))
    for given in ({}, COMMITTED):
        asked = query(remote, onCorruptSegment="report", **given)
        assert asked.ranges() == {ONLY: (0, 30)}
        first, lost, last = asked.plan(asked.ranges()).pieces
        assert isinstance(lost, LostOffsets)
        assert (first.high, lost.low, lost.high, last.low, lost.key) == (10, 10, 20, 20, key)
        (part,) = query(remote, onCorruptSegment="skip").plan({ONLY: (13, 17)}).pieces
        assert isinstance(part, LostOffsets)
        assert part.key == key
    with leader.reachable():
        pieces = query(remote, leader, onCorruptSegment="skip").plan({ONLY: (0, 30)}).pieces
    assert pieces[1] == broker_range(10, 20)


def test_transaction_that_may_have_ended_in_a_gap_is_excluded() -> None:
    """A transaction is open from offset 4 on at the end of the first segment."""
    remote, _ = store_with_unreadable_manifest("corrupt")
    snapshot(remote, segment(0, 0, 9), 4)
    asked = query(remote, onCorruptSegment="report", **COMMITTED)
    first, lost, _ = asked.plan({ONLY: (0, 30)}).pieces
    assert (first.low, first.high, lost.low, lost.high) == (0, 4, 4, 20)
    only = asked.plan({ONLY: (5, 30)}).pieces
    assert [(each.low, each.high) for each in only] == [(5, 20), (20, 30)]


@pytest.mark.parametrize("committed", [True, False])
def test_end_beyond_the_last_stable_offset_is_data_loss(committed: bool) -> None:
    """A transaction is open from offset 5 on; the log ends at 10."""
    leader = VirtualLeader((0, 10))
    leader.logs[ONLY].undecided = 5
    isolation = COMMITTED if committed else {}
    end = 5 if committed else 10
    with leader.reachable():
        asked: Any = {**isolation, "endingOffsets": '{"t":{"0":12}}'}
        message = "is 5" if committed else "now ends at offset 10"
        with pytest.raises(DataLoss, match=f"{message}, and the query ends at 12"):
            query(SegmentStore(), leader, **asked).ranges()
        left = query(SegmentStore(), leader, **asked, failOnDataLoss=False)
        assert left.ranges() == {ONLY: (0, end)}
        read, lost = left.plan({ONLY: (0, end)}).pieces
        assert (read, lost.low, lost.high) == (broker_range(0, end), end, 12)
        for ending in ({}, {"endingOffsets": '{"t":{"0":-1}}'}):
            assert query(SegmentStore(), leader, **isolation, **ending).ranges() == {ONLY: (0, end)}


@pytest.mark.parametrize("committed", [True, False])
def test_timestamp_beyond_the_last_stable_offset_is_the_end(committed: bool) -> None:
    """A transaction is open from offset 5 on. Timestamps are 1000 ms + offset."""
    leader = VirtualLeader((0, 10))
    leader.logs[ONLY].undecided = 5
    isolation = COMMITTED if committed else {}
    with leader.reachable():
        ending = query(SegmentStore(), leader, **isolation, endingTimestamp=1008)
        assert ending.ranges() == {ONLY: (0, 5 if committed else 8)}
        assert query(SegmentStore(), leader, **isolation, endingTimestamp=1004).ranges() == {
            ONLY: (0, 4)
        }
        late = query(
            SegmentStore(), leader, **isolation,
            startingTimestamp=1007, startingOffsetsByTimestampStrategy="latest",
        )  # fmt: skip
        assert late.ranges() == {ONLY: (5, 5) if committed else (7, 10)}


@pytest.mark.parametrize("known", [None, 10])
def test_store_is_not_listed_for_offsets_after_it(known: int | None) -> None:
    """As for a stream near the end of the log, as long as the leader has the end of the remote tier."""
    remote, leader = SegmentStore(), VirtualLeader((0, 40))
    remote.has(segment(1, 0, 9))
    leader.logs[ONLY].tiered_end = known
    with leader.reachable():
        for low, asks in ((9, True), (10, known is None)):
            remote.asked()
            pieces = query(remote, leader).plan({ONLY: (low, 40)}).pieces
            assert pieces[-1] == broker_range(10, 40)
            assert len(pieces) == (2 if low < 10 else 1)
            assert bool(remote.requests("list", "get")) == asks


def test_pattern_does_not_match_internal_topics() -> None:
    """As in Spark's own source. An internal topic can be read by name."""
    leader = VirtualLeader((0, 10))
    with leader.reachable():
        found = query(SegmentStore(), leader, subscribe=None, subscribePattern=".*").partitions
        assert list(found) == [ONLY]
        named = query(SegmentStore(), leader, subscribe="__consumer_offsets").partitions
        assert list(named) == [("__consumer_offsets", 0)]


@HOW
def test_unreadable_transaction_index_affects_only_queries_that_need_it(
    how: str, kind: type[PipelineError]
) -> None:
    """That of the second of three segments; a transaction is open from offset 4 on at its start."""
    remote, segments = with_transaction_indexes(3)
    snapshot(remote, segments[0], 4)
    key = unreadable(remote, segments[1], IndexType.TRANSACTION, how)
    for low, high in ((0, 10), (3, 5), (10, 30), (18, 19)):
        with pytest.raises(kind, match=key):
            query(remote, **COMMITTED).plan({ONLY: (low, high)})
    for low, high in ((0, 4), (1, 3), (20, 30)):
        plan = query(remote, **COMMITTED).plan({ONLY: (low, high)})
        assert [(each.low, each.high) for each in plan.pieces] == [(low, high)]
    assert len(query(remote).plan({ONLY: (0, 30)}).pieces) == 1, "not needed with read_uncommitted"
    asked = query(remote, onCorruptSegment="report", **COMMITTED)
    before, lost, behind = asked.plan({ONLY: (0, 30)}).pieces
    assert isinstance(lost, LostOffsets)
    assert (before.high, lost.low, lost.high, behind.low, lost.key) == (4, 4, 20, 20, key)


def test_transactions_of_filtered_offsets_are_not_requested() -> None:
    remote, segments = with_transaction_indexes(4)
    unreadable(remote, segments[0], IndexType.TRANSACTION, "corrupt")
    asked = query(remote, **COMMITTED)
    plan = asked.plan({ONLY: (0, 40)}, PushedFilters(since_ms=1002))
    assert (plan.pieces[0].low, plan.pieces[-1].high) == (20, 40)
    assert plan.aborted == {("t", 0): []}
    with pytest.raises(CorruptSegment):
        query(remote, **COMMITTED).plan({ONLY: (0, 40)}, PushedFilters(since_ms=1000))


def test_transaction_open_at_an_unreadable_index_is_excluded() -> None:
    remote, segments = with_transaction_indexes(3)
    unreadable(remote, segments[0], IndexType.PRODUCER_SNAPSHOT, "corrupt")
    key = unreadable(remote, segments[1], IndexType.TRANSACTION, "corrupt")
    with pytest.raises(CorruptSegment, match=key):
        query(remote, **COMMITTED).plan({ONLY: (0, 3)})
    asked = query(remote, onCorruptSegment="skip", **COMMITTED)
    lost, behind = asked.plan({ONLY: (0, 30)}).pieces
    assert (lost.low, lost.high, behind.low, behind.high) == (0, 20, 20, 30)


@HOW
def test_leader_epochs_are_read_from_another_segment_of_the_same_epoch(
    how: str, kind: type[PipelineError]
) -> None:
    remote = SegmentStore(objects=DenyingStore())
    segments = [segment(number, 10 * number, 10 * number + 9) for number in range(3)]
    remote.has(*segments)
    unreadable(remote, segments[2], IndexType.LEADER_EPOCH, how)
    asked = query(remote)
    assert asked.ranges() == {ONLY: (0, 30)}
    (piece,) = asked.plan({ONLY: (0, 30)}).pieces
    assert (piece.low, piece.high) == (0, 30)


def test_single_segment_needs_no_leader_epochs() -> None:
    remote = SegmentStore()
    remote.has(segment(1, 10, 19, 4))
    unreadable(remote, segment(1, 10, 19, 4), IndexType.LEADER_EPOCH, "corrupt")
    assert query(remote).ranges() == {ONLY: (10, 20)}


@HOW
def test_missing_leader_epochs_affect_earlier_offsets(how: str, kind: type[PipelineError]) -> None:
    """The last segment has a later epoch. Records of the epoch before may have been truncated."""
    remote = SegmentStore(objects=DenyingStore())
    segments = [segment(1, 0, 9), segment(2, 10, 19), segment(3, 20, 29, 2)]
    remote.has(*segments)
    key = unreadable(remote, segments[2], IndexType.LEADER_EPOCH, how)
    asked = query(remote)
    assert asked.ranges() == {ONLY: (0, 30)}
    for low, high in ((0, 30), (3, 5), (19, 21)):
        with pytest.raises(kind, match=key):
            asked.plan({ONLY: (low, high)})
    (piece,) = asked.plan({ONLY: (20, 30)}).pieces
    assert (piece.low, piece.high) == (20, 30)
    with pytest.raises(kind, match=key):
        query(remote, startingTimestamp=1000).ranges()
    lost, rest = query(remote, onCorruptSegment="report").plan({ONLY: (5, 30)}).pieces
    assert isinstance(lost, LostOffsets)
    assert (lost.low, lost.high, lost.key, rest.low) == (5, 20, key, 20)
    leader = VirtualLeader((0, 30))
    with leader.reachable():
        assert query(remote, leader).plan({ONLY: (0, 5)}).pieces, "brokers have them"


@HOW
def test_unreadable_snapshot_is_a_gap_without_brokers(how: str, kind: type[PipelineError]) -> None:
    """That of the last of three segments; a transaction is open from offset 14 on at the end of the second one."""
    remote, segments = with_transaction_indexes(3)
    snapshot(remote, segments[1], 14)
    key = unreadable(remote, segments[2], IndexType.PRODUCER_SNAPSHOT, how)
    with pytest.raises(kind, match=key):
        query(remote, **COMMITTED).ranges()
    asked = query(remote, onCorruptSegment="report", **COMMITTED)
    assert asked.ranges() == {ONLY: (0, 30)}
    before, lost = asked.plan(asked.ranges()).pieces
    assert isinstance(lost, LostOffsets)
    assert (before.low, before.high, lost.low, lost.high, lost.key) == (0, 14, 14, 30, key)
    unreadable(remote, segments[1], IndexType.PRODUCER_SNAPSHOT, how)
    unreadable(remote, segments[0], IndexType.PRODUCER_SNAPSHOT, how)
    asked = query(remote, onCorruptSegment="skip", **COMMITTED)
    (lost,) = asked.plan(asked.ranges()).pieces
    assert (lost.low, lost.high) == (0, 30)


def test_timestamp_lookup_with_an_unreadable_log() -> None:
    """That of the second of three segments. The last record of each segment is 1 ms later than that of the previous
    one.
    """
    remote = SegmentStore(objects=DenyingStore())
    segments = [segment(number, 10 * number, 10 * number + 9) for number in range(3)]
    remote.has(*segments)
    for each in segments:
        remote.objects.delete(segment_key(each, LOG_SUFFIX))
    for named in ({"startingTimestamp": 1001}, {"endingTimestamp": 1001}):
        with pytest.raises(MissingSegment, match=segment_key(segments[1], LOG_SUFFIX)):
            query(remote, **named).ranges()
    report: Any = {"onCorruptSegment": "report"}
    assert query(remote, **report, startingTimestamp=1001).ranges() == {ONLY: (10, 30)}
    assert query(remote, **report, endingTimestamp=1001).ranges() == {ONLY: (0, 30)}


def test_timestamp_lookup_with_missing_leader_epochs() -> None:
    remote = SegmentStore()
    segments = [segment(1, 0, 9), segment(2, 10, 19), segment(3, 20, 29, 2)]
    remote.has(*segments)
    for each in segments:
        remote.objects.delete(segment_key(each, LOG_SUFFIX))
    unreadable(remote, segments[2], IndexType.LEADER_EPOCH, "corrupt")
    report: Any = {"onCorruptSegment": "report"}
    assert query(remote, **report, startingTimestamp=1002).ranges() == {ONLY: (10, 30)}
    assert query(remote, **report, startingTimestamp=1003).ranges() == {ONLY: (20, 30)}
    assert query(remote, **report, endingTimestamp=1000).ranges() == {ONLY: (0, 30)}


def test_gaps_are_reported_with_the_gap_column() -> None:
    given = {"tiered.url": "unused", "subscribe": "t", "onCorruptSegment": "report"}
    options = parse_options(given, streaming=False)
    with pytest.raises(BadOption, match="the column gap"):
        BatchReader(options, FULL)
    fields = {"lastOffset": LongType(), "object": StringType(), "reason": StringType()}
    gap = StructType([StructField(name, kind) for name, kind in fields.items()])
    BatchReader(options, StructType([*FULL.fields, StructField("gap", gap)]))


def test_imported_modules_are_excluded_from_garbage_collection() -> None:
    options = parse_options({"tiered.url": "unused", "subscribe": "t"}, streaming=False)
    reader = BatchReader(options, StructType([StructField("offset", LongType())]))
    gc.unfreeze()
    _freeze_imports.cache_clear()  # another test may have run a task in this process
    assert list(reader.read(ReadTask((), {}))) == []
    assert gc.get_freeze_count() > 10_000
    looked_at = gc.get_objects()
    assert len(looked_at) < 1000


@pytest.mark.parametrize(
    ("columns", "more", "count"),
    [
        ("partition int, offset long", {}, 2),
        ("offset long, value binary", {}, 4),
        ("records int, isControl boolean", {"rows": "batches"}, 2),
        ("records int, uncompressedBytes long", {"rows": "batches"}, 4),
        ("partition int, offset long", {"maxbytespertask": str(TASK_BYTES // 2)}, 8),
    ],
)
def test_tasks_are_larger_if_headers_suffice(
    columns: str, more: dict[str, str], count: int
) -> None:
    types = {
        "int": IntegerType(),
        "long": LongType(),
        "binary": BinaryType(),
        "boolean": BooleanType(),
    }
    fields = [each.split() for each in columns.split(", ")]
    schema = StructType([StructField(name, types[kind]) for name, kind in fields])
    given = {"subscribe": "t", "kafka.bootstrap.servers": "nowhere:1", **more}
    reader = BatchReader(parse_options(given, streaming=False), schema)
    whole = BrokerRange("t", 0, 0, 4 * TASK_BYTES // RECORD_BYTES)
    assert len(reader._table.tasks(QueryPlan([whole]))) == count


def test_timestamp_filters_are_looked_up_at_leaders() -> None:
    """Timestamps are 1000 ms + offset."""
    leader = VirtualLeader((0, 100), (0, 10), (25, 30))
    given = {"kafka.bootstrap.servers": "unused:9092", "subscribe": "t"}

    def planned(since_ms: int, until_ms: int, **more: str) -> list[BrokerRange]:
        filtered = PushedFilters(since_ms=since_ms, until_ms=until_ms)
        query = Query(parse_options({**given, **more}, streaming=False), filtered)
        return query.plan(query.ranges()).pieces

    with leader.reachable():
        assert planned(1020, 1030) == [
            broker_range(20, 100), broker_range(25, 30, 2)
        ]  # fmt: skip
        assert planned(1020, 1026, maxlateness="1") == [
            broker_range(20, 27), broker_range(25, 27, 2)
        ]  # fmt: skip
        assert [each.low for each in planned(-5, 1020)] == [0, 0, 25]
