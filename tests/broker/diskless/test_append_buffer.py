"""Rotation of WAL files: interval from the first batch, size limit, one open file."""

from __future__ import annotations

from math import inf
from uuid import UUID

from odradek.broker.diskless.append_buffer import (
    AppendBuffer,
    AppendOutcome,
    AppendWaiter,
    BufferedBatch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import Batch
from tests.support.partition_logs import batch

TOPIC = UUID(int=1)


def add(buffer: AppendBuffer, now: float, *, size: int = 20, coordinator_id: int = 0) -> bool:
    data = Batch(batch(1, size=size))
    buffered = BufferedBatch(TOPIC, 0, coordinator_id, data, AppendWaiter())
    return buffer.add(buffered, data, now)


def test_file_is_due_an_interval_after_its_first_batch() -> None:
    buffer = AppendBuffer(0.25, 1 << 20)
    assert buffer.due_at == inf
    assert add(buffer, 10.0)
    assert not add(buffer, 10.2)
    assert buffer.due_at == 10.25
    assert buffer.take(10.24) is None
    file = buffer.take(10.25)
    assert file is not None
    assert (file.opened_at, len(file.batches)) == (10.0, 2)
    assert not buffer
    assert buffer.due_at == inf


def test_full_file_is_due_at_once() -> None:
    buffer = AppendBuffer(0.25, 300)
    assert add(buffer, 1.0)
    assert add(buffer, 1.0, size=200)
    assert buffer.due_at == -inf
    first, second = buffer.take(1.0), buffer.take(1.0)
    assert first is not None
    assert len(first.batches) == 1
    assert second is None
    second = buffer.take(1.25)
    assert second is not None
    assert second.size_bytes > 200


def test_only_a_single_batch_exceeds_the_limit() -> None:
    buffer = AppendBuffer(0.25, 300)
    for size in (20, 20, 20, 1000, 20):
        add(buffer, 0.0, size=size)
    buffer.close()
    sizes = []
    while (file := buffer.take(0.0)) is not None:
        sizes.append((len(file.batches), file.size_bytes > 300))
    assert sizes == [(3, False), (1, True), (1, False)]


def test_closed_files_are_taken_in_order_before_the_open_one() -> None:
    buffer = AppendBuffer(0.25, 1 << 20)
    for coordinator_id in (3, 1):
        add(buffer, 0.0, coordinator_id=coordinator_id)
    buffer.close()
    add(buffer, 0.1, coordinator_id=7)
    first, second = buffer.take(0.1), buffer.take(0.1)
    assert first is not None
    assert first.coordinator_ids() == [1, 3]
    assert second is None


def test_outcome_is_set_once_and_waiter_is_called_after_the_last() -> None:
    calls: list[None] = []
    waiter = AppendWaiter(lambda: calls.append(None))
    data = Batch(batch(1))
    first, second = (BufferedBatch(TOPIC, n, 0, data, waiter) for n in range(2))
    first.complete(AppendOutcome(base_offset=5))
    first.complete(AppendOutcome(ErrorCode.request_timed_out))
    assert first.outcome == AppendOutcome(base_offset=5)
    assert not calls
    second.complete(AppendOutcome())
    assert len(calls) == 1
