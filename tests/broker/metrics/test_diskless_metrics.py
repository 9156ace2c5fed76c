"""Tests of the metrics of diskless topics."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from odradek.testing import Broker
from tests.broker.metrics.scraping import CONFIGS, scrape
from tests.support.librdkafka_clients import produce, read_all

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


def test_broker_reports_files_batches_and_cache(tmp_path: Path) -> None:
    """Traffic of a diskless topic counts although no broker has a partition of it."""
    with Broker(diskless=tmp_path / "store", configs=CONFIGS) as broker:
        create(broker, "clicks", 1)
        for number in range(3):
            produce(broker.bootstrap, "clicks", [b"%d" % number])
        assert len(read_all(broker.bootstrap, "clicks", 3)) == 3
        found = scrape(broker)
        writer = "kafka_server_disklesswriter_"
        assert found[f"{writer}fileswritten_total"] == found[f"{writer}batchescommitted_total"] == 3
        stored = sum(path.stat().st_size for path in tmp_path.glob("store/*/diskless/*"))
        assert found[f"{writer}byteswritten_total"] == stored > 0
        assert found[f"{writer}bufferedbytes"] == found[f"{writer}faileduploads_total"] == 0
        assert 0 < found[f"{writer}upload_time_avg"] <= found[f"{writer}append_time_max"]
        reader = "kafka_server_disklessreader_"
        assert found[f"{reader}cachehits_total"] == 3, "the writer has put the objects there"
        assert found[f"{reader}objectreads_total"] == 0
        assert found[f"{reader}cachebytes"] > stored
        assert found["kafka_server_disklessfiles_orphansdeleted_total"] == 0
        assert sum(of_coordinators(found, "batchcount")) == 3
        assert sum(of_coordinators(found, "livebytes")) == stored
        topic = '{topic="clicks"}'
        traffic = "kafka_server_brokertopicmetrics_"
        assert found[f"{traffic}messagesin_total{topic}"] == 3
        assert found[f"{traffic}bytesin_total{topic}"] == stored
        assert found[f"{traffic}bytesout_total{topic}"] == stored


def test_broker_without_diskless_topics_has_no_such_metrics() -> None:
    with Broker(configs=CONFIGS) as broker:
        assert not any("diskless" in name for name in scrape(broker))


def test_diskless_partitions_are_not_offline(tmp_path: Path) -> None:
    """They count as partitions, although they have no leader and no preferred replica."""
    with Broker(diskless=tmp_path / "store", configs=CONFIGS) as broker:
        create(broker, "clicks", 6)
        found = scrape(broker)
        controller = "kafka_controller_kafkacontroller_"
        assert found[f"{controller}globalpartitioncount"] == 6 + 3
        assert found[f"{controller}offlinepartitionscount"] == 0
        assert found[f"{controller}preferredreplicaimbalancecount"] == 0
