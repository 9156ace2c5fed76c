"""Tests of the metrics of diskless topics."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from odradek.testing import Broker
from tests.broker.metrics.scraping import CONFIGS, scrape

COORDINATORS = "kafka_server_disklesscoordinator_"
TIMEOUT_S = 30.0


def create(broker: Broker, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(topic, partitions, 1, config={"diskless.enable": "true"})
    admin.create_topics([new])[topic].result(TIMEOUT_S)


def of_coordinators(found: dict[str, float], name: str) -> list[float]:
    return [value for key, value in found.items() if key.startswith(f"{COORDINATORS}{name}{{")]


def wait_for_partitions(broker: Broker, count: int) -> dict[str, float]:
    """Values of all metrics once the coordinators have `count` partitions."""
    end = time.monotonic() + TIMEOUT_S
    while sum(of_coordinators(found := scrape(broker), "partitioncount")) != count:
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def test_coordinators_report_their_state(tmp_path: Path) -> None:
    with Broker(diskless=tmp_path / "store", configs=CONFIGS) as broker:
        assert scrape(broker)[f"{COORDINATORS}coordinatorcount"] == 0
        create(broker, "clicks", 6)
        found = wait_for_partitions(broker, 6)
        assert found[f"{COORDINATORS}coordinatorcount"] == 3
        assert found[f'{COORDINATORS}partitioncount{{coordinator="2"}}'] == 2
        for name in ("batchcount", "livebytes", "filecount", "filestodelete", "unappliedrecords"):
            assert of_coordinators(found, name) == [0, 0, 0], name
        assert min(of_coordinators(found, "statebytes")) > 0


def test_broker_without_diskless_topics_has_no_such_metrics() -> None:
    with Broker(configs=CONFIGS) as broker:
        assert not any("diskless" in name for name in scrape(broker))
