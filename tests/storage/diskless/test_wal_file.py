"""WAL files: layout of the object, and the batches of its commit request (D-05)."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.records.batch import LOG_APPEND_TIME, Batch, batches
from odradek.storage.diskless.wal_file import WalFile
from tests.support.partition_logs import batch, idempotent

FIRST, SECOND = UUID(int=1), UUID(int=2)


@given(
    st.lists(
        st.tuples(st.sampled_from([FIRST, SECOND]), st.integers(0, 3), st.integers(1, 4)),
        max_size=20,
    )
)
def test_object_has_batches_by_topic_and_partition_in_arrival_order(
    added: list[tuple[UUID, int, int]],
) -> None:
    """D-05: byte offset and size of each batch locate exactly its bytes."""
    file = WalFile()
    given_batches = []
    for topic_id, index, count in added:
        data = bytes(batch(count))
        number = file.add(topic_id, index, Batch(memoryview(bytearray(data))))
        given_batches.append((topic_id, index, number, data))
    assert file.size_bytes == sum(len(data) for _, _, _, data in given_batches)
    built = file.build()
    assert built.size_bytes == file.size_bytes
    expected = sorted(given_batches, key=lambda each: (each[0].bytes, each[1]))
    assert [
        (each.topic_id, each.partition_index, number, built.data[each.byte_offset :][: each.size])
        for each, number in zip(built.batches, built.arrivals, strict=True)
    ] == expected
    assert len(list(batches(memoryview(built.data), check=True))) == len(added)


def test_commit_has_the_fields_of_the_batch_header() -> None:
    """D-05: producer id, epoch, sequences, relative offsets, largest timestamp and its type."""
    produced = Batch(idempotent(9, 2**31 - 2, 3, producer_epoch=2))
    produced.set_max_timestamp(LOG_APPEND_TIME, 1234)
    file = WalFile()
    file.add(FIRST, 5, produced, request_id=77)
    (committed,) = file.build().batches
    assert committed.magic == 2
    assert (committed.request_id, committed.topic_id, committed.partition_index) == (77, FIRST, 5)
    assert (committed.base_offset, committed.last_offset) == (0, 2)
    assert (committed.batch_max_timestamp, committed.timestamp_type) == (1234, 1)
    assert (committed.producer_id, committed.producer_epoch) == (9, 2)
    assert (committed.base_sequence, committed.last_sequence) == (2**31 - 2, 0)


def test_batch_without_producer_has_minus_one() -> None:
    file = WalFile()
    file.add(FIRST, 0, Batch(batch(2)))
    (committed,) = file.build().batches
    unset = (committed.producer_id, committed.producer_epoch)
    assert (*unset, committed.base_sequence, committed.last_sequence) == (-1, -1, -1, -1)


def test_added_bytes_are_copied() -> None:
    """A connection overwrites its buffer with the next request."""
    data = batch(1)
    before = bytes(data)
    file = WalFile()
    file.add(FIRST, 0, Batch(data))
    data[:] = bytes(len(data))
    assert file.build().data == before


def test_empty_file_is_false() -> None:
    assert not WalFile()
