"""The two brokers with their topics, which are written once and kept.

    DIRECTORY/kafka     Apache Kafka's
    DIRECTORY/odradek   Odradek's data, with all segments also on the local disk
    DIRECTORY/store     its tiered segments: all but the last of each partition
    DIRECTORY/whole     description of the contents, written last; if it differs, all data is created again

Both brokers get the same batches, byte by byte.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from odradek.bench import machine
from odradek.bench.model import Target, WorkloadFailed
from odradek.bench.peers.kafka import Kafka
from odradek.bench.peers.odradek import keep_compiled
from odradek.bench.peers.process import ProcessLaunch, free_port, running
from odradek.bench.peers.topics import AdminTopics, not_yet, with_cluster
from odradek.bench.raw_connection import RawConnection, must_be_none
from odradek.bench.tables.records import PARTITIONS, TopicContent
from odradek.client.admin import NewTopic, create_topics
from odradek.client.metadata import Cluster
from odradek.client.producer import NAMED_TOPICS
from odradek.protocol.apis import PRODUCE
from odradek.protocol.errors import ErrorCode
from odradek.seams.real_files import RealFiles
from odradek.storage.tiered.store_location import directory_of_store, resolved_url

SEGMENTS = 16
"""The approximate number of segments of a partition, within the limits of SEGMENT_BYTES."""
SEGMENT_BYTES = (2 << 20, 128 << 20)
TIMEOUT_S = 900.0
START_S = 30.0
NOT_YET = (ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower)
IN_FLIGHT = 4
"""Concurrent requests: as many as a producer sends."""
ODRADEK, KAFKA, STORE = "odradek", "kafka", "store"
"""Names of the directories; the first two are the names of the brokers too."""
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Brokers:
    """The two running brokers and their directories. `store` is Odradek's object store."""

    odradek: Target
    kafka: Target
    directory: Path
    contents: Sequence[TopicContent]

    @property
    def store(self) -> Path:
        return store_directory(self.directory / STORE)

    def content(self, topic: str) -> TopicContent:
        return next(each for each in self.contents if each.topic.name == topic)


def store_directory(directory: Path) -> Path:
    """Directory of the objects in the store that is given as `directory`."""
    found = directory_of_store(resolved_url(str(directory), RealFiles()))
    assert found is not None, "it is a directory"
    return found


@contextmanager
def running_brokers(directory: Path, contents: Sequence[TopicContent]) -> Iterator[Brokers]:
    """Run the brokers on the data in `directory`, which is created if it is missing."""
    mark, description = directory / "whole", _describe(contents)
    is_whole = mark.exists() and mark.read_text() == description
    if not is_whole:
        mark.unlink(missing_ok=True)
        for name in (KAFKA, ODRADEK, STORE):
            shutil.rmtree(directory / name, ignore_errors=True)
            (directory / name).mkdir(parents=True)
    with ExitStack() as stack:
        odradek = stack.enter_context(_odradek(directory / ODRADEK, directory / STORE))
        theirs = stack.enter_context(Kafka().start(directory / KAFKA))
        brokers = Brokers(odradek, theirs, directory, contents)
        if not is_whole:
            for each in contents:
                for broker in (odradek, theirs):
                    _write(broker, each)
            _wait_until_tiered(directory / ODRADEK / "data", directory / STORE, contents)
            mark.write_text(description)
        machine.settle()
        yield brokers


def read_files(directory: Path, topic: str) -> None:
    """Read the topic's logs into the page cache, so that the disk is not measured."""
    buffer = bytearray(READ_BYTES)
    for path in sorted(directory.rglob(f"{topic}-*/*.log")):
        with path.open("rb", buffering=0) as log:
            while log.readinto(buffer):
                pass


def _describe(contents: Sequence[TopicContent]) -> str:
    rows = [
        [each.topic.name, each.batches, each.topic.batch_records, each.step_ms] for each in contents
    ]
    return json.dumps({"partitions": PARTITIONS, "topics": rows}) + "\n"


@contextmanager
def _odradek(directory: Path, store: Path) -> Iterator[Target]:
    address = ("127.0.0.1", free_port())
    settings = {
        "remote.log.manager.task.interval.ms": "1000",
        "log.initial.task.delay.ms": "1000",
    }
    command = [
        sys.executable, "-m", "odradek.cli", "serve",
        "--listen", f"{address[0]}:{address[1]}",
        "--log-dirs", str(directory / "data"),
        "--tiered", f"file://{store}",
        *(word for each in settings.items() for word in ("--set", "=".join(each))),
    ]  # fmt: skip
    keep_compiled()
    with running(ProcessLaunch(command, address, directory)) as process:
        yield Target(ODRADEK, process.bootstrap, AdminTopics(process.bootstrap), process)


def segment_bytes(content: TopicContent) -> int:
    """Return the segment size of a topic."""
    least, most = SEGMENT_BYTES
    return max(least, min(most, content.batches * len(content.batch(0)) // SEGMENTS))


def _write(broker: Target, content: TopicContent) -> None:
    name = content.topic.name
    configs = {"segment.bytes": str(segment_bytes(content)), "retention.ms": "-1"}
    if broker.peer == ODRADEK:
        configs["remote.storage.enable"] = "true"

    async def create(cluster: Cluster) -> None:
        await create_topics(cluster, [NewTopic(name, PARTITIONS, 1, configs)])
        for partition in range(PARTITIONS):
            await cluster.retrying(partial(cluster.leader, name, partition), also=not_yet)

    with_cluster(broker.bootstrap, create)
    everywhere = range(PARTITIONS)
    with RawConnection(broker.address) as wire:
        for partition in everywhere:
            _write_first(wire, name, content.batch(0), partition)
        for number in range(1, content.batches):
            if number > IN_FLIGHT:
                _check(wire, name)
            batch = content.batch(number)
            wire.send(PRODUCE, _produce(name, batch, everywhere), at_most=NAMED_TOPICS)
        for _ in range(min(content.batches - 1, IN_FLIGHT)):
            _check(wire, name)


def _write_first(wire: RawConnection, name: str, batch: bytes, partition: int) -> None:
    """Wait until the partition has a leader."""
    end = time.monotonic() + START_S
    while True:
        response = wire.request(PRODUCE, _produce(name, batch, [partition]), at_most=NAMED_TOPICS)
        code = response.responses[0].partition_responses[0].error_code
        if code not in NOT_YET or time.monotonic() > end:
            must_be_none(code, f"the first batch for {name}-{partition}")
            return
        time.sleep(0.05)


def _produce(name: str, batch: bytes, partitions: Iterable[int]) -> Mapping[str, Any]:
    """Produce the same batch to each partition in one request."""
    rows = [{"index": partition, "records": batch} for partition in partitions]
    return {
        "transactional_id": None,
        "acks": 1,
        "timeout": 30_000,
        "topic_data": [{"name": name, "partition_data": rows}],
    }


def _check(wire: RawConnection, name: str) -> None:
    for row in wire.receive().responses[0].partition_responses:
        must_be_none(row.error_code, f"a batch for {name}-{row.index}")


def _wait_until_tiered(data: Path, store: Path, contents: Sequence[TopicContent]) -> None:
    """Wait until the store has all segments except the last of each partition."""
    end = time.monotonic() + TIMEOUT_S
    for content in contents:
        name = content.topic.name
        for partition in range(PARTITIONS):
            logs = len(list((data / f"{name}-{partition}").glob("*.log")))
            while (
                len(list(store_directory(store).glob(f"{name}-{partition}-*/*.manifest")))
                < logs - 1
            ):
                if time.monotonic() > end:
                    raise WorkloadFailed(f"{TIMEOUT_S:g} s are not enough to copy {name}")
                time.sleep(0.2)
