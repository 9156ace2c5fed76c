"""Moving a partition to another log directory while it is written to and read (KIP-113).

The partition is filled; `cp` copies its directory to where it is to go, for comparison (and the copy is
removed). Then a stream of records of 1 KiB goes through the partition, at 20 MB/s, each timed from when
it was due to its arrival at a consumer, as in `latency`; after a while the move is asked for, and watched
by DescribeLogDirs until the replica is in its new place. A record's due time says to which part it belongs:
before the move, during it, or at the swap, which is from half a second before the replica was seen in
its new place to the same time after.

`cp` leaves the bytes in the page cache, a broker that syncs them before it swaps does more.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from odradek.bench.load import Load, run_load
from odradek.bench.model import Feature, Metric, Outcome, Parameter, Stage, Target, WorkloadFailed
from odradek.bench.peers.topics import with_cluster
from odradek.bench.workloads.latency import WARM_UP_S, percentile_us, read_output
from odradek.client.consumer import TopicPartition
from odradek.client.log_dir_admin import (
    LogDirectory,
    Replica,
    alter_replica_log_dirs,
    describe_log_dirs,
)
from odradek.client.metadata import Cluster
from odradek.protocol.errors import ErrorCode

RECORD_BYTES = 1024
RATE = 20_000
"""Records a second: 20 MB/s."""
BEFORE_S = 5.0
AFTER_S = 3.0
SWAP_S = 0.5
SLOWEST = 3.0
"""A move that takes more than so many times as long as `cp`, and `BEFORE_S`, is not waited for."""
LOOK_EVERY_S = 0.05

MOVE_S = Metric("move_s", "s", "lower")
MOVED = Metric("move_mb_per_s", "MB/s", "higher")
COPIED = Metric("cp_mb_per_s", "MB/s", "higher")
BEFORE = Metric("p99_before_us", "µs", "lower")
DURING = Metric("p99_during_us", "µs", "lower")
SWAP = Metric("p99_swap_us", "µs", "lower")
SWAP_MAX = Metric("max_swap_us", "µs", "lower")

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Move:
    """A partition of `size_mb` moves to the other directory."""

    size_mb: int
    default: bool = True
    metrics: Sequence[Metric] = (MOVE_S, MOVED, COPIED, BEFORE, DURING, SWAP, SWAP_MAX)
    needs: frozenset[Feature] = frozenset({Feature.TWO_DIRECTORIES, Feature.KEEPS_RECORDS})
    stage: Stage = Stage.FRESH

    @property
    def name(self) -> str:
        return f"move-{self.size_mb}mb"

    @property
    def title(self) -> str:
        return (
            f"{self.size_mb:,} MB to another directory, {RATE * RECORD_BYTES / 1e6:.0f} MB/s beside"
        )

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "size_mb": self.size_mb,
            "record_bytes": RECORD_BYTES,
            "records_per_s": RATE,
            "before_s": BEFORE_S,
            "acks": "all",
        }

    def run(self, target: Target) -> Outcome:
        with target.topic(f"moved-{next(_numbers)}") as topic:
            self._fill(target, topic)
            source, destination, size_bytes = _ends(target, topic)
            copied_s = _copy(source / f"{topic}-0", destination)
            seconds = 2 * BEFORE_S + SLOWEST * copied_s + AFTER_S
            with _stream(target, topic, seconds) as stream:
                time.sleep(WARM_UP_S + BEFORE_S)
                began = time.monotonic()
                _begin(target, topic, destination)
                until = began + seconds - BEFORE_S - AFTER_S
                ended, moved_bytes = _wait(target, topic, destination, until)
            return Outcome(
                {
                    MOVE_S.name: ended - began,
                    MOVED.name: moved_bytes / (ended - began) / 1e6,
                    COPIED.name: size_bytes / copied_s / 1e6,
                    **stream.latencies(began, ended),
                }
            )

    def _fill(self, target: Target, topic: str) -> None:
        run_load(
            [
                "produce", "--bootstrap", target.bootstrap, "--topic", topic,
                "--count", str(self.size_mb * 1_000_000 // RECORD_BYTES),
                "--size", str(RECORD_BYTES),
                "--seconds", "300",
            ],
            timeout_s=330,
        )  # fmt: skip


class _Stream:
    """The records beside the move, and when each was due."""

    def __init__(self, load: Load, latencies_ns: Sequence[int]) -> None:
        self._began = load.said["began_ns"] / 1e9
        self._latencies_ns = latencies_ns

    def latencies(self, began: float, ended: float) -> dict[str, float]:
        """Monotonic times in s of the move. WorkloadFailed if the stream was over before it."""
        if ended + SWAP_S > self._began + len(self._latencies_ns) / RATE:
            raise WorkloadFailed("the move took longer than the records beside it")
        swap = self._between(ended - SWAP_S, ended + SWAP_S)
        return {
            BEFORE.name: percentile_us(self._between(self._began, began), 99),
            DURING.name: percentile_us(self._between(began, ended), 99),
            SWAP.name: percentile_us(swap, 99),
            SWAP_MAX.name: max(swap) / 1e3,
        }

    def _between(self, start: float, end: float) -> Sequence[int]:
        first, last = (max(0, int((moment - self._began) * RATE)) for moment in (start, end))
        return self._latencies_ns[first : max(last, first + 1)]


class _Running:
    """A stream that is on; its latencies once it is over."""

    def __init__(self) -> None:
        self.over: _Stream | None = None
        self.failure: Exception | None = None

    def latencies(self, began: float, ended: float) -> dict[str, float]:
        if self.failure is not None:
            raise self.failure
        assert self.over is not None
        return self.over.latencies(began, ended)


@contextmanager
def _stream(target: Target, topic: str, seconds: float) -> Iterator[_Running]:
    """Records beside what is done in the `with` block; left, the stream is over."""
    running = _Running()
    with tempfile.TemporaryDirectory(prefix="odradek-move-") as directory:
        output = Path(directory) / "latencies"
        words = [
            "latency", "--bootstrap", target.bootstrap, "--topic", topic,
            "--size", str(RECORD_BYTES),
            "--rate", str(RATE),
            "--seconds", str(seconds),
            "--warm-up", str(WARM_UP_S),
            "--from-end", "1",
            "--output", str(output),
            "-X", "acks=all",
            "-X", "message.send.max.retries=0",
        ]  # fmt: skip

        def work() -> None:
            try:
                load = run_load(words, target.process, timeout_s=seconds + 90)
                said = load.said
                if said["refused"] or said["received"] < said["sent"]:
                    raise WorkloadFailed(
                        f"of {said['sent']} records {said['refused']} were refused "
                        f"({said['error']}) and {said['received']} came through"
                    )
                running.over = _Stream(load, read_output(output)[0])
            except Exception as failure:
                running.failure = failure

        thread = threading.Thread(target=work, name="stream")
        thread.start()
        try:
            yield running
        finally:
            thread.join()


def _describe(target: Target, topic: str) -> list[LogDirectory]:
    async def ask(cluster: Cluster) -> list[LogDirectory]:
        return await describe_log_dirs(cluster, partitions=[TopicPartition(topic, 0)])

    return with_cluster(target.bootstrap, ask)


def _ends(target: Target, topic: str) -> tuple[Path, Path, int]:
    """The partition's directory, the other one, and its bytes."""
    found = _describe(target, topic)
    (source,) = [each for each in found if each.replicas]
    other = next(each for each in found if not each.replicas)
    return Path(source.path), Path(other.path), source.replicas[0].size_bytes


def _copy(directory: Path, into: Path) -> float:
    """Seconds that `cp -r` of it takes."""
    copy = into.parent / "plain-copy"  # beside the log directories: no broker must find it
    began = time.monotonic()
    subprocess.run(["cp", "-r", directory, copy], check=True)
    seconds = time.monotonic() - began
    shutil.rmtree(copy)
    return seconds


def _begin(target: Target, topic: str, destination: Path) -> None:
    async def ask(cluster: Cluster) -> ErrorCode:
        await cluster.topic(topic)
        replica = Replica(await cluster.leader(topic, 0), topic, 0)
        return (await alter_replica_log_dirs(cluster, {replica: str(destination)}))[replica]

    code = with_cluster(target.bootstrap, ask)
    if code != ErrorCode.none:
        raise WorkloadFailed(f"the move is refused [{code.name.upper()}]")


def _wait(target: Target, topic: str, destination: Path, until: float) -> tuple[float, int]:
    """When the replica was first seen in its new place, and its bytes then."""
    while time.monotonic() < until:
        found = _describe(target, topic)
        now = time.monotonic()
        for each in found:
            if Path(each.path) == destination and any(not r.is_future for r in each.replicas):
                return now, each.replicas[0].size_bytes
        time.sleep(LOOK_EVERY_S)
    raise WorkloadFailed(f"{topic}-0 is not in {destination} in time")


WORKLOADS = (Move(1000), Move(10_000, default=False))
