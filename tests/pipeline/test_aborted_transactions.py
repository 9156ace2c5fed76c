"""Transactions of a query: it requests all aborted transactions that can affect the offsets to read, and no others."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Barrier
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.pipeline.decoding.record_selection import AbortedTransaction
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.planning import PartitionAbortedTransactions
from odradek.storage.log.transaction_index import ENTRY, VERSION
from odradek.storage.tiered.object_names import segment_key
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentId
from odradek.testing.virtual_object_store import VirtualObjectStore
from tests.pipeline.tiered_queries import (
    COMMITTED,
    HOW,
    ONLY,
    query,
    snapshot,
    unreadable,
    with_transaction_indexes,
)
from tests.pipeline.virtual_leader import VirtualLeader
from tests.pipeline.virtual_store import WHERE, SegmentStore, segment

pytestmark = pytest.mark.usefixtures("denied_object_reset")


@HOW
def test_rows_of_batches_need_no_transaction_index(how: str, kind: type[PipelineError]) -> None:
    """They include aborted batches."""
    remote, segments = with_transaction_indexes(3)
    unreadable(remote, segments[1], IndexType.TRANSACTION, how)
    asked = query(remote, rows="batches", **COMMITTED)
    ranges = asked.ranges()
    remote.asked()
    plan = asked.plan(ranges)
    assert ([(each.low, each.high) for each in plan.pieces], plan.aborted) == ([(0, 30)], {})
    suffix = IndexType.TRANSACTION.value
    assert not [key for _, key in remote.objects.bucket.requests if key.endswith(suffix)]


class RecordingStore(VirtualLeader):
    """Store that records its requests."""

    def __init__(self, *partitions: tuple[int, int]) -> None:
        super().__init__(*partitions)
        self.fetched: list[int] = []

    def fetch(self, where: Any, offset: int, **options: Any) -> Any:
        self.fetched.append(offset)
        return super().fetch(where, offset, **options)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@given(SPANS, SPANS)
def test_task_gets_each_overlapping_transaction_once(
    aborted: list[tuple[int, int]], read: list[tuple[int, int]]
) -> None:
    """Also if a transaction overlaps several ranges of the task."""
    all = [AbortedTransaction(n, min(each), max(each)) for n, each in enumerate(aborted)]
    ranges = [(min(each), max(each)) for each in read]
    expected = {each for each in all for low, high in ranges if each.reaches_into(low, high)}
    found = PartitionAbortedTransactions(all).of(ranges)
    assert len(found) == len(expected)
    assert set(found) == expected


@pytest.mark.parametrize("is_one_long", [False, True])
def test_20000_tasks_with_100000_transactions_are_planned_within_seconds(
    is_one_long: bool,
) -> None:
    """2e9 comparisons in Python would take a quarter of an hour."""
    all = [AbortedTransaction(7, first, first + 5) for first in range(0, 1_000_000, 10)]
    if is_one_long:
        all.insert(0, AbortedTransaction(8, 0, 1_000_000))
    found, began = PartitionAbortedTransactions(all), time.process_time()
    counts = [len(found.of([(low, low + 50)])) for low in range(0, 1_000_000, 50)]
    assert set(counts) == {5 + is_one_long}
    assert time.process_time() - began < 60


class ConcurrentStore(VirtualObjectStore):
    """Store that returns transaction indexes only after two were requested."""

    def __init__(self) -> None:
        super().__init__(page_objects=10)
        self._both = Barrier(2, timeout=10)

    def get(self, key: str) -> Any:
        if key.endswith(IndexType.TRANSACTION.value):
            self._both.wait()
        return super().get(key)


def test_transaction_indexes_of_partitions_are_read_concurrently() -> None:
    remote = SegmentStore(objects=ConcurrentStore())
    for number in (0, 1):
        id = RemoteLogSegmentId(replace(WHERE, partition=number), UUID(int=number))
        found = replace(segment(number, 0, 9), id=id, txn_index_empty=False)
        remote.has(found)
        snapshot(remote, found)
        entry = ENTRY.pack(VERSION, number, number, 9, 9)
        remote.objects.put(segment_key(found, IndexType.TRANSACTION.value), [entry])
    asked = query(remote, **COMMITTED)
    assert asked.plan(asked.ranges()).aborted == {
        ("t", number): [AbortedTransaction(number, number, 9)] for number in (0, 1)
    }


def test_transaction_outcomes_are_requested_for_relevant_offsets_only() -> None:
    """The store has no segment with 10 to 19 and 30 to 39. No transaction was open at offset 26 by an index."""
    remote, leader = SegmentStore(), RecordingStore((0, 60))
    segments = [
        replace(segment(number, first, first + 9), txn_index_empty=False)
        for number, first in enumerate((0, 20, 40))
    ]
    remote.has(*segments)
    for each in segments:
        remote.objects.put(segment_key(each, IndexType.TRANSACTION.value), [b""])
    entry = ENTRY.pack(VERSION, 7, 22, 25, 26)
    remote.objects.put(segment_key(segments[1], IndexType.TRANSACTION.value), [entry])
    with leader.reachable():
        for high, offsets in ((5, [10]), (26, [10]), (27, [10, 30, 50])):
            leader.fetched.clear()
            query(remote, leader, **COMMITTED).plan({ONLY: (0, high)})
            assert leader.fetched == offsets
