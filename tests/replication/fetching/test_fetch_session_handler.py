"""Fetch session of a follower (KIP-227): sent, pending and repeated fetches."""

from __future__ import annotations

from uuid import UUID

from odradek.replication.fetching.fetch_session_handler import (
    NEW_PARTITIONS_MAX,
    FetchSessionHandler,
    TopicIdAndPartition,
)
from odradek.replication.partition.follower_state import Fetch

A, B, C = ((UUID(int=number), 0) for number in (1, 2, 3))


def at(offset: int, epoch: int = 0) -> Fetch:
    return Fetch(epoch, offset, epoch, 0)


def sent(
    session: FetchSessionHandler,
) -> tuple[int, int, dict[TopicIdAndPartition, int], list[TopicIdAndPartition]]:
    plan = session.plan()
    offsets = {key: query.offset for key, query in plan.wanted}
    return plan.session_id, plan.session_epoch, offsets, list(plan.forgotten)


def begun(*keys: TopicIdAndPartition) -> FetchSessionHandler:
    session = FetchSessionHandler()
    for key in keys:
        session.want(key, at(5))
    session.plan()
    session.responded(77)
    return session


def test_session_starts_full_and_continues_with_changes() -> None:
    session = FetchSessionHandler()
    session.want(A, at(1))
    session.want(B, at(2))
    assert sent(session) == (0, 0, {A: 1, B: 2}, [])
    session.responded(77)
    assert sent(session) == (77, 1, {}, [])
    session.responded(77)
    session.want(B, at(3))
    session.want(C, at(0))
    session.forget(A)
    assert sent(session) == (77, 2, {B: 3, C: 0}, [A])


def test_unchanged_fetch_is_sent_once() -> None:
    session = begun(A)
    again = at(5)
    session.want(A, again)
    assert session.fetch_of(A) is again
    assert sent(session) == (77, 1, {}, [])


def test_partition_wanted_again_is_not_forgotten() -> None:
    session = begun(A, B)
    session.forget(A)
    session.want(A, at(5))
    assert sent(session) == (77, 1, {A: 5}, [])


def test_unsent_partition_is_not_in_forgotten_topics() -> None:
    session = begun(A)
    session.want(B, at(0))
    session.forget(B)
    session.forget(C)
    assert sent(session) == (77, 1, {}, [])
    assert session.fetch_of(B) is None


def test_lost_request_is_followed_by_full_one_with_old_session_id() -> None:
    session = begun(A, B)
    session.want(A, at(6))
    session.forget(B)
    session.plan()
    session.lost()
    assert sent(session) == (77, 0, {A: 6}, [])
    session.responded(78)
    assert sent(session) == (78, 1, {}, [])


def test_request_without_session_is_full() -> None:
    session = FetchSessionHandler()
    keys = [(UUID(int=9), number) for number in range(NEW_PARTITIONS_MAX + 1)]
    for key in keys:
        session.want(key, at(1))
    session.plan()
    session.responded(0)
    for _ in range(2):
        plan = session.plan()
        assert (plan.session_id, plan.session_epoch) == (0, 0)
        assert [key for key, _ in plan.wanted] == keys
        assert plan.is_complete
        session.responded(0)


def test_many_new_partitions_are_split_over_requests() -> None:
    session = FetchSessionHandler()
    for number in range(2 * NEW_PARTITIONS_MAX + 1):
        session.want((UUID(int=9), number), at(1))
    sizes = []
    complete = []
    for _ in range(3):
        plan = session.plan()
        sizes.append(len(plan.wanted))
        complete.append(plan.is_complete)
        session.responded(5)
    assert sizes == [NEW_PARTITIONS_MAX, NEW_PARTITIONS_MAX, 1]
    assert complete == [False, False, True]


def test_session_epoch_wraps_to_one() -> None:
    session = begun(A)
    session._epoch = 2**31 - 1
    session.plan()
    session.responded(77)
    assert sent(session)[1] == 1


def test_changed_partitions_precede_new_ones() -> None:
    """Otherwise the leader reads it from the previous offset."""
    session = FetchSessionHandler()
    for number in range(3 * NEW_PARTITIONS_MAX):
        session.want((UUID(int=9), number), at(5))
    first, *_ = (key for key, _ in session.plan().wanted)
    session.responded(77)
    session.want(first, at(8))
    _, _, offsets, _ = sent(session)
    assert offsets.pop(first) == 8
    assert len(offsets) == NEW_PARTITIONS_MAX
    session.responded(77)
    assert len(sent(session)[2]) == NEW_PARTITIONS_MAX
    session.responded(77)
    assert sent(session)[2] == {}
