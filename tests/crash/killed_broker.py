"""A broker that is killed while it receives records; what it acknowledged must be readable afterwards."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek

TOPIC = "under-fire"


PARTITIONS = 3


PRODUCERS = 2


QUEUED_MAX = 4000
"""The producer's queue while the broker is down: some megabytes, more than a segment."""


CONFIG = {
    "log.index.interval.bytes": "512",
    "log.initial.task.delay.ms": "0",
    "log.flush.offset.checkpoint.interval.ms": "50",
    "log.retention.check.interval.ms": "100",
}


Place = tuple[int, int]


class Writer:
    """An idempotent producer in a separate thread; records the offsets of acknowledged records."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.acknowledged: dict[bytes, Place] = {}
        self.failures: list[KafkaError] = []
        self._name = name
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "queue.buffering.max.messages": QUEUED_MAX,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._enough.is_set():
            value = f"{self._name}:{number}".encode()
            filler = b"." * (number * 37 % 700)
            try:
                self._producer.produce(
                    TOPIC,
                    value + filler,
                    partition=number % PARTITIONS,
                    on_delivery=self._delivered,
                )
            except BufferError:  # the broker is down, and the client's queue is full
                self._producer.poll(0.05)
                continue
            number += 1
            if number % 50 == 0:
                self._producer.poll(0.002)
        self._producer.flush(30)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged[message.value()] = (message.partition(), message.offset())

    def finish(self) -> None:
        """Stop producing, and wait until all records are acknowledged."""
        self._enough.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def read_everything(bootstrap: str) -> dict[Place, bytes]:
    """Read every record of the topic without a group, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: dict[Place, bytes] = {}
    at_the_end: set[int] = set()
    end = time.monotonic() + 60
    while len(at_the_end) < PARTITIONS:
        assert time.monotonic() < end, f"read {len(found)} records, then nothing more"
        for message in consumer.consume(10_000, 0.1):
            if message.error() is None:
                found[message.partition(), message.offset()] = message.value()
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                at_the_end.add(message.partition())
    consumer.close()
    return found


def start(directory: Path, port: int) -> BrokerProcess:
    return start_odradek(
        directory,
        config=CONFIG,
        log_dir_count=2,
        arguments=["--listen", f"127.0.0.1:{port}", "--topic", f"{TOPIC}:{PARTITIONS}"],
    )


def one_round(
    broker: BrokerProcess, directory: Path, port: int, seed: int
) -> tuple[BrokerProcess, dict[bytes, Place]]:
    source = random.Random(seed)
    writers = [Writer(broker.bootstrap, f"{seed}-{number}") for number in range(PRODUCERS)]
    try:
        for _ in range(source.choice([1, 1, 2])):
            time.sleep(source.uniform(0.02, 0.4))
            broker.kill()
            broker = start(directory, port)
        time.sleep(0.05)
    finally:
        for writer in writers:
            writer.finish()
    acknowledged: dict[bytes, Place] = {}
    for writer in writers:
        assert writer.failures == []
        acknowledged |= writer.acknowledged
    assert acknowledged
    return broker, acknowledged


def set_segment_size(bootstrap: str) -> None:
    """Small segments, so that kills also occur during rolls (1 MiB is Kafka's minimum)."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entry = ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)
