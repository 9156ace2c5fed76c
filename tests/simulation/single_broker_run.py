"""A simulated run of one broker that is killed repeatedly, with transactional clients and readers.

Everything runs in one process in virtual time, on virtual disks and networks; a seed gives the same run. A
kill is SIGKILL: the process ends during its work, and its writes remain in the page cache. In the end the
broker keeps running, every transaction is ended by its client or its timeout, and the topic is read again.
"""

from __future__ import annotations

import random

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.node import Node
from odradek.client.admin import NewTopic, create_topics
from odradek.client.consumer import (
    IsolationLevel,
    ReaderOptions,
)
from odradek.client.metadata import Cluster, open_cluster
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.network import Address
from odradek.testing.power import NodeCrashed
from odradek.testing.simulation.history import ClientHistory
from odradek.testing.simulation.readers import Readers
from odradek.testing.simulation.transactional_client import (
    TIMEOUT_MS,
    TransactionalClient,
    TransactionProtocol,
)
from odradek.testing.simulation.transactional_workload import TransactionalWorkload
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
"""The approximate virtual time in which clients work, including kills."""
STEP_S = 0.05
POLL_S = 0.1

CONFIG = {
    "listeners": f"PLAINTEXT://{BROKER}:{PORT}",
    "log.dirs": "/data",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


class SingleBrokerRun:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"transactions {seed}")
        self._world = VirtualWorld(seed)
        self._history = ClientHistory()
        self._readers = Readers(self._history, TOPIC, PARTITIONS, poll_s=POLL_S)

    def run(self) -> ClientHistory:
        """Run the simulation; return the history of the clients."""
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
            nursery.start_soon(self._run_broker, stop_killing)
            host = self._world.node("clients")
            async with open_cluster(
                host.network, [Address(BROKER, PORT)], timeout_s=5.0
            ) as cluster:
                await cluster.retrying(lambda: _create_topic(cluster))
                async with trio.open_nursery() as readers:
                    for number in range(READERS):
                        readers.start_soon(self._read_along, cluster, f"reader-{number}")
                    async with trio.open_nursery() as clients:
                        for number in range(CLIENTS):
                            clients.start_soon(self._transact, cluster, f"client-{number}")
                    stop_killing.set()
                    await trio.sleep(TIMEOUT_MS / 1000 + 2)
                    await self._read_final(cluster)
            nursery.cancel_scope.cancel()
        done.set()
        scope.cancel()

    # The broker

    async def _run_broker(self, stop_killing: trio.Event) -> None:
        """Run the broker, and kill it at times that the seed decides."""
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
        broker = Node(node.seams, ServerConfig.from_properties(CONFIG, test_node=True))
        try:
            await broker.run()
        except* NodeCrashed:
            pass

    # The clients

    async def _transact(self, cluster: Cluster, name: str) -> None:
        source = random.Random(f"{name} {self._random.random()}")
        protocol = source.choice(list(TransactionProtocol))
        client = TransactionalClient(cluster, self._world.clock, name, TOPIC, protocol)
        client_workload = TransactionalWorkload(
            client, self._history, source, partitions=PARTITIONS
        )
        await client_workload.run(TRANSACTIONS, RUN_S)

    # The readers

    async def _read_along(self, cluster: Cluster, name: str) -> None:
        options = ReaderOptions(IsolationLevel.READ_COMMITTED, partition_bytes=300)
        await self._readers.read_along(cluster, name, options=options)

    async def _read_final(self, cluster: Cluster) -> None:
        groups = sorted({each.client for each in self._history.transactions})
        await self._readers.read_final(cluster, groups)


async def _create_topic(cluster: Cluster) -> None:
    try:
        await create_topics(cluster, [NewTopic(TOPIC, PARTITIONS, 1)])
    except KafkaError as error:
        # Created by an earlier attempt, whose response was lost
        if error.code is not ErrorCode.topic_already_exists:
            raise
