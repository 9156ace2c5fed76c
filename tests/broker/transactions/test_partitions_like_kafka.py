"""Transactional requests to Apache Kafka and to Odradek: the partitions' responses must be equal.

Histories are generated from seeds: two transactional producers and an admin that writes markers send
valid and invalid requests at all versions, and consumers read in between. Producer ids differ and are
compared by the order in which they are allocated.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.control import read_end_marker
from odradek.protocol.records.records import Record, build_batch
from tests.support.broker_process import BrokerProcess
from tests.support.group_clients import Connection
from tests.support.librdkafka_clients import create_topic
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop

CONFIG = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    # The timing of Kafka's coordinator must not affect Produce requests that wait for it.
    "add.partitions.to.txn.retry.backoff.max.ms": "2000",
}
SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 20))]
STEPS = 25
PARTITIONS = (0, 1)
NOW_MS = time.time_ns() // 1_000_000


@dataclass
class Peer:
    """One of the two brokers."""

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
    with (
        start_kafka(tmp_path_factory.mktemp("kafka"), config=CONFIG) as kafka,
        start_odradek(tmp_path_factory.mktemp("odradek"), config=CONFIG) as odradek,
    ):
        found = [Peer(each, Connection(each.bootstrap, "client")) for each in (kafka, odradek)]
        for peer in found:
            _wait_for_both_coordinators(peer)
        yield found
        for peer in found:
            peer.connection.close()


def _wait_for_both_coordinators(peer: Peer) -> None:
    """Wait until Kafka has created and loaded the internal topics."""
    kind = peer.broker.kind
    begin = {"transactional_id": "x", "transaction_timeout": 1000}
    fetch = {"group_id": "x", "topics": [], "require_stable": True}
    for api, version, values in (
        (apis.FIND_COORDINATOR, 3, {"key": "x", "key_type": 0}),
        (apis.FIND_COORDINATOR, 3, {"key": "x", "key_type": 1}),
        (apis.INIT_PRODUCER_ID, 1, begin),
        (apis.OFFSET_FETCH, 7, fetch),
    ):
        with deadline(60, f"{kind}'s {api.title} {values}") as check:
            while peer.ask(api, version, **values).error_code:
                check(0.05)


@dataclass
class Producer:
    transactional_id: str
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[int, int] = field(default_factory=dict)


class History:
    """The requests of one seed, which depend only on the seed and on the responses."""

    def __init__(self, peer: Peer, seed: int) -> None:
        self.peer = peer
        self.source = random.Random(seed)
        self.topic = f"t-{seed}"
        self.group = f"g-{seed}"
        self.producers = [Producer(f"a-{seed}"), Producer(f"b-{seed}")]
        self.seen: list[Any] = []
        peer.ids.clear()

    def run(self) -> list[Any]:
        create_topic(self.peer.broker.bootstrap, self.topic, partitions=len(PARTITIONS))
        self._wait_for_leaders()
        for each in self.producers:
            self._begin(each)
        steps: Sequence[tuple[Callable[[Producer], None], int]] = (
            (self._begin, 1),
            (self._add, 4),
            (self._produce, 10),
            (self._add_offsets, 1),
            (self._commit_offsets, 3),
            (self._end, 5),
            (self._mark, 2),
        )
        for _ in range(STEPS):
            producer = self.source.choice(self.producers)
            (step,) = self.source.choices([each for each, _ in steps], [n for _, n in steps])
            step(producer)
            self._read_committed()
        return self.seen

    def _wait_for_leaders(self) -> None:
        """Wait until the partitions can be written: Kafka reports a topic earlier."""
        partitions = [{"partition_index": index, "timestamp": -1} for index in PARTITIONS]
        wanted = {"replica_id": -1, "topics": [{"name": self.topic, "partitions": partitions}]}
        with deadline(30, f"leaders of {self.topic}") as check:
            while True:
                (found,) = self.peer.ask(apis.LIST_OFFSETS, 7, **wanted).topics
                if not any(each.error_code for each in found.partitions):
                    return
                check(0.01)

    def _see(self, what: str, version: int, *response: Any) -> None:
        self.seen.append((what, version, *response))

    # Producers

    def _begin(self, producer: Producer) -> None:
        response = self.peer.ask(
            apis.INIT_PRODUCER_ID,
            3,
            transactional_id=producer.transactional_id,
            transaction_timeout=60_000,
        )
        while "concurrent" in response.error_code.name:
            time.sleep(0.01)
            response = self.peer.ask(
                apis.INIT_PRODUCER_ID,
                3,
                transactional_id=producer.transactional_id,
                transaction_timeout=60_000,
            )
        producer.producer_id, producer.epoch = response.producer_id, response.producer_epoch
        producer.sequences.clear()
        name = self.peer.name(response.producer_id)
        self._see("begin", 3, response.error_code.name, name, response.producer_epoch)
        self._rest(producer)

    def _rest(self, producer: Producer) -> None:
        """Wait until the transaction is completed in all partitions."""
        wanted = [producer.transactional_id]
        with deadline(30, "the end of a transaction") as check:
            while True:
                response = self.peer.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=wanted)
                if not response.transaction_states[0].transaction_state.startswith("Prepare"):
                    return
                check(0.01)

    def _add(self, producer: Producer) -> None:
        index = self.source.choice(PARTITIONS)
        response = self.peer.ask(
            apis.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[{"name": self.topic, "partitions": [index]}],
        )
        ((found,),) = [each.results_by_partition for each in response.results_by_topic_v3_and_below]
        self._see("add", 3, found.partition_error_code.name)

    def _epoch(self, producer: Producer) -> int:
        """The producer's own epoch, or sometimes another one."""
        return producer.epoch + self.source.choices([0, -1, 1], [20, 1, 1])[0]

    def _produce(self, producer: Producer) -> None:
        version = self.source.choice([8, 10, 11, 12, 12, 12])
        chosen = self.source.sample(PARTITIONS, self.source.choice([1, 1, 2]))
        rows, counts, epoch = [], {}, max(0, self._epoch(producer))
        is_transactional = self.source.random() < 0.95
        for index in chosen:
            counts[index] = self.source.randint(1, 3)
            next_ = producer.sequences.get(index, 0)
            sequence = max(0, next_ + self.source.choices([0, -1, 2], [20, 1, 1])[0])
            data = _batch(producer.producer_id, epoch, sequence, counts[index], is_transactional)
            rows.append({"index": index, "records": data})
        response = self.peer.ask(
            apis.PRODUCE,
            version,
            transactional_id=producer.transactional_id if self.source.random() < 0.97 else None,
            acks=-1,
            timeout=10_000,
            topic_data=[{"name": self.topic, "partition_data": rows}],
        )
        found = {each.index: each for each in response.responses[0].partition_responses}
        for index in chosen:
            each = found[index]
            if each.error_code.name == "none":
                producer.sequences[index] = producer.sequences.get(index, 0) + counts[index]
            self._see("produce", version, index, each.error_code.name, each.base_offset)

    def _add_offsets(self, producer: Producer) -> None:
        response = self.peer.ask(
            apis.ADD_OFFSETS_TO_TXN,
            3,
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=self.group,
        )
        self._see("add offsets", 3, response.error_code.name)

    def _commit_offsets(self, producer: Producer) -> None:
        version = self.source.choice(apis.TXN_OFFSET_COMMIT.versions)
        generation = self.source.choices([-1, 1], [10, 1])[0]
        response = self.peer.ask(
            apis.TXN_OFFSET_COMMIT,
            version,
            transactional_id=producer.transactional_id,
            group_id=self.group,
            producer_id=producer.producer_id,
            producer_epoch=self._epoch(producer),
            generation_id=generation if version >= 3 else -1,
            member_id="",
            group_instance_id=None,
            topics=[
                {
                    "name": self.topic,
                    "partitions": [
                        {
                            "partition_index": index,
                            "committed_offset": self.source.randint(0, 99),
                            "committed_metadata": self.source.choice(["", "m", "m" * 5000]),
                        }
                        for index in (*self.source.sample(PARTITIONS, 1), 7)
                    ],
                }
            ],
        )
        errors = sorted(
            (each.partition_index, each.error_code.name)
            for topic in response.topics
            for each in topic.partitions
        )
        self._see("commit offsets", version, errors)

    def _end(self, producer: Producer) -> None:
        version = self.source.choice([3, 4, 5, 5])
        response = self.peer.ask(
            apis.END_TXN,
            version,
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=self.source.random() < 0.5,
        )
        name = self.peer.name(getattr(response, "producer_id", -1))
        epoch = getattr(response, "producer_epoch", -1)
        self._see("end", version, response.error_code.name, name, epoch)
        if epoch >= 0:
            if (producer.producer_id, producer.epoch) != (response.producer_id, epoch):
                producer.sequences.clear()
            producer.producer_id, producer.epoch = response.producer_id, epoch
        self._rest(producer)

    def _mark(self, producer: Producer) -> None:
        """Write a marker as kafka-transactions.sh abort does, or as a fenced coordinator might."""
        version = self.source.choice(apis.WRITE_TXN_MARKERS.versions)
        response = self.peer.ask(
            apis.WRITE_TXN_MARKERS,
            version,
            markers=[
                {
                    "producer_id": producer.producer_id,
                    "producer_epoch": max(0, self._epoch(producer)),
                    "coordinator_epoch": self.source.choice([-1, 0, 0]),
                    "transaction_result": False,
                    "transaction_version": self.source.choice([0, 2]),
                    "topics": [
                        {
                            "name": self.topic,
                            "partition_indexes": [self.source.choice(PARTITIONS), 7],
                        }
                    ],
                }
            ],
        )
        errors = [
            (self.peer.name(marker.producer_id), each.partition_index, each.error_code.name)
            for marker in response.markers
            for topic in marker.topics
            for each in topic.partitions
        ]
        self._see("mark", version, sorted(errors))

    # Consumers

    def _read_committed(self) -> None:
        for isolation in (0, 1):
            self._fetch(isolation)
            self._list_offsets(isolation)
        self._describe_producers()
        self._fetch_offsets()

    def _fetch(self, isolation: int) -> None:
        response = self.peer.ask(
            apis.FETCH,
            12,
            max_wait=timedelta(0),
            min_bytes=0,
            max_bytes=1 << 24,
            isolation_level=isolation,
            topics=[
                {
                    "topic": self.topic,
                    "partitions": [
                        {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 22}
                        for index in PARTITIONS
                    ],
                }
            ],
        )
        for each in sorted(response.responses[0].partitions, key=lambda each: each.partition_index):
            aborted = each.aborted_transactions
            self._see(
                "fetch",
                isolation,
                each.partition_index,
                each.error_code.name,
                (each.log_start_offset, each.last_stable_offset, each.high_watermark),
                aborted
                and sorted((self.peer.name(one.producer_id), one.first_offset) for one in aborted),
                [self._describe(batch) for batch in batches(memoryview(each.records or b""))],
            )

    def _describe(self, batch: Batch) -> Any:
        return (
            batch.base_offset,
            batch.last_offset,
            batch.attributes,
            self.peer.name(batch.producer_id),
            batch.producer_epoch,
            batch.base_sequence,
            read_end_marker(batch) if batch.is_control else None,
        )

    def _list_offsets(self, isolation: int) -> None:
        response = self.peer.ask(
            apis.LIST_OFFSETS,
            7,
            replica_id=-1,
            isolation_level=isolation,
            topics=[
                {
                    "name": self.topic,
                    "partitions": [
                        {"partition_index": index, "timestamp": self.source.choice([-1, -3, 5])}
                        for index in PARTITIONS
                    ],
                }
            ],
        )
        found = [(p.partition_index, p.offset) for t in response.topics for p in t.partitions]
        self._see("list offsets", isolation, sorted(found))

    def _describe_producers(self) -> None:
        wanted = [{"name": self.topic, "partition_indexes": [*PARTITIONS, 7]}]
        response = self.peer.ask(apis.DESCRIBE_PRODUCERS, 0, topics=wanted)
        for each in sorted(response.topics[0].partitions, key=lambda each: each.partition_index):
            producers = [
                (
                    self.peer.name(one.producer_id),
                    one.producer_epoch,
                    one.last_sequence,
                    one.coordinator_epoch,
                    one.current_txn_start_offset,
                )
                for one in each.active_producers
            ]
            self._see("producers", 0, each.partition_index, each.error_code.name, sorted(producers))

    def _fetch_offsets(self) -> None:
        for require_stable in (True, False):
            response = self.peer.ask(
                apis.OFFSET_FETCH,
                7,
                group_id=self.group,
                topics=[{"name": self.topic, "partition_indexes": list(PARTITIONS)}],
                require_stable=require_stable,
            )
            found = [
                (each.partition_index, each.error_code.name, each.committed_offset, each.metadata)
                for topic in response.topics
                for each in topic.partitions
            ]
            self._see("offsets", int(require_stable), response.error_code.name, sorted(found))


def _batch(producer_id: int, epoch: int, sequence: int, count: int, transactional: bool) -> bytes:
    records = [Record(offset, NOW_MS, b"k", b"v", ()) for offset in range(count)]
    return bytes(
        build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_history_like_kafka(peers: list[Peer], seed: int) -> None:
    kafka, odradek = (History(peer, seed).run() for peer in peers)
    for step, (theirs, mine) in enumerate(zip(kafka, odradek, strict=False)):
        assert mine == theirs, f"response {step}, after {kafka[max(step - 30, 0) : step]}"
    assert len(kafka) == len(odradek)
