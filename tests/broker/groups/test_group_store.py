"""Encoding, decoding, batches and loading of group records."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.broker.coordination.coordinator_log import RecordsTooLarge, partition_for
from odradek.broker.groups import record_serde as records
from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.coordinator_shard import GroupCoordinatorShard
from odradek.broker.groups.group_log import GroupLoader, build_batches
from odradek.broker.groups.messages import (
    ClassicGroupMetadata,
    ClassicMemberMetadata,
    CommittedOffset,
    GroupKey,
    OffsetKey,
    Record,
)
from odradek.broker.groups.subscription import subscribed_topics
from odradek.protocol.errors import KafkaError
from odradek.protocol.records import records as log_records
from odradek.protocol.records.batch import Batch
from tests.broker.groups.group_shard_driver import metadata

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
MEMBER = ClassicMemberMetadata("m-1", "i", "c", "/127.0.0.1", 300_000, 45_000, b"sub", b"ass")
GROUP = ClassicGroupMetadata("consumer", 7, "range", "m-1", 1234, (MEMBER,))

# Partition of a group


def test_partition_for() -> None:
    """Kafka's Utils.abs returns 0 for the smallest int, which has no absolute value."""
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("group", 50) == 98629247 % 50
    assert partition_for("test-group", 50) == 627841412 % 50


# Encoding; expected bytes are derived from Kafka's schemas


def test_offset_commit_is_encoded_in_version_4() -> None:
    key = OffsetKey("g", "t", 3)
    value = CommittedOffset(42, 5, "m", 1000, None, TOPIC_ID)
    assert records.encode(Record(key, value)) == (
        bytes.fromhex("0001" "000167" "000174" "00000003"),
        bytes.fromhex(
            "0004" "000000000000002a" "00000005" "026d" "00000000000003e8"
            "01" "00" "10" "00112233445566778899aabbccddeeff"
        ),
    )  # fmt: skip


def test_offset_commit_without_topic_id_has_no_tagged_field() -> None:
    _, value = records.encode(Record(OffsetKey("g", "t", 3), CommittedOffset(42, -1, "", 1000)))
    assert value == bytes.fromhex(
        "0004" "000000000000002a" "ffffffff" "01" "00000000000003e8" "00"
    )  # fmt: skip


def test_offset_commit_with_expire_timestamp_is_encoded_in_version_1() -> None:
    value = CommittedOffset(42, 5, "m", 1000, 2000, TOPIC_ID)
    _, encoded = records.encode(Record(OffsetKey("g", "t", 3), value))
    assert encoded == bytes.fromhex(
        "0001" "000000000000002a" "00016d" "00000000000003e8" "00000000000007d0"
    )  # fmt: skip


def test_group_metadata_is_encoded_in_version_3() -> None:
    assert records.encode(Record(GroupKey("g"), GROUP)) == (
        bytes.fromhex("0002" "000167"),
        bytes.fromhex("0003" "0008") + b"consumer" + bytes.fromhex("00000007" "0005") + b"range"
        + bytes.fromhex("0003") + b"m-1" + bytes.fromhex("00000000000004d2" "00000001")
        + bytes.fromhex("0003") + b"m-1" + bytes.fromhex("0001") + b"i" + bytes.fromhex("0001") + b"c"
        + bytes.fromhex("000a") + b"/127.0.0.1" + bytes.fromhex("000493e0" "0000afc8")
        + bytes.fromhex("00000003") + b"sub" + bytes.fromhex("00000003") + b"ass",
    )  # fmt: skip


def test_empty_group_is_encoded_without_protocol_and_leader() -> None:
    _, value = records.encode(Record(GroupKey("g"), ClassicGroupMetadata("", 0, None, None, 1234)))
    assert value == bytes.fromhex(
        "0003" "0000" "00000000" "ffff" "ffff" "00000000000004d2" "00000000"
    )  # fmt: skip


def test_tombstones_have_no_value() -> None:
    assert records.encode(Record(GroupKey("g"), None))[1] is None
    assert records.encode(Record(OffsetKey("g", "t", 0), None))[1] is None


texts = st.text(max_size=8)
ids = st.one_of(st.none(), st.uuids().filter(lambda each: each.int != 0))
times = st.integers(0, 2**50)
offsets = st.one_of(
    st.builds(
        CommittedOffset, st.integers(0, 2**62), st.integers(-1, 9), texts, times, st.none(), ids
    ),
    st.builds(CommittedOffset, st.integers(0, 2**62), st.just(-1), texts, times, times),
)
members = st.builds(
    ClassicMemberMetadata,
    texts,
    st.one_of(st.none(), texts),
    texts,
    texts,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=8),
    st.binary(max_size=8),
)
groups = st.builds(
    ClassicGroupMetadata,
    texts,
    st.integers(0, 2**31 - 1),
    st.one_of(st.none(), texts),
    st.one_of(st.none(), texts),
    times,
    st.lists(members, max_size=3).map(tuple),
)
some_records = st.one_of(
    st.builds(
        Record, st.builds(OffsetKey, texts, texts, st.integers(0, 9)), st.one_of(st.none(), offsets)
    ),
    st.builds(Record, st.builds(GroupKey, texts), st.one_of(st.none(), groups)),
)


@given(some_records)
def test_encoded_records_are_decoded(record: Record) -> None:
    raw_key, raw_value = records.encode(record)
    key = records.decode_key(raw_key)
    value = None if raw_value is None else records.decode_value(key, raw_value)
    assert Record(key, value) == record


# Batches


def commits(count: int, metadata_bytes: int = 10) -> list[Record]:
    return [
        Record(OffsetKey("g", "t", index), CommittedOffset(index, -1, "m" * metadata_bytes, 1))
        for index in range(count)
    ]


def test_records_are_split_into_batches() -> None:
    wanted = commits(1000)
    found = list(build_batches(wanted, now_ms=5, compression=0, batch_bytes_max=4096, atomic=False))
    assert len(found) > 5
    assert [record for _, part in found for record in part] == wanted
    for batch, part in found:
        header = Batch(memoryview(batch))
        assert len(batch) <= 4096
        assert header.record_count == len(part)
        assert header.max_timestamp == 5
        header.check()


def test_oversized_record_gets_its_own_batch() -> None:
    found = list(
        build_batches(commits(3, 5000), now_ms=5, compression=0, batch_bytes_max=4096, atomic=False)
    )
    assert [len(part) for _, part in found] == [1, 1, 1]


def test_atomic_records_need_one_batch() -> None:
    with pytest.raises(RecordsTooLarge):
        list(
            build_batches(commits(1000), now_ms=5, compression=0, batch_bytes_max=4096, atomic=True)
        )
    (one,) = build_batches(commits(3), now_ms=5, compression=0, batch_bytes_max=4096, atomic=True)
    assert len(one[1]) == 3


# Loading


class Log:
    """Batches with their offsets, as read from the log."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.next_offset = 0

    def append(
        self,
        plain: list[tuple[bytes | None, bytes | None]],
        producer_id: int = -1,
        control: bool = False,
    ) -> None:
        base = self.next_offset
        self.data += log_records.build_batch(
            [
                log_records.Record(base + index, 1, key, value)
                for index, (key, value) in enumerate(plain)
            ],
            base_offset=base,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            transactional=producer_id >= 0,
            control=control,
        )
        self.next_offset += len(plain)

    def marker(self, producer_id: int, kind: int) -> None:
        key = (0).to_bytes(2, "big") + kind.to_bytes(2, "big")
        self.append([(key, bytes(6))], producer_id, control=True)


def load(data: bytes | bytearray) -> GroupCoordinatorShard:
    shard = GroupCoordinatorShard(GroupConfig())
    loader = GroupLoader(shard)
    for _ in loader.feed(data):
        pass
    for _ in loader.finish():
        pass
    return shard


def test_load_replays_transactions() -> None:
    log = Log()
    first = records.encode(Record(OffsetKey("g", "t", 0), CommittedOffset(1)))
    second = records.encode(Record(OffsetKey("g", "t", 0), CommittedOffset(2)))
    third = records.encode(Record(OffsetKey("g", "t", 1), CommittedOffset(3)))
    log.append([first])
    log.append([second], producer_id=5)
    log.append([third], producer_id=6)
    log.marker(5, 1)
    log.marker(6, 0)
    shard = load(log.data)
    assert [each.offset.offset for each in shard.offsets.fetch("g", "t", None, [0, 1], require_stable=True).partitions] == [2, -1]  # fmt: skip
    log.append([third], producer_id=7)
    assert load(log.data).offsets.is_unstable("g", "t", 1)


def test_load_skips_unknown_record_types(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    log.append([(b"\x00\x63what", b"ever"), (None, b"?")])
    log.append([(b"\x00\x0b\x00\x01g", b"\x00\x00")])  # a share group's epoch
    log.append([records.encode(Record(GroupKey("g"), GROUP))])
    with caplog.at_level(logging.WARNING, "odradek.coordination"):
        shard = load(log.data)
    assert list(shard.groups) == ["g"]
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("Skipped 3 records of unknown types (no key: 1, ")


def test_load_skips_invalid_records_and_fails_for_a_truncated_batch() -> None:
    log = Log()
    log.append([(b"\x00\x01\x00\x01g", b"\x00\x04")])
    loader = GroupLoader(GroupCoordinatorShard(GroupConfig()))
    for _ in (*loader.feed(log.data), *loader.finish()):
        pass
    assert loader.invalid_count == 1
    assert loader.first_invalid.startswith("offset 0: ")
    with pytest.raises(KafkaError):
        load(log.data[:-3])


def test_load_yields_to_other_tasks() -> None:
    log = Log()
    log.append([records.encode(each) for each in commits(1000)])
    loader = GroupLoader(GroupCoordinatorShard(GroupConfig()))
    steps = sum(1 for _ in loader.feed(log.data)) + sum(1 for _ in loader.finish())
    assert steps > 10
    assert loader.next_offset == loader.record_count == 1000


def test_large_batch_is_decoded_in_steps() -> None:
    """The invalid end of the batch is not decoded in the first step."""
    log = Log()
    log.append([records.encode(each) for each in commits(1000)])
    del log.data[-1]
    log.data[8:12] = (len(log.data) - 12).to_bytes(4, "big")
    loader = GroupLoader(GroupCoordinatorShard(GroupConfig()))
    steps = loader.feed(log.data)
    next(steps)
    assert loader.invalid_count == 0
    list(steps)
    assert loader.invalid_count == 1


few = st.sampled_from("gh")
few_records = st.one_of(
    st.builds(
        Record,
        st.builds(OffsetKey, few, few, st.integers(0, 1)),
        st.one_of(st.none(), st.builds(CommittedOffset, st.integers(0, 9))),
    ),
    st.builds(
        Record,
        st.builds(GroupKey, few),
        st.one_of(
            st.builds(
                ClassicGroupMetadata, st.just("consumer"), st.integers(0, 9), st.none(), st.none()
            ),
            st.just(GROUP),
        ),
    ),
).map(lambda record: [record])
deletions = few.map(  # a group is removed with all its offsets
    lambda group: [
        *(Record(OffsetKey(group, topic, p), None) for topic in "gh" for p in (0, 1)),
        Record(GroupKey(group), None),
    ]
)
plain_records = st.lists(st.one_of(few_records, deletions), min_size=1, max_size=3).map(
    lambda parts: [record for part in parts for record in part]
)
log_steps = st.one_of(
    st.tuples(st.just("plain"), plain_records),
    st.tuples(st.just("transaction"), st.builds(Record, st.builds(OffsetKey, few, few, st.just(0)), st.builds(CommittedOffset, st.integers(0, 9)))),
    st.tuples(st.just("marker"), st.booleans()),
)  # fmt: skip


@given(st.lists(log_steps, max_size=12))
@settings(deadline=None)
def test_replaying_last_record_of_each_key_equals_replaying_all(
    history: list[tuple[str, object]],
) -> None:
    log, plain = Log(), GroupCoordinatorShard(GroupConfig())
    for what, extra in history:
        offset = log.next_offset
        if what == "plain":
            assert isinstance(extra, list)
            log.append([records.encode(each) for each in extra])
            for position, each in enumerate(extra):
                plain.replay(_copy(each), offset + position)
        elif what == "transaction":
            assert isinstance(extra, Record)
            log.append([records.encode(extra)], producer_id=5)
            plain.replay(_copy(extra), offset, 5)
        else:
            log.marker(5, 1 if extra else 0)
            plain.complete_transaction(5, committed=bool(extra))
    shard = load(log.data)
    assert shard.offsets._groups == plain.offsets._groups
    assert shard.offsets._unstable == plain.offsets._unstable
    assert {each: group.to_metadata({}) for each, group in _lasting(shard).items()} == {
        each: group.to_metadata({}) for each, group in _lasting(plain).items()
    }


def _lasting(shard: GroupCoordinatorShard) -> dict[str, ClassicGroup]:
    """The groups without simple groups that have no offsets, which compaction removes."""
    return {
        group_id: group
        for group_id, group in shard.groups.items()
        if not group.is_simple or shard.offsets.fetch_all(group_id, require_stable=False)
    }


def _copy(record: Record) -> Record:
    """A new value: `replay` keeps the object and sets its record offset."""
    key, value = record
    return Record(
        key, None if value is None else records.decode_value(key, records._encode_value(value))
    )


# Subscribed topics


def test_subscribed_topics() -> None:
    assert subscribed_topics([metadata("t", "u"), metadata("v")]) == {"t", "u", "v"}
    assert subscribed_topics([metadata()]) == frozenset()
    newer = b"\x00\x03" + metadata("t")[2:] + b"and more in later versions"
    assert subscribed_topics([newer]) == {"t"}


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\x00", b"\xff\xff\x00\x00\x00\x00", metadata("t")[:-1], b"\x00\x00\x7f\xff\xff\xff"],
)
def test_invalid_subscription_metadata_is_none(garbage: bytes) -> None:
    assert subscribed_topics([metadata("t"), garbage]) is None


@given(st.binary(max_size=64))
def test_subscribed_topics_of_arbitrary_metadata(data: bytes) -> None:
    subscribed_topics([data])
