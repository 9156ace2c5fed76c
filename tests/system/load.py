"""Real clients that write while a cluster is broken under them: librdkafka's.

A load keeps its `Ledger`; its thread goes on through every fault, as an application would, and
`finish` waits until what it has sent is settled.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from typing import Any, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.support.broker_process import deadline
from tests.support.librdkafka_reading import read_to_end
from tests.system.ledger import Ledger, Outcome, Row, Transaction

PATIENCE_S = 120.0
PAUSE_S = 0.005
PER_TRANSACTION = 6
ABORT_EVERY = 4
COMMON: Mapping[str, Any] = {
    "socket.timeout.ms": 5000,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 5000,
    "log_level": 0,
}


class Load(ABC):
    """Writes to all partitions of a topic on a thread of its own, from entering to `finish`.

    `may_lose`: an unclean election may lose what was acknowledged. `padding_bytes` is the size of keys.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        may_lose: bool = False,
        padding_bytes: int = 0,
    ) -> None:
        self.key = bytes(padding_bytes)
        self.may_lose = may_lose
        self.ledger = Ledger(type(self).__name__)
        self.topic = topic
        self.partitions = partitions
        self.latencies_s: list[float] = []
        """How long each took that was acknowledged, from being begun on."""
        self.failure: BaseException | None = None
        self._bootstrap = bootstrap
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def _write(self) -> None:
        """Write until `_enough`, and until all is settled."""

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as failure:
            self.failure = failure

    def wait_for_progress(self, transactions: int = 20) -> None:
        """Until so many more are acknowledged; AssertionError if that takes too long."""
        wanted = self.ledger.acknowledged + transactions
        with deadline(PATIENCE_S, f"{wanted} acknowledgements of {self.ledger.producer}") as check:
            while self.ledger.acknowledged < wanted:
                assert self._thread.is_alive(), f"the load has ended: {self.failure!r}"
                check()

    def acknowledged_values(self) -> set[bytes]:
        """All values that are committed by now."""
        committed = [
            each.values
            for each in list(self.ledger.transactions)
            if each.outcome is Outcome.COMMITTED
        ]
        return {value for values in committed for value in values}

    def begun_values(self) -> set[bytes]:
        """All that was sent by now, whatever became of it."""
        return {value for each in list(self.ledger.transactions) for value in each.values}

    def acknowledged_in(self, partitions: Set[int]) -> int:
        """How many are committed that have something there. A transaction has something everywhere."""
        places = self.ledger.places
        return sum(
            each.outcome is Outcome.COMMITTED
            and any(value not in places or places[value][0] in partitions for value in each.values)
            for each in list(self.ledger.transactions)
        )

    def finish(self) -> None:
        """Write no more, and wait for what is under way."""
        self._enough.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "what was sent is not settled"
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._enough.set()
        self._thread.join(PATIENCE_S)

    def _values(self, transaction: Transaction, count: int) -> Sequence[tuple[int, bytes]]:
        """The next values of a transaction, with the partition of each."""
        values = [self.ledger.next_value() for _ in range(count)]
        transaction.values = values
        return [(number % self.partitions, value) for number, value in enumerate(values)]


class IdempotentLoad(Load):
    """acks=all, idempotence: each record is one that must be there once.

    Where it may lose, a log that has lost what was acknowledged makes the producer's numbers wrong,
    which is the end of the producer, and nobody says what became of what was under way: another goes on.
    """

    _turn = 0

    def _write(self) -> None:
        producer = self._producer()
        while not self._enough.is_set():
            try:
                self._write_one(producer)
            except KafkaException as failed:
                if not (self.may_lose and _is_fatal(failed.args[0])):
                    raise
                producer = self._producer()
        assert producer.flush(PATIENCE_S) == 0, "records are still under way"

    def _write_one(self, producer: Producer) -> None:
        transaction = self.ledger.begin()
        self._turn = (self._turn + 1) % self.partitions
        for _, value in self._values(transaction, 1):
            producer.produce(self.topic, value, self.key, self._turn, on_delivery=self._delivered)
        producer.poll(PAUSE_S)

    def _producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "delivery.timeout.ms": int(PATIENCE_S * 1000),
                "retry.backoff.max.ms": 500,
                **COMMON,
            }
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value, latency_s = message.value(), message.latency()
        assert value is not None
        if error is not None:
            assert self.may_lose, f"{value!r}: {error}"
            return
        assert latency_s is not None
        self.latencies_s.append(latency_s)
        if message.offset() is not None:  # else it is known by what was acknowledged behind it
            self.ledger.places[value] = (message.partition(), message.offset())
        number = int(value.rpartition(b":")[2])
        self.ledger.transactions[number - 1].outcome = Outcome.COMMITTED


class TransactionalLoad(Load):
    """Transactions over all partitions; each fourth is aborted on purpose."""

    def _write(self) -> None:
        producer = self._producer()
        number = 0
        while not self._enough.is_set():
            number += 1
            try:
                self._transaction(producer, abort=number % ABORT_EVERY == 0)
            except KafkaException as failed:
                error: KafkaError = failed.args[0]
                if error.txn_requires_abort():
                    _insist(producer.abort_transaction)
                    self.ledger.transactions[-1].outcome = Outcome.ABORTED
                elif _is_fatal(error):  # what became of the last one, nobody says
                    producer = self._producer()
                else:
                    raise
            self._enough.wait(PAUSE_S)

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self.topic,
                "transaction.timeout.ms": 30_000,
                "linger.ms": 2,
                **COMMON,
            }
        )
        _insist(producer.init_transactions)
        return producer

    def _transaction(self, producer: Producer, *, abort: bool) -> None:
        begun_at = time.monotonic()
        producer.begin_transaction()
        transaction = self.ledger.begin()
        for partition, value in self._values(transaction, PER_TRANSACTION):
            producer.produce(self.topic, value, self.key, partition)
        if abort:
            _insist(producer.abort_transaction)
            transaction.outcome = Outcome.ABORTED
        else:
            _insist(producer.commit_transaction)
            self.latencies_s.append(time.monotonic() - begun_at)
            transaction.outcome = Outcome.COMMITTED


def _is_fatal(error: KafkaError) -> bool:
    """Whether the producer is at its end. What `produce` says of that is an error of its own, which has the
    code but is not marked."""
    return error.fatal() or error.code() == KafkaError._FATAL


def _insist(act: Any) -> None:
    """Do it again for as long as librdkafka says that it may be repeated."""
    with deadline(PATIENCE_S, act.__name__) as check:
        while True:
            try:
                act(10.0)
                return
            except KafkaException as failed:
                if not failed.args[0].retriable():
                    raise
            check()


LOADS: Mapping[str, type[Load]] = {
    "idempotent": IdempotentLoad,
    "transactional": TransactionalLoad,
}


def read_partitions(bootstrap: str, topic: str, partitions: int) -> dict[int, list[Row]]:
    """All committed records, from where the partitions start to where they end now."""
    found: dict[int, list[Row]] = {index: [] for index in range(partitions)}
    messages = read_to_end(
        bootstrap,
        *(TopicPartition(topic, index, OFFSET_BEGINNING) for index in found),
        patience_s=PATIENCE_S,
        config={"isolation.level": "read_committed", **COMMON},
    )
    for message in messages:
        found[message.partition()].append((message.offset(), message.value()))
    return found
