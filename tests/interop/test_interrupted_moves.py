"""A clean shutdown during a move leaves Kafka's `-future` directory; Apache Kafka opens it and completes
the move.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from odradek.client.log_dir_admin import Replica, alter_replica_log_dirs
from odradek.client.metadata import open_cluster
from odradek.seams.real import real_seams
from tests.support.librdkafka_clients import create_topic, produce, read_all
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka
from tests.support.waiting import deadline

RATE = "200000"
VALUES = [b"%d" % number * 40 for number in range(6000)]
TIMEOUT_S = 60


@pytest.mark.slow
def test_kafka_completes_interrupted_move(tmp_path: Path) -> None:
    config = {"intra.broker.throttled.rate": RATE, "log.initial.task.delay.ms": "600000"}
    with start_odradek(tmp_path / "odradek", config=config, log_dir_count=2) as odradek:
        small = {"internal.segment.bytes": "100000", "index.interval.bytes": "1000"}
        create_topic(odradek.bootstrap, "t", config=small)
        produce(odradek.bootstrap, "t", VALUES, config={"batch.size": 8000})
        (source,) = [path for path in odradek.log_dirs if (path / "t-0").exists()]
        (destination,) = [path for path in odradek.log_dirs if path != source]
        create_topic(odradek.bootstrap, "empty")
        trio.run(begin_move, odradek.bootstrap, str(source), "empty")
        wait_until_there(source)  # otherwise the next request would cancel this move
        trio.run(begin_move, odradek.bootstrap, str(destination), "empty")
        wait_until_there(destination)
        assert (source / "empty-0.delete").exists()
        trio.run(begin_move, odradek.bootstrap, str(destination))
        # Two segments are copied with their indexes.
        with deadline(TIMEOUT_S, "two copied segments") as check:
            while len(list(destination.glob("t-0.move/*.timeindex"))) < 2:
                check()
    (future,) = destination.glob("t-0.*-future")
    assert len(list(future.glob("*.timeindex"))) >= 2
    assert not (destination / "t-0.move").exists()
    assert (destination / ".kafka_cleanshutdown").exists()
    with start_kafka(
        tmp_path / "kafka", log_dirs=odradek.log_dirs, formatted=True, static_voter=True
    ) as kafka:
        with deadline(TIMEOUT_S, "the end of the move") as check:
            while not (destination / "t-0").exists():
                check()
        found = read_all(kafka.bootstrap, "t", len(VALUES))
        assert [message.value() for message in found] == VALUES
        assert "Recovering" not in kafka.log_file.read_text()
        assert not (source / "t-0").exists()


def wait_until_there(directory: Path) -> None:
    with deadline(TIMEOUT_S, "the end of the move") as check:
        while not (directory / "empty-0").exists():
            check()


async def begin_move(bootstrap: str, destination: str, topic: str = "t") -> None:
    async with open_cluster(real_seams().network, bootstrap) as cluster:
        responses = await alter_replica_log_dirs(cluster, {Replica(1, topic, 0): destination})
    assert [error.name for error in responses.values()] == ["none"]
