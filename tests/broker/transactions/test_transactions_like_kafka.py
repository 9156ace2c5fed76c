"""Requests to Apache Kafka and to Odradek: all responses and records must be equal.

Histories are generated from seeds: two producers with one transactional id initialize, add, verify
and end transactions at all versions, in any order. Producer ids are compared by the order in which
they are allocated. Timestamps are not compared. CONCURRENT_TRANSACTIONS is retried.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from odradek.broker.transactions import record_serde as records
from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import records as log_records
from odradek.protocol.records.batch import batches
from tests.support.broker_process import BrokerProcess
from tests.support.group_clients import Connection
from tests.support.kafka_tools import run_tool
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop

CONFIG = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3"}
SEEDS = range(40)
LATER_SEEDS = {1: range(100, 110), 0: range(110, 120)}
"""Seeds by level of transaction.version. Clients use only request versions of that level."""
STEPS = 14
PARTITIONS = [("t", 0), ("t", 1), ("u", 0), ("gone", 0)]


@dataclass
class Peer:
    """One of the two brokers, and its producer ids in the order of their allocation."""

    broker: BrokerProcess
    connection: Connection
    ids: dict[int, str] = field(default_factory=dict)

    def ask(self, api: Api, version: int, **values: Any) -> Any:
        self.connection.send(api, version, values)
        return self.connection.receive()

    def name(self, producer_id: int) -> str:
        if producer_id < 0:
            return "nobody"
        return self.ids.setdefault(producer_id, f"id {len(self.ids)}")


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Peer]]:
    directories = (tmp_path_factory.mktemp(name) for name in ("kafka", "odradek"))
    kafka_directory, our_directory = directories
    with (
        start_kafka(kafka_directory, config=CONFIG) as kafka,
        start_odradek(our_directory, config=CONFIG) as odradek,
    ):
        found = []
        for broker in (kafka, odradek):
            for topic, partitions in (("t", "2"), ("u", "1")):
                run_tool(
                    "topics", "--bootstrap-server", broker.bootstrap,
                    "--create", "--topic", topic, "--partitions", partitions,
                ).check()  # fmt: skip
            found.append(Peer(broker, Connection(broker.bootstrap, "client")))
        for peer in found:
            _wait_for_transaction_coordinators(peer)
        yield found
        for peer in found:
            peer.connection.close()


def _wait_for_transaction_coordinators(peer: Peer) -> None:
    """Wait until Kafka has created and loaded the internal topics."""
    with deadline(60, "coordinators") as check:
        for key_type, keys in ((1, "abcdef"), (0, "abcdef")):
            for key in keys:
                while peer.ask(apis.FIND_COORDINATOR, 3, key=key, key_type=key_type).error_code:
                    check(0.05)
        for key in "abcdef":
            while _describe(peer, key)["error"] != "transactional_id_not_found":
                check(0.05)
        plain = {"transactional_id": None, "transaction_timeout": 0}
        while peer.ask(apis.INIT_PRODUCER_ID, 0, **plain).error_code:
            check(0.05)


@dataclass
class Client:
    """A producer: id and epoch of its last response."""

    producer_id: int = -1
    epoch: int = -1


class History:
    """The requests of one seed. They depend only on the seed, and on ids and epochs, which are equal."""

    def __init__(self, peer: Peer, seed: int, level: int) -> None:
        self.peer = peer
        self.knows_epoch_bump = level >= 2
        self.source = random.Random(seed)
        self.id = f"history-{seed}"
        self.clients = [Client(), Client()]
        self.seen: list[Any] = []
        peer.ids.clear()

    def run(self) -> list[Any]:
        self._begin(self.clients[0], 5, as_itself=False)
        for _ in range(STEPS):
            client = self.clients[0 if self.source.random() < 0.8 else 1]
            what = self.source.choices(
                ["begin", "add", "verify", "offsets", "end"], [2, 5, 2, 1, 5]
            )[0]
            getattr(self, f"_{what}")(client)
            self.seen.append(_describe(self.peer, self.id))
        return self.seen

    def _ask(self, api: Api, version: int, **values: Any) -> Any:
        """Retry until the previous transaction is completed."""
        with deadline(30, "the transaction before") as check:
            while True:
                response = self.peer.ask(api, version, **values)
                if "CONCURRENT" not in repr(response).upper():
                    return response
                check(0.01)

    def _begin(
        self, client: Client, version: int | None = None, *, as_itself: bool | None = None
    ) -> None:
        version = self.source.choice(apis.INIT_PRODUCER_ID.versions) if version is None else version
        if as_itself is None:
            as_itself = self.source.random() < 0.6
        expected = client if as_itself and version >= 3 else Client()
        response = self._ask(
            apis.INIT_PRODUCER_ID,
            version,
            transactional_id=self.id,
            transaction_timeout=60_000,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )
        self._learn("begin", client, version, response)

    def _add(self, client: Client) -> None:
        wanted = self.source.sample(PARTITIONS[: 4 if self.source.random() < 0.1 else 3], 2)
        version = self.source.choice([0, 1, 2, 3, 4, 5] if self.knows_epoch_bump else range(4))
        self._add_or_verify(client, version, wanted, verify_only=False)

    def _verify(self, client: Client) -> None:
        wanted = self.source.sample(PARTITIONS[:3], 2)
        self._add_or_verify(client, self.source.choice([4, 5]), wanted, verify_only=True)

    def _add_or_verify(
        self, client: Client, version: int, wanted: list[tuple[str, int]], *, verify_only: bool
    ) -> None:
        topics: dict[str, list[int]] = {}
        for topic, index in wanted:
            topics.setdefault(topic, []).append(index)
        rows = [{"name": name, "partitions": found} for name, found in topics.items()]
        if version < 4:
            response = self._ask(
                apis.ADD_PARTITIONS_TO_TXN,
                version,
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=client.producer_id,
                v3_and_below_producer_epoch=client.epoch,
                v3_and_below_topics=rows,
            )
            results = response.results_by_topic_v3_and_below
        else:
            transaction = {
                "transactional_id": self.id,
                "producer_id": client.producer_id,
                "producer_epoch": client.epoch,
                "verify_only": verify_only,
                "topics": rows,
            }
            response = self._ask(apis.ADD_PARTITIONS_TO_TXN, version, transactions=[transaction])
            results = response.results_by_transaction[0].topic_results
        self.seen.append(
            sorted(
                (version, topic.name, each.partition_index, each.partition_error_code.name)
                for topic in results
                for each in topic.results_by_partition
            )
        )

    def _offsets(self, client: Client) -> None:
        version = self.source.choice(apis.ADD_OFFSETS_TO_TXN.versions)
        response = self._ask(
            apis.ADD_OFFSETS_TO_TXN,
            version,
            transactional_id=self.id,
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            group_id="g",
        )
        self.seen.append(("offsets", version, response.error_code.name))

    def _end(self, client: Client) -> None:
        newest = [5] * 4 if self.knows_epoch_bump else []
        version = self.source.choice([0, 1, 2, 3, 4, *newest])
        before = Client(client.producer_id, client.epoch)
        commits = self.source.random() < 0.6
        for _ in range(2 if self.source.random() < 0.3 else 1):  # the response may be lost
            response = self._ask(
                apis.END_TXN,
                version,
                transactional_id=self.id,
                producer_id=before.producer_id,
                producer_epoch=before.epoch,
                committed=commits,
            )
            self._learn("end", client, version, response)

    def _learn(self, what: str, client: Client, version: int, response: Any) -> None:
        producer_id = getattr(response, "producer_id", -1)
        epoch = getattr(response, "producer_epoch", -1)
        if response.error_code is ErrorCode.none and producer_id >= 0:
            client.producer_id, client.epoch = producer_id, epoch
        self.seen.append(
            (what, version, response.error_code.name, self.peer.name(producer_id), epoch)
        )


def _describe(peer: Peer, transactional_id: str) -> dict[str, Any]:
    """Describe the transactional id after its transaction is completed."""
    while True:
        response = peer.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[transactional_id])
        (state,) = response.transaction_states
        if not state.transaction_state.startswith("Prepare"):
            break
        time.sleep(0.01)
    return {
        "error": state.error_code.name,
        "state": state.transaction_state,
        "timeout": state.transaction_timeout,
        "started": state.transaction_start_time is not None,
        "producer": (peer.name(state.producer_id), state.producer_epoch),
        "topics": sorted((each.topic, sorted(each.partitions)) for each in state.topics),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_history_like_kafka(peers: list[Peer], seed: int) -> None:
    check_history(peers, seed, level=2)


def check_history(peers: list[Peer], seed: int, level: int) -> None:
    kafka, odradek = (History(peer, seed, level).run() for peer in peers)
    assert len(kafka) == len(odradek)
    for step, (theirs, mine) in enumerate(zip(kafka, odradek, strict=True)):
        assert mine == theirs, f"response {step}, after {kafka[max(step - 4, 0) : step]}"


@pytest.mark.parametrize("level", LATER_SEEDS)
def test_histories_at_other_transaction_versions_like_kafka(peers: list[Peer], level: int) -> None:
    for peer in peers:
        _set_transaction_version(peer, level)
    for seed in LATER_SEEDS[level]:
        check_history(peers, seed, level)


def _set_transaction_version(peer: Peer, level: int) -> None:
    update = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": 2}
    with deadline(30, f"transaction.version={level}") as check:
        while True:
            response = peer.ask(
                apis.UPDATE_FEATURES,
                1,
                timeout=10_000,
                feature_updates=[update],
                validate_only=False,
            )
            if response.error_code is ErrorCode.none:
                break
            check(0.05)
        while f"FinalizedVersionLevel: {level}" not in _feature(peer, "transaction.version"):
            check(0.05)


def _feature(peer: Peer, name: str) -> str:
    """Output of Kafka's tool for the feature."""
    run = run_tool("features", "--bootstrap-server", peer.broker.bootstrap, "describe")
    (line,) = [each for each in run.lines if f"Feature: {name}" in each]
    return line


def _written(peer: Peer) -> dict[str, list[Any]]:
    """The records of every history in order, without ids and times, and without repeated states.

    Odradek appends the current state again before some responses that change nothing.
    """
    found: dict[str, list[Any]] = {}
    names: dict[str, dict[int, str]] = {}
    for directory in peer.broker.log_dirs:
        for path in sorted(Path(directory).glob("__transaction_state-*/*.log")):
            for batch in batches(memoryview(path.read_bytes()), check=True):
                for each in log_records.decode(batch):
                    assert each.key is not None
                    transactional_id = records.decode_key(each.key)
                    rows = found.setdefault(transactional_id, [])
                    event_kind = _plain(each.value, names.setdefault(transactional_id, {}))
                    if not rows or event_kind != rows[-1]:
                        rows.append(event_kind)
    return found


def _plain(value: bytes | None, names: dict[int, str]) -> Any:
    if value is None:
        return None
    metadata = records.decode_value(value)

    def name(producer_id: int) -> str:
        if producer_id < 0:
            return "nobody"
        return names.setdefault(producer_id, f"id {len(names)}")

    return {
        "version": value[:2].hex(),
        "size": len(value),
        "producer": (name(metadata.producer_id), metadata.epoch),
        "before": name(metadata.previous_producer_id),
        "next": name(metadata.next_producer_id),
        "state": metadata.state.value,
        "timeout": metadata.timeout_ms,
        "partitions": sorted(metadata.partitions),
        "started": metadata.started_ms >= 0,
        "client": metadata.client_version,
    }


def test_records_are_those_of_kafka(peers: list[Peer]) -> None:
    """The records of all histories in `__transaction_state` are equal."""
    kafka, odradek = (_written(peer) for peer in peers)
    assert set(odradek) == set(kafka)
    for transactional_id, theirs in kafka.items():
        assert odradek[transactional_id] == theirs, transactional_id
