"""Load of librdkafka clients that produce during faults of a cluster.

A load keeps a `Ledger`. Its thread continues during every fault, as an application would. `finish` waits
until everything that was sent has a result.
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

from tests.support.librdkafka_clients import read_to_end
from tests.support.waiting import deadline
from tests.system.ledger import Ledger, Outcome, Row, Transaction

TIMEOUT_S = 120.0
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
    """Producer to all partitions of a topic, on a thread of its own, from entering the context to `finish`.

    `may_lose`: an unclean election may lose acknowledged records. `padding_bytes` is the size of keys.
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
        """Duration of each acknowledged transaction, from its beginning."""
        self.failure: BaseException | None = None
        self._bootstrap = bootstrap
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def _write(self) -> None:
        """Produce until `_enough` is set, and until everything has a result."""

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as failure:
            self.failure = failure

    def wait_for_progress(self, transactions: int = 20) -> None:
        """Wait for this number of further acknowledgements; AssertionError at the timeout."""
        wanted = self.ledger.acknowledged + transactions
        with deadline(TIMEOUT_S, f"{wanted} acknowledgements of {self.ledger.producer}") as check:
            while self.ledger.acknowledged < wanted:
                assert self._thread.is_alive(), f"the load has ended: {self.failure!r}"
                check()

    def acknowledged_values(self) -> set[bytes]:
        """All values that have been committed."""
        committed = [
            each.values
            for each in list(self.ledger.transactions)
            if each.outcome is Outcome.COMMITTED
        ]
        return {value for values in committed for value in values}

    def begun_values(self) -> set[bytes]:
        """All values that have been sent, whatever their result."""
        return {value for each in list(self.ledger.transactions) for value in each.values}

    def acknowledged_in(self, partitions: Set[int]) -> int:
        """Number of commits with records in these partitions. A transaction has records in every
        partition.
        """
        places = self.ledger.places
        return sum(
            each.outcome is Outcome.COMMITTED
            and any(value not in places or places[value][0] in partitions for value in each.values)
            for each in list(self.ledger.transactions)
        )

    def finish(self) -> None:
        """Stop producing and wait until everything has a result."""
        self._enough.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "some records have no result"
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._enough.set()
        self._thread.join(TIMEOUT_S)

    def _values(self, transaction: Transaction, count: int) -> Sequence[tuple[int, bytes]]:
        """Next values of a transaction, with the partition of each."""
        values = [self.ledger.next_value() for _ in range(count)]
        transaction.values = values
        return [(number % self.partitions, value) for number, value in enumerate(values)]


class IdempotentLoad(Load):
    """Idempotent producer with acks=all: each acknowledged record must be in the log exactly once.

    If an unclean election loses acknowledged records, the sequence numbers of the producer are wrong, which
    is a fatal error. The results of the records in flight are unknown, and another producer continues.
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
        assert producer.flush(TIMEOUT_S) == 0, "records are still in flight"

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
                "delivery.timeout.ms": int(TIMEOUT_S * 1000),
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
        if message.offset() is not None:  # otherwise its offset follows from later acknowledgements
            self.ledger.places[value] = (message.partition(), message.offset())
        number = int(value.rpartition(b":")[2])
        self.ledger.transactions[number - 1].outcome = Outcome.COMMITTED


class TransactionalLoad(Load):
    """Transactions over all partitions; every fourth one is aborted."""

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
                elif _is_fatal(error):  # the result of the last transaction is unknown
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
    """Whether the error is fatal for the producer. `produce` raises an error with its own code for this
    case, which is not marked as fatal.
    """
    return error.fatal() or error.code() == KafkaError._FATAL


def _insist(act: Any) -> None:
    """Repeat an operation as long as librdkafka reports a retriable error."""
    with deadline(TIMEOUT_S, act.__name__) as check:
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
    """All committed records of the partitions, from their start to their current end."""
    found: dict[int, list[Row]] = {index: [] for index in range(partitions)}
    messages = read_to_end(
        bootstrap,
        *(TopicPartition(topic, index, OFFSET_BEGINNING) for index in found),
        timeout_s=TIMEOUT_S,
        config={"isolation.level": "read_committed", **COMMON},
    )
    for message in messages:
        found[message.partition()].append((message.offset(), message.value()))
    return found
