"""Test of a full log directory: the producer gets an error, and the broker continues. The files are on a
virtual disk with a capacity; sockets and clients are real."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from odradek.seams.files import Path
from odradek.seams.real import real_seams
from odradek.testing import Broker
from odradek.testing.power import Power
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from tests.support.librdkafka_clients import deliver
from tests.support.waiting import wait_until

CAPACITY = 64 * 1024 * 1024
VALUE = b"v" * 100_000


@pytest.fixture
def disk() -> VirtualDisk:
    disk = VirtualDisk()
    disk.mount(Path("/small"), CAPACITY)
    return disk


@pytest.fixture
def broker(disk: VirtualDisk) -> Iterator[Broker]:
    seams = replace(real_seams(), files=VirtualFiles(disk, Power()))
    with Broker(topics=["t"], data="/small/data", seams=seams) as broker:
        yield broker


def produce_without_retries(bootstrap: str, count: int) -> tuple[list[int], list[KafkaError]]:
    """Produce records; return the offsets of the acknowledged ones, and the errors of the others."""
    config = {"retries": 0, "batch.num.messages": 1, "log_level": 0}
    reports = deliver(bootstrap, "t", [VALUE] * count, partition=0, config=config)
    offsets = [message.offset() for error, message in reports if error is None]
    return offsets, [error for error, _ in reports if error is not None]


def test_full_disk_is_logged_and_reads_continue(
    broker: Broker, disk: VirtualDisk, caplog: pytest.LogCaptureFixture
) -> None:
    offsets, errors = produce_without_retries(broker.bootstrap, 700)
    assert 0 < len(offsets) < 700
    assert {error.code() for error in errors} == {KafkaError.KAFKA_STORAGE_ERROR}

    wait_until(lambda: "no space left in log directory /small/data" in caplog.text)

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    read = consumer.consume(len(offsets), 10)
    consumer.close()
    assert [message.offset() for message in read] == sorted(offsets)

    disk.mount_of(Path("/small/data")).capacity_bytes = 2 * CAPACITY
    more, errors = produce_without_retries(broker.bootstrap, 5)
    assert errors == []
    assert more == list(range(len(offsets), len(offsets) + 5))
    wait_until(lambda: "log directory /small/data has free space again" in caplog.text)
