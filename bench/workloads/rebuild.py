"""Rebuild of a broker without data: the time until it is in sync, with and without tiered storage.

A partition with three replicas is filled. With tiered storage, `LOCAL_BYTES` of it stay on the brokers' disks. A
follower is stopped, everything in its log directories except meta.properties is deleted, and it is started; the
measurement begins here. Until it is in sync, records of 1 KiB are produced with acks=all, and their latency is
measured. KIP-405 reports 230 minutes without and 2 minutes with tiered storage.

The measurement without tiered storage runs first. Its topic is deleted before the second one, because the disk holds
three replicas. `times` is the ratio of the two.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from odradek.bench.load import FILL_RECORD_BYTES, fill
from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    ServerCluster,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.workloads.latency import percentile_us
from odradek.bench.workloads.streams import background_stream
from odradek.bench.workloads.tiered_topics import LINGER_MS, TieredTopic, tiered_topic

RATE = 1000
"""Records a second: 1 MB/s."""
BEFORE_S = 5.0
MB_PER_GIB = 1074
SEGMENT_BYTES = 32 << 20
LOCAL_BYTES = 64 << 20
LONGEST_S = 1800.0
LOOK_EVERY_S = 0.05
OFF_DISK_S = 60.0
"""Timeout for the deletion of a topic's files."""
KEPT = ("meta.properties", "bootstrap.checkpoint")

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Rebuild:
    """Rebuild with `gib` GiB of data in the partition."""

    gib: int
    default: bool = False
    metrics: Sequence[Metric] = (
        Metric("plain_s", "s", "lower"),
        Metric("tiered_s", "s", "lower"),
        Metric("times", "", "higher"),
        Metric("plain_before_p99_us", "µs", "lower"),
        Metric("plain_p99_us", "µs", "lower"),
        Metric("tiered_before_p99_us", "µs", "lower"),
        Metric("tiered_p99_us", "µs", "lower"),
    )
    needs: frozenset[Feature] = frozenset({Feature.TIERED})
    stage: Stage = Stage.TIERED

    @property
    def name(self) -> str:
        return f"rebuild-{self.gib}gib"

    @property
    def title(self) -> str:
        return f"rebuild of one of three brokers, {self.gib} GiB of data"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "gib": self.gib,
            "local_bytes": LOCAL_BYTES,
            "segment_bytes": SEGMENT_BYTES,
            "record_bytes": FILL_RECORD_BYTES,
            "records_per_s": RATE,
            "linger_ms": LINGER_MS,
            "acks": "all",
        }

    def run(self, target: Target) -> WorkloadOutcome:
        values: dict[str, float] = {}
        for kind, local_bytes in (("plain", None), ("tiered", LOCAL_BYTES)):
            name = f"{self.name}-{kind}-{next(_numbers)}"
            with tiered_topic(target, name, SEGMENT_BYTES, local_bytes) as topic:
                fill(target, name, self.gib * MB_PER_GIB)
                topic.wait_until_settled()
                topic.wait_until_in_sync(LONGEST_S)
                values |= self._rebuild(target, kind, topic)
            wait_until_off_disk(topic)
        values["times"] = values["plain_s"] / values["tiered_s"]
        return WorkloadOutcome(values)

    def _rebuild(self, target: Target, kind: str, topic: TieredTopic) -> dict[str, float]:
        cluster = target.cluster
        assert cluster is not None
        leader = topic.leader()
        emptied = next(each for each in cluster.brokers if each != leader)
        words = [
            "--acknowledged",
            "1",
            "-X",
            f"linger.ms={LINGER_MS}",
            "-X",
            "message.send.max.retries=100",
        ]
        # Without the process: the load program would end with the first node, which may be the stopped one.
        alone = Target(target.peer, target.bootstrap, target.topics, None, cluster)
        with background_stream(alone, topic.name, RATE, longest_s=LONGEST_S, words=words) as stream:
            time.sleep(BEFORE_S)
            stopped_at = time.monotonic()
            cluster.stop(emptied)
            empty(cluster, emptied)
            began = time.monotonic()
            cluster.restart(emptied)
            topic.wait_until_in_sync(LONGEST_S)
            ended = time.monotonic()
        timed = stream.result()
        return {
            f"{kind}_s": ended - began,
            f"{kind}_before_p99_us": percentile_us(timed.between(0, stopped_at), 99),
            f"{kind}_p99_us": percentile_us(timed.between(began, ended), 99),
        }


def empty(cluster: ServerCluster, broker: int) -> None:
    """Delete the contents of a stopped broker's log directories except meta.properties."""
    for directory in map(Path, cluster.log_directories(broker)):
        for each in directory.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            elif each.name not in KEPT:
                each.unlink()


def wait_until_off_disk(topic: TieredTopic) -> None:
    """Wait until the files of a deleted topic are deleted."""
    cluster = topic.target.cluster
    assert cluster is not None
    end = time.monotonic() + OFF_DISK_S
    while any(
        list(Path(directory).glob(f"{topic.name}-0*"))
        for broker in cluster.brokers
        for directory in cluster.log_directories(broker)
    ):
        if time.monotonic() > end:
            raise WorkloadFailed(f"{topic.name} was deleted, but its files still exist")
        time.sleep(LOOK_EVERY_S)


WORKLOADS = (Rebuild(1), Rebuild(4), Rebuild(10))
