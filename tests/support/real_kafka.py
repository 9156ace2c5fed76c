"""A single Apache Kafka broker (KRaft, combined roles) in a JVM."""

from __future__ import annotations

import base64
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.broker_process import (
    BrokerFailed,
    BrokerProcess,
    free_port,
    log_directories,
    properties,
)
from tests.support.kafka_dist import kafka_dist
from tests.support.kafka_tools import run_tool
from tests.support.waiting import deadline

START_SECONDS = 60


class RealKafka(BrokerProcess):
    kind = "kafka"


def start_kafka(
    directory: Path,
    *,
    config: Mapping[str, str] | None = None,
    log_dirs: Sequence[Path] | None = None,
    log_dir_count: int = 1,
    port: int = 0,
    formatted: bool = False,
    static_voter: bool = False,
) -> RealKafka:
    """Format the log directories, unless `formatted`, and start a broker on them.

    It has node id 1, replication factor 1 and no rebalance delay; `config` overrides these. With `static_voter`, the
    config has the quorum, instead of the metadata log. `port` is a free one by default. Returns when the broker
    responds and is registered.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log_dirs = list(log_dirs or log_directories(directory, log_dir_count))
    port, controller_port = port or free_port(), free_port()
    controller = f"127.0.0.1:{controller_port}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        **(
            {"controller.quorum.voters": f"1@{controller}"}
            if static_voter
            else {"controller.quorum.bootstrap.servers": controller}
        ),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": ",".join(map(str, log_dirs)),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "5",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.retention.check.interval.ms": "1000",
        **(config or {}),
    }
    config_file = directory / "server.properties"
    config_file.write_text(properties(settings))
    if not formatted:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        voter = () if static_voter else ("--standalone",)
        run_tool("storage", "format", f"--cluster-id={cluster_id}", "-c", str(config_file), *voter)
    log_file = directory / "kafka.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            kafka_dist().command("kafka.Kafka", str(config_file), heap_mb=512),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
        )
    broker = RealKafka(process, f"127.0.0.1:{port}", directory, log_dirs, log_file)
    try:
        _wait_ready(broker, port)
    except BaseException:
        broker.kill()
        raise
    return broker


def _wait_ready(broker: RealKafka, port: int) -> None:
    with deadline(START_SECONDS, "Kafka to listen") as check:
        while True:
            if broker.process.poll() is not None:
                raise BrokerFailed(f"Kafka ended at once\n{broker.log()}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                check()
    # The broker listens before it is registered, and creating a topic requires a registered broker.
    run_tool("broker-api-versions", "--bootstrap-server", broker.bootstrap, timeout=START_SECONDS)
