"""Committed offsets: replay, pending transactions, fetch, expiration, removal."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.broker.groups.messages import CommittedOffset, OffsetKey
from odradek.broker.groups.offset_store import OffsetExpirationRule, OffsetStore, is_expired
from odradek.protocol.errors import ErrorCode

KEY = OffsetKey("g", "t", 0)
OLD, NEW = UUID(int=1), UUID(int=2)
HOUR_MS = 3_600_000


def at(record_offset: int, offset: int, **more: object) -> CommittedOffset:
    return CommittedOffset(offset, record_offset=record_offset, **more)  # type: ignore[arg-type]


def offset_of(store: OffsetStore, key: OffsetKey = KEY) -> int | None:
    held = store.get(key)
    return None if held is None else held.offset


def test_last_commit_is_valid() -> None:
    store = OffsetStore()
    store.put(KEY, at(0, 5))
    store.put(KEY, at(1, 7))
    assert offset_of(store) == 7
    assert store.count == 1


def test_tombstone_removes_offset() -> None:
    store = OffsetStore()
    store.put(KEY, at(0, 5))
    store.remove(KEY)
    store.remove(KEY)
    assert offset_of(store) is None
    assert store.count == 0
    assert list(store.groups()) == []
    assert store._groups == {}


def test_commit_marker_applies_pending_offsets() -> None:
    store = OffsetStore()
    store.put(KEY, at(0, 5))
    store.put(KEY, at(1, 9), producer_id=77)
    assert offset_of(store) == 5
    assert store.is_unstable(*KEY)
    store.complete_transaction(77, committed=True)
    assert offset_of(store) == 9
    assert not store.is_unstable(*KEY)
    assert not store.has_pending_transactional_offsets("g")


def test_abort_marker_discards_pending_offsets() -> None:
    store = OffsetStore()
    store.put(KEY, at(0, 9), producer_id=77)
    assert list(store.groups()) == ["g"]
    store.complete_transaction(77, committed=False)
    assert offset_of(store) is None
    assert list(store.groups()) == []


def test_marker_of_unknown_producer_changes_nothing() -> None:
    OffsetStore().complete_transaction(1, committed=True)


def test_later_of_transactional_and_plain_commit_is_valid() -> None:
    store = OffsetStore()
    store.put(KEY, at(1, 9), producer_id=77)
    store.put(KEY, at(2, 20))
    store.complete_transaction(77, committed=True)
    assert offset_of(store) == 20


def test_tombstone_removes_pending_offsets() -> None:
    store = OffsetStore()
    other = OffsetKey("g", "t", 1)
    store.put(KEY, at(0, 9), producer_id=77)
    store.put(KEY, at(1, 10), producer_id=78)
    store.put(other, at(2, 11), producer_id=77)
    store.remove(KEY)
    assert not store.is_unstable(*KEY)
    store.complete_transaction(77, committed=True)
    store.complete_transaction(78, committed=True)
    assert offset_of(store) is None
    assert offset_of(store, other) == 11


def test_fetch_without_commit_returns_minus_one() -> None:
    (found,) = OffsetStore().fetch("g", "t", None, [3], require_stable=True).partitions
    assert (found.offset.offset, found.offset.leader_epoch, found.offset.metadata) == (-1, -1, "")
    assert found.error is ErrorCode.none


def test_fetch_with_require_stable_fails_for_pending_offsets() -> None:
    store = OffsetStore()
    store.put(KEY, at(0, 5))
    store.put(KEY, at(1, 9), producer_id=77)
    (stable,) = store.fetch("g", "t", None, [0], require_stable=True).partitions
    assert stable.error is ErrorCode.unstable_offset_commit
    assert stable.offset.offset == -1
    (any_,) = store.fetch("g", "t", None, [0], require_stable=False).partitions
    assert any_.offset.offset == 5


@pytest.mark.parametrize(
    ("committed_for", "asked_for", "expected"),
    [(OLD, OLD, 5), (OLD, NEW, -1), (OLD, None, 5), (None, NEW, 5), (None, None, 5)],
)
def test_offset_of_deleted_topic_is_not_returned_for_new_topic(
    committed_for: UUID | None, asked_for: UUID | None, expected: int
) -> None:
    store = OffsetStore()
    store.put(KEY, at(0, 5, topic_id=committed_for))
    (found,) = store.fetch("g", "t", asked_for, [0], require_stable=False).partitions
    assert found.offset.offset == expected


def test_fetch_all_and_keys_return_all_partitions() -> None:
    store = OffsetStore()
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        store.put(OffsetKey("g", topic, partition), at(0, partition))
    store.put(OffsetKey("g", "v", 0), at(1, 1), producer_id=5)
    store.put(OffsetKey("other", "t", 0), at(2, 1))
    topics = store.fetch_all("g", require_stable=False)
    assert [(each.topic, len(each.partitions)) for each in topics] == [("t", 2), ("u", 1)]
    assert sorted(store.keys("g")) == [
        ("g", "t", 0),
        ("g", "t", 1),
        ("g", "u", 0),
        ("g", "v", 0),
    ]


def test_keys_of_topic_exclude_other_topic_ids() -> None:
    store = OffsetStore()
    store.put(OffsetKey("a", "t", 0), at(0, 1, topic_id=OLD))
    store.put(OffsetKey("b", "t", 0), at(1, 1, topic_id=NEW))
    store.put(OffsetKey("c", "t", 0), at(2, 1))
    store.put(OffsetKey("d", "t", 0), at(3, 1, topic_id=OLD), producer_id=9)
    store.put(OffsetKey("a", "u", 0), at(4, 1, topic_id=OLD))
    assert [key.group_id for key in store.keys_of_topic("t", OLD)] == ["a", "c", "d"]


@pytest.mark.parametrize(
    ("rule", "committed_ms", "expires_ms", "now_ms", "expired"),
    [
        (None, 0, None, 10 * HOUR_MS, False),  # offsets do not expire during a rebalance
        (OffsetExpirationRule(None), 0, None, HOUR_MS - 1, False),
        (OffsetExpirationRule(None), 0, None, HOUR_MS, True),
        # The group is empty since then
        (OffsetExpirationRule(since_ms=HOUR_MS), 0, None, 2 * HOUR_MS - 1, False),
        (OffsetExpirationRule(since_ms=HOUR_MS), 0, None, 2 * HOUR_MS, True),
        # OffsetCommit v2-4 with a retention time
        (OffsetExpirationRule(since_ms=HOUR_MS), 0, 100, 100, True),
        (OffsetExpirationRule(None), 0, 20 * HOUR_MS, 19 * HOUR_MS, False),
    ],
)
def test_offset_expiration(
    rule: OffsetExpirationRule | None,
    committed_ms: int,
    expires_ms: int | None,
    now_ms: int,
    expired: bool,
) -> None:
    offset = CommittedOffset(1, commit_timestamp_ms=committed_ms, expire_timestamp_ms=expires_ms)
    assert is_expired(offset, rule, now_ms=now_ms, retention_ms=HOUR_MS) is expired


def test_offset_with_pending_commit_does_not_expire() -> None:
    store = OffsetStore()
    store.put(KEY, at(0, 5, commit_timestamp_ms=0))
    everything = {"now_ms": 2 * HOUR_MS, "retention_ms": HOUR_MS}
    assert store.expired("g", OffsetExpirationRule(None), **everything) == [KEY]
    store.put(KEY, at(1, 9), producer_id=77)
    assert store.expired("g", OffsetExpirationRule(None), **everything) == []


keys = st.builds(OffsetKey, st.sampled_from("gh"), st.sampled_from("tu"), st.integers(0, 1))
steps = st.one_of(
    st.tuples(st.just("put"), keys, st.sampled_from([-1, 7, 8])),
    st.tuples(st.just("remove"), keys, st.just(-1)),
    st.tuples(st.just("end"), st.sampled_from([7, 8]), st.booleans()),
)


@given(st.lists(steps, max_size=40))
def test_offset_store_equals_model(history: list[tuple[str, object, object]]) -> None:
    """Compare with a model: a dictionary of committed and a list of pending offsets."""
    store = OffsetStore()
    held: dict[OffsetKey, CommittedOffset] = {}
    pending: list[tuple[int, OffsetKey, CommittedOffset]] = []
    for record_offset, (what, key, extra) in enumerate(history):
        if what == "put":
            assert isinstance(key, OffsetKey)
            committed = at(record_offset, record_offset)
            assert isinstance(extra, int)
            store.put(key, committed, extra)
            if extra == -1:
                held[key] = committed
            else:
                pending.append((extra, key, committed))
        elif what == "remove":
            assert isinstance(key, OffsetKey)
            store.remove(key)
            held.pop(key, None)
            pending = [each for each in pending if each[1] != key]
        else:
            assert isinstance(key, int)
            store.complete_transaction(key, committed=bool(extra))
            mine = {each[1]: each[2] for each in pending if each[0] == key}
            pending = [each for each in pending if each[0] != key]
            for each, committed in mine.items() if extra else ():
                if each not in held or held[each].record_offset < committed.record_offset:
                    held[each] = committed
        assert store.count == len(held)
        for each in {*held, *(key for _, key, _ in pending)}:
            assert store.get(each) == held.get(each)
            assert store.has(each)
            assert store.is_unstable(*each) == any(key == each for _, key, _ in pending)
        assert set(store.groups()) == {
            each.group_id for each in (*held, *(key for _, key, _ in pending))
        }
