"""Disabling tiered storage of topics in the form of KIP-950, with three processes and faults.

Each node is a broker and a controller. The remote storage is a directory or an S3 server. Apache Kafka's own form is
tested in `test_tiered_storage.py`.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import batches
from odradek.protocol.records.records import decode
from odradek.seams.object_store import open_objects
from odradek.storage.tiered.object_names import parse_key
from odradek.testing import Cluster
from tests.support.kafka_tools import run_tool
from tests.support.raw_client import RawClient
from tests.support.tiered_storage_configs import STORAGE, tiered_configs
from tests.support.waiting import deadline
from tests.system import cluster_state
from tests.system.cluster_state import TIMEOUT_S
from tests.system.clusters import CONFIGS
from tests.system.tiered import EARLIEST, EARLIEST_LOCAL, Tiered

if TYPE_CHECKING:
    from odradek.bench.s3_server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.interop]
BROKERS = 3
ENABLE, POLICY = "remote.storage.enable", "remote.log.disable.policy"
DELETES: Mapping[str, str] = {"remote_log_delete_on_disable": "true"}
VALUES = [f"{number:04}" for number in range(12)]
SETTLE_S = 1.5
"""Several retries of DisableRemoteTopic."""


class Store(Protocol):
    """A remote storage that becomes unavailable."""

    def configs(self) -> Mapping[str, str]: ...
    def object_keys(self) -> list[str]: ...
    def stop(self) -> None: ...
    def start(self) -> None: ...


class DirectoryStore:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._away = directory.with_name(f"{directory.name}-away")

    def configs(self) -> Mapping[str, str]:
        return tiered_configs(self._directory, BROKERS)

    def object_keys(self) -> list[str]:
        return [info.key for info in open_objects(f"file://{self._directory / STORAGE}").list("")]

    def stop(self) -> None:
        self._directory.rename(self._away)

    def start(self) -> None:
        if self._away.exists():
            shutil.rmtree(self._directory, ignore_errors=True)
            self._away.rename(self._directory)


class S3Store:
    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._url = server.new_store()

    def configs(self) -> Mapping[str, str]:
        own = ("rsm.config.dir", "rsm.config.delete.on.close")
        shared = tiered_configs(Path(), BROKERS).items()
        options = {f"rsm.config.{name}": value for name, value in self._server.options.items()}
        return {
            **{name: value for name, value in shared if name not in own},
            **options,
            "remote.log.storage.manager.class.name": "odradek.ObjectStore",
            "rsm.config.url": self._url,
            "rsm.config.retries": "0",
            "rsm.config.connect.timeout.ms": "1000",
            "rsm.config.request.timeout.ms": "5000",
        }

    def object_keys(self) -> list[str]:
        return [info.key for info in open_objects(self._url, self._server.options).list("")]

    def stop(self) -> None:
        self._server.kill()

    def start(self) -> None:
        if not self._server.is_running:
            self._server.start()


class Disabling(Tiered):
    """A running cluster and its remote storage, with changes of the configs of a topic."""

    remote_store: Store

    def fill(self, topic: str, *assignment: list[int]) -> list[int]:
        """Create a topic with a partition for each list of brokers, whose segments except the active ones are only in
        the remote tier. Return the local log start offsets."""
        self.create(topic, *assignment, batches=2)
        for index in range(len(assignment)):
            self.produce_all(topic, VALUES, partition=index)
        for index in range(len(assignment)):
            self.wait_for_offset(topic, EARLIEST_LOCAL, len(VALUES) - 2, index)
        return [len(VALUES) - 2] * len(assignment)

    def produce_all(self, topic: str, values: list[str], *, partition: int = 0) -> None:
        """Produce each value in a batch of its own."""
        self.produce(topic, *values, partition=partition)

    def is_disabling(self, topic: str, policy: str) -> bool:
        """Whether a change of the policy is refused because the topic is in the state DISABLING."""
        change = ConfigEntry(POLICY, policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        admin = self.new_admin()
        asked = admin.incremental_alter_configs([resource], validate_only=True)
        try:
            for future in asked.values():
                future.result(TIMEOUT_S)
        except KafkaException as refused:
            error = refused.args[0]
            assert f"Tiered storage of topic {topic} is being disabled" in error.str(), error
            return True
        return False

    def assert_stays_disabling(self, topic: str, policy: str) -> None:
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            assert self.is_disabling(topic, policy)
            time.sleep(0.3)

    def wait_until_disabled(self, topic: str, policy: str) -> None:
        with deadline(TIMEOUT_S, f"{topic} to be disabled") as check:
            while self.is_disabling(topic, policy):
                check(0.1)

    def objects(self, topic: str) -> list[str]:
        """Keys of the objects of a topic in the remote storage."""
        names = [(key, parse_key(key)) for key in self.remote_store.object_keys()]
        return [key for key, name in names if name and name.id.partition.topic == topic]

    def wait_until_deleted(self, topic: str) -> None:
        with deadline(TIMEOUT_S, f"the remote data of {topic} to be deleted") as check:
            while self.objects(topic):
                check(0.1)

    def values(self, topic: str, offset: int = 0, partition: int = 0) -> list[str]:
        return [value for _, value in self.consume(topic, offset, partition=partition)]

    def controller(self, *, broker: int) -> int:
        return cluster_state.wait_for_controller(self.cluster, lambda _: True, broker=broker)


@pytest.fixture(scope="module", params=["directory", "s3"])
def tiers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Disabling]:
    store: Store
    if request.param == "s3":
        store = S3Store(request.getfixturevalue("s3_server"))
    else:
        store = DirectoryStore(tmp_path_factory.mktemp("remote") / "store")
    with Cluster(brokers=BROKERS, configs={**CONFIGS, **store.configs()}) as running:
        found = Disabling(running, Path())
        found.remote_store = store
        yield found
        store.start()


@contextmanager
def unavailable_store(tiers: Disabling) -> Iterator[None]:
    tiers.remote_store.stop()
    try:
        yield
    finally:
        tiers.remote_store.start()


def kafka_configs(tiers: Tiered, topic: str, *args: str, check: bool = True) -> str:
    """Output of kafka-configs for a topic."""
    run = run_tool(
        "configs", "--bootstrap-server", tiers.cluster.bootstrap, "--entity-type", "topics",
        "--entity-name", topic, *args, check=check,
    )  # fmt: skip
    return run.stdout + run.stderr


def by_kafka_configs(tiers: Tiered, topic: str, **settings: str) -> str:
    named = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    return kafka_configs(tiers, topic, "--alter", "--add-config", ",".join(named), check=False)


def by_java(tiers: Tiered, topic: str, **settings: str) -> str:
    named = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    run = run_tool("client", "alter-configs", tiers.cluster.bootstrap, topic, *named)
    seen = json.loads(run.stdout)
    return str(seen["error"])


# Clients


@pytest.mark.parametrize(
    ("client", "policy"),
    [(by_kafka_configs, "retain"), (by_java, "delete")],
    ids=["tool-retain", "java-delete"],
)
def test_topic_is_disabled_and_enabled_again(tiers: Disabling, client: Any, policy: str) -> None:
    """X-01, X-02, X-05, X-06, X-12, X-13 with Kafka's own clients."""
    topic = f"policy-{policy}-{client.__name__}".replace("_", "-")
    (start,) = tiers.fill(topic, [1, 2])
    bad = client(tiers, topic, remote_storage_enable="false", remote_log_disable_policy="keep")
    assert "must be one of retain, delete" in bad
    client(tiers, topic, remote_storage_enable="false", remote_log_disable_policy=policy)
    tiers.wait_until_disabled(topic, policy)
    described = kafka_configs(tiers, topic, "--describe")
    assert f"{POLICY}={policy}" in described
    assert f"{ENABLE}=false" in described
    remote = tiers.objects(topic)
    if policy == "retain":
        assert remote
        start = 0
    else:
        assert remote == []
        assert tiers.offset(topic, EARLIEST)[1] == start
    tiers.produce_all(topic, VALUES)
    assert tiers.values(topic, start) == (2 * VALUES)[start:]
    assert tiers.objects(topic) == remote
    client(tiers, topic, remote_storage_enable="true")
    assert POLICY not in kafka_configs(tiers, topic, "--describe")
    tiers.wait_for_offset(topic, EARLIEST_LOCAL, 2 * len(VALUES) - 2)
    assert tiers.objects(topic)
    assert tiers.values(topic, start) == (2 * VALUES)[start:]


@pytest.mark.parametrize("client", [by_kafka_configs, by_java], ids=["tool", "java"])
def test_kafkas_form_stops_copying_deletes_and_is_enabled_again(
    tiers: Disabling, client: Any
) -> None:
    """X-01, X-05 in the form of Apache Kafka, and the errors of other local retention and of a bare disablement."""
    topic = f"kafka-{client.__name__}".replace("_", "-")
    (start,) = tiers.fill(topic, [1, 2])
    no_copies = {"remote_log_copy_disable": "true"}
    assert "must be set to the identical value" in client(tiers, topic, **no_copies)
    client(tiers, topic, **no_copies, local_retention_bytes="-2", local_retention_ms="-2")
    remote = tiers.objects(topic)
    tiers.produce_all(topic, VALUES)
    assert tiers.values(topic) == 2 * VALUES
    assert tiers.objects(topic) == remote
    assert "It is invalid to disable remote storage without deleting remote data" in client(
        tiers, topic, remote_storage_enable="false"
    )
    client(tiers, topic, remote_storage_enable="false", **DELETES)
    tiers.wait_until_deleted(topic)
    tiers.wait_for_offset(topic, EARLIEST, start)
    assert tiers.values(topic, start) == (2 * VALUES)[start:]
    assert tiers.objects(topic) == []
    client(
        tiers, topic, remote_log_delete_on_disable="false", remote_storage_enable="true",
        remote_log_copy_disable="false", local_retention_bytes="1",
    )  # fmt: skip
    tiers.wait_for_offset(topic, EARLIEST_LOCAL, 2 * len(VALUES) - 2)
    assert tiers.values(topic, start) == (2 * VALUES)[start:]


# Faults in the state DISABLING


@pytest.mark.parametrize("form", ["policy", "kafka"])
def test_broker_killed_in_disabling_finishes_after_its_restart(tiers: Disabling, form: str) -> None:
    """The remote storage is unavailable until the broker runs again; other topics are served. The form of Apache Kafka
    has no state, but deletes the remote data all the same."""
    controller = tiers.controller(broker=1)
    leader, other = (each for each in tiers.cluster.brokers if each != controller)
    topic, untouched, has_state = f"killed-{form}", f"untouched-{form}", form == "policy"
    starts = tiers.fill(topic, [leader, other], [other, leader])
    tiers.create(untouched, [other, controller], enabled=False)
    settings = {"remote_log_disable_policy": "delete"} if has_state else DELETES
    with unavailable_store(tiers):
        tiers.configure(topic, remote_storage_enable="false", **settings)
        if has_state:
            tiers.assert_stays_disabling(topic, "delete")
            refused = by_java(tiers, topic, remote_storage_enable="true")
            assert refused.startswith(f"UnknownServerException: Tiered storage of topic {topic} is")
        tiers.produce_all(untouched, VALUES)
        assert tiers.values(untouched) == VALUES
        tiers.cluster.kill(leader)
        tiers.wait_for_leader(topic, other)
        tiers.produce_all(topic, ["more"])
        tiers.cluster.restart(leader)
        if has_state:
            tiers.assert_stays_disabling(topic, "delete")
    if has_state:
        tiers.wait_until_disabled(topic, "delete")
    else:
        tiers.wait_until_deleted(topic)
    assert tiers.objects(topic) == []
    for index, start in enumerate(starts):
        assert tiers.offset(topic, EARLIEST, index)[1] == start
        wanted = VALUES + ["more"] * (index == 0)
        assert tiers.values(topic, start, index) == wanted[start:]


def test_new_controller_finishes_disabling(tiers: Disabling) -> None:
    """X-09: the active controller is killed while the remote storage is unavailable."""
    controller = tiers.controller(broker=1)
    leader, other = (each for each in tiers.cluster.brokers if each != controller)
    topic = "controller-killed"
    (start,) = tiers.fill(topic, [leader, other])
    with unavailable_store(tiers):
        tiers.configure(topic, remote_storage_enable="false", remote_log_disable_policy="delete")
        tiers.assert_stays_disabling(topic, "delete")
        tiers.cluster.kill(controller)
        cluster_state.wait_for_controller(
            tiers.cluster, lambda found: found != controller, broker=leader
        )
    tiers.wait_until_deleted(topic)
    tiers.assert_stays_disabling(topic, "delete")  # the killed node is a broker too
    tiers.cluster.restart(controller)
    tiers.wait_until_disabled(topic, "delete")
    assert tiers.offset(topic, EARLIEST)[1] == start
    assert tiers.values(topic, start) == VALUES[start:]


@pytest.mark.parametrize("policy", ["retain", "delete"])
def test_disabling_ends_when_a_broker_that_is_down_is_unregistered(
    tiers: Disabling, policy: str
) -> None:
    """X-07: every registered broker has to respond, also a follower. It leads after its restart, with the state that
    was reached without it."""
    controller = tiers.controller(broker=1)
    down, other = (each for each in tiers.cluster.brokers if each != controller)
    topic = f"down-{policy}"
    (start,) = tiers.fill(topic, [other, down])
    tiers.cluster.kill(down)
    try:
        tiers.configure(topic, remote_storage_enable="false", remote_log_disable_policy=policy)
        tiers.assert_stays_disabling(topic, policy)
        run_tool(
            "cluster", "unregister", "--bootstrap-server", tiers.cluster.address(other),
            "--id", str(down),
        )  # fmt: skip
        tiers.wait_until_disabled(topic, policy)
    finally:
        tiers.cluster.restart(down)
    assert bool(tiers.objects(topic)) == (policy == "retain")
    first = 0 if policy == "retain" else start
    cluster_state.wait_until_in_sync(tiers.cluster, topic, 2, 1)
    tiers.lead(topic, down)
    assert tiers.offset(topic, EARLIEST)[1] == first
    assert tiers.values(topic, first) == VALUES[first:]


# Consumers


def records(count: int) -> list[str]:
    return [f"{number:06}" + "x" * 1000 for number in range(count)]


COUNT, BEFORE = 200, 20


def fill_with_large_records(tiers: Disabling, topic: str) -> int:
    """Create a topic whose data is mostly in the remote tier only. Return its local log start offset."""
    config = {
        "remote.storage.enable": "true",
        "internal.segment.bytes": "20000",
        "local.retention.bytes": "1",
    }
    cluster_state.create_topic(tiers.cluster, topic, 1, config, assignment=[[1, 2]])
    producer = Producer(
        {"bootstrap.servers": tiers.cluster.bootstrap, "acks": "all", "batch.num.messages": 3}
    )
    for value in records(COUNT):
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    last = -1
    with deadline(TIMEOUT_S, "the remote tier") as check:
        while (start := tiers.offset(topic, EARLIEST_LOCAL)[1]) < COUNT * 3 // 4 or start != last:
            last = start
            check(1.0)
    return start


def assert_clean_boundary(found: list[tuple[int, str]], start: int) -> list[int]:
    """Each record is right and in order, from offset 0 up to some offset and then from the log start offset. Return the
    offsets."""
    wanted = records(COUNT)
    assert [value for _, value in found] == [wanted[offset] for offset, _ in found]
    offsets = [offset for offset, _ in found]
    boundary = next((n for n, offset in enumerate(offsets) if offset != n), len(offsets))
    assert BEFORE <= boundary < start, "read from the remote tier after it was deleted"
    assert offsets[boundary:] in ([], list(range(start, COUNT)))
    return offsets


class RemoteFetches:
    """Fetches of random remote offsets from one broker, in a thread, while a `with` block runs."""

    def __init__(self, address: str, topic_id: UUID, offsets: range) -> None:
        self.errors: list[ErrorCode] = []
        """Error codes in order, without repetitions."""
        self.problem: BaseException | None = None
        self._address = address
        self._topic_id = topic_id
        self._offsets = offsets
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> RemoteFetches:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        random = Random(950)
        try:
            with RawClient(self._address) as client:
                while not self._ended.is_set():
                    self._fetch(client, random.choice(self._offsets))
        except BaseException as problem:
            self.problem = problem

    def _fetch(self, client: RawClient, offset: int) -> None:
        wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 3_000}
        request = {
            "max_wait": 1_000,
            "min_bytes": 1,
            "topics": [{"topic_id": self._topic_id, "partitions": [wanted]}],
            "forgotten_topics_data": [],
        }
        ((partition,),) = [
            each.partitions for each in client.ask(apis.FETCH, 17, request).responses
        ]
        error = ErrorCode(partition.error_code)
        if not self.errors or self.errors[-1] is not error:
            self.errors.append(error)
        if error is ErrorCode.none:
            first = next(batches(memoryview(partition.records), allow_partial=True, check=True))
            assert first.base_offset <= offset < first.next_offset
            wanted_values = [value.encode() for value in records(COUNT)]
            found = [(record.offset, record.value) for record in decode(first)]
            assert all(value == wanted_values[number] for number, value in found)


@pytest.mark.parametrize("policy", ["retain", "delete"])
def test_fetches_are_right_or_out_of_range_from_leader_and_follower(
    tiers: Disabling, policy: str
) -> None:
    """A fetch of remote offsets gets the right records or OFFSET_OUT_OF_RANGE, whenever the broker applies the change."""
    topic = f"fetches-{policy}"
    offsets = range(fill_with_large_records(tiers, topic))
    described = tiers.admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
    topic_id = UUID(bytes=b64decode(f"{described.topic_id}==", b"-_"))
    with (
        RemoteFetches(tiers.cluster.address(1), topic_id, offsets) as one,
        RemoteFetches(tiers.cluster.address(2), topic_id, offsets) as two,
    ):
        with deadline(TIMEOUT_S, "the first responses") as check:
            while not (one.errors and two.errors):
                check(0.05)
        tiers.configure(topic, remote_storage_enable="false", remote_log_disable_policy=policy)
        tiers.wait_until_disabled(topic, policy)
        time.sleep(0.5)
    expected = [ErrorCode.none, ErrorCode.offset_out_of_range][: 1 + (policy == "delete")]
    for fetches in (one, two):
        assert fetches.problem is None, repr(fetches.problem)
        assert fetches.errors == expected


@pytest.mark.parametrize("reset", ["earliest", "error"])
def test_librdkafka_consumer_gets_out_of_range_after_delete(tiers: Disabling, reset: str) -> None:
    """A consumer that is slow reads the remote tier while it is disabled with `delete`."""
    topic = f"rdkafka-{reset}"
    start = fill_with_large_records(tiers, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": tiers.cluster.bootstrap,
            "group.id": topic,
            "enable.auto.commit": False,
            "auto.offset.reset": reset,
            "fetch.message.max.bytes": 2_000,
            "queued.min.messages": 1,
            "queued.max.messages.kbytes": 1,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, str]] = []
    error = None
    try:
        with deadline(TIMEOUT_S, "the end") as check:
            while not found or found[-1][0] < COUNT - 1:
                check(0.01)
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    break
                found.append((message.offset() or 0, (message.value() or b"").decode()))
                if len(found) == BEFORE:
                    tiers.configure(
                        topic, remote_storage_enable="false", remote_log_disable_policy="delete"
                    )
    finally:
        consumer.close()
    offsets = assert_clean_boundary(found, start)
    if reset == "error":
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
        assert offsets[-1] < start
    else:
        assert error is None
        assert offsets[-1] == COUNT - 1
    tiers.wait_until_disabled(topic, "delete")
    assert tiers.offset(topic, EARLIEST)[1] == start


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_java_consumer_gets_out_of_range_after_delete(tiers: Disabling, reset: str) -> None:
    topic = f"java-{reset}"
    start = fill_with_large_records(tiers, topic)
    run = run_tool(
        "client", "read-while-altering", tiers.cluster.bootstrap, topic, reset, str(BEFORE),
        f"{ENABLE}=false", f"{POLICY}=delete", timeout=90,
    )  # fmt: skip
    seen = json.loads(run.stdout)
    offsets = assert_clean_boundary([(offset, value) for offset, value in seen["records"]], start)
    if reset == "none":
        assert seen["out_of_range"] == [offsets[-1] + 1]
        assert offsets[-1] < start
    else:
        assert offsets[-1] == COUNT - 1
    tiers.wait_until_disabled(topic, "delete")
    assert tiers.offset(topic, EARLIEST)[1] == start
