"""Random histories of a tiered topic in a virtual cluster: operations of clients, config changes, restarts and
elections. Observers run between operations and at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random

import trio

from odradek.client.admin import (
    ConfigChange,
    ConfigOperation,
    NewTopic,
    ResourceType,
    alter_configs,
    create_topics,
    delete_records,
)
from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster, open_cluster
from odradek.protocol.apis import PRODUCE
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.topics import TopicPartition
from odradek.testing.simulation.checkers import Checkers
from odradek.testing.simulation.cluster import CLIENTS, SimulatedCluster, host
from odradek.testing.simulation.trace import Trace
from odradek.testing.simulation.transactional_client import TransactionalClient, TransactionProtocol
from odradek.testing.virtual_world import VirtualWorld
from tests.support.virtual_reading import (
    Row,
    consumed,
)

TOPIC = "records"
PARTITIONS = (0, 1)
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.ms": "250",
    "local.retention.ms": "300",
    "retention.ms": "-1",
    "index.interval.bytes": "200",
    "file.delete.delay.ms": "100",
}
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
STEPS = 24
DELAY_S = (0.0002, 0.004)
TIMEOUT_S = 60.0
LIMIT_S = 600.0
REPLICAS = (1, 2)
"""For unclean elections, the third node is only a controller."""
CODECS = (0, 1, 2, 3, 4)

Look = Callable[["History"], Awaitable[None]]


class History:
    """One history. `look` is called between operations; `is_complete` is whether all nodes are available."""

    def __init__(
        self, seed: int, *, nodes: int, deletes: bool = True, unclean: bool = False
    ) -> None:
        self.chance = Random(f"history {seed}")
        self.virtual_world = VirtualWorld(seed)
        self.virtual_world.clock.jumping = True
        self.deletes = deletes
        """Whether records are deleted, by retention or by request."""
        self.unclean = unclean
        """Whether leaders are elected uncleanly: consumers may then read other records at the same offsets,
        including copied ones."""
        self.is_complete = True
        self.cluster: Cluster
        """A client's."""
        self.did: list[str] = []
        self._nodes = nodes
        # A single node may lose unsynced records and its log start offsets.
        alone = ("stop",) if deletes else ("stop", "kill")
        self._ends = alone if nodes == 1 else ("stop", "kill", "lose power")
        self._trace = Trace(self.virtual_world.clock.monotonic)
        self._numbers = 0

    def play(self, look: Look, final_check: Look, steps: int = STEPS) -> None:
        """Run the history. Raises errors of the observers. At the last call all operations are complete."""

        async def main() -> None:
            with trio.fail_after(LIMIT_S):
                async with self._open():
                    for _ in range(steps):
                        await self._step()
                        if self.chance.random() < 0.15:
                            await look(self)
                    await self._heal()
                    await look(self)
                    # Open transactions are aborted, inactive segments are tiered
                    await trio.sleep(3.0)
                    await final_check(self)

        self.virtual_world.run(main)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        self.virtual_world.wires.set_delay(*DELAY_S)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nodes = SimulatedCluster(
                self.virtual_world, self._nodes, self._trace, nursery, tiered=True
            )
            self._cluster, self._checkers = nodes, Checkers(nodes)
            for node in nodes:
                await nodes.start(node.number)
            nursery.start_soon(self._checkers.run)
            network = self.virtual_world.node(CLIENTS).network
            async with open_cluster(network, nodes.bootstrap, timeout_s=5.0) as self.cluster:
                await self._make_topic()
                self._clients = [
                    TransactionalClient(
                        self.cluster, self.virtual_world.clock, f"client-{n}", TOPIC, how
                    )
                    for n, how in enumerate(TransactionProtocol)
                ]
                for client in self._clients:
                    await client.init()
                yield
            await nodes.stop_all()
            nursery.cancel_scope.cancel()

    async def _make_topic(self) -> None:
        replicas = REPLICAS if self.unclean else range(1, self._nodes + 1)
        configs = CONFIGS | (UNCLEAN if self.unclean else {})
        assignments = {partition: list(replicas) for partition in PARTITIONS}
        topic = NewTopic(TOPIC, assignments=assignments, configs=configs)

        def not_yet(error: Exception) -> bool:
            early = ErrorCode.invalid_replica_assignment
            return isinstance(error, KafkaError) and error.code is early

        made = partial(create_topics, self.cluster, [topic])
        await self.cluster.retrying(made, timeout_s=TIMEOUT_S, also=not_yet)

    # Operations

    async def _step(self) -> None:
        ways: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (6, self._produce),
            (4, self._transact),
            (4, self._wait),
            (1, self._change_timestamps),
            (2, self._restart),
        ]
        if self.deletes:
            ways += [(1, self._delete), (0.7, self._retain_less)]
        if self._nodes > 1:
            ways += [(1, self._part_leader)]
        if self.unclean:
            ways += [(2, self._elect_uncleanly)]
        (way,) = self.chance.choices([way for _, way in ways], [weight for weight, _ in ways])
        self.did.append(way.__name__)
        with suppress(KafkaError, ClientError):  # clients may fail
            await way()

    async def _wait(self) -> None:
        await trio.sleep(self.chance.uniform(0.1, 1.0))

    def _records(self) -> list[Record]:
        chance, now_ms = self.chance, self.virtual_world.clock.wall_ms()
        records = []
        for _ in range(chance.choice((1, 1, 2, 5, 30))):
            self._numbers += 1
            value = b"%d " % self._numbers + chance.randbytes(chance.choice((0, 5, 300)))
            headers = tuple(
                (chance.choice(("a", "ä", "")), chance.choice((None, b"", b"h")))
                for _ in range(chance.choice((0, 0, 1, 3)))
            )
            records.append(
                Record(
                    -1,
                    now_ms - chance.choice((0, 1, 1000, 86_400_000)),
                    chance.choice((None, b"", b"key")),
                    chance.choice((None, b"", value, value, value, value)),
                    headers,
                )
            )
        return records

    async def _produce(self) -> None:
        partition = self.chance.choice(PARTITIONS)
        batch = bytes(build_batch(self._records(), compression=self.chance.choice(CODECS)))
        leader = await self.cluster.node(await self.cluster.leader(TOPIC, partition))
        rows = [{"index": partition, "records": batch}]
        try:
            await leader.request(
                PRODUCE,
                {
                    "transactional_id": None,
                    "acks": self.chance.choice((-1, 1)),
                    "timeout": 1000,
                    "topic_data": [{"name": TOPIC, "partition_data": rows}],
                },
                timeout_s=2.0,
                at_most=11,
            )
        finally:
            self.cluster.forget(TOPIC)

    async def _transact(self) -> None:
        """Commit a transaction, abort it, or leave it open for the next one of the producer or its timeout."""
        client = self.chance.choice(self._clients)
        with trio.move_on_after(5.0):
            try:
                for _ in range(self.chance.randint(1, 4)):
                    await client.send_all(
                        self.chance.choice(PARTITIONS),
                        self._records(),
                        compression=self.chance.choice(CODECS),
                    )
                    if self.chance.random() < 0.3:
                        await self._produce()
                    if self.chance.random() < 0.3:
                        await self._wait()
                ending = self.chance.random()
                if ending < 0.75:
                    await client.end(commit=ending < 0.4)
            except (KafkaError, ClientError):
                await client.init()

    async def _change_timestamps(self) -> None:
        kind = self.chance.choice(("CreateTime", "LogAppendTime"))
        await self._configure("message.timestamp.type", kind)

    async def _delete(self) -> None:
        partition = self.chance.choice(PARTITIONS)
        ends = [
            found.log.high_watermark
            for _, broker in self._cluster.running()
            if (found := broker.partitions.opened(TOPIC, partition)) and found.is_leader
        ]
        before = self.chance.randint(0, max([*ends, 0]) // 2)
        await delete_records(self.cluster, {TopicPartition(TOPIC, partition): before})

    async def _retain_less(self) -> None:
        await self._configure("retention.bytes", str(self.chance.choice((500, 3000))))
        await self._wait()
        await self._configure("retention.bytes", "-1")

    async def _configure(self, name: str, value: str) -> None:
        changes = [ConfigChange(ConfigOperation.SET, name, value)]
        await alter_configs(self.cluster, ResourceType.TOPIC, TOPIC, changes)

    async def _restart(self) -> None:
        """Stop a node for some time; others become leaders of its partitions if they can."""
        await self._wait_in_sync()
        number = self.chance.randint(1, self._nodes)
        how = self.chance.choice(self._ends)
        if how == "kill":
            await self._cluster.kill(number)
        elif how == "stop":
            await self._cluster.stop(number)
        else:
            await self._cluster.lose_power(number, self.chance.randrange(1000))
        self.is_complete = False
        seconds = self.chance.uniform(0, 2.5)
        if self._nodes == 1:
            await self._start(number, seconds)
            await self._wait_in_sync()
        else:
            self._nursery.start_soon(self._start, number, seconds)

    async def _start(self, number: int, seconds: float) -> None:
        await trio.sleep(seconds)
        await self._cluster.start(number)

    def _leader(self) -> int:
        """Return the leader of a partition; any node if there is none."""
        partition = self.chance.choice(PARTITIONS)
        for node, broker in self._cluster.running():
            found = broker.partitions.opened(TOPIC, partition)
            if found is not None and found.is_leader:
                return node.number
        return self.chance.randint(1, self._nodes)

    async def _part_leader(self) -> None:
        """Partition the leader. It appends records until it learns of the new leader, and then truncates them."""
        await self._wait_in_sync()
        number = self._leader()
        self.is_complete = False
        for other in range(1, self._nodes + 1):
            if other != number:
                self.virtual_world.wires.partition(host(number), host(other))
        for _ in range(3):
            with suppress(KafkaError, ClientError):
                await self._produce()
        await trio.sleep(self.chance.uniform(0, 2.5))
        self.virtual_world.wires.heal()

    async def _elect_uncleanly(self, before: Look | None = None) -> None:
        """Elect the stopped one of two replicas, without the records that the other one has written and copied alone.
        Observers run before.
        """
        await self._wait_in_sync()
        leader = self._leader()
        other = REPLICAS[1 - REPLICAS.index(leader)]
        await self._cluster.kill(other)
        await trio.sleep(2.0)  # its session expires
        for _ in range(4):
            with suppress(KafkaError, ClientError):
                await self._produce()
            await trio.sleep(0.4)
        if before is not None:
            await before(self)
        await self._cluster.kill(leader)
        await self._cluster.start(other)
        await trio.sleep(4.0)
        for _ in range(3):
            with suppress(KafkaError, ClientError):
                await self._produce()
            await self._wait()
        await self._cluster.start(leader)
        await self._wait_in_sync()

    async def _wait_in_sync(self) -> None:
        with trio.fail_after(TIMEOUT_S):
            await self._checkers.wait_in_sync()
        self.is_complete = True

    async def _heal(self) -> None:
        self.virtual_world.wires.heal()
        for node in self._cluster:
            await self._cluster.start(node.number)
        await self._wait_in_sync()


Rows = dict[tuple[int, int], Row]


def by_offset(rows: list[Row]) -> Rows:
    """Each offset is there once."""
    found = {row[:2]: row for row in rows}
    assert len(found) == len(rows)
    return found


async def consume(history: History, committed: bool) -> Rows:
    with trio.fail_after(60):
        return by_offset(await consumed(history.cluster, TOPIC, PARTITIONS, committed=committed))
