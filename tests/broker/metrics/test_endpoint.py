"""Tests of the metrics endpoint: values, HTTP requests, and errors."""

from __future__ import annotations

import errno
import re
import socket
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.broker.metrics.exposition import exported_name, exported_total, exposition
from odradek.broker.metrics.metric_table import by_name
from odradek.broker.metrics.metrics_page import page
from odradek.broker.metrics.registry import Metrics
from odradek.storage.errors import LogFailed
from odradek.storage.log.partition_log import PartitionLog
from odradek.testing import Broker
from tests.broker.metrics.scraping import CONFIGS, scrape, url


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # without periodic tasks, which would meet the disk errors that a test simulates
    configs = {**CONFIGS, "log.initial.task.delay.ms": "3600000"}
    with Broker(topics={"t": 2}, configs=configs) as running:
        open_partitions(running)
        yield running


def open_partitions(broker: Broker) -> None:
    """Open the partitions of `t` with ListOffsets: they have no metrics before a request or a background task
    opens them."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    for index in range(2):
        assert consumer.get_watermark_offsets(TopicPartition("t", index), timeout=10) == (0, 0)
    consumer.close()


def test_client_traffic_is_counted_by_topic_and_total(broker: Broker) -> None:
    before = scrape(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
    for number in range(10):
        producer.produce("t", b"%d" % number, partition=number % 2)
    assert producer.flush(10) == 0
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    assert len(consumer.consume(10, timeout=20)) == 10
    consumer.close()
    after = scrape(broker)

    def grew(name: str) -> float:
        return after[name] - before.get(name, 0)

    prefix = "kafka_server_brokertopicmetrics_"
    assert grew(prefix + 'messagesin_total{topic="t"}') == 10
    assert grew(prefix + "messagesin_alltopics_total") > 10  # it includes __consumer_offsets
    assert grew(prefix + 'bytesin_total{topic="t"}') > 100
    assert grew(prefix + 'bytesout_total{topic="t"}') == grew(prefix + 'bytesin_total{topic="t"}')
    assert grew(prefix + 'totalproducerequests_total{topic="t"}') == 2
    assert grew(prefix + 'failedproducerequests_total{topic="t"}') == 0
    assert after['kafka_log_log_logendoffset{partition="0",topic="t"}'] == 5
    assert after["kafka_server_replicamanager_leadercount"] >= 2


def test_node_gauges(broker: Broker) -> None:
    found = scrape(broker)
    assert found["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert found["kafka_controller_kafkacontroller_activebrokercount"] == 1
    assert found["kafka_server_kafkaserver_brokerstate"] == 3
    assert found["kafka_server_raftmetrics_current_leader"] == broker.node.node_id
    assert found["kafka_log_logmanager_offlinelogdirectorycount"] == 0
    assert found["kafka_server_replicamanager_underreplicatedpartitions"] == 0
    assert found["kafka_server_replicamanager_isrshrinks_total"] == 0


@pytest.mark.parametrize("attribute", ["size_bytes", "producers"])
def test_log_with_unreadable_files_is_left_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, attribute: str
) -> None:
    real = getattr(PartitionLog, attribute)

    def look(partition_log: PartitionLog) -> object:
        if (partition_log.topic, partition_log.partition) == ("t", 1):
            raise OSError(errno.EIO, "disk") if attribute == "size_bytes" else LogFailed("log")
        return real.fget(partition_log)

    name = 'kafka_log_log_size{partition="%d",topic="t"}'
    before = scrape(broker)
    monkeypatch.setattr(PartitionLog, attribute, property(look))
    found = scrape(broker)
    assert name % 0 in found
    assert (name % 1 in found) == (attribute != "size_bytes")
    monkeypatch.undo()
    assert before.keys() <= scrape(broker).keys()


def test_failed_gauge_does_not_stop_the_endpoint(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(metrics: Metrics) -> None:
        raise RuntimeError("an unexpected error")

    monkeypatch.setattr(Metrics, "collect", broken)
    with pytest.raises((HTTPException, OSError)):
        scrape(broker)
    monkeypatch.undo()
    assert scrape(broker)


def test_deleted_topic_counts_in_total_only() -> None:
    with Broker(topics={"gone": 1}, configs={**CONFIGS, "log.retention.bytes": "100"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("gone", b"x")
        assert producer.flush(10) == 0
        name = "kafka_server_brokertopicmetrics_messagesin_total"
        total = "kafka_server_brokertopicmetrics_messagesin_alltopics_total"
        found = scrape(broker)
        assert found[name + '{topic="gone"}'] == 1
        full = found['kafka_log_log_retentionsizeinpercent{partition="0",topic="gone"}']
        assert full == found['kafka_log_log_size{partition="0",topic="gone"}'] > 0
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics(["gone"])["gone"].result(10)
        found = scrape(broker)
        assert name + '{topic="gone"}' not in found
        assert found[total] == 1


def test_other_paths_and_methods_are_rejected(broker: Broker) -> None:
    for path, data, code in (("/", None, 404), ("/metrics", b"x", 405)):
        with pytest.raises(HTTPError) as caught:
            urllib.request.urlopen(url(broker, path), data=data, timeout=10)
        assert caught.value.code == code
        assert b"/metrics" in caught.value.read()
        caught.value.close()


def test_connection_serves_several_requests_and_head(broker: Broker) -> None:
    address = broker.node.metrics_address
    assert address is not None
    with socket.create_connection((address.host, address.port), timeout=10) as sock:
        for _ in range(2):
            sock.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            response = b""
            while not response.endswith(b"\r\n\r\n"):
                response += sock.recv(4096)
            assert response.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("garbage", [b"\x00\x00\x00\x10garbage\r\n\r\n", b"GET /" + b"x" * 20_000])
def test_invalid_request_gets_400(broker: Broker, garbage: bytes) -> None:
    address = broker.node.metrics_address
    assert address is not None
    with socket.create_connection((address.host, address.port), timeout=10) as sock:
        sock.sendall(garbage)
        assert sock.recv(4096).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
    assert scrape(broker)


def test_names_and_labels_are_valid_in_prometheus() -> None:
    metrics = Metrics()
    metrics.gauge("LogDirectoryOffline", lambda: 1, log_directory='/a "b"\\c')
    (line,) = list(exposition(metrics))[1:]
    assert line == ('kafka_log_logmanager_logdirectoryoffline{log_directory="/a \\"b\\"\\\\c"} 1\n')
    names = [
        exported_name(mbean, each.kind)
        for each in by_name().values()
        for mbean in (each.mbean, *each.also)
    ]
    names += [exported_total(each.mbean) for each in by_name().values() if each.total]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z_]+[a-z0-9_]*", name) for name in names)


def test_meter_is_reported_under_both_names() -> None:
    """T-54."""
    metrics = Metrics()
    metrics.meter("RemoteCopyBytesPerSec", topic="t").mark(7)
    text = "".join(exposition(metrics))
    for name in ("remotecopybytes", "remotebytesout"):
        assert f'kafka_server_brokertopicmetrics_{name}_total{{topic="t"}} 7\n' in text


def test_metrics_page_matches_table() -> None:
    written = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert written.read_text() == page(), (
        "run python -m odradek.broker.metrics.metrics_page > the page"
    )
