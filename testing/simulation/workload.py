"""The clients of a run. They write down what they sent and what they were told (`history.py`).

Writers are idempotent producers, a record at a time; what they send counts as a transaction of its own.
Transactional clients commit, abort, commit offsets, give up and die. Readers read all that is committed,
from the first offset on, as it comes. All that is known in the end is compared with what a last
reader finds when everything is healed.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import trio

from odradek.client.admin import NewTopic, create_topics
from odradek.client.consumer import Isolation, Reader, ReaderOptions, TopicPartition
from odradek.client.errors import ClientError
from odradek.client.group_admin import committed_offsets
from odradek.client.metadata import Cluster
from odradek.client.producer import Producer, ProducerOptions, open_producer
from odradek.client.reassignment_admin import alter_reassignments
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.clock import Clock
from odradek.seams.entropy import SeededEntropy
from odradek.testing.simulation.history import History, Outcome, Seen, Sent, Transaction
from odradek.testing.simulation.plan import RUN_S, Fault, Plan
from odradek.testing.simulation.trace import Trace
from odradek.testing.simulation.transactional_client import (
    TIMEOUT_MS,
    Protocol,
    TransactionalClient,
)

TOPIC = "records"
PARTITIONS = 2
MOVED = 1
"""The partition that has two replicas, and is moved."""
WRITES = 12
TRANSACTIONS = 4
PATIENCE_S = 60.0
"""How long anything may take; all heals long before."""
REQUEST_S = 5.0
POLL_S = 0.5
PAUSE_S = 0.1


class Workload:
    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Cluster]],
        clock: Clock,
        plan: Plan,
        trace: Trace,
    ) -> None:
        """Each client gets connections of its own: what one waits for does not hold up another."""
        self.history = History()
        self._connect = connect
        self._clock = clock
        self._plan = plan
        self._trace = trace
        self._chance = random.Random(f"clients {plan.seed}")
        self._ends: dict[TopicPartition, int] = {}
        """Where readers get to in the end."""

    async def make_topic(self) -> None:
        nodes = list(range(1, self._plan.nodes + 1))
        topic = NewTopic(TOPIC, assignments=dict.fromkeys(range(PARTITIONS), nodes))
        async with self._connect() as cluster:
            await cluster.retrying(
                partial(_unless_there, cluster, topic), timeout_s=PATIENCE_S, also=_not_yet
            )
            if len(nodes) > 1:
                await cluster.retrying(
                    partial(_reassign, cluster, nodes[-2:]), timeout_s=PATIENCE_S
                )

    async def reassign(self, fault: Fault) -> None:
        """Ask for it; in one of four cases call it off later."""
        others = [each for each in range(1, self._plan.nodes + 1) if each != fault.node]
        replicas = sorted(others, key=lambda each: each != fault.other)
        async with self._connect() as cluster:
            await _done(lambda: _reassign(cluster, replicas))
            if fault.amount < 0.25:
                await trio.sleep(fault.seconds * fault.amount)
                await _done(lambda: _reassign(cluster, None))

    async def write(self) -> None:
        """All that writers and transactional clients do; returns when they are done."""
        async with trio.open_nursery() as nursery:
            for number in range(self._plan.writers):
                nursery.start_soon(self._write, f"writer-{number}")
            for number in range(self._plan.transactional):
                nursery.start_soon(self._transact, f"client-{number}")

    # Writers

    async def _write(self, name: str) -> None:
        chance = random.Random(f"{name} {self._chance.random()}")
        entropy = SeededEntropy(random.Random(f"{name} {self._plan.seed}"))
        options = ProducerOptions(
            request_timeout_s=REQUEST_S, delivery_timeout_s=chance.choice([2.0, PATIENCE_S])
        )
        async with (
            self._connect() as cluster,
            open_producer(cluster, self._clock, entropy, options) as producer,
        ):
            for number in range(WRITES):
                await self._write_one(producer, name, number, chance.randrange(PARTITIONS))
                await trio.sleep(chance.expovariate(WRITES / RUN_S))

    async def _write_one(self, producer: Producer, name: str, number: int, partition: int) -> None:
        sent = Sent(partition, f"{name}.{number}".encode())
        written = Transaction(name, number, [sent])
        self.history.transactions.append(written)
        try:
            value = sent.value + self._padding()
            sent.offset = await producer.send(TOPIC, value, partition=partition)
        except (KafkaError, ClientError) as error:
            self._trace.add(f"{name} gives up {number}: {error}")
        else:
            written.outcome = Outcome.COMMITTED
            self._trace.add(f"{name} has {number} at {partition}:{sent.offset}")

    def _padding(self) -> bytes:
        """Makes batches of several sectors, which can be torn; not part of the value."""
        return b" " * self._chance.choice([0, 0, 600, 2000])

    # Transactional clients

    async def _transact(self, name: str) -> None:
        chance = random.Random(f"{name} {self._chance.random()}")
        protocol = chance.choice(list(Protocol))
        async with self._connect() as cluster:
            client = TransactionalClient(cluster, self._clock, name, TOPIC, protocol)
            await self._transactions(client, name, chance)

    async def _transactions(
        self, client: TransactionalClient, name: str, chance: random.Random
    ) -> None:
        ready = False
        for number in range(TRANSACTIONS):
            transaction = Transaction(name, number)
            if not ready and not await _done(client.init):
                self.history.stuck.add(name)
                return
            self.history.transactions.append(transaction)
            ready = await self._one(client, transaction, chance)
            self._trace.add(f"{name}'s transaction {number} is {transaction.outcome.value}")
            await trio.sleep(chance.expovariate(TRANSACTIONS / RUN_S))
        if not ready:
            await _done(client.init)

    async def _one(
        self, client: TransactionalClient, transaction: Transaction, chance: random.Random
    ) -> bool:
        """Whether the client can go on without `init`."""
        try:
            for number in range(chance.randint(1, 4)):
                value = f"{transaction.client}.{transaction.number}.{number}".encode()
                sent = Sent(chance.randrange(PARTITIONS), value)
                transaction.sent.append(sent)
                sent.offset = await client.send(sent.partition, value + self._padding())
                if chance.random() < 0.2:
                    await trio.sleep(chance.expovariate(10))
            if chance.random() < 0.5:
                transaction.group_offset = transaction.number
                await client.commit_offset(transaction.number)
        except (KafkaError, ClientError):
            transaction.outcome = Outcome.ABORTED  # nobody has asked for more
            return await _done(lambda: client.end(commit=False))
        if chance.random() < 0.1:  # a client that dies here; whoever comes after it aborts
            transaction.outcome = Outcome.ABORTED
            return False
        commit = chance.random() < 0.75
        if not commit:
            transaction.outcome = Outcome.ABORTED
        ended = False
        # Some clients are gone before they hear of the end they asked for.
        patience_s = chance.uniform(0, 0.02) if chance.random() < 0.15 else float("inf")
        with trio.move_on_after(patience_s):
            ended = await _done(lambda: client.end(commit=commit))
        if ended and commit:
            transaction.outcome = Outcome.COMMITTED
        return ended

    # Readers

    async def read_along(self) -> None:
        """Everything from the first offset to where `read_final` finds the end."""
        seen = self.history.polled.setdefault("reader", [])
        async with self._connect() as cluster:
            reader = _reader(cluster, Isolation.READ_COMMITTED)
            while reader.positions != self._ends:
                seen += await _poll(reader)

    async def read_final(self) -> None:
        """What is committed, what is still open, and what the groups have."""
        if self._plan.transactional:
            await trio.sleep(TIMEOUT_MS / 1000 + 1)  # whoever died is aborted by now
        async with self._connect() as cluster:
            await self._read_all(cluster)
            for number in range(self._plan.transactional):
                await self._read_group(cluster, f"client-{number}")

    async def _read_all(self, cluster: Cluster) -> None:
        history = self.history
        ends: dict[Isolation, dict[TopicPartition, int]] = {}
        for isolation in Isolation:
            reader = _reader(cluster, isolation)
            found = await _poll(reader)
            while not reader.at_end():
                found += await _poll(reader)
            ends[isolation] = reader.positions
            history.final = found
        assert isolation is Isolation.READ_COMMITTED
        self._ends = ends[isolation]
        history.open_partitions = [
            where.partition
            for where, end in ends[Isolation.READ_UNCOMMITTED].items()
            if ends[Isolation.READ_COMMITTED][where] != end
        ]

    async def _read_group(self, cluster: Cluster, client: str) -> None:
        try:
            found = await cluster.retrying(partial(committed_offsets, cluster, client))
        except ClientError:  # still to be decided
            self.history.stuck.add(client)
            return
        if found:
            self.history.group_offsets[client] = found[TopicPartition(TOPIC, 0)].offset


def _reader(cluster: Cluster, isolation: Isolation) -> Reader:
    reader = Reader(cluster, ReaderOptions(isolation))
    reader.assign({TopicPartition(TOPIC, index): 0 for index in range(PARTITIONS)})
    return reader


async def _reassign(cluster: Cluster, replicas: list[int] | None) -> None:
    refused = await alter_reassignments(cluster, {TopicPartition(TOPIC, MOVED): replicas})
    for error in refused.values():
        raise error


async def _unless_there(cluster: Cluster, topic: NewTopic) -> None:
    try:
        await create_topics(cluster, [topic])
    except KafkaError as error:
        if error.code is not ErrorCode.topic_already_exists:  # by a try whose answer was lost
            raise


def _not_yet(error: Exception) -> bool:
    """There are too few brokers for the replicas so far."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.invalid_replica_assignment


async def _done(act: Callable[[], Awaitable[None]]) -> bool:
    try:
        await act()
    except (KafkaError, ClientError):
        return False
    return True


async def _poll(reader: Reader) -> list[Seen]:
    try:
        records = await reader.poll(POLL_S)
    except (KafkaError, ClientError):
        await trio.sleep(PAUSE_S)
        return []
    return [Seen(each.partition, each.offset, (each.value or b"").rstrip()) for each in records]
