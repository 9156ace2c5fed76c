"""Tests of the wait of a fetch with a client socket, and of checkpoints in fetches of many partitions."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest
import trio

from odradek.broker.apis.fetch import fetch
from odradek.broker.fetch.log_reading import (
    PARTITIONS_PER_STEP,
    WARMED_AT_ONCE_BYTES,
    read_into_page_cache,
)
from odradek.broker.requests.context import RequestContext
from odradek.protocol import apis, messages
from odradek.protocol.fetch_request_reader import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.framing import read_response_header
from odradek.seams.files import FileSlice
from odradek.seams.network import Address
from odradek.seams.real_files import RealFiles
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.produce_requests import produce_batch
from tests.support.raw_requests import connect, read_frame, request_frame
from tests.support.records import batch

VERSION = 12
MAX_WAIT_MS = 20_000
AT_ONCE_SECONDS = 10.0


broker = broker_fixture(topics={"rolled": 1, "wide": 1})


def ask(broker: Broker, topic: str, offset: int, *, isolation_level: int) -> tuple[Any, float]:
    """Return the partition's response to a fetch above the available bytes, and its duration in seconds."""
    request = request_frame(
        apis.FETCH,
        VERSION,
        5,
        {
            "replica_id": -1,
            "max_wait": MAX_WAIT_MS,
            "min_bytes": 10_000,
            "isolation_level": isolation_level,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [
                        {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
                    ],
                }
            ],
            "forgotten_topics_data": [],
        },
    )
    began = time.monotonic()
    with connect(broker) as sock:
        sock.settimeout(2 * MAX_WAIT_MS / 1000)
        sock.sendall(request)
        view = memoryview(read_frame(sock))
    taken = time.monotonic() - began
    _, start = read_response_header(apis.FETCH, VERSION, view)
    response = messages.read_response(apis.FETCH.key, VERSION, view, start)
    ((partition,),) = [each.partitions for each in response.responses]
    return partition, taken


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_end_of_full_segment_is_returned_immediately(broker: Broker, isolation_level: int) -> None:
    async def roll() -> int:
        log = (await broker.node.partitions.get("rolled", None, 0)).log
        log.roll()
        return log.end_offset

    assert produce_batch(broker, "rolled", batch()).error_code == 0
    end = broker._call(roll)
    assert produce_batch(broker, "rolled", batch()).error_code == 0
    found, taken = ask(broker, "rolled", end - 1, isolation_level=isolation_level)
    assert len(found.records) == len(batch())
    assert taken < AT_ONCE_SECONDS


def test_fetch_of_many_partitions_runs_checkpoints(broker: Broker) -> None:
    turns = 5
    request = FetchRequest()
    request.max_bytes = 2**20
    partitions = [
        FetchPartition(index, -1, 0, -1, -1, 1) for index in range(turns * PARTITIONS_PER_STEP)
    ]
    request.topics = [FetchTopic("wide", None, partitions)]

    async def passes() -> int:
        """Number of times that another task ran while the request was handled."""
        count = 0

        async def others() -> None:
            nonlocal count
            while True:
                await trio.lowlevel.checkpoint()
                count += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await trio.lowlevel.checkpoint()
            count = 0
            response = await fetch(request, context(broker))
            assert len(response.chosen) == turns * PARTITIONS_PER_STEP
            nursery.cancel_scope.cancel()
        return count

    assert broker._call(passes) >= turns - 1


def context(broker: Broker) -> RequestContext:
    async def flush() -> None:
        pass

    return RequestContext(
        broker.node.services,
        apis.FETCH,
        VERSION,
        1,
        "test",
        cast(Any, None),  # the listener does not matter
        Address("127.0.0.1", 1),
        flush,
    )


def test_cold_slices_are_loaded_in_parts(tmp_path: Path) -> None:
    size = 16 * WARMED_AT_ONCE_BYTES + 5
    file = RealFiles().open(PurePosixPath(tmp_path / "old"), create=True)
    file.append_v([bytes(size)])
    tracemalloc.start()
    try:
        read_into_page_cache(FileSlice(file, 3, size - 3))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        file.close()
    assert WARMED_AT_ONCE_BYTES <= peak_bytes < 4 * WARMED_AT_ONCE_BYTES
