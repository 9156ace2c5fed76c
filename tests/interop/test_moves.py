"""Moves between log directories (KIP-113), with Apache Kafka's tools, real clients and a broker process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.broker_kinds import BROKERS, STARTERS
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import ToolRun, run_tool
from tests.support.librdkafka_clients import TIMEOUT_S, create_topic, produce, read_all
from tests.support.waiting import deadline

MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
SLOW = 400_000
"""Throttle in bytes/s that keeps a move running during the test."""
RECORD_BYTES = 1000
RECORDS = 12_000

Tool = Callable[..., ToolRun]


def tool_for(broker: BrokerProcess) -> Tool:
    def run(name: str, *args: str, **options: Any) -> ToolRun:
        return run_tool(name, *args, "--bootstrap-server", broker.bootstrap, **options)

    return run


@pytest.fixture
def tool(broker: BrokerProcess) -> Tool:
    """Runs a tool with --bootstrap-server."""
    return tool_for(broker)


@pytest.fixture(params=BROKERS)
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker for one test, with two log directories."""
    with STARTERS[request.param](tmp_path / "broker", log_dir_count=2) as running:
        yield running


def reassignment(directory: Path, topic: str, log_dirs: Sequence[Path | str]) -> tuple[str, str]:
    """Arguments for a file that moves the topic's partitions to these directories."""
    rows = [
        {"topic": topic, "partition": number, "replicas": [1], "log_dirs": [str(path)]}
        for number, path in enumerate(log_dirs)
    ]
    file = directory / f"{topic}.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    return "--reassignment-json-file", str(file)


def places(tool: Tool, topic: str) -> dict[tuple[str, bool], tuple[str, dict[str, Any]]]:
    """Output of kafka-log-dirs: (partition, is future replica) -> directory and other fields."""
    shown = json.loads(tool("log-dirs", "--describe", "--topic-list", topic).lines[-1])
    return {
        (part["partition"], part["isFuture"]): (directory["logDir"], part)
        for directory in shown["brokers"][0]["logDirs"]
        for part in directory["partitions"]
    }


def others(tool: Tool, broker: BrokerProcess, topic: str) -> list[Path]:
    """For each partition, the directory that does not contain it."""
    found = places(tool, topic)
    return [
        next(path for path in broker.log_dirs if str(path) != found[f"{topic}-{number}", False][0])
        for number in range(len(found))
    ]


def verified(tool: Tool, words: Sequence[str]) -> ToolRun:
    """Output of the first --verify that reports every replica in its target directory."""
    wanted = len(json.loads(Path(words[1]).read_text())["partitions"])
    with deadline(2 * TIMEOUT_S, "the reassignment to be complete") as check:
        while True:
            run = tool("reassign-partitions", "--verify", *words)
            if run.stdout.count("completed successfully") == wanted:
                return run
            check()


# Apache Kafka's tools


def test_kafka_tools_during_running_move(
    tool: Tool, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    """J-01, J-04, J-17 to J-19, J-22, J-23: a running move is described, verified and cancelled."""
    create_topic(broker.bootstrap, name)
    values = [b"%0*d" % (RECORD_BYTES, number) for number in range(RECORDS)]
    produce(broker.bootstrap, name, values)
    source, _ = places(tool, name)[f"{name}-0", False]
    (target,) = others(tool, broker, name)
    words = reassignment(tmp_path, name, [target])
    begun = tool(
        "reassign-partitions", "--execute", *words,
        "--replica-alter-log-dirs-throttle", str(SLOW),
    )  # fmt: skip
    assert f"The replica-alter-dir throttle limit was set to {SLOW} B/s" in begun.stdout
    assert f"Successfully started moving log directory to {target} for replica {name}-0" in (
        begun.stdout
    )
    verifying = tool("reassign-partitions", "--verify", *words).stdout
    assert f"Reassignment of replica {name}-0-1 is still in progress." in verifying
    assert "Clearing" not in verifying  # the throttle stays
    shown = places(tool, name)
    path, copy = shown[f"{name}-0", True]
    assert path == str(target)
    whole = shown[f"{name}-0", False]
    assert whole[0] == source
    assert copy["size"] < whole[1]["size"]
    assert copy["offsetLag"] > 0
    elsewhere = reassignment(tmp_path, name, [source])
    assert f"is being moved to log dir {target} instead of {source}" in (
        tool("reassign-partitions", "--verify", *elsewhere).stdout
    )
    reassignment(tmp_path, name, [target])  # the same file again
    cancelled = tool("reassign-partitions", "--cancel", *words).stdout
    assert "None of the specified partition reassignments are active." in cancelled
    assert (
        f"Successfully started moving log directory to {source} for replica {name}-0" in cancelled
    )
    assert list(places(tool, name)) == [(f"{name}-0", False)]
    stopped = tool("reassign-partitions", "--verify", *words).stdout
    assert f"is not being moved from log dir {source} to {target}" in stopped
    tool("reassign-partitions", "--execute", *words)  # --cancel has removed the throttle
    done = verified(tool, words).stdout
    assert f"Reassignment of replica {name}-0-1 completed successfully." in done
    assert "Clearing broker-level throttles on broker 1" in done
    assert places(tool, name)[f"{name}-0", False][0] == str(target)
    assert [message.value() for message in read_all(broker.bootstrap, name, RECORDS)] == values
    assert broker.partition_directory(name).parent == target


def test_executing_again_changes_throttle(
    tool: Tool, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    """J-23; --throttle alone does not limit a move."""
    create_topic(broker.bootstrap, name)
    produce(broker.bootstrap, name, [b"x" * RECORD_BYTES] * RECORDS)
    words = reassignment(tmp_path, name, others(tool, broker, name))
    execute = ("reassign-partitions", "--execute", *words)
    tool(*execute, "--replica-alter-log-dirs-throttle", "50000")  # 100 s
    assert "still in progress" in tool("reassign-partitions", "--verify", *words).stdout
    tool(*execute, "--replica-alter-log-dirs-throttle", "500000000", "--additional")
    assert "completed successfully" in verified(tool, words).stdout
    words = reassignment(tmp_path, name, others(tool, broker, name))
    limited = tool("reassign-partitions", "--execute", *words, "--throttle", "1000")
    assert "The inter-broker throttle limit was set to 1000 B/s" in limited.stdout
    assert "completed successfully" in verified(tool, words).stdout
    settings = ("--entity-type", "brokers", "--entity-name", "1")
    assert "throttled.rate" not in tool("configs", "--describe", *settings).stdout
    assert MOVE_RATE not in tool("configs", "--describe", *settings).stdout


def test_move_to_current_directory_succeeds(
    tool: Tool, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    """J-01; kafka-python's test_alter_replica_log_dirs requires it."""
    create_topic(broker.bootstrap, name)
    produce(broker.bootstrap, name, [b"x"])
    words = reassignment(tmp_path, name, [broker.partition_directory(name).parent])
    assert "Successfully started moving" in tool("reassign-partitions", "--execute", *words).stdout
    assert "completed successfully" in verified(tool, words).stdout
    nowhere = reassignment(tmp_path, name, [tmp_path])
    refused = tool("reassign-partitions", "--execute", *nowhere, check=False)
    assert refused.code == 1
    assert "LogDirNotFoundException" in refused.stdout


# Clients during a move


class Traffic:
    """A producer and a consumer of a topic, on a thread of their own.

    acks=all and no retries: a record that is not acknowledged at the first attempt is an error.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.errors: list[str] = []
        self.acknowledged: list[set[int]] = [set() for _ in range(partitions)]
        self.read: list[list[int]] = [[] for _ in range(partitions)]
        self._sent = 0
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "retries": 0,
                "linger.ms": 1,
                "queue.buffering.max.messages": 1000,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
            }
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-readers",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        self._thread = threading.Thread(target=self._work, name=topic)

    @property
    def count(self) -> int:
        """Number of acknowledged records."""
        return sum(map(len, self.acknowledged))

    def start(self) -> None:
        self._consumer.assign([TopicPartition(self.topic, n, 0) for n in range(self.partitions)])
        self._thread.start()

    def stop(self) -> None:
        """Stop producing; waits until all acknowledged records were consumed, or for an error."""
        self._stop.set()
        self._thread.join(2 * TIMEOUT_S)
        assert not self._thread.is_alive()
        self._consumer.close()

    def check_exactly_once(self) -> None:
        """J-24: no error, no loss, no duplicate."""
        assert self.errors == []
        for acknowledged, read in zip(self.acknowledged, self.read, strict=True):
            assert sorted(read) == sorted(acknowledged)

    def _work(self) -> None:
        while not self._stop.is_set():
            self._send()
            self._poll(0.001)
        if self.errors:
            self._producer.purge()
        self._producer.flush(TIMEOUT_S)
        quiet = 0
        while quiet < 10 and sum(map(len, self.read)) < self.count:
            quiet = quiet + 1 if not self._poll(0.5) else 0

    def _send(self) -> None:
        try:
            self._producer.produce(
                self.topic,
                b"%0*d" % (RECORD_BYTES, self._sent),
                partition=self._sent % self.partitions,
                on_delivery=self._delivered,
            )
            self._sent += 1
        except BufferError:
            pass
        self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(f"{message.topic()}-{message.partition()}: {error}")
        else:
            self.acknowledged[message.partition()].add(int(message.value()))

    def _poll(self, seconds: float) -> bool:
        messages = self._consumer.consume(500, seconds)
        for message in messages:
            if message.error() is not None:
                self.errors.append(str(message.error()))
            else:
                self.read[message.partition()].append(int(message.value()))
        return bool(messages)


@contextmanager
def traffic(broker: BrokerProcess, topic: str, partitions: int = 1) -> Iterator[Traffic]:
    """Load during a `with` block, which starts after the first records were consumed."""
    running = Traffic(broker.bootstrap, topic, partitions)
    running.start()
    try:
        wait_for_more_records(running)
        yield running
    finally:
        running.stop()


def wait_for_more_records(running: Traffic, count: int = 500) -> None:
    """Wait until `count` further records were acknowledged."""
    wanted = running.count + count
    with deadline(TIMEOUT_S, f"{count} more records in {running.topic}") as check:
        while running.count < wanted:
            assert not running.errors
            check()


def test_kip_113_first_system_test(own_broker: BrokerProcess, name: str, tmp_path: Path) -> None:
    """J-24 (1), on one broker: each replica moves to the other directory, and back, under load."""
    tool = tool_for(own_broker)
    create_topic(own_broker.bootstrap, name, partitions=3)
    with traffic(own_broker, name, partitions=3) as running:
        for _ in range(2):
            wait_for_more_records(running)
            targets = others(tool, own_broker, name)
            words = reassignment(tmp_path, name, targets)
            tool("reassign-partitions", "--execute", *words)
            done = verified(tool, words).stdout
            for number, target in enumerate(targets):
                assert f"Reassignment of replica {name}-{number}-1 completed successfully." in done
                assert places(tool, name)[f"{name}-{number}", False][0] == str(target)
            wait_for_more_records(running)
    running.check_exactly_once()
    assert running.count > 1500


def test_kip_113_second_system_test(own_broker: BrokerProcess, name: str, tmp_path: Path) -> None:
    """J-24 (2), on one broker: a failed log directory does not affect the topic in the other one."""
    tool = tool_for(own_broker)
    first, second = own_broker.log_dirs
    good, bad = f"{name}-good", f"{name}-bad"
    for topic, path in ((good, first), (bad, second)):
        create_topic(own_broker.bootstrap, topic)
        words = reassignment(tmp_path, topic, [path])
        tool("reassign-partitions", "--execute", *words)
        assert "completed successfully" in verified(tool, words).stdout
    with traffic(own_broker, good) as on_good:
        with traffic(own_broker, bad) as on_bad:
            # Root ignores permissions, so a file replaces the directory.
            second.rename(tmp_path / "gone")
            second.write_bytes(b"")
            with deadline(TIMEOUT_S, "the directory to be offline") as check:
                while not on_bad.errors:
                    check()
        wait_for_more_records(on_good)
        shown = tool("log-dirs", "--describe").lines[-1]
        errors = {
            each["logDir"]: each["error"] for each in json.loads(shown)["brokers"][0]["logDirs"]
        }
        assert errors[str(first)] is None
        assert "KafkaStorageException" in errors[str(second)]
        wait_for_more_records(on_good)
    on_good.check_exactly_once()
    assert own_broker.process.poll() is None
