"""The same requests to Apache Kafka and to us: every answer and every record has to be the same.

Histories are made up by seeds: two producers under one transactional id begin, add, verify and end at
all versions, in any order. What may differ is what each broker makes up for itself (producer ids,
which are told apart by the order in which they come; times) and how long an end takes: whoever is
told CONCURRENT_TRANSACTIONS asks again.
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
from tests.broker.groups.test_like_kafka import Connection
from tests.interop.broker_process import BrokerProcess, deadline
from tests.interop.kafka_tools import run_tool
from tests.interop.odradek_process import start_odradek
from tests.interop.real_kafka import start_kafka

pytestmark = pytest.mark.interop

CONFIG = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3"}
SEEDS = range(40)
LATER_SEEDS = {1: range(100, 110), 0: range(110, 120)}
"""By the level of transaction.version that the cluster is brought down to for them; clients see it,
and use no version that is for a higher one."""
STEPS = 14
PARTITIONS = [("t", 0), ("t", 1), ("u", 0), ("gone", 0)]


@dataclass
class Peer:
    """One of the two brokers; producer ids by the order in which it gave them to one history."""

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
        start_odradek(our_directory, config=CONFIG) as ours,
    ):
        found = []
        for broker in (kafka, ours):
            for topic, partitions in (("t", "2"), ("u", "1")):
                run_tool(
                    "topics", "--bootstrap-server", broker.bootstrap,
                    "--create", "--topic", topic, "--partitions", partitions,
                ).check()  # fmt: skip
            found.append(Peer(broker, Connection(broker.bootstrap, "client")))
        for peer in found:
            _wait_for_coordinators(peer)
        yield found
        for peer in found:
            peer.connection.close()


def _wait_for_coordinators(peer: Peer) -> None:
    """Kafka makes the topics, and loads their partitions, behind its clients' backs."""
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
    """Who a producer thinks it is."""

    producer_id: int = -1
    epoch: int = -1


class History:
    """What one seed makes happen, the same at every peer: it looks at nothing but the seed, and at
    who the producers are, which has to be the same."""

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
        """Ask until nothing else is going on."""
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
        for _ in range(2 if self.source.random() < 0.3 else 1):  # the answer may be lost
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
    """What stands of the id, when it has come to rest."""
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
    kafka, ours = (History(peer, seed, level).run() for peer in peers)
    assert len(kafka) == len(ours)
    for step, (theirs, mine) in enumerate(zip(kafka, ours, strict=True)):
        assert mine == theirs, f"answer {step}, after {kafka[max(step - 4, 0) : step]}"


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
    """What Kafka's tool says of it."""
    run = run_tool("features", "--bootstrap-server", peer.broker.bootstrap, "describe")
    (line,) = [each for each in run.lines if f"Feature: {name}" in each]
    return line


def _written(peer: Peer) -> dict[str, list[Any]]:
    """The records of every history, in order, without what the broker makes up, and without those that
    say once more what the one before says: ours are written before what changes nothing is answered."""
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
    """What the histories before left in `__transaction_state`."""
    kafka, ours = (_written(peer) for peer in peers)
    assert set(ours) == set(kafka)
    for transactional_id, theirs in kafka.items():
        assert ours[transactional_id] == theirs, transactional_id
