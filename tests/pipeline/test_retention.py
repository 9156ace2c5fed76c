"""Effects of retention settings on partitions, compared with the decisions of brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from odradek.pipeline.data_source import BatchReader
from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.retention import (
    GIB,
    PartitionLog,
    RetentionOutcome,
    RetentionRule,
    apply_rule,
    read_partition_logs,
    retention,
    untiered_options,
    whole_log_options,
)
from odradek.pipeline.options import parse_options
from odradek.protocol.topics import TopicPartition
from odradek.storage.log.config import LogConfig
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.retention import find_expired
from odradek.storage.tiered.remote_retention import (
    DeletionReason,
    RetentionInput,
    decide_expiration,
)
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tests.pipeline.virtual_leader import VirtualLeader
from tests.pipeline.virtual_store import WHERE, SegmentStore, segment

NOW = 1000
PARTITION = TopicIdPartition(UUID(int=1), "t", 0)
times = st.integers(NOW - 60, NOW)
limits = st.integers(-1, 60)


def held_of(start: int, segments: list[tuple[int, int, int, int]], local: int) -> PartitionLog:
    columns = np.array(segments, np.int64).reshape(-1, 4).T
    return PartitionLog("t", 0, start, *columns, local)


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 20), st.just(-1) | times, times), max_size=8
    ),
    limits,
    limits,
    st.integers(0, 30),
)
@example([(1, 0, NOW, NOW), (1, 3, NOW, NOW)], -1, 1, 1).via("one that compaction has emptied")
def test_rule_deletes_what_a_leader_would_delete(
    rows: list[tuple[int, int, int, int]], ms: int, size: int, local: int
) -> None:
    segments, held, start = [], [], 5
    for number, (count, size_bytes, newest_ms, copied_ms) in enumerate(rows):
        id = RemoteLogSegmentId(PARTITION, UUID(int=number + 1))
        segments.append(
            RemoteLogSegmentMetadata(
                id, start, start + count - 1, 0, newest_ms, copied_ms, (EpochStart(0, start),),
                size_bytes, SegmentState.COPY_SEGMENT_FINISHED,
            )
        )  # fmt: skip
        start += count
        held.append((start, size_bytes, newest_ms, copied_ms))
    log = held_of(5, held, local)
    retained = RetentionInput(
        epochs=(EpochStart(0, 5),),
        log_start_offset=5,
        log_end_offset=start + 1,
        retention_ms=ms,
        retention_bytes=size,
        local_only_bytes=local,
        remote_bytes=log.remote_bytes,
        now_ms=NOW,
    )
    *_, expiry = decide_expiration(retained, segments)
    assert expiry is not None
    assert {each.reason for each in expiry.expired} <= {
        DeletionReason.RETENTION_MS,
        DeletionReason.RETENTION_BYTES,
    }
    outcome = apply_rule(log, RetentionRule(ms, size), NOW)
    assert outcome.segments_deleted == len(expiry.expired)
    assert outcome.bytes_deleted == sum(each.segment.size_bytes for each in expiry.expired)
    assert outcome.start_offset == (expiry.log_start_offset or 5)


@dataclass
class LocalSegment:
    """Segment with the attributes that local retention uses."""

    base_offset: int
    size: int
    max_timestamp: int
    created_ms: int


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 20), st.just(-1) | times, times), max_size=8
    ),
    st.tuples(limits, limits),
    st.tuples(st.integers(-2, 60), st.integers(-2, 60)),
    st.integers(1, 30),
    st.integers(0, 8),
)
def test_local_rule_deletes_what_a_leader_would_delete_locally(
    rows: list[tuple[int, int, int, int]],
    whole: tuple[int, int],
    local: tuple[int, int],
    active: int,
    gone: int,
) -> None:
    """T-15. The first of the copied segments are no longer local."""
    disk, held, start = [], [], 5
    for count, size, newest_ms, copied_ms in rows:
        disk.append(LocalSegment(start, size, newest_ms, copied_ms))
        start += count
        held.append((start, size, newest_ms, copied_ms))
    disk = [*disk[gone:], LocalSegment(start, active, NOW, NOW)]
    log = replace(held_of(5, held, active), local_start=disk[0].base_offset)
    outcome = apply_rule(log, RetentionRule(*whole, *local), NOW)
    ms, size = (whole[n] if local[n] == -2 else local[n] for n in (0, 1))
    expired = find_expired(
        disk,
        LogConfig(
            retention_ms=whole[0], retention_bytes=whole[1],
            local_retention_ms=ms, local_retention_bytes=size,
        ),
        log_start_offset=outcome.start_offset,
        high_watermark=start + 1,
        end_offset=start + 1,
        now_ms=NOW,
        safe_to=start,
    )  # fmt: skip
    left = disk[expired.count :]
    assert outcome.local_bytes_kept == sum(each.size for each in left)
    assert outcome.local_bytes_deleted == sum(each.size for each in disk[: expired.count])
    assert outcome.local_start_offset == left[0].base_offset


def test_local_figures_are_omitted_without_a_local_rule() -> None:
    log = replace(held_of(0, [(10, 5, 100, 0)], 1), local_start=0)
    assert apply_rule(log, RetentionRule(retention_bytes=1), NOW).local_bytes_kept is None
    assert apply_rule(log, RetentionRule(local_retention_ms=-2), NOW).local_bytes_kept == 6
    assert apply_rule(log, RetentionRule(local_retention_bytes=1), NOW).local_start_offset == 10


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (RetentionRule(-2), "retention.ms=-2 is invalid"),
        (RetentionRule(local_retention_bytes=-3), "local.retention.bytes=-3 is invalid"),
        (
            RetentionRule(5, local_retention_ms=6),
            "local.retention.ms=6 must not exceed retention.ms=5",
        ),
        (
            RetentionRule(-1, 5, local_retention_bytes=-1),
            "local.retention.bytes=-1 must not exceed",
        ),
    ],
)
def test_rules_that_brokers_refuse_are_refused(rule: RetentionRule, message: str) -> None:
    """T-15: brokers return INVALID_CONFIG."""
    with pytest.raises(BadOption, match=message):
        rule.check()


def test_kept_bytes_and_their_cost() -> None:
    log = held_of(10, [(20, GIB, 100, 0), (30, GIB, -1, 200), (40, GIB, 300, 0)], GIB)
    outcome = apply_rule(log, RetentionRule(retention_bytes=3 * GIB), NOW)
    assert outcome == RetentionOutcome(
        "t", 0, RetentionRule(retention_bytes=3 * GIB), 1, GIB, 10, 3 * GIB, 20
    )
    assert outcome.cost(0.02) == pytest.approx(0.06)


def test_segment_without_timestamps_has_the_age_of_its_copy() -> None:
    log = held_of(0, [(10, 1, 100, 0), (20, 1, -1, 200), (30, 1, -1, 300)], 0)
    deleted = [
        apply_rule(log, RetentionRule(retention_ms=NOW - each), NOW)
        for each in (100, 200, 201, 301)
    ]
    assert [each.segments_deleted for each in deleted] == [0, 1, 2, 3]


# Logs of a query


@pytest.fixture
def leader() -> VirtualLeader:
    """Leader of two partitions. The store has the first thirty offsets of the first one, in three segments of 100
    bytes.
    """
    leader = VirtualLeader((0, 40), (5, 15))
    leader.logs[TopicPartition("t", 0)].tiered_end = 30
    leader.logs[TopicPartition("t", 0)].undecided = 35
    return leader


@pytest.fixture(autouse=True)
def both(leader: VirtualLeader, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    remote = SegmentStore()
    remote.has(*(segment(number, 10 * number, 10 * number + 9) for number in range(3)))
    other = replace(WHERE, partition=1)
    id = RemoteLogSegmentId(other, UUID(int=9))
    remote.has(replace(segment(9, 5, 9), id=id))
    monkeypatch.setattr("odradek.pipeline.query.store_at", lambda *options: remote.store)
    with leader.reachable():
        yield


SOURCE = {
    "kafka.bootstrap.servers": "unused:9092",
    "tiered.url": "unused",
    "subscribe": "t",
}


def held(source: Mapping[str, str]) -> list[PartitionLog]:
    whole = whole_log_options(source)

    def local_bytes(ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the local bytes as Spark's tasks read them."""
        kinds = {"topic": StringType(), "partition": IntegerType(), "bytes": LongType()}
        schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
        reader = BatchReader(parse_options(untiered_options(whole, ends), streaming=False), schema)
        found = dict.fromkeys(ends, 0)
        for task in reader.partitions():
            for table in reader.read(task):
                for row in table.to_pylist():
                    found[TopicPartition(row["topic"], row["partition"])] += row["bytes"]
        return found

    return list(read_partition_logs(whole, local_bytes))


def received(log: PartitionLog) -> tuple[int, int, list[int], int, int]:
    return log.partition, log.start_offset, log.ends.tolist(), log.remote_bytes, log.local_bytes


@pytest.mark.parametrize(
    "more",
    [
        {"startingTimestamp": "1025"},
        {"startingOffsets": '{"t":{"0":25,"1":12}}', "endingOffsets": '{"t":{"0":27,"1":13}}'},
        {"startingoffsets": "earliest", "endingTimestamp": "1012"},
        {"startingOffsetsByTimestamp": '{"t":{"0":1025,"1":1012}}'},
        {"kafka.isolation.level": "read_committed"},
        {"rows": "records", "includeHeaders": "true"},
        {"rows": "batches"},
        {"valueFormat": "json"},
        {"onCorruptSegment": "report"},
        {"onCorruptSegment": "skip", "failOnDataLoss": "false"},
        {"maxLateness": "1m"},
    ],
    ids=str,
)
def test_offset_options_are_ignored(more: dict[str, str]) -> None:
    expected = [received(log) for log in held(SOURCE)]
    assert [each[:4] for each in expected] == [(0, 0, [10, 20, 30], 300), (1, 5, [10], 100)]
    assert all(each[4] > 0 for each in expected)
    assert [received(log) for log in held(SOURCE | more)] == expected


@pytest.mark.parametrize(
    ("more", "partitions"),
    [
        ({"subscribe": None, "assign": '{"t":[1]}'}, [1]),
        ({"subscribe": None, "subscribePattern": "t|u"}, [0, 1]),
        ({"subscribe": None, "subscribePattern": "none"}, []),
        ({"kafka.bootstrap.servers": None}, [0, 1]),
        ({"kafka.bootstrap.servers": None, "Kafka.Bootstrap.Servers": "unused:9092"}, [0, 1]),
    ],
    ids=str,
)
def test_only_selected_partitions_are_included(
    more: dict[str, str | None], partitions: list[int]
) -> None:
    given = {name: value for name, value in {**SOURCE, **more}.items() if value is not None}
    found = held(given)
    assert [log.partition for log in found] == partitions
    has_brokers = "kafka.bootstrap.servers" in map(str.lower, given)
    assert all((log.local_bytes > 0) == has_brokers for log in found)


def test_without_a_store_all_bytes_are_local() -> None:
    both = {log.partition: log.local_bytes for log in held(SOURCE)}
    del (without := dict(SOURCE))["tiered.url"]
    found = held(without)
    assert [received(log)[:4] for log in found] == [(0, 0, [], 0), (1, 5, [], 0)]
    assert all(log.local_bytes > both[log.partition] for log in found)


def test_unknown_option_is_refused() -> None:
    with pytest.raises(BadOption, match="startingOffsets=soon"):
        held(SOURCE | {"startingOffsets": "soon"})


def test_local_log_start_offsets_come_from_the_leaders(
    leader: VirtualLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.logs[TopicPartition("t", 0)].local_start = 20
    monkeypatch.setattr(
        "odradek.pipeline.jobs.retention._local_bytes",
        lambda _, source, ends: dict.fromkeys(ends, 7),
    )
    rules = [RetentionRule(local_retention_bytes=7), RetentionRule()]
    first, second, *rest = retention(None, SOURCE, rules, NOW)  # type: ignore[arg-type]
    assert (first.local_bytes_deleted, first.local_bytes_kept, first.local_start_offset) == (
        100,
        7,
        30,
    )
    assert (second.local_bytes_deleted, second.local_start_offset) == (100, 10)
    assert [each.local_bytes_kept for each in rest] == [None, None]
    store = {"tiered.url": "unused", "subscribe": "t"}
    with pytest.raises(BadOption, match="--bootstrap"):
        retention(None, store, rules, NOW)  # type: ignore[arg-type]


def test_repeated_rule_is_reported_once() -> None:
    store = {"tiered.url": "unused", "subscribe": "t"}
    found = retention(None, store, [RetentionRule(5), RetentionRule(), RetentionRule(5)], NOW)  # type: ignore[arg-type]
    assert [(each.rule, each.partition) for each in found] == [
        (rule, partition) for rule in (RetentionRule(5), RetentionRule()) for partition in (0, 1)
    ]
