"""Exports whose driver, executors and Python workers are killed at random must write every offset exactly once.

    python -m tests.pipeline.killed_exports --kills 50 --seed 1 [--by-spark]

A standalone Spark cluster with two workers exports a tiered topic in small batches, repeatedly. At times that depend
on the seed, a process is killed with SIGKILL: the driver with its JVM, and the next run continues; or an executor or
one of its Python workers, and Spark retries. When an export has reached the end, more records are produced. At the
end the output is compared with the produced records. With `--by-spark`, Spark writes the Parquet files, not the
tasks.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
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
BY_SPARK = ("--conf", "spark.sql.files.maxRecordsPerFile=1000000")
"""A Spark setting that the tasks' own Parquet writer does not support, so that Spark writes the files."""
VICTIMS = ("driver", "driver", "executor", "executor", "python worker")
BATCHES_BETWEEN = (0, 0, 1, 1, 2)
START_SECONDS, END_SECONDS = 300.0, 900.0

log = logging.getLogger("odradek.tests")


class Export:
    """One run of `odradek pipeline export`: its process and its output lines."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "odradek.cli", "pipeline", "export", *arguments],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self.batches_done = 0
        self._changed = threading.Condition()
        self._has_begun = False
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # an incomplete line of a killed process
                is_batch = "batch" in json.loads(line)
                with self._changed:
                    self._has_begun = True
                    self.batches_done += is_batch
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def await_batches(self, count: int) -> None:
        """Wait until `count` batches are done and the next one has started, or the run has ended."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._ended or (self._has_begun and self.batches_done >= count),
                START_SECONDS,
            )
        assert done, f"the export does not come to its batch {count}"

    def end(self) -> int:
        end_group(self.process)
        self._reader.join()
        self._log.close()
        return self.process.returncode


class ExportKiller:
    """Kills processes of exports. `killed` counts kills by kind, `given_up` the runs that Spark ended because of one."""

    def __init__(
        self,
        cluster: SparkCluster,
        broker: Broker,
        directory: Path,
        seed: int,
        more: Sequence[str] = (),
    ) -> None:
        """`more` are arguments of every run."""
        self._cluster = cluster
        # The values are the offsets, and no batch is larger than segment.bytes.
        config = {"enable.idempotence": True, "batch.size": 50_000, "linger.ms": 5}
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, **config})
        self._random = random.Random(seed)
        self._directory = directory
        self._produced = 0
        self._runs = 0
        self.out = directory / "out"
        self.killed: Counter[str] = Counter()
        self.given_up = 0
        self._arguments = [
            "--topic", TOPIC, "--bootstrap", broker.bootstrap, "--tiered", str(directory / "tier"),
            "--out", str(self.out), "--offsets-a-batch", str(OFFSETS_A_BATCH), "--json",
            "--option", "maxBytesPerTask=60000", *cluster.arguments, *more,
        ]  # fmt: skip

    def run(self, victims: Iterable[str]) -> None:
        """Kill these processes one after the other, then run exports without kills."""
        self.produce()
        export = self.start()
        try:
            for victim in victims:
                while not self._kill(victim, export):
                    if export.process.poll() is not None:
                        export = self._next(export)
                self.killed[victim] += 1
                log.info(
                    "%d: %s, of run %d after %d batches",
                    self.killed.total(),
                    victim,
                    self._runs,
                    export.batches_done,
                )
                if victim == "driver":
                    export.end()
                    export = self.start()
        finally:
            export.end()
        export = self.start()
        try:
            assert export.process.wait(END_SECONDS) == 0, self.last_words()
        finally:
            export.end()

    def _next(self, ended: Export) -> Export:
        """Start an export with more records; after a failure that a kill caused, with the same records."""
        if ended.process.wait() == 0:
            self.produce()
        else:
            self.given_up += 1
            assert self.given_up <= self.killed.total(), self.last_words()
            log.info("run %d was given up", self._runs)
        ended.end()
        return self.start()

    def produce(self) -> None:
        for number in range(self._produced, self._produced + RECORDS_AT_ONCE):
            self._producer.produce(
                TOPIC, partition=number % PARTITIONS, value=value(number), on_delivery=_delivered
            )
            self._producer.poll(0)
        assert self._producer.flush(60) == 0
        self._produced += RECORDS_AT_ONCE

    def check(self) -> int:
        """Check that the output has every produced record once; return the number of records."""
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

    def start(self) -> Export:
        self._runs += 1
        return Export(self._arguments, self._directory / "exports.log")

    def _kill(self, victim: str, export: Export) -> bool:
        """Kill a process at a random time of the run; False if the run ended before, or there is no such process."""
        if victim == "driver" and self._random.random() < 0.2:
            time.sleep(self._random.uniform(0.0, 8.0))  # while it starts
        else:
            export.await_batches(export.batches_done + self._random.choice(BATCHES_BETWEEN))
            time.sleep(self._random.uniform(0.0, 5.0))
        if export.process.poll() is not None:
            return False
        if victim == "driver":
            end_group(export.process)
            return True
        of = self._cluster.executors if victim == "executor" else self._cluster.python_workers
        pids = sorted(of())
        if not pids:
            return False
        try:
            os.kill(self._random.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    @property
    def commits(self) -> dict[str, int]:
        """Return the committed batches in the export's checkpoint, with the times of their commits."""
        found = (self.out / "_checkpoint" / "commits").glob("[0-9]*")
        return {path.name: path.stat().st_mtime_ns for path in found}

    def last_words(self) -> str:
        return (self._directory / "exports.log").read_text(errors="replace")[-4000:]


def _delivered(error: object, message: object) -> None:
    assert error is None, error


def value(number: int) -> bytes:
    return b"record %d " % number + bytes(20 + number % 50)


@contextmanager
def exporting(
    cluster: SparkCluster, directory: Path, seed: int, more: Sequence[str] = ()
) -> Iterator[ExportKiller]:
    """Broker with a tiered topic that was not exported yet."""
    with Broker(configs=QUICK, tiered=directory / "tier") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, config=TIERED)]).values():
            made.result(30)
        yield ExportKiller(cluster, broker, directory, seed, more)


@contextmanager
def killing(directory: Path, seed: int, more: Sequence[str] = ()) -> Iterator[ExportKiller]:
    """The same with a Spark cluster of two workers."""
    with (
        spark_cluster(directory / "spark") as cluster,
        exporting(cluster, directory, seed, more) as run,
    ):
        yield run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--by-spark", action="store_true", help="Spark writes the Parquet")
    parser.add_argument("--directory", type=Path, help="an empty one, to look at afterwards")
    args = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")
    log.setLevel(logging.INFO)
    victims = random.Random(args.seed).choices(VICTIMS, k=args.kills)
    with (
        nullcontext(args.directory) if args.directory else tempfile.TemporaryDirectory() as where,
        killing(Path(where), args.seed, BY_SPARK if args.by_spark else ()) as run,
    ):
        began = time.monotonic()
        run.run(victims)
        records = run.check()
        killed = ", ".join(f"{count} {victim}s" for victim, count in sorted(run.killed.items()))
        sys.stdout.write(
            f"killed {killed} in {time.monotonic() - began:.0f} s, {run.given_up} runs given up:"
            f" {records} records, each exactly once\n"
        )


if __name__ == "__main__":
    main()
