"""A broker is killed soon after a compaction: its log has gaps, which recovery must not treat as a lost end.

The recovery point has not been written yet, so the whole log is recovered. Whether it was compacted follows from the
metadata log and, because the policy may have changed, from the cleaner's checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.waiting import deadline

TOPIC = "compacted"
CONFIG = {"log.cleaner.backoff.ms": "20"}
SEGMENT_BYTES = 1 << 20
VALUE_BYTES = 64 << 10
KEPT = {f"kept-{number}".encode() for number in range(3)}


def fill(bootstrap: str) -> None:
    """Produce segments with a single key, and finally some other keys."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0.01",
    }
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)]).values():
        future.result(10)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.size": 200_000})
    for key in [b"again"] * (4 * SEGMENT_BYTES // VALUE_BYTES) + sorted(KEPT):
        producer.produce(TOPIC, b"v" * VALUE_BYTES, key)
        producer.flush(10)


def wait_compacted(broker: BrokerProcess) -> None:
    first = broker.partition_directory(TOPIC) / f"{0:020}.log"
    with deadline(30, "the first segment to be empty") as check:
        while _size(first):
            check()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return -1  # a cleaned segment is about to replace it


def set_policy(bootstrap: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def keys(bootstrap: str) -> set[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: set[bytes | None] = set()
    while True:
        message = consumer.poll(10)
        assert message is not None, f"read {found}, then nothing more"
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            consumer.close()
            return found
        found.add(message.key())


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_log_compacted_before_sigkill_keeps_its_records(tmp_path: Path, policy: str) -> None:
    broker = start_odradek(tmp_path, config=CONFIG)
    try:
        fill(broker.bootstrap)
        wait_compacted(broker)
        set_policy(broker.bootstrap, policy)
    finally:
        broker.kill()
    with start_odradek(tmp_path, config=CONFIG) as broker:
        assert keys(broker.bootstrap) == {b"again", *KEPT}
