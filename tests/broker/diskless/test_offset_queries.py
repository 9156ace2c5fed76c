"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords of diskless partitions (D-08, D-09)."""

from __future__ import annotations

import logging
import random

import pytest
import trio.testing

from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.testing.virtual_object_store import StoreFault, StoreFaultKind
from tests.support.diskless_fetches import NOW_MS, DisklessNode, offsets_of

NONE = ErrorCode.none


def found(timestamp: int, offset: int) -> tuple[ErrorCode, int, int, int]:
    return (NONE, timestamp, offset, 0)


NOT_FOUND = (NONE, -1, -1, -1)


async def test_special_timestamps_of_a_diskless_partition(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """D-09: -2 and -4 are the log start offset, -1 the high watermark, -5 and -6 have no offset."""
    async with DisklessNode().running() as node:
        for _ in range(3):
            node.commit({0: 2})
        node.delete_records(0, 3)
        for timestamp, expected in {
            -1: found(-1, 6),
            -2: found(-1, 3),
            -3: found(NOW_MS + 1, 3),  # the second record of a batch of which the first is deleted
            -4: found(-1, 3),
            -5: NOT_FOUND,
        }.items():
            assert await node.list_offsets({0: timestamp}) == {0: expected}, timestamp
        assert await node.list_offsets({1: -3}) == {1: NOT_FOUND}
        assert await node.list_offsets({1: -1}) == {1: found(-1, 0)}


async def test_timestamp_is_found_in_the_records_of_its_batch(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """D-09: the coordinator finds the batch, the broker reads the record in it."""
    async with DisklessNode().running() as node:
        node.commit({0: 3}, timestamps=[NOW_MS, NOW_MS + 50, NOW_MS + 20])
        node.commit({0: 3}, timestamps=[NOW_MS + 10, NOW_MS + 60, NOW_MS + 70])
        node.commit({1: 1})
        assert await node.list_offsets({0: NOW_MS + 20, 1: NOW_MS + 1}) == {
            0: found(NOW_MS + 50, 1),
            1: NOT_FOUND,
        }
        assert await node.list_offsets({0: NOW_MS + 51}) == {0: found(NOW_MS + 60, 4)}
        assert await node.list_offsets({0: -3}) == {0: found(NOW_MS + 70, 5)}
        assert await node.list_offsets({0: NOW_MS + 71}) == {0: NOT_FOUND}


async def test_timestamp_below_the_log_start_is_found_in_a_later_batch(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 2}, timestamps=[NOW_MS + 500, NOW_MS])
        for _ in range(3):
            node.commit({0: 2}, timestamps=[NOW_MS, NOW_MS])
        node.commit({0: 2}, timestamps=[NOW_MS, NOW_MS + 400])
        node.delete_records(0, 1)
        assert await node.list_offsets({0: NOW_MS + 300}) == {0: found(NOW_MS + 400, 9)}
        assert await node.list_offsets({0: NOW_MS + 450}) == {0: NOT_FOUND}


async def test_log_append_time_is_found_at_the_first_live_record(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 4}, log_append_time=True)
        node.delete_records(0, 2)
        assert await node.list_offsets({0: NOW_MS + 4000}) == {0: found(NOW_MS + 5000, 2)}
        assert await node.list_offsets({0: -3}) == {0: found(NOW_MS + 5000, 2)}
        assert await node.list_offsets({0: NOW_MS + 5001}) == {0: NOT_FOUND}


@pytest.mark.parametrize("seed", range(5))
async def test_random_timestamps_are_found_as_by_a_scan_of_all_records(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    rng = random.Random(seed)
    async with DisklessNode().running() as node:
        records: list[int] = []
        for _ in range(30):
            timestamps = [NOW_MS + rng.randrange(300) for _ in range(rng.randint(1, 5))]
            node.commit({0: len(timestamps)}, timestamps=timestamps)
            records.extend(timestamps)
        start = rng.randrange(len(records))
        node.delete_records(0, start)
        for wanted in rng.sample(range(NOW_MS - 1, NOW_MS + 302), 60):
            expected = next(
                (
                    found(timestamp, offset)
                    for offset, timestamp in enumerate(records)
                    if offset >= start and timestamp >= wanted
                ),
                NOT_FOUND,
            )
            assert await node.list_offsets({0: wanted}) == {0: expected}


async def test_list_offsets_errors_are_those_that_clients_retry(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with DisklessNode().running() as node:
        key = node.commit({0: 1})
        assert (await node.list_offsets({0: -1}, epoch=1))[0][0] == ErrorCode.unknown_leader_epoch
        assert (await node.list_offsets({0: -1}, replica_id=2))[0][0] == (
            ErrorCode.not_leader_or_follower
        )
        node.bucket.inject(StoreFault(StoreFaultKind.THROTTLED))
        assert (await node.list_offsets({0: NOW_MS}))[0][0] == ErrorCode.kafka_storage_error
        node.bucket.heal()
        node.bucket.remove(key)
        assert (await node.list_offsets({0: NOW_MS}))[0][0] == ErrorCode.kafka_storage_error
        (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert key in line.getMessage()
        node.coordinator.is_available = False
        assert (await node.list_offsets({0: -2}))[0][0] == ErrorCode.leader_not_available


async def test_offset_for_leader_epoch_is_the_high_watermark_of_epoch_zero(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with DisklessNode().running() as node:
        node.commit({0: 5})
        assert await node.epoch_ends({0: 0, 1: 0, 2: 3, 3: -1}) == {
            0: (NONE, 0, 5),
            1: (NONE, 0, 0),
            2: (NONE, -1, -1),
            3: (NONE, -1, -1),
        }
        assert await node.epoch_ends({0: 0}, epoch=2) == {
            0: (ErrorCode.unknown_leader_epoch, -1, -1)
        }
        node.coordinator.is_available = False
        assert await node.epoch_ends({0: 0}) == {0: (ErrorCode.leader_not_available, -1, -1)}


async def test_delete_records_advances_the_log_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """D-08: all partitions of a request; -1 is the high watermark; above it is OFFSET_OUT_OF_RANGE."""
    async with DisklessNode().running() as node:
        node.commit({0: 5, 1: 5, 2: 5})
        assert await node.delete_before({0: 2, 1: -1, 2: 6}) == {
            0: (NONE, 2),
            1: (NONE, 5),
            2: (ErrorCode.offset_out_of_range, -1),
        }
        assert await node.list_offsets({0: -2, 1: -2, 2: -2}) == {
            0: found(-1, 2),
            1: found(-1, 5),
            2: found(-1, 0),
        }
        reads: list[FetchedPartition] = await node.fetch({0: 2, 1: 5})
        assert offsets_of(reads[0]) == [0, 1, 2, 3, 4]  # the batch has the offset, as in Kafka
        assert reads[0].log_start_offset == 2
        node.coordinator.is_available = False
        assert await node.delete_before({0: 3}) == {0: (ErrorCode.leader_not_available, -1)}
