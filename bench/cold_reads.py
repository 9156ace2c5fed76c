"""Read rate of a consumer from an object store, compared with the local disk and the store alone.

    python -m odradek.bench.cold_reads [DIRECTORY] [--s3] [--mb SIZE] [--passes N]

A broker has two topics with the same records. One topic is tiered, and only its last segments are on the
local disk; the other one is completely on the local disk. A consumer (librdkafka) reads both topics from
their start, in turns. For comparison, obstore reads the same objects without a broker, in ranges of the
broker's size, one at a time and several concurrently. All processes share one machine and its page cache.
The rate of the first pass, which reads no cached data, is reported separately from the best of the others.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from odradek.bench.load import Load, run_load
from odradek.bench.model import WorkloadFailed
from odradek.bench.peers.odradek import keep_compiled
from odradek.bench.peers.process import PeerProcess, ProcessLaunch, free_port, running
from odradek.bench.peers.topics import with_cluster
from odradek.bench.remote_stores import Store, arguments_of, open_stores
from odradek.client.admin import NewTopic, create_topics
from odradek.seams.object_store import ObjectStoreObjects, open_objects
from odradek.seams.real_files import RealFiles
from odradek.storage.tiered.remote_log_reader import FETCH_BYTES_MAX
from odradek.storage.tiered.store_location import resolved_url

RECORD_BYTES = 1000
SEGMENTS = 8
"""Number of segments of a topic of up to 512 MiB; larger topics have segments of 64 MiB."""
SEGMENT_BYTES_MAX = 64 << 20
CONCURRENT_RANGES = 4
REMOTE, LOCAL = "remote", "local"
TIMEOUT_S = 300.0
SETTINGS = {
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
    "log.segment.delete.delay.ms": "0",
}


@dataclass(frozen=True)
class Rate:
    """Read rate in MB/s (1e6 bytes): of the first pass, and of the fastest later one. `broker_cpu_s` is the
    broker's CPU time per GB in the latter."""

    what: str
    first: float
    best: float
    broker_cpu_s: float | None = None


def measure(directory: Path, store: Store, size_mb: int, passes: int) -> Iterator[Rate]:
    count = (size_mb << 20) // RECORD_BYTES
    segment_bytes = min(SEGMENT_BYTES_MAX, (size_mb << 20) // SEGMENTS)
    with _broker(directory, store) as broker:
        for topic in (REMOTE, LOCAL):
            _fill(broker, topic, segment_bytes, count)
        _wait_until_remote(directory)
        loads: dict[str, list[Load]] = {REMOTE: [], LOCAL: []}
        for _ in range(1 + passes):
            for topic, done in loads.items():
                done.append(_consume(broker, topic, count))
        for topic, done in loads.items():
            yield _rate(f"a consumer, {topic}", done)
        objects = open_objects(resolved_url(store.url, RealFiles()), store.options)
        assert isinstance(objects, ObjectStoreObjects)
        yield _of_store(objects, passes, at_once=1)
        yield _of_store(objects, passes, at_once=CONCURRENT_RANGES)


@contextmanager
def _broker(directory: Path, store: Store) -> Iterator[PeerProcess]:
    address = ("127.0.0.1", free_port())
    settings = SETTINGS | {f"rsm.config.{name}": text for name, text in store.options.items()}
    sets = [word for each in settings.items() for word in ("--set", "=".join(each))]
    command = [
        sys.executable, "-m", "odradek.cli", "serve",
        "--listen", f"{address[0]}:{address[1]}",
        "--log-dirs", str(directory / "data"),
        "--tiered", store.url,
        *sets,
    ]  # fmt: skip
    keep_compiled()
    with running(ProcessLaunch(command, address, directory)) as process:
        yield process


def _fill(broker: PeerProcess, topic: str, segment_bytes: int, count: int) -> None:
    configs = {"segment.bytes": str(segment_bytes)}
    if topic == REMOTE:
        configs |= {"remote.storage.enable": "true", "local.retention.bytes": "1"}
    new = NewTopic(topic, 1, 1, configs)
    with_cluster(broker.bootstrap, lambda cluster: create_topics(cluster, [new]))
    run_load(
        [
            "produce", "--bootstrap", broker.bootstrap, "--topic", topic,
            "--count", str(count), "--size", str(RECORD_BYTES), "-X", "batch.size=100000",
        ],
        broker,
    )  # fmt: skip


def _wait_until_remote(directory: Path) -> None:
    """Wait until only the last segments are on the local disk."""
    end = time.monotonic() + TIMEOUT_S
    while len(list((directory / "data" / f"{REMOTE}-0").glob("*.log"))) > 2:
        if time.monotonic() > end:
            raise WorkloadFailed(f"{TIMEOUT_S:g} s are not enough to copy {REMOTE}")
        time.sleep(0.2)


def _consume(broker: PeerProcess, topic: str, count: int) -> Load:
    return run_load(
        [
            "consume", "--bootstrap", broker.bootstrap, "--topic", topic, "--count", str(count),
            "-X", "queued.max.messages.kbytes=262144",
        ],
        broker,
    )  # fmt: skip


def _rate(what: str, loads: Sequence[Load]) -> Rate:
    rates = [float(each.report["bytes"]) / 1e6 / each.seconds for each in loads]
    best = max(loads[1:], key=lambda each: float(each.report["bytes"]) / each.seconds)
    cpu_s = best.broker_cpu_s
    return Rate(
        what,
        rates[0],
        max(rates[1:]),
        None if cpu_s is None else cpu_s / (float(best.report["bytes"]) / 1e9),
    )


def _of_store(objects: ObjectStoreObjects, passes: int, *, at_once: int) -> Rate:
    """Read all log objects in ranges, without a broker."""
    logs = [each for each in objects.list("") if each.key.endswith(".log")]
    ranges = [
        (each.key, start, min(FETCH_BYTES_MAX, each.size - start))
        for each in logs
        for start in range(0, each.size, FETCH_BYTES_MAX)
    ]
    rates = []
    with ThreadPoolExecutor(at_once) as threads:
        for _ in range(passes):
            began = time.perf_counter()
            got = sum(threads.map(lambda each: len(objects.get_range(*each)), ranges))
            rates.append(got / 1e6 / (time.perf_counter() - began))
    return Rate(f"the store alone, {at_once} at once", rates[0], max(rates))


def table(rates: Sequence[Rate]) -> str:
    lines = ["| | first, MB/s | best, MB/s | the broker's CPU s a GB |", "|---|---|---|---|"]
    for each in rates:
        cpu = "" if each.broker_cpu_s is None else f"{each.broker_cpu_s:.2f}"
        lines.append(f"| {each.what} | {each.first:.0f} | {each.best:.0f} | {cpu} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__, mb=1024, size_of="history", passes="after the first one")
    chosen = parser.parse_args(arguments)
    with open_stores(chosen) as (directory, stores):
        for number, store in enumerate(stores):
            place = directory / str(number)
            place.mkdir()
            print(f"\n{store.title}, a history of {chosen.mb} MiB\n")
            print(table(list(measure(place, store, chosen.mb, chosen.passes))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
