"""Exports whose driver, executors and Python workers are killed at random: every offset exactly once all the same.

    python -m tests.pipeline.killed_exports --kills 50 --seed 1 [--by-spark]

A standalone Spark of two workers exports a tiered topic in small batches, over and over. At moments that
the seed draws, something of it dies by SIGKILL: the driver, with its JVM, and the next run goes on; or an
executor, or the Python that reads in one, and Spark does. Whenever an export has come to the end there is
more to export. In the end nothing is killed any more, and the output is held against what was produced.
With `--by-spark` it is Spark that writes the Parquet, and not the tasks themselves.
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
"""A setting that our own tasks do not heed."""
VICTIMS = ("driver", "driver", "executor", "executor", "python worker")
BATCHES_BETWEEN = (0, 0, 1, 1, 2)
START_SECONDS, END_SECONDS = 300.0, 900.0

log = logging.getLogger("odradek.tests")


class Export:
    """One run of `odradek pipeline export`: its process, and what it has told."""

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
        self._told = threading.Condition()
        self._has_begun = False
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # a line that its death cut short
                is_batch = "batch" in json.loads(line)
                with self._told:
                    self._has_begun = True
                    self.batches_done += is_batch
                    self._told.notify_all()
        with self._told:
            self._ended = True
            self._told.notify_all()

    def await_batches(self, count: int) -> None:
        """Until so many are done, and the first is under way; or it has ended."""
        with self._told:
            done = self._told.wait_for(
                lambda: self._ended or (self._has_begun and self.batches_done >= count),
                START_SECONDS,
            )
        assert done, f"the export does not come to its batch {count}"

    def end(self) -> int:
        end_group(self.process)
        self._reader.join()
        self._log.close()
        return self.process.returncode


class Killing:
    """See the module. `killed` counts who was, `given_up` the runs that Spark ended for it."""

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
        # Numbers say which offsets they have; and no batch is larger than a segment may be.
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
        """Kill these, one after the other, and then nobody."""
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
        """With more to export; or, where Spark gave up after a kill, with the same again."""
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

    def start(self) -> Export:
        self._runs += 1
        return Export(self._arguments, self._directory / "exports.log")

    def _kill(self, victim: str, export: Export) -> bool:
        """At some moment of the run; False if it ended before, or there is none just then."""
        if victim == "driver" and self._random.random() < 0.2:
            time.sleep(self._random.uniform(0.0, 8.0))  # while it comes up
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
        """Of the export's checkpoint: which batches are done, and since when."""
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
) -> Iterator[Killing]:
    """A broker with a tiered topic, and nothing exported yet."""
    with Broker(configs=QUICK, tiered=directory / "tier") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, config=TIERED)]).values():
            made.result(30)
        yield Killing(cluster, broker, directory, seed, more)


@contextmanager
def killing(directory: Path, seed: int, more: Sequence[str] = ()) -> Iterator[Killing]:
    """The same, with a cluster of two workers."""
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
