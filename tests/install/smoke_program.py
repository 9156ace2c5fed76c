"""Uses the main parts of an installed Odradek in one process, and prints each part when it has passed.

It imports only the package and the standard library, so it also runs where the tools of the tests are missing: with
the lowest versions of the dependencies, and without the system calls that only Linux has.

`python smoke_program.py DIRECTORY` keeps its data in that directory.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from odradek.client.consumer import EARLIEST, ConsumedRecord, Reader, list_offsets
from odradek.client.log_dir_admin import Replica, alter_replica_log_dirs, describe_log_dirs
from odradek.client.metadata import Cluster, open_cluster
from odradek.client.producer import ProducerOptions, open_producer
from odradek.protocol.records.compression import NAMES as CODECS
from odradek.protocol.topics import TopicPartition
from odradek.seams.real import real_seams
from odradek.testing import Broker

TIMEOUT_S = 60.0
MIB = 1 << 20
LOG_CONFIGS = {
    "log.cleaner.backoff.ms": 100,
    "log.flush.interval.messages": 1,
    "remote.log.manager.task.interval.ms": 200,
    "log.retention.check.interval.ms": 200,
    "log.initial.task.delay.ms": 100,
}
SMALL_SEGMENTS = {"segment.bytes": MIB}
COMPACTED = {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
TIERED = {**SMALL_SEGMENTS, "remote.storage.enable": "true", "local.retention.bytes": 1}
COMPRESSED_VALUES = [b"%d: a value of a record" % number for number in range(500)]
LARGE_VALUES = [bytes([number]) * (200 << 10) for number in range(25)]
"""Five MB: several segments, and responses that are sent from the file."""


async def produce(
    cluster: Cluster, topic: str, values: Iterable[bytes], codec: int = 0, keys: int = 0
) -> None:
    seams = real_seams(max_open=8)
    options = ProducerOptions(compression=codec)
    async with open_producer(cluster, seams.clock, seams.entropy, options) as producer:
        for number, value in enumerate(values):
            key = b"%d" % (number % keys) if keys else None
            await producer.enqueue(topic, value, key=key, partition=0)
        await producer.flush()


async def consume(cluster: Cluster, topic: str) -> list[ConsumedRecord]:
    where = TopicPartition(topic, 0)
    begins = await list_offsets(cluster, {where: EARLIEST})
    reader = Reader(cluster)
    reader.assign({where: begins[where].offset})
    found: list[ConsumedRecord] = []
    while not await reader.at_end():
        found += await reader.poll()
    return found


async def check_values(cluster: Cluster, topic: str, expected: list[bytes]) -> None:
    found = [record.value for record in await consume(cluster, topic)]
    assert found == expected, f"{topic}: {len(found)} values instead of {len(expected)}"


async def until(condition: Callable[[], bool], what: str) -> None:
    with trio.move_on_after(TIMEOUT_S):
        while not condition():
            await trio.sleep(0.05)
        return
    raise AssertionError(f"no {what} after {TIMEOUT_S} s")


def segments(directory: Path, topic: str) -> list[Path]:
    return sorted(directory.glob(f"log-*/{topic}-0/*.log"))


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[Broker, Cluster]]:
    logs = ",".join(str(directory / name) for name in ("log-1", "log-2"))
    async with Broker(data=logs, tiered=directory / "tier", configs=LOG_CONFIGS) as broker:
        network = real_seams(max_open=8).network
        async with open_cluster(network, broker.bootstrap) as cluster:
            yield broker, cluster


async def check_codecs(broker: Broker, cluster: Cluster) -> None:
    for codec, name in enumerate(CODECS):
        await broker.acreate_topic(f"codec-{name}", 1)
        await produce(cluster, f"codec-{name}", COMPRESSED_VALUES, codec)
    await check_codec_values(cluster)


async def check_codec_values(cluster: Cluster) -> None:
    for name in CODECS:
        await check_values(cluster, f"codec-{name}", COMPRESSED_VALUES)


async def check_move(broker: Broker, cluster: Cluster, directory: Path) -> None:
    """Move the replica between the log directories, which copies its files."""
    await broker.acreate_topic("large", 1, SMALL_SEGMENTS)
    await produce(cluster, "large", LARGE_VALUES)
    (home,) = {path.parent.parent for path in segments(directory, "large")}
    (target,) = {directory / "log-1", directory / "log-2"} - {home}
    await alter_replica_log_dirs(cluster, {Replica(1, "large", 0): str(target)})
    await until(lambda: not (home / "large-0").exists(), "move")
    assert any(
        entry.topic == "large" and found.path == str(target)
        for found in await describe_log_dirs(cluster)
        for entry in found.replicas
    )
    await check_values(cluster, "large", LARGE_VALUES)


async def check_compaction(broker: Broker, cluster: Cluster, directory: Path) -> None:
    await broker.acreate_topic("compacted", 1, COMPACTED)
    await produce(cluster, "compacted", LARGE_VALUES, keys=2)

    def size_bytes() -> int:
        return sum(path.stat().st_size for path in segments(directory, "compacted"))

    await until(lambda: size_bytes() < 3 * MIB, "compaction")
    found = [record.value for record in await consume(cluster, "compacted")]
    assert found[-2:] == LARGE_VALUES[-2:]
    assert len(found) < len(LARGE_VALUES)


async def check_tiering(broker: Broker, cluster: Cluster, directory: Path) -> None:
    await broker.acreate_topic("tiered", 1, TIERED)
    await produce(cluster, "tiered", LARGE_VALUES)
    await until(lambda: len(segments(directory, "tiered")) == 1, "deletion of local segments")
    await check_values(cluster, "tiered", LARGE_VALUES)


async def main(directory: Path) -> None:
    async with running(directory) as (broker, cluster):
        await check_codecs(broker, cluster)
        print("codecs", flush=True)
        await check_move(broker, cluster, directory)
        print("move", flush=True)
    async with running(directory) as (broker, cluster):
        await check_codec_values(cluster)
        await check_values(cluster, "large", LARGE_VALUES)
        print("restart", flush=True)
        await check_compaction(broker, cluster, directory)
        print("compaction", flush=True)
        await check_tiering(broker, cluster, directory)
        print("tiering", flush=True)


PARTS = ["codecs", "move", "restart", "compaction", "tiering"]
"""What the program prints, in order."""

if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
