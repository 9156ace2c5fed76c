"""Exports whose driver, executors and Python workers are killed at random: every offset exactly once all the same.

    python -m tests.pipeline.killed_exports --kills 50 --seed 1

A standalone Spark of two workers exports a tiered topic in small batches, over and over. At moments that
the seed draws, something of it dies by SIGKILL: the driver, with its JVM, and the next run goes on; or an
executor, or the Python that reads in one, and Spark does. Whenever an export has come to the end there is
more to export. In the end nothing is killed any more, and the output is held against what was produced.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.dataset as ds
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.testing import Broker
from tests.pipeline.spark_cluster import SparkCluster, end_group, environment, spark_cluster

TOPIC, PARTITIONS = "events", 3
QUICK = {
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
}
TIERED = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "200000",
    "local.retention.bytes": "1",
}
RECORDS_AT_ONCE = 20_000
OFFSETS_A_BATCH = 4_000
VICTIMS = ("driver", "driver", "executor", "python worker")
START_SECONDS, END_SECONDS = 120.0, 600.0


class Export:
    """One run of `odradek pipeline export`: its process, and what it has told."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "odradek.broker", "pipeline", "export", *arguments],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self.has_told = threading.Event()
        self.rows: list[dict[str, object]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # a line that its death cut short
                self.rows.append(json.loads(line))
                self.has_told.set()
        self.has_told.set()

    def end(self) -> int:
        end_group(self.process)
        self._reader.join()
        self._log.close()
        return self.process.returncode


class Killing:
    """See the module. `killed` counts who was."""

    def __init__(self, cluster: SparkCluster, broker: Broker, directory: Path, seed: int) -> None:
        self._cluster = cluster
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        self._random = random.Random(seed)
        self._directory = directory
        self._produced = 0
        self._runs = 0
        self.out = directory / "out"
        self.killed: Counter[str] = Counter()
        self._arguments = [
            "--topic", TOPIC, "--bootstrap", broker.bootstrap, "--tiered", str(directory / "tier"),
            "--out", str(self.out), "--offsets-a-batch", str(OFFSETS_A_BATCH), "--json",
            "--option", "maxBytesPerTask=60000", *cluster.arguments,
        ]  # fmt: skip

    def run(self, kills: int) -> None:
        """Kill so many, and then nobody."""
        self.produce()
        export = self._start()
        try:
            while self.killed.total() < kills:
                if export.process.poll() is not None:
                    self._check_ended_well(export)
                    self.produce()
                    export = self._start()
                if self._kill(export) == "driver":
                    export.end()
                    export = self._start()
        finally:
            export.end()
        export = self._start()
        try:
            export.process.wait(END_SECONDS)
            self._check_ended_well(export)
        finally:
            export.end()

    def produce(self) -> None:
        for number in range(self._produced, self._produced + RECORDS_AT_ONCE):
            self._producer.produce(TOPIC, partition=number % PARTITIONS, value=value(number))
            self._producer.poll(0)
        assert self._producer.flush(60) == 0
        self._produced += RECORDS_AT_ONCE

    def check(self) -> int:
        """That all that was produced is in the output, once; how much that is."""
        table = ds.dataset(self.out, format="parquet", partitioning="hive").to_table(
            columns=["partition", "offset", "value"]
        )
        found = Counter(
            zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
        )
        expected = Counter(
            (number % PARTITIONS, number // PARTITIONS, value(number))
            for number in range(self._produced)
        )
        assert found == expected, (
            f"{(expected - found).total()} missing, {(found - expected).total()} too many,"
            f" such as {list((expected - found) + (found - expected))[:5]}"
        )
        return self._produced

    def _start(self) -> Export:
        self._runs += 1
        return Export(self._arguments, self._directory / "exports.log")

    def _kill(self, export: Export) -> str | None:
        """Somebody, at some moment of the run; None if it ended before."""
        victim = self._random.choice(VICTIMS)
        if victim == "driver" and self._random.random() < 0.2:
            time.sleep(self._random.uniform(0.0, 8.0))  # while it comes up
        else:
            assert export.has_told.wait(START_SECONDS), "the export tells nothing"
            time.sleep(self._random.uniform(0.0, 5.0))
        if export.process.poll() is not None:
            return None
        if victim == "driver":
            end_group(export.process)
        else:
            of = self._cluster.executors if victim == "executor" else self._cluster.python_workers
            pids = of()
            if not pids:
                return None
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(sorted(pids)), signal.SIGKILL)
        self.killed[victim] += 1
        return victim

    def _check_ended_well(self, export: Export) -> None:
        log = (self._directory / "exports.log").read_text(errors="replace")
        assert export.process.wait() == 0, log[-4000:]


def value(number: int) -> bytes:
    return b"record %d " % number + bytes(20 + number % 50)


@contextmanager
def killing(directory: Path, seed: int) -> Iterator[Killing]:
    """A cluster, a broker with a tiered topic, and nothing killed yet."""
    with (
        spark_cluster(directory / "spark") as cluster,
        Broker(configs=QUICK, tiered=directory / "tier") as broker,
    ):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, config=TIERED)]).values():
            made.result(30)
        yield Killing(cluster, broker, directory, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, killing(Path(directory), args.seed) as run:
        began = time.monotonic()
        run.run(args.kills)
        records = run.check()
        killed = ", ".join(f"{count} {victim}s" for victim, count in sorted(run.killed.items()))
        sys.stdout.write(
            f"killed {killed} in {time.monotonic() - began:.0f} s:"
            f" {records} records, each exactly once\n"
        )


if __name__ == "__main__":
    main()
