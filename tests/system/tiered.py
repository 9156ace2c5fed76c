"""A cluster whose remote storage is a directory, and lookups of segments in the directory and on brokers.

The configs are those of Apache Kafka's LocalTieredStorage, with the short intervals of its integration tests.
Both brokers use the same directory layout. The size of its indexes limits a segment of a topic created here
to `batches` batches, and each record is a batch of its own.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka import (
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.testing import Cluster
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import read_to_end
from tests.support.raw_client import RawClient
from tests.support.tiered_storage_configs import NOT_READY, STORAGE, tiered_configs
from tests.support.waiting import deadline
from tests.system import cluster_state
from tests.system.cluster_state import TIMEOUT_S
from tests.system.clusters import CONFIGS, SOFTWARE
from tests.system.store_watch import StoreWatch

EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, EARLIEST_PENDING = -2, -4, -1, -5, -6
LIST_OFFSETS_VERSION = 11
SEGMENT = ".log"
INDEXES = (".index", ".timeindex", ".txnindex")


@dataclass
class Tiered:
    """A running cluster and its remote storage. The broker ids start at 1."""

    cluster: Cluster
    store: Path
    newest_ms: int = 0
    """The timestamp of the newest record."""

    @cached_property
    def admin(self) -> AdminClient:
        return self.new_admin()

    def new_admin(self) -> AdminClient:
        """A client with current metadata: librdkafka waits for a killed broker that was the controller before."""
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})

    # Topics

    def create(
        self,
        topic: str,
        *assignment: Sequence[int],
        batches: int = 1,
        enabled: bool = True,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic with a partition for each list of brokers; a segment has `batches` batches."""
        settings = {
            "remote.storage.enable": str(enabled).lower(),
            "index.interval.bytes": "1",
            "segment.index.bytes": str(12 * batches),
            "local.retention.bytes": "1",
            **(config or {}),
        }
        cluster_state.create_topic(
            self.cluster, topic, len(assignment), settings, assignment=assignment
        )

    def configure(self, topic: str, **settings: str) -> None:
        """Alter configs of the topic, with underscores for dots. Raises KafkaException."""
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = self.new_admin()
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(TIMEOUT_S)

    def configure_brokers(self, name: str, value: str) -> None:
        """Alter a dynamic config of all brokers."""
        run_tool(
            "configs", "--bootstrap-server", self.cluster.bootstrap, "--alter",
            "--entity-type", "brokers", "--entity-default", "--add-config", f"{name}={value}",
        )  # fmt: skip

    def lead(self, topic: str, broker: int, partition: int = 0) -> None:
        """Make the broker the leader, as the first one of the replicas."""
        replicas = list(cluster_state.partition(self.cluster, topic, partition).replicas)
        wanted = [broker, *(each for each in replicas if each != broker)]
        if wanted != replicas:
            cluster_state.reassign(self.cluster, topic, {partition: wanted})
            cluster_state.wait_until_reassigned(self.cluster, topic, {partition: wanted})
        if self.leader(topic, partition) != broker:
            where = [TopicPartition(topic, partition)]
            self.admin.elect_leaders(ElectionType.PREFERRED, where).result(TIMEOUT_S)
        self.wait_for_leader(topic, broker, partition)

    def leader(self, topic: str, partition: int = 0) -> int:
        return cluster_state.leader(self.cluster, topic, partition)

    def wait_for_leader(self, topic: str, broker: int, partition: int = 0) -> None:
        with deadline(TIMEOUT_S, f"broker {broker} to lead {topic}-{partition}") as check:
            while self.leader(topic, partition) != broker:
                check(0.1)

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        where = TopicPartition(topic, partition, offset)
        with deadline(TIMEOUT_S, f"records of {topic} to be deleted") as check:
            while True:
                admin = self.new_admin()
                try:  # a new client each time, because a client would use its old leader forever
                    for future in admin.delete_records([where]).values():
                        future.result(TIMEOUT_S)
                    return
                except KafkaException as failed:
                    if failed.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                        raise
                check(0.1)

    # Records

    def produce(
        self, topic: str, *values: str, partition: int = 0, timestamps: Sequence[int] = ()
    ) -> None:
        """Produce each record in a batch of its own with acks=all and an increasing timestamp: otherwise
        it would have no entry in the time index, which fills a segment.
        """
        producer = Producer(
            {"bootstrap.servers": self.cluster.bootstrap, "acks": "all", "log_level": 0}
        )
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for number, value in enumerate(values):
            self.newest_ms = max(self.newest_ms + 1, int(time.time() * 1000))
            producer.produce(
                topic,
                value.encode(),
                f"k{value}".encode(),
                partition,
                on_delivery=delivered,
                timestamp=timestamps[number] if timestamps else self.newest_ms,
            )
            assert producer.flush(TIMEOUT_S) == 0
        assert failed == []

    def consume(
        self, topic: str, offset: int, *, partition: int = 0, committed: bool = False
    ) -> list[tuple[int, str]]:
        """Records from the offset to the current end, read by librdkafka, as (offset, value)."""
        messages = read_to_end(
            self.cluster.bootstrap,
            TopicPartition(topic, partition, offset),
            timeout_s=TIMEOUT_S,
            config={"isolation.level": "read_committed" if committed else "read_uncommitted"},
            passing=NOT_READY,
        )
        return [(each.offset(), (each.value() or b"").decode()) for each in messages]

    def consume_by_java(self, topic: str, offset: int, count: int, partition: int = 0) -> list[str]:
        """Values that Kafka's own consumer reads from the offset."""
        run = run_tool(
            "console-consumer", "--bootstrap-server", self.cluster.bootstrap, "--topic", topic,
            "--partition", str(partition), "--offset", str(offset), "--max-messages", str(count),
            "--timeout-ms", "30000",
        )  # fmt: skip
        return run.stdout.splitlines()

    # Offsets

    def offset(self, topic: str, timestamp: int, partition: int = 0) -> tuple[int, int]:
        """Result of ListOffsets from the leader, as (leader epoch, offset)."""
        leader = self.leader(topic, partition)
        wanted = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        with RawClient(self.cluster.address(leader)) as client:
            response = client.ask(
                apis.LIST_OFFSETS,
                LIST_OFFSETS_VERSION,
                {
                    "replica_id": -1,
                    "isolation_level": 0,
                    "topics": [{"name": topic, "partitions": [wanted]}],
                    "timeout": 30_000,
                },
            )
        (found,) = response.topics[0].partitions
        if found.error_code is ErrorCode.not_leader_or_follower:
            return (-1, -2)  # the leader has just changed
        assert found.error_code is ErrorCode.none, found.error_code
        return int(found.leader_epoch), int(found.offset)

    def wait_for_offset(self, topic: str, timestamp: int, offset: int, partition: int = 0) -> None:
        found = None
        try:
            with deadline(TIMEOUT_S, f"offset {offset} of {topic} for {timestamp}") as check:
                while (found := self.offset(topic, timestamp, partition)[1]) != offset:
                    check(0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}: it is {found}") from None

    def offsets_by_tool(self, topic: str, when: str) -> dict[int, int]:
        """Output of kafka-get-offsets, by partition."""
        run = run_tool(
            "get-offsets", "--bootstrap-server", self.cluster.bootstrap,
            "--topic", topic, "--time", when,
        )  # fmt: skip
        rows = [line.rsplit(":", 2) for line in run.lines]
        return {int(partition): int(offset) for name, partition, offset in rows if name == topic}

    # Remote storage

    @property
    def root(self) -> Path:
        return self.store / STORAGE

    def remote_directory(self, topic: str, partition: int = 0) -> Path | None:
        """Directory of the newest topic with this name; the directory name contains the topic id."""
        found = [
            each
            for each in self.root.glob(f"{topic}-{partition}-*")
            if len(each.name.rpartition(f"{topic}-{partition}-")[2]) == 22
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    def remote(self, topic: str, partition: int = 0) -> list[int]:
        """Base offsets of the segments in remote storage, ascending; a segment that was copied twice is
        listed twice.
        """
        directory = self.remote_directory(topic, partition)
        if directory is None:
            return []
        return sorted(int(each.name[:20]) for each in directory.glob(f"*{SEGMENT}"))

    def wait_for_remote(self, topic: str, *wanted: int, partition: int = 0) -> None:
        """Wait until remote storage contains exactly these segments, each once."""
        found: list[int] = []
        try:
            with deadline(TIMEOUT_S, f"{topic}-{partition} to have {wanted}") as check:
                while (found := self.remote(topic, partition)) != list(wanted):
                    check(0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}: it has {found}") from None

    def wait_until_tiered(self, topic: str, *copied: int, local: int, partition: int = 0) -> None:
        """Wait until these segments are in remote storage, and the local log starts at `local`."""
        self.wait_for_remote(topic, *copied, partition=partition)
        self.wait_for_offset(topic, EARLIEST_LOCAL, local, partition)

    @contextmanager
    def reads(self, topic: str, partition: int = 0) -> Iterator[Reads]:
        """Context that records the reads of the partition's remote storage."""
        with StoreWatch(self.root) as watch:
            reads = Reads(watch, self.remote_directory(topic, partition))
            yield reads

    def local_segments(self, broker: int, topic: str, partition: int = 0) -> list[int]:
        """Base offsets of the segments on the broker's disks."""
        directories = [Path(each) for each in self.cluster.log_directories(broker)]
        files = [each for d in directories for each in (d / f"{topic}-{partition}").glob("*.log")]
        return sorted(int(each.stem) for each in files)


@dataclass
class Reads:
    """Reads of one partition's files in remote storage."""

    _watch: StoreWatch
    _directory: Path | None

    def _files(self, *suffixes: str) -> list[int]:
        return [
            int(each.name[:20])
            for each in self._watch.files()
            if each.parent == self._directory and each.suffix in suffixes
        ]

    @property
    def segments(self) -> set[int]:
        """Base offsets of the segments that were read."""
        return set(self._files(SEGMENT))

    def count(self, *suffixes: str) -> int:
        """Number of reads of files with these suffixes."""
        return len(self._files(*suffixes))


@contextmanager
def tiered_cluster(
    kind: str, store: Path, *, brokers: int = 3, configs: Mapping[str, str] | None = None
) -> Iterator[Tiered]:
    """Cluster with a separate controller, so that all brokers can stop, and two log directories per
    broker.
    """
    settings = {**CONFIGS, **tiered_configs(store, brokers), **(configs or {})}
    with Cluster(
        software=SOFTWARE[kind](),
        brokers=brokers,
        controllers=1,
        configs=settings,
        log_directories=2,
    ) as running:
        yield Tiered(running, store)
        gc.collect()  # librdkafka's handles log errors while they outlive the brokers
    shutil.rmtree(store, ignore_errors=True)
