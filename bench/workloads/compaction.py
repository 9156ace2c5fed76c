"""Compaction: the rate of the log cleaner, and the latency of a small client during it.

The records are produced while the topic has cleanup.policy=delete. Then the policy becomes `compact`, and cleaning
starts. It ends when the size in DescribeLogDirs, which is requested from the beginning on, no longer changes. The
cleaned bytes are the size of the log before, without the active segment, which is not cleaned. `background_s` is the
duration of the compaction in seconds. A client that runs longer runs without compaction for the rest of its time.
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
from odradek.client.metadata import Cluster
from odradek.protocol.topics import TopicPartition

VALUE_BYTES = 100
SEGMENT_BYTES = 64 << 20
ASK_EVERY_S = 0.2
QUIET_S = 2.0
"""The log is clean if its size has not changed for this time."""
START_TIMEOUT_S = 30.0
FILL_S = 120
BACKOFF = "log.cleaner.backoff.ms"
CLEANER_BACKOFF_MS = 100
"""log.cleaner.backoff.ms during the measurement, because the default of 15 s would be part of each figure."""
CLEANING = Metric("background_s", "s", "lower")

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Compaction:
    """Compaction of a partition of `records` records with `keys` different keys."""

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
    """Return the size of the topic on disk, in bytes."""

    async def read_size(cluster: Cluster) -> int:
        directories = await log_dir_admin.describe_log_dirs(
            cluster, partitions=[TopicPartition(topic, 0)]
        )
        return sum(replica.size_bytes for each in directories for replica in each.replicas)

    return with_cluster(target.bootstrap, read_size)


def _wait_until_clean(target: Target, topic: str, before: int, given_up: Event) -> float:
    """Return the time (CLOCK_MONOTONIC, s) of the last change of the log's size."""
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
    raise WorkloadFailed("the measurement ended before the compaction")


@contextmanager
def _cleaner_looking_often(target: Target) -> Iterator[None]:
    """Set the cleaner's backoff on every broker inside the `with` block, and delete the setting afterwards."""
    again = ConfigChange(ConfigOperation.DELETE, BACKOFF)
    _set(target, ResourceType.BROKER, "", {BACKOFF: str(CLEANER_BACKOFF_MS)})
    try:
        yield
    except BaseException:
        with suppress(PeerFailed):  # the first error is reported
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
