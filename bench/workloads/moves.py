"""Moving a partition to another log directory while it is written to and read (KIP-113).

The partition is filled and synced, so that the disk is idle. Then a stream of records
of 1 KiB goes through it, at 20 MB/s, each timed from when it was due to its arrival at a consumer, as in
`latency`. During this stream, three phases follow:

1. no other load (`p99_before_us`);
2. `cp -r` of the partition's directory to the destination, and a sync of the copy (`p99_cp_us`: the effect of the
   same disk writes by another process). Then the copy is deleted, which is also synced, and the disk is idle again;
3. the move (`p99_during_us`), from the AlterReplicaLogDirs request until DescribeLogDirs returns the new log
   directory. The swap (`p99_swap_us`, `max_swap_us`) is the time from 0.5 s before to 0.5 s after that response.

`move_mb_per_s` and `cp_sync_mb_per_s` are rates of data that is synced to the disk, because a broker deletes the
source afterwards. `cp_mb_per_s` is the rate of `cp` alone, into the page cache. All are measured during the stream.
`cp` runs first, so it has the advantage on a disk that is fast only for a short time.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from odradek.bench.load import FILL_RECORD_BYTES, fill
from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.peers.topics import with_cluster
from odradek.bench.workloads.latency import percentile_us
from odradek.bench.workloads.streams import background_stream
from odradek.client.log_dir_admin import (
    LogDirectory,
    Replica,
    alter_replica_log_dirs,
    describe_log_dirs,
)
from odradek.client.metadata import Cluster
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition

RATE = 20_000
"""Records a second: 20 MB/s."""
BEFORE_S = 5.0
REST_S = 3.0
AFTER_S = 3.0
SWAP_S = 0.5
SLOWEST = 5.0
"""Timeout of the move, as a multiple of the time of `cp` and its sync, plus `BEFORE_S`."""
LONGEST_S = 900.0
"""Maximum duration of the stream."""
LOOK_EVERY_S = 0.05

MOVE_S = Metric("move_s", "s", "lower")
MOVED = Metric("move_mb_per_s", "MB/s", "higher", limit="sequential-write")
COPIED = Metric("cp_mb_per_s", "MB/s", "higher")
SYNCED = Metric("cp_sync_mb_per_s", "MB/s", "higher", limit="sequential-write")
BEFORE = Metric("p99_before_us", "µs", "lower")
COPY_DURING_LOAD = Metric("p99_cp_us", "µs", "lower")
DURING = Metric("p99_during_us", "µs", "lower")
SWAP = Metric("p99_swap_us", "µs", "lower")
SWAP_MAX = Metric("max_swap_us", "µs", "lower")

_numbers = itertools.count(1)


@dataclass(frozen=True)
class _Copying:
    """Bytes that were copied between two times of CLOCK_MONOTONIC, in s."""

    size_bytes: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def mb_per_s(self) -> float:
        return self.size_bytes / self.seconds / 1e6


@dataclass(frozen=True)
class Move:
    """Moves a partition of `size_mb` MB to the other log directory."""

    size_mb: int
    default: bool = True
    metrics: Sequence[Metric] = (
        MOVE_S, MOVED, COPIED, SYNCED, BEFORE, COPY_DURING_LOAD, DURING, SWAP, SWAP_MAX,
    )  # fmt: skip
    needs: frozenset[Feature] = frozenset({Feature.TWO_DIRECTORIES, Feature.KEEPS_RECORDS})
    stage: Stage = Stage.FRESH

    @property
    def name(self) -> str:
        return f"move-{self.size_mb}mb"

    @property
    def title(self) -> str:
        rate_mb = RATE * FILL_RECORD_BYTES / 1e6
        return f"move of {self.size_mb:,} MB to another log directory during a load of {rate_mb:.0f} MB/s"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "size_mb": self.size_mb,
            "record_bytes": FILL_RECORD_BYTES,
            "records_per_s": RATE,
            "before_s": BEFORE_S,
            "rest_s": REST_S,
            "acks": "all",
        }

    def run(self, target: Target) -> WorkloadOutcome:
        with target.topic(f"moved-{next(_numbers)}") as topic:
            fill(target, topic, self.size_mb)
            source, destination = _ends(target, topic)
            _settle(source)
            with background_stream(target, topic, RATE, longest_s=LONGEST_S) as running:
                time.sleep(BEFORE_S)
                copied, synced = _copy(source / f"{topic}-0", destination.parent / "plain-copy")
                time.sleep(REST_S)
                timeout_s = BEFORE_S + SLOWEST * synced.seconds
                moved = _move(target, topic, destination, timeout_s)
                time.sleep(AFTER_S)
            stream = running.result()
            swap = stream.between(moved.ended - SWAP_S, moved.ended + SWAP_S)
            return WorkloadOutcome(
                {
                    MOVE_S.name: moved.seconds,
                    MOVED.name: moved.mb_per_s,
                    COPIED.name: copied.mb_per_s,
                    SYNCED.name: synced.mb_per_s,
                    BEFORE.name: percentile_us(stream.between(0, copied.began), 99),
                    COPY_DURING_LOAD.name: percentile_us(
                        stream.between(synced.began, synced.ended), 99
                    ),
                    DURING.name: percentile_us(stream.between(moved.began, moved.ended), 99),
                    SWAP.name: percentile_us(swap, 99),
                    SWAP_MAX.name: max(swap) / 1e3,
                }
            )


def _settle(directory: Path) -> None:
    """Sync the file system of a directory, and wait until the disk is idle."""
    subprocess.run(["sync", "-f", directory], check=True)


def _copy(directory: Path, copy: Path) -> tuple[_Copying, _Copying]:
    """Copy a directory with `cp -r`, sync the copy, and delete it; returns both measurements."""
    began = time.monotonic()
    subprocess.run(["cp", "-r", directory, copy], check=True)
    copied_at = time.monotonic()
    files = sorted(copy.iterdir())
    subprocess.run(["sync", *files], check=True)
    synced_at = time.monotonic()
    size_bytes = sum(file.stat().st_size for file in files)
    shutil.rmtree(copy)
    _settle(copy.parent)
    return _Copying(size_bytes, began, copied_at), _Copying(size_bytes, began, synced_at)


async def _describe(cluster: Cluster, topic: str) -> list[LogDirectory]:
    return await describe_log_dirs(cluster, partitions=[TopicPartition(topic, 0)])


def _ends(target: Target, topic: str) -> tuple[Path, Path]:
    """Return the partition's log directory and the other one."""
    found = with_cluster(target.bootstrap, lambda cluster: _describe(cluster, topic))
    (source,) = [each for each in found if each.replicas]
    other = next(each for each in found if not each.replicas)
    return Path(source.path), Path(other.path)


def _move(target: Target, topic: str, destination: Path, timeout_s: float) -> _Copying:
    """Move the replica, and wait until DescribeLogDirs returns the new log directory."""

    async def move(cluster: Cluster) -> _Copying | str:
        await cluster.topic(topic)
        replica = Replica(await cluster.leader(topic, 0), topic, 0)
        began = time.monotonic()
        code = (await alter_replica_log_dirs(cluster, {replica: str(destination)}))[replica]
        if code != ErrorCode.none:
            return f"the move was refused [{code.name.upper()}]"
        while time.monotonic() < began + timeout_s:
            found = await _describe(cluster, topic)
            now = time.monotonic()
            for each in found:
                if Path(each.path) == destination and any(not r.is_future for r in each.replicas):
                    return _Copying(each.replicas[0].size_bytes, began, now)
            await trio.sleep(LOOK_EVERY_S)
        return f"{topic}-0 is not in {destination} after {timeout_s:.0f} s"

    moved = with_cluster(target.bootstrap, move)
    if isinstance(moved, str):
        raise WorkloadFailed(moved)
    return moved


WORKLOADS = (Move(1000), Move(10_000, default=False))
