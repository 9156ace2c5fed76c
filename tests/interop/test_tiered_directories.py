"""Remote storage that one broker wrote and the other one reads: Odradek uses the store and the remote log
metadata of Apache Kafka's LocalTieredStorage, and the other way round.

A broker copies a topic and stops cleanly. The other broker starts on the same log directories and store,
serves every record, and continues to copy.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.interop.directories_of_other_broker import open_directories
from tests.support.broker_kinds import BROKERS, STARTERS
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import TIMEOUT_S, create_topic, read_to_end, wait_for_topic
from tests.support.tiered_storage_configs import NOT_READY, STORAGE, tiered_configs
from tests.support.waiting import deadline

TOPIC = "tiered"
CONFIG = {
    "remote.storage.enable": "true",
    "index.interval.bytes": "1",
    "segment.index.bytes": "24",
    "local.retention.bytes": "1",
}
PAIRS = (
    [("odradek", "kafka"), ("kafka", "odradek")] if "odradek" in BROKERS else [("kafka", "kafka")]
)


@pytest.mark.slow
@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_other_broker_reads_remote_storage(tmp_path: Path, writer: str, reader: str) -> None:
    store = tmp_path / "store"
    store.mkdir()
    config = tiered_configs(store, 1)
    with STARTERS[writer](tmp_path / "first", config=config, log_dir_count=2) as first:
        create_topic(first.bootstrap, TOPIC, config=CONFIG)
        written = transactions(first.bootstrap, range(12))
        wait_until_tiered(first, 20)
        assert consume(first.bootstrap) == written
    segments = copied(store)
    with open_directories(reader, tmp_path / "second", first, config) as second:
        wait_for_topic(second.bootstrap, TOPIC)
        assert consume(second.bootstrap) == written
        assert get_offsets(second.bootstrap, "earliest") == 0
        assert get_offsets(second.bootstrap, "latest-tiered") >= 19
        written += transactions(second.bootstrap, range(12, 18))
        wait_until_tiered(second, 30)
        assert consume(second.bootstrap) == written
    assert copied(store)[: len(segments)] == segments, "segments were copied again or deleted"


def transactions(bootstrap: str, numbers: range) -> list[str]:
    """Transactions of one record each; every third one is aborted. Returns the committed values."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    for number in numbers:
        producer.begin_transaction()
        producer.produce(TOPIC, f"{number}", partition=0)
        producer.flush(TIMEOUT_S)
        if number % 3 == 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    return [f"{number}" for number in numbers if number % 3 != 2]


def consume(bootstrap: str) -> list[str]:
    """Committed values from the beginning to the current end."""
    messages = read_to_end(
        bootstrap,
        TopicPartition(TOPIC, 0, 0),
        timeout_s=TIMEOUT_S,
        config={"isolation.level": "read_committed"},
        passing=NOT_READY,
    )
    return [(each.value() or b"").decode() for each in messages]


def wait_until_tiered(broker: BrokerProcess, offset: int) -> None:
    """Wait until the local log start offset is at least `offset`."""
    with deadline(TIMEOUT_S, f"{offset} to be the first local offset") as check:
        while get_offsets(broker.bootstrap, "earliest-local") < offset:
            check(0.2)


def get_offsets(bootstrap: str, time: str) -> int:
    """Output of kafka-get-offsets."""
    words = ("--bootstrap-server", bootstrap, "--topic", TOPIC, "--time", time)
    (line,) = run_tool("get-offsets", *words).lines
    return int(line.rpartition(":")[2])


def copied(store: Path) -> list[str]:
    return sorted(path.name for path in (store / STORAGE).rglob("*.log"))
