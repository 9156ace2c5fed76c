"""Log directories of Apache Kafka, opened and closed by the log manager, and by Kafka again."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from odradek.seams.files import Path as SeamPath
from odradek.seams.real import real_seams
from odradek.storage.directories.opening import open_directories
from odradek.storage.log.config import LogConfig
from odradek.storage.log_manager.log_manager import LogManager, LogServices
from tests.support.log_managers import append, contents
from tests.support.real_kafka import RealKafka, start_kafka

pytestmark = pytest.mark.interop

RECORDS, OURS = 200, 50


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce("t", value=f"theirs {number}", partition=0)
        if not number % 10:
            producer.flush()
    producer.flush()


def consume(bootstrap: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    found: list[str] = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        found.append((message.value() or b"").decode())
    consumer.close()
    return found


def kafka(directory: Path, log_dirs: list[Path] | None = None) -> RealKafka:
    return start_kafka(
        directory,
        config={"log.segment.bytes": "1048576", "log.index.interval.bytes": "200"},
        log_dirs=log_dirs,
        log_dir_count=2,
        formatted=log_dirs is not None,
    )


async def visit(log_dirs: list[Path]) -> None:
    """Open what Kafka closed, read all, write some, close: no log is scanned and none is lost."""
    seams = real_seams()
    paths = [SeamPath(str(path)) for path in log_dirs]
    directories = open_directories(seams.files, seams.entropy, paths, node_id=1)
    manager = LogManager(
        LogServices(
            seams.files,
            seams.clock,
            seams.entropy,
            seams.offload,
            directories,
            config_for=lambda topic: LogConfig(),
        )
    )
    await manager.load()
    assert manager.previous_broker_epoch > 0
    names = {path.name for log_dir in log_dirs for path in log_dir.iterdir() if path.is_dir()}
    assert {f"{log.topic}-{log.partition}" for log in manager.logs()} == names - {
        "__cluster_metadata-0"
    }
    log = manager.get("t", 0)
    assert log is not None
    assert contents(log) == [f"theirs {number}" for number in range(RECORDS)]
    assert log.high_watermark == RECORDS
    epoch = log.epochs.latest
    assert epoch is not None
    for number in range(OURS):
        append(log, f"ours {number}", epoch=epoch)
    await manager.close(broker_epoch=manager.previous_broker_epoch)
    directories.close()


@pytest.mark.slow
async def test_kafka_log_directories_are_opened_and_returned(tmp_path: Path) -> None:
    first = kafka(tmp_path)
    try:
        produce(first.bootstrap)
    finally:
        first.stop()
    await visit(first.log_dirs)
    second = kafka(tmp_path, first.log_dirs)
    try:
        found = consume(second.bootstrap, RECORDS + OURS)
    finally:
        second.stop()
    assert found == [f"theirs {number}" for number in range(RECORDS)] + [
        f"ours {number}" for number in range(OURS)
    ]
