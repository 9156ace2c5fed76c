"""A broker process with a log directory that stays online and one that fails, and real clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from tests.support.broker_process import BrokerProcess
from tests.support.librdkafka_clients import create_topic, delivery_errors
from tests.support.odradek_process import start_odradek
from tests.support.raw_client import RawClient
from tests.support.waiting import deadline

CONFIG = {
    "log.initial.task.delay.ms": "0",
    "log.index.interval.bytes": "512",
    "log.flush.offset.checkpoint.interval.ms": "200",
    "auto.create.topics.enable": "false",
}
PARTITIONS = 4
NO_RETRIES = {
    "acks": "all",
    "retries": 0,
    "linger.ms": 1,
    "message.timeout.ms": 5000,
    "log_level": 0,
}
Row = tuple[int, bytes]


class Load:
    """Producer with acks=all and without retries, on a thread of its own, for the duration of a `with`
    block.
    """

    def __init__(self, bootstrap: str, partitions: Sequence[int]) -> None:
        self.acknowledged: list[Row] = []
        self.errors: list[KafkaError] = []
        self._partitions = partitions
        self._producer = Producer({"bootstrap.servers": bootstrap, **NO_RETRIES})
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        number = 0
        while not self._enough.is_set():
            partition = self._partitions[number % len(self._partitions)]
            value = b"load %d" % number
            self._producer.produce("t", value, partition=partition, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.005)
        self._producer.flush(30)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append((message.partition(), message.value()))
        else:
            self.errors.append(error)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._enough.set()
        self._thread.join(60)


@dataclass
class Jbod:
    """A running broker, and the directory of each partition of topic "t"."""

    process: BrokerProcess
    good: Path
    bad: Path
    good_partitions: list[int]
    bad_partitions: list[int]

    @property
    def bootstrap(self) -> str:
        return self.process.bootstrap

    def log_dirs(self) -> dict[str, Any]:
        return log_dirs(self.bootstrap)

    def wait_until_offline(self) -> None:
        with deadline(20, f"{self.bad} to be offline") as check:
            while self.log_dirs()[str(self.bad)].error_code is ErrorCode.none:
                check()


def log_dirs(bootstrap: str) -> dict[str, Any]:
    with RawClient(bootstrap) as client:
        response = client.ask(apis.DESCRIBE_LOG_DIRS, 4, {"topics": None})
    return {result.log_dir: result for result in response.results}


def partitions_in(bootstrap: str, directory: Path) -> list[int]:
    topics = {topic.name: topic for topic in log_dirs(bootstrap)[str(directory)].topics}
    return sorted(each.partition_index for each in topics["t"].partitions)


def produce_without_retries(
    bootstrap: str, partition: int, count: int = 1, size: int = 100
) -> list[KafkaError]:
    """Produce `count` records of `size` bytes; return the errors."""
    values = [(b"%d " % number).ljust(size, b".") for number in range(count)]
    config = {**NO_RETRIES, "batch.num.messages": 1}
    errors = delivery_errors(bootstrap, "t", values, partition=partition, config=config)
    return [error for error in errors if error is not None]


def read_all(bootstrap: str, partitions: Sequence[int]) -> list[Row]:
    """Read all partitions to their current ends."""
    found: list[Row] = []
    for partition in partitions:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "check.crcs": True})
        where = TopicPartition("t", partition, 0)
        end = consumer.get_watermark_offsets(where, timeout=30)[1]
        consumer.assign([where])
        last = -1
        while last < end - 1:
            message = consumer.poll(30)
            assert message is not None, f"t-{partition} stops before {end}"
            assert message.error() is None, message.error()
            last = message.offset()
            found.append((partition, message.value()))
        consumer.close()
    return found


def fetch_error(bootstrap: str, partition: int) -> ErrorCode:
    """Error of one Fetch request from the log start offset."""
    with RawClient(bootstrap) as client:
        response = client.ask(
            apis.FETCH,
            12,
            {
                "replica_id": -1,
                "max_wait": 0,
                "min_bytes": 0,
                "session_id": 0,
                "session_epoch": -1,
                "topics": [
                    {
                        "topic": "t",
                        "partitions": [
                            {
                                "partition": partition,
                                "fetch_offset": 0,
                                "partition_max_bytes": 1 << 20,
                            }
                        ],
                    }
                ],
                "forgotten_topics_data": [],
            },
        )
    code: ErrorCode = response.responses[0].partitions[0].error_code
    return code


@contextmanager
def running(path: Path, bad: Path, *, records: int = 20, **more: Any) -> Iterator[Jbod]:
    """Broker with partitions of topic "t" in path/good and in `bad`, and some records in each. The broker
    is killed at the end.
    """
    good = path / "good"
    config = {**CONFIG, **more.pop("config", {})}
    process = start_odradek(path / "broker", config=config, log_dirs=[good, bad], **more)
    try:
        create_topic(process.bootstrap, "t", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            assert produce_without_retries(process.bootstrap, partition, records) == []
        where = [partitions_in(process.bootstrap, each) for each in (good, bad)]
        assert all(where), "a directory has no partition"
        yield Jbod(process, good, bad, *where)
    finally:
        process.kill()
