"""Kafka Streams counts words exactly once while its broker is killed and restarted repeatedly.

Apache Kafka 4.3 does not always pass. A broker that was killed while a transaction was prepared loads the
transaction at its restart. It is then fenced for a short time, and its partitions have no leader. Its
coordinator treats these partitions as deleted ("Couldn't find leader endpoint for partitions"). If it then
records the transaction as complete, the markers are never written, read_committed consumers stop before them,
and this test times out.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.support.anomalies import require
from tests.support.broker_kinds import BROKERS, STARTERS
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_dist import kafka_dist
from tests.support.librdkafka_clients import create_topic
from tests.support.waiting import deadline

TIMEOUT_S = 90.0
"""A broker in a JVM needs twenty seconds to restart on a busy machine."""
KILLS = 10
INPUT, OUTPUT = "lines", "counts"
PARTITIONS = 2
WORDS = [f"word{number}" for number in range(40)]
LONG_S = 4.0
"""Downtime that exceeds the application's `max.block.ms`, so that a commit times out."""
LONG_ABSENCES = (3, 7)
"""Kills that are followed by the long downtime."""
WORDS_AHEAD = 1000
"""Maximum number of words that are written and not counted yet; a slow machine counts fewer words."""
CONFIG = {
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


class Reader:
    """Consumer of the committed output, from its beginning."""

    def __init__(self, bootstrap: str) -> None:
        self.counts: dict[str, list[int]] = defaultdict(list)
        self.total = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reads-without-committing",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(OUTPUT, index, 0) for index in range(PARTITIONS)])

    def read(self, seconds: float) -> set[int]:
        """Read for about this time; returns the partitions whose end was reached."""
        ends: set[int] = set()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for message in self._consumer.consume(500, min(left, 0.1)):
                error = message.error()
                if error is None:
                    word, count = message.key() or b"", message.value() or b""
                    self.counts[word.decode()].append(int(count))
                    self.total += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends.add(message.partition() or 0)
                else:
                    assert error.retriable() or error.code() < 0, error  # the broker is down
        return ends

    def wait_for(self, total: int, seconds: float) -> None:
        """Read until there are `total` records."""
        until = time.monotonic() + seconds
        while self.total < total:
            assert time.monotonic() < until, f"{self.total} of {total} records"
            self.read(0.1)

    def close(self) -> None:
        self._consumer.close()


class Writer(threading.Thread):
    """Writes random lines until it is stopped, and counts each word."""

    def __init__(self, bootstrap: str, reader: Reader) -> None:
        super().__init__()
        self.words: Counter[str] = Counter()
        self._reader = reader
        self.failures: list[Any] = []
        self._random = random.Random(2)
        self._enough = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.max.ms": 200,
                "linger.ms": 5,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self._enough.wait(0.002):
            self._producer.poll(0)
            if self.words.total() > self._reader.total + WORDS_AHEAD:
                continue
            line = self._random.choices(WORDS, range(1, len(WORDS) + 1), k=4)
            self.words.update(line)
            partition = self._random.randrange(PARTITIONS)
            self._producer.produce(
                INPUT, " ".join(line), partition=partition, on_delivery=self._delivered
            )

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(error)

    def stop(self) -> None:
        self._enough.set()
        self.join()

    def written(self) -> Counter[str]:
        """Number of occurrences of each word, after all records have been acknowledged."""
        assert self._producer.flush(TIMEOUT_S) == 0
        assert self.failures == []
        return self.words


def everything(bootstrap: str) -> dict[str, list[int]]:
    """Counts of each word, in the order of the output."""
    with closing(Reader(bootstrap)) as reader:
        ends: set[int] = set()
        with deadline(TIMEOUT_S, "the ends of the output") as check:
            while len(ends) < PARTITIONS:
                ends |= reader.read(0.2)
                check(0)
        return reader.counts


@contextmanager
def word_count(bootstrap: str, directory: Path) -> Iterator[None]:
    """A running Streams application; it must exit successfully at the end of the context."""
    log_file = directory / "streams.log"
    arguments = (bootstrap, INPUT, OUTPUT, str(directory / "state"))
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            kafka_dist().command("WordCount", *arguments),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    try:
        yield
        process.communicate(timeout=TIMEOUT_S)  # the program stops at the end of its standard input
        assert process.returncode == 0, "the application failed"
    except BaseException as error:
        error.add_note(f"end of the application's log:\n{log_file.read_text()[-6000:]}")
        raise
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def restarted(broker: BrokerProcess) -> BrokerProcess:
    """The next broker, on the same directories and port."""
    more = {"formatted": True} if broker.kind == "kafka" else {}
    port = int(broker.bootstrap.rpartition(":")[2])
    return STARTERS[broker.kind](
        broker.directory, config=CONFIG, log_dirs=broker.log_dirs, port=port, **more
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKERS)
def test_word_count_exactly_once(kind: str, tmp_path: Path) -> None:
    """Ten kills: most during processing, some during the recovery from the last one, and some followed by
    the long downtime, after which the application restores its state. The counts of every word are 1, 2, 3 … up to the number of
    occurrences.
    """
    moments = random.Random(5)
    broker = STARTERS[kind](tmp_path / "broker", config=CONFIG)
    try:
        for topic in (INPUT, OUTPUT):
            create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
        with closing(Reader(broker.bootstrap)) as reader, word_count(broker.bootstrap, tmp_path):
            writer = Writer(broker.bootstrap, reader)
            writer.start()
            try:
                for kill in range(KILLS):
                    if kill % 3 != 2:
                        reader.wait_for(reader.total + 200, TIMEOUT_S)
                    reader.read(moments.uniform(0.05, 0.5))
                    broker.kill()
                    if kill in LONG_ABSENCES:
                        reader.read(LONG_S)
                    broker = restarted(broker)
                reader.wait_for(reader.total + 200, TIMEOUT_S)
            finally:
                writer.stop()
            written = writer.written()
            reader.wait_for(written.total(), TIMEOUT_S)
        counts = everything(broker.bootstrap)
        require({word: seen[-1] for word, seen in counts.items()} == dict(written), "miscounted")
        for word, seen in counts.items():
            require(seen == list(range(1, written[word] + 1)), f"{word} is counted as {seen}")
    finally:
        broker.kill()
