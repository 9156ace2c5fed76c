"""One run: a broker that is killed again and again, transactional clients, readers; all from a seed.

Everything happens in one process in virtual time, on virtual disks and wires: the same seed makes the
same run. A kill is SIGKILL: the process is gone in the middle of whatever it did, what it had written
is not (it outlives the process in the page cache). In the end the broker stays up, every transaction
is ended by its client or its time-out, and the topic is read once more.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.node import Broker
from odradek.client.admin import NewTopic, create_topics
from odradek.client.consumer import (
    Isolation,
    Reader,
    ReaderOptions,
    TopicPartition,
)
from odradek.client.errors import ClientError
from odradek.client.group_admin import committed_offsets
from odradek.client.metadata import Cluster, open_cluster
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.network import Address
from odradek.testing.power import NodeCrashed
from odradek.testing.simulation.history import History, Outcome, Seen, Sent, Transaction
from odradek.testing.simulation.transactional_client import (
    TIMEOUT_MS,
    Protocol,
    TransactionalClient,
)
from odradek.testing.virtual_world import VirtualNode, VirtualWorld

BROKER = "broker"
PORT = 9092
TOPIC = "records"
PARTITIONS = 3
CLIENTS = 3
READERS = 2
TRANSACTIONS = 8
KILLS_MAX = 5
RUN_S = 3.0
"""For about how long (virtual) the clients are at work, kills included."""
STEP_S = 0.05

CONFIG = {
    "listeners": f"PLAINTEXT://{BROKER}:{PORT}",
    "log.dirs": "/data",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


class TransactionalWorld:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"transactions {seed}")
        self._world = VirtualWorld(seed)
        self._history = History()

    def run(self) -> History:
        """The whole run, and what came of it."""
        self._world.run(self._main)
        return self._history

    async def _main(self) -> None:
        self._world.wires.set_delay(0.0002, 0.004)
        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._play, nursery.cancel_scope, done)
            while not done.is_set():
                await self._world.clock.run_for(STEP_S)

    async def _play(self, scope: trio.CancelScope, done: trio.Event) -> None:
        stop_killing = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_up, stop_killing)
            host = self._world.node("clients")
            async with open_cluster(
                host.network, [Address(BROKER, PORT)], timeout_s=5.0
            ) as cluster:
                await cluster.retrying(lambda: _make_topic(cluster))
                async with trio.open_nursery() as readers:
                    enough = trio.Event()
                    for number in range(READERS):
                        readers.start_soon(self._read, cluster, f"reader-{number}", enough)
                    async with trio.open_nursery() as clients:
                        for number in range(CLIENTS):
                            clients.start_soon(self._transact, cluster, f"client-{number}")
                    stop_killing.set()
                    await trio.sleep(TIMEOUT_MS / 1000 + 2)
                    await self._read_final(cluster)
                    enough.set()
            nursery.cancel_scope.cancel()
        done.set()
        scope.cancel()

    # The broker

    async def _keep_up(self, stop_killing: trio.Event) -> None:
        """Run the broker, and kill it at moments that the seed chose."""
        node = self._world.node(BROKER)
        kills = self._random.randint(0, KILLS_MAX)
        while True:
            last = kills == 0 or stop_killing.is_set()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve, node)
                if last:
                    await trio.sleep_forever()
                with trio.move_on_after(self._random.expovariate(kills / RUN_S)):
                    await stop_killing.wait()
                if stop_killing.is_set():
                    await trio.sleep_forever()
                node.power.cut()
                nursery.cancel_scope.cancel()
            kills -= 1
            await trio.sleep(self._random.uniform(0.0, 0.3))
            node = self._world.node(BROKER, node.disk)

    async def _serve(self, node: VirtualNode) -> None:
        broker = Broker(node.seams, ServerConfig.from_properties(CONFIG, test_node=True))
        try:
            await broker.run()
        except* NodeCrashed:
            pass

    # The clients

    async def _transact(self, cluster: Cluster, name: str) -> None:
        source = random.Random(f"{name} {self._random.random()}")
        protocol = source.choice(list(Protocol))
        client = TransactionalClient(cluster, self._world.clock, name, TOPIC, protocol)
        ready = False
        for number in range(TRANSACTIONS):
            transaction = Transaction(name, number)
            if not ready and not await _done(client.init):
                self._history.stuck.add(name)
                return
            self._history.transactions.append(transaction)
            ready = await self._one(client, transaction, source)
            await trio.sleep(source.expovariate(TRANSACTIONS / RUN_S))
        if not ready:
            await _done(client.init)

    async def _one(
        self, client: TransactionalClient, transaction: Transaction, source: random.Random
    ) -> bool:
        """Whether the client can go on without `init`."""
        try:
            for number in range(source.randint(1, 4)):
                value = f"{transaction.client}.{transaction.number}.{number}".encode()
                sent = Sent(source.randrange(PARTITIONS), value)
                transaction.sent.append(sent)
                sent.offset = await client.send(sent.partition, value)
                if source.random() < 0.2:
                    await trio.sleep(source.expovariate(10))
            if source.random() < 0.5:
                transaction.group_offset = transaction.number
                await client.commit_offset(transaction.number)
        except (KafkaError, ClientError):
            transaction.outcome = Outcome.ABORTED  # nobody has asked for more
            return await _done(lambda: client.end(commit=False))
        if source.random() < 0.1:  # a client that dies here; whoever comes after it aborts
            transaction.outcome = Outcome.ABORTED
            return False
        commit = source.random() < 0.75
        if not commit:
            transaction.outcome = Outcome.ABORTED
        ended = False
        # Some clients are gone before they hear of the end they asked for.
        patience_s = source.uniform(0, 0.02) if source.random() < 0.15 else float("inf")
        with trio.move_on_after(patience_s):
            ended = await _done(lambda: client.end(commit=commit))
        if ended and commit:
            transaction.outcome = Outcome.COMMITTED
        return ended

    # The readers

    async def _read(self, cluster: Cluster, name: str, enough: trio.Event) -> None:
        """Everything from the first offset to where the topic ends when it is `enough`."""
        seen = self._history.polled.setdefault(name, [])
        reader = Reader(cluster, ReaderOptions(Isolation.READ_COMMITTED, partition_bytes=300))
        reader.assign({TopicPartition(TOPIC, index): 0 for index in range(PARTITIONS)})
        while not (enough.is_set() and reader.at_end()):
            seen += await _poll(reader)

    async def _read_final(self, cluster: Cluster) -> None:
        """What is committed, what is still open, and what the groups have."""
        history = self._history
        ends: dict[Isolation, dict[TopicPartition, int]] = {}
        for isolation in Isolation:
            reader = Reader(cluster, ReaderOptions(isolation))
            reader.assign({TopicPartition(TOPIC, index): 0 for index in range(PARTITIONS)})
            history.final = await _poll(reader)
            while not reader.at_end():
                history.final += await _poll(reader)
            ends[isolation] = reader.positions
        assert isolation is Isolation.READ_COMMITTED
        history.open_partitions = [
            where.partition
            for where, end in ends[Isolation.READ_UNCOMMITTED].items()
            if ends[Isolation.READ_COMMITTED][where] != end
        ]
        for client in sorted({each.client for each in history.transactions}):
            try:
                found = await cluster.retrying(partial(committed_offsets, cluster, client))
            except ClientError:  # still to be decided
                history.stuck.add(client)
                continue
            if found:
                history.group_offsets[client] = found[TopicPartition(TOPIC, 0)].offset


async def _make_topic(cluster: Cluster) -> None:
    try:
        await create_topics(cluster, [NewTopic(TOPIC, PARTITIONS, 1)])
    except KafkaError as error:
        if error.code is not ErrorCode.topic_already_exists:  # by the try before, which was killed
            raise


async def _done(act: Callable[[], Awaitable[None]]) -> bool:
    try:
        await act()
    except (KafkaError, ClientError):
        return False
    return True


async def _poll(reader: Reader) -> list[Seen]:
    try:
        records = await reader.poll(0.1)
    except (KafkaError, ClientError):
        await trio.sleep(0.1)
        return []
    return [Seen(each.partition, each.offset, each.value or b"") for each in records]
