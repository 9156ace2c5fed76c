"""Compaction: how fast a log of keyed records is cleaned, and what a small client sees of it.

The records are written while the topic is not compacted yet; then it is, and cleaning begins at
once. It was over when the log's size, as DescribeLogDirs tells it beside the client from the beginning on,
became what it stays at. What is counted as cleaned is what the log held before, without its last segment,
which is never cleaned. `beside_s` is how long it took: a client that was there for longer had some of its
time to itself.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event

from odradek.bench.load import run_load
from odradek.bench.model import Feature, Metric, Parameter, PeerFailed, Target, WorkloadFailed
from odradek.bench.peers.topics import with_cluster
from odradek.bench.workloads.background_load import BACKGROUND, LATENCIES, LatencyUnderLoad
from odradek.client import admin, log_dir_admin
from odradek.client.admin import ConfigChange, ConfigOperation, ResourceType
from odradek.client.consumer import TopicPartition
from odradek.client.metadata import Cluster

VALUE_BYTES = 100
SEGMENT_BYTES = 64 << 20
ASK_EVERY_S = 0.2
QUIET_S = 2.0
"""A log whose size was the same for this long is clean."""
START_TIMEOUT_S = 30.0
FILL_S = 120
BACKOFF = "log.cleaner.backoff.ms"
CLEANER_BACKOFF_MS = 100
"""log.cleaner.backoff.ms while it is measured: the default of 15 s would be in every figure."""
CLEANING = Metric("beside_s", "s", "lower")

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Compaction:
    """A partition of `records` with `keys` different keys becomes a compacted one."""

    records: int = 10_000_000
    keys: int = 1_000_000
    needs: frozenset[Feature] = frozenset({Feature.COMPACTION, Feature.KEEPS_RECORDS})

    @property
    def name(self) -> str:
        return "compaction"

    @property
    def title(self) -> str:
        return f"the compaction of {self.records:,} records with {self.keys:,} keys"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "compacted_records": self.records,
            "keys": self.keys,
            "compacted_value_bytes": VALUE_BYTES,
            "segment_bytes": SEGMENT_BYTES,
            "log_cleaner_backoff_ms": CLEANER_BACKOFF_MS,
        }

    @contextmanager
    def running(self, target: Target) -> Iterator[dict[str, float]]:
        found: dict[str, float] = {}
        with (
            target.topic(f"compacted-{next(_numbers)}") as topic,
            _cleaner_looking_often(target),
            ThreadPoolExecutor(1) as thread,
        ):
            _set(target, ResourceType.TOPIC, topic, {"segment.bytes": str(SEGMENT_BYTES)})
            self._fill(target, topic)
            before = size_bytes(target, topic)
            began, given_up = time.monotonic(), Event()
            _set(
                target,
                ResourceType.TOPIC,
                topic,
                {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
            )
            cleaned = thread.submit(_wait_until_clean, target, topic, before, given_up)
            try:
                yield found
                ended = cleaned.result()
            finally:
                given_up.set()
        found[BACKGROUND.name] = (before - before % SEGMENT_BYTES) / (ended - began) / 1e6
        found[CLEANING.name] = ended - began

    def _fill(self, target: Target, topic: str) -> None:
        load = run_load(
            [
                "produce", "--bootstrap", target.bootstrap, "--topic", topic,
                "--count", str(self.records),
                "--size", str(VALUE_BYTES),
                "--keys", str(self.keys),
                "--seconds", str(FILL_S),
            ],
            target.process,
        )  # fmt: skip
        if load.report["records"] < self.records:
            raise WorkloadFailed(
                f"{load.report['records']} of {self.records} records in {FILL_S} s"
            )


def size_bytes(target: Target, topic: str) -> int:
    """The topic's bytes on disk."""

    async def ask(cluster: Cluster) -> int:
        directories = await log_dir_admin.describe_log_dirs(
            cluster, partitions=[TopicPartition(topic, 0)]
        )
        return sum(replica.size_bytes for each in directories for replica in each.replicas)

    return with_cluster(target.bootstrap, ask)


def _wait_until_clean(target: Target, topic: str, before: int, given_up: Event) -> float:
    """When (monotonic, s) the log's size became what it stays at."""
    began = changed_at = time.monotonic()
    last = before
    while not given_up.is_set():
        size, now = size_bytes(target, topic), time.monotonic()
        if size != last:
            last, changed_at = size, now
        if last < before and now - changed_at > QUIET_S:
            return changed_at
        if last == before and now - began > START_TIMEOUT_S:
            raise WorkloadFailed(f"{topic} is not cleaned within {START_TIMEOUT_S:g} s")
        given_up.wait(ASK_EVERY_S)
    raise WorkloadFailed("it was not waited for")


@contextmanager
def _cleaner_looking_often(target: Target) -> Iterator[None]:
    """Every broker's cleaner, while the block lasts: what is run after it has the default again."""
    again = ConfigChange(ConfigOperation.DELETE, BACKOFF)
    _set(target, ResourceType.BROKER, "", {BACKOFF: str(CLEANER_BACKOFF_MS)})
    try:
        yield
    except BaseException:
        with suppress(PeerFailed):  # what went wrong before is what is to be told
            _alter(target, ResourceType.BROKER, "", again)
        raise
    _alter(target, ResourceType.BROKER, "", again)


def _set(target: Target, type: ResourceType, name: str, configs: Mapping[str, str]) -> None:
    changes = [ConfigChange(ConfigOperation.SET, key, value) for key, value in configs.items()]
    _alter(target, type, name, *changes)


def _alter(target: Target, type: ResourceType, name: str, *changes: ConfigChange) -> None:
    with_cluster(
        target.bootstrap, lambda cluster: admin.alter_configs(cluster, type, name, changes)
    )


WORKLOADS = (LatencyUnderLoad(Compaction(), metrics=(*LATENCIES, BACKGROUND, CLEANING)),)
