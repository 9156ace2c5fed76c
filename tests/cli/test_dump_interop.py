"""Tests of `odradek dump` on files of Apache Kafka, compared with kafka-dump-log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from odradek.cli.main import main
from tests.support.kafka_tools import run_tool
from tests.support.real_kafka import start_kafka

pytestmark = pytest.mark.interop

RECORDS = 300
DECODERS = {
    "__cluster_metadata": "--cluster-metadata-decoder",
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "flights": "--print-data-log",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Log directories of a stopped Kafka with transactions, an idempotent producer and a group."""
    kafka = start_kafka(
        tmp_path_factory.mktemp("kafka"),
        config={"log.index.interval.bytes": "200"},
        log_dir_count=2,
    )
    try:
        _produce(kafka.bootstrap)
        _consume(kafka.bootstrap)
    finally:
        kafka.stop()
    return list(kafka.log_dirs)


def _produce(bootstrap: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "tx", "compression.type": "lz4"}
    )
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        for record in range(20):
            producer.produce("flights", key=f"k{record}", value=b"v" * 50)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    idempotent = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        idempotent.produce("flights", key=f"k{number}", value=b"w" * 30)
        if not number % 30:
            idempotent.flush()
    idempotent.flush()


def _consume(bootstrap: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["flights"])
    seen = 0
    while seen < RECORDS:
        message = consumer.poll(30)
        assert message is not None
        seen += message.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()


def segments(log_dirs: list[Path]) -> Iterator[tuple[str, Path]]:
    for log_dir in log_dirs:
        for path in sorted(log_dir.glob("*/*.log")):
            topic = path.parent.name.rpartition("-")[0]
            if topic in DECODERS and path.stat().st_size:
                yield topic, path


def test_verify_accepts_kafka_files(
    written: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["dump", "--verify", "--deep", *map(str, written)])
    assert code == 0, capsys.readouterr().out


def test_dump_matches_kafka_dump_log(
    written: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    topics = set()
    for topic, path in segments(written):
        kafka_name = run_tool("dump-log", DECODERS[topic], "--files", str(path)).check().lines
        assert main(["dump", "--json", "--records", str(path)]) == 0
        odradek_name = [json.loads(line) for line in capsys.readouterr().out.splitlines()][1:]
        lines = [line for line in kafka_name if line.startswith(("baseOffset:", "| offset:"))]
        assert len(lines) == len(odradek_name)
        for line, row in zip(lines, odradek_name, strict=True):
            assert_same(line, row)
        topics.add(topic)
    assert topics == set(DECODERS)


def assert_same(line: str, row: dict[str, Any]) -> None:
    if row["type"] == "batch":
        for kafka_name, odradek_name in (
            ("baseOffset", "baseOffset"),
            ("lastOffset", "lastOffset"),
            ("count", "count"),
            ("baseSequence", "baseSequence"),
            ("lastSequence", "lastSequence"),
            ("producerId", "producerId"),
            ("producerEpoch", "producerEpoch"),
            ("partitionLeaderEpoch", "partitionLeaderEpoch"),
            ("isTransactional", "isTransactional"),
            ("isControl", "isControl"),
            ("position", "position"),
            ("CreateTime", "maxTimestamp"),
            ("size", "sizeInBytes"),
            ("magic", "magic"),
            ("compresscodec", "compressCodec"),
            ("crc", "crc"),
            ("isvalid", "isValid"),
        ):
            assert f"{kafka_name}: {str(row[odradek_name]).lower()} " in f"{line.lower()} ".replace(
                kafka_name.lower(), kafka_name
            ), (kafka_name, line)
        return
    assert f"offset: {row['offset']} " in line
    assert (
        f"CreateTime: {row['timestamp']} keySize: {row['keySize']} valueSize: {row['valueSize']} "
        in line
    )
    if "controlType" not in row:
        assert "decodeError" not in row
        shown = _shown(line)
        assert shown.get("key") == row["key"]
        assert shown["payload"] == row["value"]


def _shown(line: str) -> dict[str, Any]:
    """Texts after `key:` and `payload:` in the output of Kafka's tool."""
    match = re.search(r"headerKeys: \[\](?: key: (.*?))? payload: (.*)$", line)
    assert match is not None, line
    key, payload = match[1], match[2]
    return {"key": _json(key) if key is not None else None, "payload": _json(payload)}


def _json(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text
