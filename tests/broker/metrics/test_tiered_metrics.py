"""Tests of the metrics of tiered storage (T-54, T-55, S-04)."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from odradek.testing import Broker
from tests.broker.metrics.scraping import CONFIGS, scrape

QUICK = {
    "remote.log.manager.task.interval.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
}
TIERED = {
    "remote.storage.enable": "true",
    "index.interval.bytes": "1",
    "segment.index.bytes": "12",
    "local.retention.bytes": "1",
}
RECORDS = 4
TIMEOUT_S = 30.0
TOPICS = "kafka_server_brokertopicmetrics_"


def wait_for(broker: Broker, name: str, value: float) -> dict[str, float]:
    """Values of all metrics once the condition holds."""
    end = time.monotonic() + TIMEOUT_S
    while (found := scrape(broker)).get(name) != value:
        assert time.monotonic() < end, f"{name} is {found.get(name)}"
        time.sleep(0.05)
    return found


def test_tiered_broker_reports_remote_storage() -> None:
    """T-54, T-55, S-04."""
    with Broker(tiered=True, configs={**QUICK, **CONFIGS}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1, config=TIERED)])["t"].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number, partition=0)
            assert producer.flush(TIMEOUT_S) == 0
        found = wait_for(broker, 'kafka_log_log_logstartoffset{partition="0",topic="t"}', 0)
        found = wait_for(broker, TOPICS + 'remotecopyrequests_total{topic="t"}', RECORDS - 1)
        found = wait_for(broker, TOPICS + 'remotecopylagsegments{topic="t"}', 0)
        found = wait_for(broker, TOPICS + 'remotelogmetadatacount{topic="t"}', RECORDS - 1)
        copied = found[TOPICS + 'remotecopybytes_total{topic="t"}']
        assert copied > 0
        assert found[TOPICS + 'remotebytesout_total{topic="t"}'] == copied
        assert found[TOPICS + "remotecopybytes_alltopics_total"] == copied
        wait_for(broker, TOPICS + 'remotelogsizebytes{topic="t"}', copied)
        wait_for(
            broker, 'kafka_log_remote_brokertopicmetrics_remotelogsizebytes{topic="t"}', copied
        )
        read_all(broker)
        found = scrape(broker)
        assert found[TOPICS + 'remotefetchrequests_total{topic="t"}'] > 0
        assert (
            found[TOPICS + 'remotereadrequests_total{topic="t"}']
            == found[TOPICS + 'remotefetchrequests_total{topic="t"}']
        )
        assert found[TOPICS + 'remotefetchbytes_total{topic="t"}'] > 0
        assert found["kafka_log_remote_remotestoragethreadpool_remotelogreadertaskqueuesize"] == 0
        for name in (
            "kafka_log_remote_remotestoragethreadpool_remotelogreaderavgidlepercent",
            "kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent",
        ):
            assert 0 <= found[name] <= 1


def read_all(broker: Broker) -> None:
    """Read from the beginning, which is only in the remote tier."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    assert len(consumer.consume(RECORDS, timeout=TIMEOUT_S)) == RECORDS
    consumer.close()


def test_disablement_is_counted_on_the_active_controller(tmp_path: Path) -> None:
    """KIP-950. Without the store, the broker cannot finish its part."""
    store, away = tmp_path / "tier", tmp_path / "away"
    prefix = "kafka_controller_kafkacontroller_tiering"
    with Broker(tiered=store, configs={**QUICK, **CONFIGS}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1, config=TIERED)])["t"].result(TIMEOUT_S)
        assert scrape(broker)[prefix + "disablingtopiccount"] == 0
        store.rename(away)
        configs = {"remote.storage.enable": "false", "remote.log.disable.policy": "delete"}
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=changes)
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
        found = wait_for(broker, prefix + "disablingtopiccount", 1)
        assert found[prefix + "disabledtopiccount"] == 0
        assert found[prefix + "disablementmissingbrokercount"] == 1
        away.rename(store)
        found = wait_for(broker, prefix + "disabledtopiccount", 1)
        assert found[prefix + "disablingtopiccount"] == 0
        assert found[prefix + "disablementmissingbrokercount"] == 0
