"""`odradek diskless verify` on three brokers, while producers, retention and a kill change what it reads."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from odradek.cli import diskless_verify
from odradek.testing import Cluster
from tests.cli.command_line import CommandLine
from tests.support.librdkafka_clients import create_topic
from tests.support.waiting import deadline

CONFIGS = {
    "log.retention.check.interval.ms": "500",
    "diskless.append.commit.interval.ms": "20",
    "diskless.metadata.snapshot.interval.records": "50",
}
TOPIC = {"diskless.enable": "true", "retention.bytes": "200000"}
VALUE = os.urandom(500)


class ProducerThread:
    """An idempotent producer that produces until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self.errors: list[str] = []
        self.sent = 0
        self._bootstrap = bootstrap
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> ProducerThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped = True
        self._thread.join()

    def _run(self) -> None:
        config = {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 0}
        producer = Producer(config)
        while not self._is_stopped:
            producer.produce(
                "clicks",
                VALUE,
                on_delivery=lambda error, _: self.errors.append(str(error)) if error else None,
            )
            self.sent += 1
            producer.poll(0)
            if self.sent % 100 == 0:
                time.sleep(0.05)
        assert producer.flush(60) == 0


@pytest.mark.slow
def test_verify_under_load_finds_no_problems_and_later_an_exact_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A killed broker may leave orphans, which are recent; D-20: the log of the coordinators is pruned meanwhile."""
    monkeypatch.setattr(diskless_verify, "SETTLE_S", 1.0)
    store = tmp_path / "store"
    with Cluster(brokers=3, diskless=store, proxied=False, configs=CONFIGS) as cluster:
        monkeypatch.setenv("ODRADEK_BOOTSTRAP", cluster.bootstrap)
        run = CommandLine(monkeypatch, capsysbinary)
        create_topic(cluster.bootstrap, "clicks", partitions=6, config=TOPIC)
        with ProducerThread(cluster.bootstrap) as producer:
            for number in range(6):
                time.sleep(1)
                found = run("diskless", "verify", "--url", str(store), "--timeout", "40", "--json")
                assert found.json["problems"] == []
                assert {each["status"] for each in found.json["untracked"]} <= {"recent"}
                if number == 1:
                    cluster.kill(2)
                elif number == 3:
                    cluster.restart(2)
        assert producer.errors == []
        assert producer.sent > 1000
        with deadline(
            60, "a log that is pruned, once all in-sync replicas have snapshots"
        ) as check:
            while True:
                described = run("diskless", "coordinators", "--json").json["coordinators"]
                assert all(row["error"] is None for row in described)
                if any(row["log_start_offset"] > 0 for row in described):
                    break
                check(0.5)
        assert all(
            row["snapshot_offset"] is not None for row in described if row["log_start_offset"]
        )
        last = run("diskless", "verify", "--url", str(store), "--json").json
        assert (last["partitions"], last["problems"]) == (6, [])
