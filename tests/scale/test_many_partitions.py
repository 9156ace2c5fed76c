"""A broker with 4,000 partitions of 10 segments each, and 1,024 file descriptors.

Raw requests create the topics, produce and fetch; then the broker is stopped and killed, and started again each
time. The test checks the records and the limits of the process, and prints the duration of each step (`-s`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import batches
from odradek.protocol.records.records import Record, build_batch, decode
from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.raw_client import RawClient

TOPICS, PARTITIONS, SEGMENTS = 40, 100, 10
DESCRIPTORS = 1_024
RSS_MIB_MAX = 400
"""A limit far above the expected value, which is printed."""
CONFIGS = {"internal.segment.bytes": "150", "segment.index.bytes": "1024"}
NAMES = [f"many-{number:02d}" for number in range(TOPICS)]
SOFTWARE = {"client_software_name": "raw", "client_software_version": "1"}


def value_of(topic: str, partition: int, number: int) -> bytes:
    """A value larger than half a segment, so that each segment has one record."""
    return f"{topic}/{partition}/{number}".ljust(60, ".").encode()


def create_topics(client: RawClient) -> None:
    configs = [{"name": name, "value": value} for name, value in CONFIGS.items()]
    topics = [
        {
            "name": name,
            "num_partitions": PARTITIONS,
            "replication_factor": 1,
            "assignments": [],
            "configs": configs,
        }
        for name in NAMES
    ]
    response = client.ask(
        apis.CREATE_TOPICS, 7, {"topics": topics, "timeout": 60_000, "validate_only": False}
    )
    assert {each.error_code for each in response.topics} == {ErrorCode.none}


def produce(client: RawClient, number: int) -> None:
    """Produce record `number` to every partition, as a separate batch and segment."""
    now_ms = time.time_ns() // 1_000_000
    for topic in NAMES:
        data = [
            {
                "index": index,
                "records": bytes(
                    build_batch([Record(-1, now_ms, None, value_of(topic, index, number))])
                ),
            }
            for index in range(PARTITIONS)
        ]
        response = client.ask(
            apis.PRODUCE,
            9,
            {
                "transactional_id": None,
                "acks": -1,
                "timeout": 30_000,
                "topic_data": [{"name": topic, "partition_data": data}],
            },
        )
        for each in response.responses[0].partition_responses:
            assert (each.error_code, each.base_offset) == (ErrorCode.none, number), each


def fetch(client: RawClient, topic: str, offset: int, indexes: range) -> dict[int, list[bytes]]:
    """Return the values from an offset in each partition; a response has at most one segment."""
    partitions = [
        {
            "partition": index,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        for index in indexes
    ]
    response: Any = client.ask(
        apis.FETCH,
        12,
        {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 30,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": partitions}],
            "forgotten_topics_data": [],
            "rack_id": "",
        },
    )
    found: dict[int, list[bytes]] = {}
    for each in response.responses[0].partitions:
        assert each.error_code is ErrorCode.none
        records = [one for batch in batches(each.records, check=True) for one in decode(batch)]
        found[each.partition_index] = [one.value or b"" for one in records]
    return found


def check_offset(client: RawClient, offset: int, topics: list[str]) -> None:
    """Check that each partition of the topics has its record at the offset."""
    for topic in topics:
        found = fetch(client, topic, offset, range(PARTITIONS))
        for index in range(PARTITIONS):
            assert found[index][:1] == [value_of(topic, index, offset)]


def metadata_of_all(client: RawClient) -> int:
    """Return the number of partitions with a leader."""
    response = client.ask(
        apis.METADATA,
        12,
        {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
    )
    return sum(1 for topic in response.topics for each in topic.partitions if each.leader_id == 1)


class Watched:
    """Records the maximum memory and descriptors of the process, and the latency of a small request."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.descriptors = self.rss_mib = 0
        self.slowest_ms = 0.0
        self._broker = broker
        self._over = Event()
        self._thread = Thread(target=self._watch)

    def _watch(self) -> None:
        process = Path("/proc") / str(self._broker.process.pid)
        with RawClient(self._broker.bootstrap) as client:
            while not self._over.wait(0.02):
                self.descriptors = max(self.descriptors, len(os.listdir(process / "fd")))
                pages = int((process / "statm").read_text().split()[1])
                self.rss_mib = max(self.rss_mib, pages * os.sysconf("SC_PAGE_SIZE") >> 20)
                started = time.monotonic()
                client.ask(apis.API_VERSIONS, 3, SOFTWARE)
                self.slowest_ms = max(self.slowest_ms, (time.monotonic() - started) * 1e3)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def step(what: str, watched: BrokerProcess | None = None) -> Iterator[None]:
    """Measure and print the duration of a step, and check the limits of `watched` during it."""
    started = time.monotonic()
    note = ""
    if watched is None:
        yield
    else:
        with Watched(watched) as seen:
            yield
        note = (
            f"; at most {seen.descriptors} descriptors, {seen.rss_mib} MiB,"
            f" {seen.slowest_ms:.0f} ms for a small request"
        )
        assert seen.descriptors < DESCRIPTORS
        assert seen.rss_mib < RSS_MIB_MAX
    print(f"{what}: {time.monotonic() - started:.2f} s{note}")


def start(directory: Path) -> BrokerProcess:
    broker = start_odradek(directory, descriptors=DESCRIPTORS, log_dir_count=2)
    broker.log_file.write_bytes(b"")
    return broker


@pytest.mark.slow
@pytest.mark.alone
def test_broker_serves_four_thousand_partitions_of_ten_segments(tmp_path: Path) -> None:
    broker = start(tmp_path)
    try:
        fill(broker)
        with step("clean stop"):
            broker.stop()
        with step("clean start"):
            broker = start(tmp_path)
        read_back(broker, "after a clean start")
        with RawClient(broker.bootstrap) as client, step("one more segment each", broker):
            produce(client, SEGMENTS)
        broker.kill()
        with step("start after a kill"):
            broker = start(tmp_path)
        read_back(broker, "after a kill")
        with RawClient(broker.bootstrap) as client:
            check_offset(client, SEGMENTS, NAMES)
        with step("clean stop again"):
            broker.stop()
    finally:
        broker.kill()
    segments = sum(1 for path in broker.log_dirs for _ in path.glob("many-*/*.log"))
    assert segments >= TOPICS * PARTITIONS * (SEGMENTS + 1)


def fill(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as client:
        with step("create", broker):
            create_topics(client)
        with step("first record each", broker):
            produce(client, 0)
        with step("nine more segments each", broker):
            for number in range(1, SEGMENTS):
                produce(client, number)
        read_back(broker, "when written")
        with step("ten seconds of idleness", broker):
            time.sleep(10)


def read_back(broker: BrokerProcess, when: str) -> None:
    with RawClient(broker.bootstrap) as client:
        with step(f"metadata of all {when}", broker):
            assert metadata_of_all(client) == TOPICS * PARTITIONS
        with step(f"a segment of each partition {when}", broker):
            check_offset(client, 3, NAMES)
        with step(f"every segment of four topics {when}", broker):
            for offset in range(SEGMENTS):
                check_offset(client, offset, NAMES[::10])
