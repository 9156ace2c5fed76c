"""A cluster whose remote storage is a directory, and what is where: in the directory, on brokers, in Kafka's words.

The configs are those of Apache Kafka's LocalTieredStorage, with the short intervals of its own
integration tests; the directory's layout is its, too, whoever writes it. A segment of a topic made
here takes so many batches and no more, by the size of its indexes, and each record is a batch of its own.
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
from tests.support.broker_process import deadline
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_reading import read_to_end
from tests.support.raw_client import RawClient
from tests.support.tiered_storage_configs import NOT_READY, STORAGE, tiered_configs
from tests.system import cluster_state as kafka_facts
from tests.system.cluster_state import PATIENCE_S
from tests.system.clusters import CONFIGS, SOFTWARE
from tests.system.store_watch import StoreWatch

EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, EARLIEST_PENDING = -2, -4, -1, -5, -6
LIST_OFFSETS_VERSION = 11
SEGMENT = ".log"
INDEXES = (".index", ".timeindex", ".txnindex")


@dataclass
class Tiered:
    """A running cluster and its remote storage. Brokers have the ids from 1 on."""

    cluster: Cluster
    store: Path
    newest_ms: int = 0
    """The timestamp of the newest record."""

    @cached_property
    def admin(self) -> AdminClient:
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
        """With a partition for each list of brokers; a segment takes so many batches."""
        settings = {
            "remote.storage.enable": str(enabled).lower(),
            "index.interval.bytes": "1",
            "segment.index.bytes": str(12 * batches),
            "local.retention.bytes": "1",
            **(config or {}),
        }
        kafka_facts.create_topic(
            self.cluster, topic, len(assignment), settings, assignment=assignment
        )

    def configure(self, topic: str, **settings: str) -> None:
        """Set configs of the topic; dots are underscores. Raises KafkaException."""
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(PATIENCE_S)

    def configure_brokers(self, name: str, value: str) -> None:
        """Set a config of all brokers, dynamically."""
        run_tool(
            "configs", "--bootstrap-server", self.cluster.bootstrap, "--alter",
            "--entity-type", "brokers", "--entity-default", "--add-config", f"{name}={value}",
        )  # fmt: skip

    def lead(self, topic: str, broker: int, partition: int = 0) -> None:
        """Have that one lead, by making it the first of the replicas."""
        replicas = list(kafka_facts.partition(self.cluster, topic, partition).replicas)
        wanted = [broker, *(each for each in replicas if each != broker)]
        if wanted != replicas:
            kafka_facts.reassign(self.cluster, topic, {partition: wanted})
            kafka_facts.wait_until_reassigned(self.cluster, topic, {partition: wanted})
        if self.leader(topic, partition) != broker:
            where = [TopicPartition(topic, partition)]
            self.admin.elect_leaders(ElectionType.PREFERRED, where).result(PATIENCE_S)
        self.wait_for_leader(topic, broker, partition)

    def leader(self, topic: str, partition: int = 0) -> int:
        return kafka_facts.leader(self.cluster, topic, partition)

    def wait_for_leader(self, topic: str, broker: int, partition: int = 0) -> None:
        with deadline(PATIENCE_S, f"broker {broker} to lead {topic}-{partition}") as check:
            while self.leader(topic, partition) != broker:
                check(0.1)

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        where = TopicPartition(topic, partition, offset)
        with deadline(PATIENCE_S, f"records of {topic} to be deleted") as check:
            while True:
                admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
                try:  # another client each time: this one would ask its old leader for ever
                    for future in admin.delete_records([where]).values():
                        future.result(PATIENCE_S)
                    return
                except KafkaException as failed:
                    if failed.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                        raise
                check(0.1)

    # Records

    def produce(
        self, topic: str, *values: str, partition: int = 0, timestamps: Sequence[int] = ()
    ) -> None:
        """Each in a batch of its own, acknowledged by all, and in a millisecond of its own: else it would
        have no entry in the time index, which is what fills a segment."""
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
            assert producer.flush(PATIENCE_S) == 0
        assert failed == []

    def consume(
        self, topic: str, offset: int, *, partition: int = 0, committed: bool = False
    ) -> list[tuple[int, str]]:
        """By librdkafka, from there to the end as it is: (offset, value)."""
        messages = read_to_end(
            self.cluster.bootstrap,
            TopicPartition(topic, partition, offset),
            patience_s=PATIENCE_S,
            config={"isolation.level": "read_committed" if committed else "read_uncommitted"},
            passing=NOT_READY,
        )
        return [(each.offset(), (each.value() or b"").decode()) for each in messages]

    def consume_by_java(self, topic: str, offset: int, count: int, partition: int = 0) -> list[str]:
        """The values that Kafka's own consumer reads from there."""
        told = run_tool(
            "console-consumer", "--bootstrap-server", self.cluster.bootstrap, "--topic", topic,
            "--partition", str(partition), "--offset", str(offset), "--max-messages", str(count),
            "--timeout-ms", "30000",
        )  # fmt: skip
        return told.stdout.splitlines()

    # Offsets

    def offset(self, topic: str, timestamp: int, partition: int = 0) -> tuple[int, int]:
        """What the leader answers to ListOffsets: (leader epoch, offset)."""
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
            return (-1, -2)  # it has moved just now
        assert found.error_code is ErrorCode.none, found.error_code
        return int(found.leader_epoch), int(found.offset)

    def wait_for_offset(self, topic: str, timestamp: int, offset: int, partition: int = 0) -> None:
        found = None
        try:
            with deadline(PATIENCE_S, f"offset {offset} of {topic} for {timestamp}") as check:
                while (found := self.offset(topic, timestamp, partition)[1]) != offset:
                    check(0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}: it is {found}") from None

    def offsets_by_tool(self, topic: str, when: str) -> dict[int, int]:
        """What the stock kafka-get-offsets prints, by partition."""
        told = run_tool(
            "get-offsets", "--bootstrap-server", self.cluster.bootstrap,
            "--topic", topic, "--time", when,
        )  # fmt: skip
        rows = [line.rsplit(":", 2) for line in told.lines]
        return {int(partition): int(offset) for name, partition, offset in rows if name == topic}

    # Remote storage

    @property
    def root(self) -> Path:
        return self.store / STORAGE

    def remote_directory(self, topic: str, partition: int = 0) -> Path | None:
        """Of the topic of that name, none older: the topic's id is in its name."""
        found = [
            each
            for each in self.root.glob(f"{topic}-{partition}-*")
            if len(each.name.rpartition(f"{topic}-{partition}-")[2]) == 22
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    def remote(self, topic: str, partition: int = 0) -> list[int]:
        """Base offsets of the segments in remote storage, ascending; one copied twice is there twice."""
        directory = self.remote_directory(topic, partition)
        if directory is None:
            return []
        return sorted(int(each.name[:20]) for each in directory.glob(f"*{SEGMENT}"))

    def wait_for_remote(self, topic: str, *wanted: int, partition: int = 0) -> None:
        """Until just these segments are there, each once."""
        found: list[int] = []
        try:
            with deadline(PATIENCE_S, f"{topic}-{partition} to have {wanted}") as check:
                while (found := self.remote(topic, partition)) != list(wanted):
                    check(0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}: it has {found}") from None

    def wait_until_tiered(self, topic: str, *copied: int, local: int, partition: int = 0) -> None:
        """Until these segments are in remote storage, and the local log starts at `local`."""
        self.wait_for_remote(topic, *copied, partition=partition)
        self.wait_for_offset(topic, EARLIEST_LOCAL, local, partition)

    @contextmanager
    def reads(self, topic: str, partition: int = 0) -> Iterator[Reads]:
        """What is read of the partition's remote storage meanwhile."""
        with StoreWatch(self.root) as watch:
            reads = Reads(watch, self.remote_directory(topic, partition))
            yield reads

    def local_segments(self, broker: int, topic: str, partition: int = 0) -> list[int]:
        """Base offsets of the segments on a broker's disks."""
        directories = [Path(each) for each in self.cluster.log_directories(broker)]
        files = [each for d in directories for each in (d / f"{topic}-{partition}").glob("*.log")]
        return sorted(int(each.stem) for each in files)


@dataclass
class Reads:
    """Of one partition."""

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
        """How often files of these kinds were read."""
        return len(self._files(*suffixes))


@contextmanager
def tiered_cluster(
    kind: str, store: Path, *, brokers: int = 3, configs: Mapping[str, str] | None = None
) -> Iterator[Tiered]:
    """Under a controller of its own, so that all brokers may be stopped; two log directories each."""
    settings = {**CONFIGS, **tiered_configs(store, brokers), **(configs or {})}
    with Cluster(
        software=SOFTWARE[kind](),
        brokers=brokers,
        controllers=1,
        configs=settings,
        log_directories=2,
    ) as running:
        yield Tiered(running, store)
        gc.collect()  # librdkafka's handles complain while they outlive the brokers
    shutil.rmtree(store, ignore_errors=True)
