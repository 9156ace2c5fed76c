"""Which offsets a query reads, and what it refuses to read past: by the store alone and with brokers."""

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
    Denying,
    listing_transactions,
    query,
    snapshot,
    unreadable,
)
from tests.pipeline.virtual_leader import TOPIC_ID, VirtualLeader
from tests.pipeline.virtual_store import WHERE, World, segment
from tests.support.virtual_reading import FULL

pytestmark = pytest.mark.usefixtures("denied_object_reset")


def broker_range(low: int, high: int, partition: int = 0) -> BrokerRange:
    """As it is planned with a `VirtualLeader`."""
    return BrokerRange("t", partition, low, high, TOPIC_ID, 0)


@pytest.mark.parametrize(
    "ending", [{"endingOffsets": '{"t":{"0":10}}'}, {"endingOffsets": '{"t":{"0":6}}'}], ids=str
)
def test_the_store_alone_ends_where_nobody_knows_what_was_committed(
    ending: dict[str, str],
) -> None:
    """A transaction is open from offset 5 on."""
    cluster_view = World()
    cluster_view.has(segment(1, 0, 9))
    snapshot(cluster_view, segment(1, 0, 9), 5)
    with pytest.raises(DataLoss, match="is 5, and the query ends at"):
        query(cluster_view, **COMMITTED, **ending).ranges()
    for more in ({**ending, "failOnDataLoss": False}, {}, {"endingOffsets": '{"t":{"0":5}}'}):
        assert query(cluster_view, **COMMITTED, **more).ranges() == {ONLY: (0, 5)}
    assert query(cluster_view, endingOffsets='{"t":{"0":10}}').ranges() == {ONLY: (0, 10)}
    left = query(
        cluster_view, **COMMITTED, **ending, failOnDataLoss=False, startingOffsets='{"t":{"0":3}}'
    )
    pieces = left.plan(left.ranges()).pieces
    assert [(each.low, isinstance(each, LostOffsets)) for each in pieces] == [(3, False), (5, True)]
    assert pieces[-1].high in (6, 10)
    behind = query(
        cluster_view, **COMMITTED, failOnDataLoss=False,
        startingOffsets='{"t":{"0":7}}', endingOffsets='{"t":{"0":9}}',
    )  # fmt: skip
    (lost,) = behind.plan(behind.ranges()).pieces
    assert (lost.low, lost.high) == (7, 9)


def test_without_its_snapshot_a_segment_does_not_pass_for_decided() -> None:
    cluster_view = World()
    cluster_view.has(segment(1, 0, 9))
    with pytest.raises(MissingSegment, match=r"\.snapshot"):
        query(cluster_view, **COMMITTED).ranges()
    assert query(cluster_view).ranges() == {ONLY: (0, 10)}


def test_a_gap_that_is_gone_does_not_pass_for_decided() -> None:
    """The store lacks 10 to 19, where markers may have been; the log has begun behind it meanwhile."""
    cluster_view, leader = World(), VirtualLeader((30, 40))
    cluster_view.has(segment(1, 0, 9), segment(2, 20, 29))
    with leader.reachable():
        asked = query(cluster_view, leader, **COMMITTED)
        with pytest.raises(DataLoss, match="offset 10"):
            asked.plan({ONLY: (0, 40)})


def test_a_log_that_ends_before_the_store_does_has_decided_all() -> None:
    cluster_view, leader = World(), VirtualLeader((0, 5))
    cluster_view.has(segment(1, 0, 9))
    with leader.reachable():
        assert query(cluster_view, leader, **COMMITTED).plan({ONLY: (0, 5)}).aborted == {
            ("t", 0): []
        }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"assign": '{"t":[0,9,7]}'},
            r"there is no partition t-7, t-9 .*(give another one|name other topics) \(subscribe, assign\)",
        ),
        ({"assign": '{"u":[0]}'}, r"there is no topic u (at unused:9092|with .* in .*unused): "),
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
def test_partitions_that_are_not_there_are_named(
    options: dict[str, str], said: str, leader: VirtualLeader | None
) -> None:
    cluster_view = World()
    other = replace(WHERE, partition=1)
    second = RemoteLogSegmentId(other, UUID(int=2))
    cluster_view.has(segment(1, 0, 9), replace(segment(2, 0, 9), id=second))
    given = {"subscribe": None, **options} if "assign" in options else options
    with (leader or VirtualLeader()).reachable(), pytest.raises(BadOption, match=said):
        query(cluster_view, leader, **given).ranges()


class Closed(VirtualObjectStore):
    """Nobody may list what is in it."""

    def directories(self, prefix: str) -> Any:
        return self.pages(prefix or "all")

    def pages(self, prefix: str, after: str = "") -> Any:
        raise ObjectDenied(f"{prefix}: 403 Forbidden")


@pytest.mark.parametrize("has_brokers", [True, False])
def test_a_listing_that_is_denied_is_called_that(has_brokers: bool) -> None:
    """Whatever becomes of what cannot be read: nobody knows what that would be."""
    leader = VirtualLeader((0, 30))
    what = partition_directory(WHERE) if has_brokers else "the list of"
    said = f"{re.escape(what)}.* was denied, so it could not be (listed|read): give .* credentials .*403 Forbidden"
    with leader.reachable():
        asked = query(
            World(objects=Closed()), leader if has_brokers else None, onCorruptSegment="skip"
        )
        with pytest.raises(DeniedSegment, match=said):
            asked.plan({ONLY: (0, 30)})


def with_three(how: str) -> tuple[World, str]:
    """Segments of 10 offsets, the second of which has a manifest that cannot be read; its key."""
    cluster_view = World(objects=Denying())
    segments = [segment(number, 10 * number, 10 * number + 9) for number in range(3)]
    cluster_view.has(*segments)
    for each in segments:
        snapshot(cluster_view, each)
    key = segment_key(segments[1], MANIFEST_SUFFIX)
    if how == "corrupt":
        cluster_view.objects.put(key, [b"{"])
    else:
        Denying.denied = key
    return cluster_view, key


@pytest.mark.parametrize(("how", "kind"), [("corrupt", CorruptSegment), ("denied", DeniedSegment)])
def test_a_manifest_that_cannot_be_read_is_named_or_is_a_gap(
    how: str, kind: type[PipelineError]
) -> None:
    cluster_view, key = with_three(how)
    with pytest.raises(kind, match=key):
        query(cluster_view).ranges()
    leader = VirtualLeader((0, 30))
    for given in ({}, COMMITTED):
        asked = query(cluster_view, onCorruptSegment="report", **given)
        assert asked.ranges() == {ONLY: (0, 30)}
        first, lost, last = asked.plan(asked.ranges()).pieces
        assert isinstance(lost, LostOffsets)
        assert (first.high, lost.low, lost.high, last.low, lost.key) == (10, 10, 20, 20, key)
        (part,) = query(cluster_view, onCorruptSegment="skip").plan({ONLY: (13, 17)}).pieces
        assert isinstance(part, LostOffsets)
        assert part.key == key
    with leader.reachable():
        pieces = query(cluster_view, leader, onCorruptSegment="skip").plan({ONLY: (0, 30)}).pieces
    assert pieces[1] == broker_range(10, 20)


def test_what_may_have_ended_in_a_gap_is_not_given_out() -> None:
    """A transaction is open from offset 4 on where the first segment ends."""
    cluster_view, _ = with_three("corrupt")
    snapshot(cluster_view, segment(0, 0, 9), 4)
    asked = query(cluster_view, onCorruptSegment="report", **COMMITTED)
    first, lost, _ = asked.plan({ONLY: (0, 30)}).pieces
    assert (first.low, first.high, lost.low, lost.high) == (0, 4, 4, 20)
    only = asked.plan({ONLY: (5, 30)}).pieces
    assert [(each.low, each.high) for each in only] == [(5, 20), (20, 30)]


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_that_brokers_cannot_give_out_yet_is_data_loss(committed: bool) -> None:
    """A transaction is open from offset 5 on; the log ends at 10."""
    leader = VirtualLeader((0, 10))
    leader.logs[ONLY].undecided = 5
    isolation = COMMITTED if committed else {}
    end = 5 if committed else 10
    with leader.reachable():
        asked: Any = {**isolation, "endingOffsets": '{"t":{"0":12}}'}
        said = "is 5" if committed else "now ends at offset 10"
        with pytest.raises(DataLoss, match=f"{said}, and the query ends at 12"):
            query(World(), leader, **asked).ranges()
        left = query(World(), leader, **asked, failOnDataLoss=False)
        assert left.ranges() == {ONLY: (0, end)}
        read, lost = left.plan({ONLY: (0, end)}).pieces
        assert (read, lost.low, lost.high) == (broker_range(0, end), end, 12)
        for ending in ({}, {"endingOffsets": '{"t":{"0":-1}}'}):
            assert query(World(), leader, **isolation, **ending).ranges() == {ONLY: (0, end)}


@pytest.mark.parametrize("committed", [True, False])
def test_a_time_behind_what_can_be_read_by_now_is_its_end(committed: bool) -> None:
    """A transaction is open from offset 5 on; the record of offset N is of 1000 + N ms."""
    leader = VirtualLeader((0, 10))
    leader.logs[ONLY].undecided = 5
    isolation = COMMITTED if committed else {}
    with leader.reachable():
        ending = query(World(), leader, **isolation, endingTimestamp=1008)
        assert ending.ranges() == {ONLY: (0, 5 if committed else 8)}
        assert query(World(), leader, **isolation, endingTimestamp=1004).ranges() == {ONLY: (0, 4)}
        late = query(
            World(), leader, **isolation,
            startingTimestamp=1007, startingOffsetsByTimestampStrategy="latest",
        )  # fmt: skip
        assert late.ranges() == {ONLY: (5, 5) if committed else (7, 10)}


@pytest.mark.parametrize("known", [None, 10])
def test_the_store_is_not_asked_for_what_lies_behind_it(known: int | None) -> None:
    """As a stream does that follows the log's end: so long as the leader knows where that is."""
    cluster_view, leader = World(), VirtualLeader((0, 40))
    cluster_view.has(segment(1, 0, 9))
    leader.logs[ONLY].tiered_end = known
    with leader.reachable():
        for low, asks in ((9, True), (10, known is None)):
            cluster_view.asked()
            pieces = query(cluster_view, leader).plan({ONLY: (low, 40)}).pieces
            assert pieces[-1] == broker_range(10, 40)
            assert len(pieces) == (2 if low < 10 else 1)
            assert bool(cluster_view.requests("list", "get")) == asks


def test_a_pattern_means_no_internal_topics() -> None:
    """As with Spark's own source; who names one may read it."""
    leader = VirtualLeader((0, 10))
    with leader.reachable():
        found = query(World(), leader, subscribe=None, subscribePattern=".*").partitions
        assert list(found) == [ONLY]
        named = query(World(), leader, subscribe="__consumer_offsets").partitions
        assert list(named) == [("__consumer_offsets", 0)]


@HOW
def test_a_transaction_index_that_cannot_be_read_concerns_who_needs_it(
    how: str, kind: type[PipelineError]
) -> None:
    """That of the second of three; a transaction is open from offset 4 on where it begins."""
    cluster_view, segments = listing_transactions(3)
    snapshot(cluster_view, segments[0], 4)
    key = unreadable(cluster_view, segments[1], IndexType.TRANSACTION, how)
    for low, high in ((0, 10), (3, 5), (10, 30), (18, 19)):
        with pytest.raises(kind, match=key):
            query(cluster_view, **COMMITTED).plan({ONLY: (low, high)})
    for low, high in ((0, 4), (1, 3), (20, 30)):
        plan = query(cluster_view, **COMMITTED).plan({ONLY: (low, high)})
        assert [(each.low, each.high) for each in plan.pieces] == [(low, high)]
    assert len(query(cluster_view).plan({ONLY: (0, 30)}).pieces) == 1, (
        "of no matter to uncommitted reads"
    )
    asked = query(cluster_view, onCorruptSegment="report", **COMMITTED)
    before, lost, behind = asked.plan({ONLY: (0, 30)}).pieces
    assert isinstance(lost, LostOffsets)
    assert (before.high, lost.low, lost.high, behind.low, lost.key) == (4, 4, 20, 20, key)


def test_transactions_of_offsets_that_no_filter_lets_through_are_not_asked_for() -> None:
    cluster_view, segments = listing_transactions(4)
    unreadable(cluster_view, segments[0], IndexType.TRANSACTION, "corrupt")
    asked = query(cluster_view, **COMMITTED)
    plan = asked.plan({ONLY: (0, 40)}, PushedFilters(since_ms=1002))
    assert (plan.pieces[0].low, plan.pieces[-1].high) == (20, 40)
    assert plan.aborted == {("t", 0): []}
    with pytest.raises(CorruptSegment):
        query(cluster_view, **COMMITTED).plan({ONLY: (0, 40)}, PushedFilters(since_ms=1000))


def test_what_may_have_been_open_is_told_by_no_snapshot_either() -> None:
    cluster_view, segments = listing_transactions(3)
    unreadable(cluster_view, segments[0], IndexType.PRODUCER_SNAPSHOT, "corrupt")
    key = unreadable(cluster_view, segments[1], IndexType.TRANSACTION, "corrupt")
    with pytest.raises(CorruptSegment, match=key):
        query(cluster_view, **COMMITTED).plan({ONLY: (0, 3)})
    asked = query(cluster_view, onCorruptSegment="skip", **COMMITTED)
    lost, behind = asked.plan({ONLY: (0, 30)}).pieces
    assert (lost.low, lost.high, behind.low, behind.high) == (0, 20, 20, 30)


@HOW
def test_leader_epochs_are_told_by_another_segment_of_the_same_epoch(
    how: str, kind: type[PipelineError]
) -> None:
    cluster_view = World(objects=Denying())
    segments = [segment(number, 10 * number, 10 * number + 9) for number in range(3)]
    cluster_view.has(*segments)
    unreadable(cluster_view, segments[2], IndexType.LEADER_EPOCH, how)
    asked = query(cluster_view)
    assert asked.ranges() == {ONLY: (0, 30)}
    (piece,) = asked.plan({ONLY: (0, 30)}).pieces
    assert (piece.low, piece.high) == (0, 30)


def test_the_only_segment_has_its_leader_epochs_itself() -> None:
    cluster_view = World()
    cluster_view.has(segment(1, 10, 19, 4))
    unreadable(cluster_view, segment(1, 10, 19, 4), IndexType.LEADER_EPOCH, "corrupt")
    assert query(cluster_view).ranges() == {ONLY: (10, 20)}


@HOW
def test_leader_epochs_that_nobody_has_concern_what_lies_before(
    how: str, kind: type[PipelineError]
) -> None:
    """The last segment is of another epoch: what was written of the one before may have been given up."""
    cluster_view = World(objects=Denying())
    segments = [segment(1, 0, 9), segment(2, 10, 19), segment(3, 20, 29, 2)]
    cluster_view.has(*segments)
    key = unreadable(cluster_view, segments[2], IndexType.LEADER_EPOCH, how)
    asked = query(cluster_view)
    assert asked.ranges() == {ONLY: (0, 30)}
    for low, high in ((0, 30), (3, 5), (19, 21)):
        with pytest.raises(kind, match=key):
            asked.plan({ONLY: (low, high)})
    (piece,) = asked.plan({ONLY: (20, 30)}).pieces
    assert (piece.low, piece.high) == (20, 30)
    with pytest.raises(kind, match=key):
        query(cluster_view, startingTimestamp=1000).ranges()
    lost, rest = query(cluster_view, onCorruptSegment="report").plan({ONLY: (5, 30)}).pieces
    assert isinstance(lost, LostOffsets)
    assert (lost.low, lost.high, lost.key, rest.low) == (5, 20, key, 20)
    leader = VirtualLeader((0, 30))
    with leader.reachable():
        assert query(cluster_view, leader).plan({ONLY: (0, 5)}).pieces, "brokers have them"


@HOW
def test_a_snapshot_that_cannot_be_read_is_a_gap_where_the_store_is_all_there_is(
    how: str, kind: type[PipelineError]
) -> None:
    """That of the last of three; a transaction is open from offset 14 on where the one before it ends."""
    cluster_view, segments = listing_transactions(3)
    snapshot(cluster_view, segments[1], 14)
    key = unreadable(cluster_view, segments[2], IndexType.PRODUCER_SNAPSHOT, how)
    with pytest.raises(kind, match=key):
        query(cluster_view, **COMMITTED).ranges()
    asked = query(cluster_view, onCorruptSegment="report", **COMMITTED)
    assert asked.ranges() == {ONLY: (0, 30)}
    before, lost = asked.plan(asked.ranges()).pieces
    assert isinstance(lost, LostOffsets)
    assert (before.low, before.high, lost.low, lost.high, lost.key) == (0, 14, 14, 30, key)
    unreadable(cluster_view, segments[1], IndexType.PRODUCER_SNAPSHOT, how)
    unreadable(cluster_view, segments[0], IndexType.PRODUCER_SNAPSHOT, how)
    asked = query(cluster_view, onCorruptSegment="skip", **COMMITTED)
    (lost,) = asked.plan(asked.ranges()).pieces
    assert (lost.low, lost.high) == (0, 30)


def test_a_time_is_looked_up_past_what_cannot_be_read() -> None:
    """A log of the second of three: of the segments' last records each is a ms later than the one before."""
    cluster_view = World(objects=Denying())
    segments = [segment(number, 10 * number, 10 * number + 9) for number in range(3)]
    cluster_view.has(*segments)
    for each in segments:
        cluster_view.objects.delete(segment_key(each, LOG_SUFFIX))
    for named in ({"startingTimestamp": 1001}, {"endingTimestamp": 1001}):
        with pytest.raises(MissingSegment, match=segment_key(segments[1], LOG_SUFFIX)):
            query(cluster_view, **named).ranges()
    report: Any = {"onCorruptSegment": "report"}
    assert query(cluster_view, **report, startingTimestamp=1001).ranges() == {ONLY: (10, 30)}
    assert query(cluster_view, **report, endingTimestamp=1001).ranges() == {ONLY: (0, 30)}


def test_a_time_is_looked_up_past_leader_epochs_that_nobody_has() -> None:
    cluster_view = World()
    segments = [segment(1, 0, 9), segment(2, 10, 19), segment(3, 20, 29, 2)]
    cluster_view.has(*segments)
    for each in segments:
        cluster_view.objects.delete(segment_key(each, LOG_SUFFIX))
    unreadable(cluster_view, segments[2], IndexType.LEADER_EPOCH, "corrupt")
    report: Any = {"onCorruptSegment": "report"}
    assert query(cluster_view, **report, startingTimestamp=1002).ranges() == {ONLY: (10, 30)}
    assert query(cluster_view, **report, startingTimestamp=1003).ranges() == {ONLY: (20, 30)}
    assert query(cluster_view, **report, endingTimestamp=1000).ranges() == {ONLY: (0, 30)}


def test_gaps_are_reported_where_there_is_a_column_for_them() -> None:
    given = {"tiered.url": "unused", "subscribe": "t", "onCorruptSegment": "report"}
    options = parse_options(given, streaming=False)
    with pytest.raises(BadOption, match="the column gap"):
        BatchReader(options, FULL)
    fields = {"lastOffset": LongType(), "object": StringType(), "reason": StringType()}
    gap = StructType([StructField(name, kind) for name, kind in fields.items()])
    BatchReader(options, StructType([*FULL.fields, StructField("gap", gap)]))


def test_spark_s_collections_after_a_task_leave_out_what_is_imported() -> None:
    options = parse_options({"tiered.url": "unused", "subscribe": "t"}, streaming=False)
    reader = BatchReader(options, StructType([StructField("offset", LongType())]))
    gc.unfreeze()
    _freeze_imports.cache_clear()  # this process may have run a task before
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
def test_tasks_are_larger_where_headers_are_enough(
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


def test_leaders_are_asked_for_what_is_of_a_filters_times() -> None:
    """The record of offset N is of 1000 + N ms."""
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
