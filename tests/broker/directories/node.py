"""Node with the log directories /a and /b, each on a virtual disk, and a client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.files import Path
from odradek.seams.real import real_seams
from odradek.testing import Broker
from odradek.testing.power import Power
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from tests.support.raw_client import RawClient

A, B = Path("/a"), Path("/b")
CONFIGS = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "log.initial.task.delay.ms": "1",
    "replica.high.watermark.checkpoint.interval.ms": "20",
}
Where = dict[tuple[str, int], str]
"""Log directory of each partition."""


def two_disks() -> VirtualDisk:
    disk = VirtualDisk()
    for path in (A, B):
        disk.mount(path)
    return disk


@dataclass
class Node:
    """A running broker with a client; `ask` sends any request."""

    broker: Broker
    disk: VirtualDisk
    client: RawClient
    configs: Mapping[str, str] = field(default_factory=dict)

    def ask(self, api: apis.Api, version: int, **values: Any) -> Any:
        return self.client.ask(api, version, values)

    def produce(self, topic: str, index: int, *values: str, acks: int = -1) -> ErrorCode:
        """Produce one batch and return the error code."""
        records = [Record(-1, 1_700_000_000_000, None, value.encode()) for value in values]
        partition = {"index": index, "records": build_batch(records)}
        response = self.ask(
            apis.PRODUCE,
            9,
            transactional_id=None,
            acks=acks,
            timeout=5_000,
            topic_data=[{"name": topic, "partition_data": [partition]}],
        )
        code: ErrorCode = response.responses[0].partition_responses[0].error_code
        return code

    def where(self) -> Where:
        """Partitions of each online log directory."""
        response = self.ask(apis.DESCRIBE_LOG_DIRS, 4, topics=None)
        return {
            (topic.name, partition.partition_index): result.log_dir
            for result in response.results
            for topic in result.topics
            for partition in topic.partitions
        }

    def log_dirs(self) -> dict[str, Any]:
        response = self.ask(apis.DESCRIBE_LOG_DIRS, 4, topics=None)
        return {result.log_dir: result for result in response.results}

    def metadata(self, topic: str) -> dict[int, Any]:
        response = self.ask(
            apis.METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False
        )
        return {each.partition_index: each for each in response.topics[0].partitions}


@contextmanager
def running(
    disk: VirtualDisk, *, topics: Mapping[str, int] | None = None, **configs: str
) -> Iterator[Node]:
    """Run a node with these disks; `_` in config names stands for a dot."""
    all_configs = {**CONFIGS, **{key.replace("_", "."): value for key, value in configs.items()}}
    seams = replace(real_seams(), files=VirtualFiles(disk, Power()))
    with Broker(topics=topics or {}, data=f"{A},{B}", seams=seams, configs=all_configs) as broker:
        with RawClient(broker.bootstrap) as client:
            yield Node(broker, disk, client, all_configs)


def partition_results(node: Node, topic: str, index: int) -> Iterator[Any]:
    """Partition results of the APIs that have partitions."""
    at: dict[str, Any] = {"current_leader_epoch": -1}
    listed = {**at, "partition_index": index, "timestamp": -1}
    response = node.ask(
        apis.LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": [listed]}],
    )
    yield response.topics[0].partitions[0]
    response = node.ask(
        apis.OFFSET_FOR_LEADER_EPOCH,
        4,
        replica_id=-1,
        topics=[{"topic": topic, "partitions": [{**at, "partition": index, "leader_epoch": 0}]}],
    )
    yield response.topics[0].partitions[0]
    response = node.ask(
        apis.DELETE_RECORDS,
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": index, "offset": 0}]}],
        timeout=1000,
    )
    yield response.topics[0].partitions[0]
    response = node.ask(
        apis.DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [index]}]
    )
    yield response.topics[0].partitions[0]
    fetched = {**at, "partition": index, "fetch_offset": 0, "partition_max_bytes": 1000}
    response = node.ask(
        apis.FETCH,
        12,
        replica_id=-1,
        max_wait=0,
        min_bytes=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [fetched]}],
        forgotten_topics_data=[],
    )
    yield response.responses[0].partitions[0]
