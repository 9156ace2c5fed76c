"""A topic that is deleted and recreated with the same name during faults.

Each time it is another topic with another id. In the end, all acknowledged records of the last
topic exist, and none of earlier ones. Deletions, and records outside transactions, specify the
topic id (KIP-516), so that late requests affect only the topic that they were sent for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from uuid import UUID

import trio

from odradek.client.admin import NewTopic, create_topics
from odradek.client.errors import ClientError, check
from odradek.client.metadata import Cluster
from odradek.protocol.apis import DELETE_TOPICS, PRODUCE
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.clock import Clock
from odradek.testing.simulation.history import (
    Anomaly,
    ClientHistory,
    ClientTransaction,
    ReadRecord,
    SentRecord,
    TransactionOutcome,
    find_anomalies,
)
from odradek.testing.simulation.plan import ADMIN_REQUEST_S
from odradek.testing.simulation.readers import Readers
from odradek.testing.simulation.trace import Trace
from odradek.testing.simulation.transactional_client import TransactionalClient, TransactionProtocol

RECREATED_TOPIC = "made-anew"  # another name would change the run of every seed
PARTITIONS = 2
ACKNOWLEDGED_S = 3.0
"""The time limit for acknowledgements; a replica that is down leaves the ISR, or is back, by then.
"""
PAUSE_S = 0.1
POLL_S = 0.5


class TopicRecreation:
    """A topic with a replica on each of `nodes` nodes. It does not exist until `make` creates it."""

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Cluster]],
        clock: Clock,
        nodes: int,
        trace: Trace,
        configs: Mapping[str, str],
        *,
        diskless: bool = False,
    ) -> None:
        """`diskless`: the topic has no replicas and no transactions."""
        self._connect = connect
        self._clock = clock
        self._replicas = list(range(1, nodes + 1))
        self._trace = trace
        self._configs = configs
        self._is_diskless = diskless
        self._id: UUID | None = None
        """The id of the last topic, if it is known."""
        self._created: UUID | None = None
        """The last topic whose creation was acknowledged."""
        self._deletion_requested: set[UUID] = set()
        self._deleted: set[UUID] = set()
        """Topics whose deletion was acknowledged."""
        self._sent: dict[UUID, list[ClientTransaction]] = {}
        self._transactional_ids: list[str] = []
        """The transactional ids that have begun a transaction."""
        self._writers = 0
        self._admin_lock = trio.Lock()

    @property
    def was_created(self) -> bool:
        return bool(self._sent)

    @property
    def is_tiered(self) -> bool:
        return bool(self._configs) and not self._is_diskless

    async def delete(self) -> bool:
        """Delete the topic; return whether the deletion was acknowledged."""
        async with self._admin_lock:
            if self._id is None:
                return False
            with suppress(KafkaError, ClientError), trio.move_on_after(ADMIN_REQUEST_S):
                async with self._connect() as cluster:
                    await cluster.retrying(lambda: self._delete(cluster))
                    self._trace.add(f"{RECREATED_TOPIC} is deleted")
                    return True
        return False

    async def make(self) -> bool:
        """Create the topic; return whether it exists, with a known id."""
        async with self._admin_lock:
            with suppress(KafkaError, ClientError), trio.move_on_after(ADMIN_REQUEST_S):
                async with self._connect() as cluster:
                    await cluster.retrying(lambda: self._make(cluster), also=_has_no_broker)
                    self._trace.add(f"{RECREATED_TOPIC} is {self._id}")
                    return True
        return False

    async def fill(self, records: int = 1) -> bool:
        """Write `records` records to each partition; return whether all were acknowledged in time.

        Each retry writes another record.
        """
        topic = self._id
        if topic is None:
            return False
        with trio.move_on_after(ACKNOWLEDGED_S) as limit:
            async with self._connect() as cluster, trio.open_nursery() as nursery:
                for partition in range(PARTITIONS):
                    nursery.start_soon(self._fill, cluster, topic, partition, records)
        return not limit.cancelled_caught

    async def begin(self) -> None:
        """Begin a transaction with one record, from a client that does not return.

        A later client with its transactional id must be served, even if the topic was deleted.
        """
        if self._is_diskless:
            return
        number = len(self._transactional_ids)
        name, protocol = f"{RECREATED_TOPIC}-client-{number}", list(TransactionProtocol)[number % 2]
        self._transactional_ids.append(name)
        with suppress(KafkaError, ClientError), trio.move_on_after(ADMIN_REQUEST_S):
            async with self._connect() as cluster:
                client = TransactionalClient(cluster, self._clock, name, RECREATED_TOPIC, protocol)
                await client.init()
                await client.send(0, name.encode())
                self._trace.add(f"{name} has begun a transaction")

    async def final(self, *, may_be_deleted: bool = False) -> list[Anomaly]:
        """Check the topic after recovery, when no other client sends requests. `may_be_deleted`: the first records,
        with the remote tier."""
        if not self.was_created:
            return []
        async with self._connect() as cluster:
            clients = await self._init_all(cluster)
            if clients is None:
                return [
                    Anomaly(
                        "hanging transaction", f"one of {self._transactional_ids} cannot continue"
                    )
                ]
            self._id = topic = await self._current_topic_id(cluster)
            if topic is None:
                is_lost = (
                    self._created is not None and self._created not in self._deletion_requested
                )
                return (
                    [Anomaly("topic lost", f"{RECREATED_TOPIC} is {self._created}")]
                    if is_lost
                    else []
                )
            if topic in self._deleted:
                return [Anomaly("not deleted", f"{RECREATED_TOPIC} is still {topic}")]
            if not (await self.fill() and await self._commit(topic, clients)):
                return [
                    Anomaly(
                        "not acknowledged",
                        f"records sent to {RECREATED_TOPIC} after all faults were repaired",
                    )
                ]
            readers = Readers(ClientHistory(), RECREATED_TOPIC, PARTITIONS, poll_s=POLL_S)
            found = await readers.read_again(cluster, {})
            log_starts = await readers.log_starts(cluster) if may_be_deleted else {}
            return list(self._check_records(topic, found, log_starts))

    async def _init_all(self, cluster: Cluster) -> list[TransactionalClient] | None:
        """Initialize all transactional ids that began a transaction; None on a timeout."""
        clients = [
            TransactionalClient(
                cluster, self._clock, name, RECREATED_TOPIC, TransactionProtocol.CLASSIC
            )
            for name in self._transactional_ids
        ]
        with trio.move_on_after(ACKNOWLEDGED_S) as limit:
            for client in clients:
                await client.init()
        return None if limit.cancelled_caught else clients

    async def _commit(self, topic: UUID, clients: Iterable[TransactionalClient]) -> bool:
        """Write a record in the next transaction of each client; return whether all committed in
        time."""
        with trio.move_on_after(ACKNOWLEDGED_S) as limit:
            for client in clients:
                sent = SentRecord(0, f"{client.name}.next".encode())
                written = ClientTransaction(client.name, 0, [sent])
                self._sent.setdefault(topic, []).append(written)
                sent.offset = await client.send(0, sent.value)
                await client.end(commit=True)
                written.outcome = TransactionOutcome.COMMITTED
            for (
                client
            ) in clients:  # the markers are written by then, so committed records are visible
                await client.init()
        return not limit.cancelled_caught

    def _check_records(
        self, topic: UUID, found: list[ReadRecord], log_starts: Mapping[int, int]
    ) -> Iterator[Anomaly]:
        own = self._sent.get(topic, [])
        yield from find_anomalies(ClientHistory(own, final=found, log_starts=log_starts))
        for value in sorted({each.value for each in found} - set(_record_values(own))):
            of = next(
                (str(each) for each, sent in self._sent.items() if value in _record_values(sent)),
                "no topic",
            )
            yield Anomaly(
                "records of another topic",
                f"{RECREATED_TOPIC} is {topic}, but has {value!r} of {of}",
            )

    async def _current_topic_id(self, cluster: Cluster) -> UUID | None:
        try:
            return (await cluster.topic(RECREATED_TOPIC)).topic_id
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            return None

    async def _delete(self, cluster: Cluster) -> None:
        assert self._id is not None
        self._deletion_requested.add(self._id)
        controller = await cluster.controller()
        response = await controller.request(
            DELETE_TOPICS,
            {
                "topics": [{"name": None, "topic_id": self._id}],
                "topic_names": [],
                "timeout": int(1000 * cluster.timeout_s),
            },
            timeout_s=cluster.timeout_s,
        )
        code = response.responses[0].error_code
        if code != ErrorCode.unknown_topic_id:  # otherwise an earlier try succeeded
            check(code, about=RECREATED_TOPIC)
            self._deleted.add(self._id)
        self._id = None

    async def _make(self, cluster: Cluster) -> None:
        assignments = dict.fromkeys(range(PARTITIONS), self._replicas)
        wanted = NewTopic(RECREATED_TOPIC, assignments=assignments, configs=dict(self._configs))
        if self._is_diskless:
            wanted = NewTopic(RECREATED_TOPIC, partitions=PARTITIONS, configs=dict(self._configs))
        try:
            [made] = await create_topics(cluster, [wanted])
            self._id = self._created = made.topic_id
        except KafkaError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise
            # The response to an earlier request was lost.
            self._id = (await cluster.topic(RECREATED_TOPIC)).topic_id
        assert self._id is not None
        self._sent.setdefault(self._id, [])

    async def _fill(self, cluster: Cluster, topic: UUID, partition: int, records: int) -> None:
        sent = self._sent.setdefault(topic, [])
        self._writers += 1
        name = f"{RECREATED_TOPIC}.{self._writers}"
        acknowledged = 0
        for number in count():
            if acknowledged == records:
                return
            record = SentRecord(partition, f"{name}.{number}".encode())
            written = ClientTransaction(name, number, [record])
            sent.append(written)
            with suppress(KafkaError, ClientError):
                record.offset = await self._produce(cluster, topic, record)
                written.outcome = TransactionOutcome.COMMITTED
                acknowledged += 1
                continue
            cluster.forget(RECREATED_TOPIC)
            await trio.sleep(PAUSE_S)

    async def _produce(self, cluster: Cluster, topic: UUID, record: SentRecord) -> int:
        leader = await cluster.node(await cluster.leader(RECREATED_TOPIC, record.partition))
        batch = build_batch([Record(0, self._clock.wall_ms(), None, record.value)])
        rows = [{"index": record.partition, "records": bytes(batch)}]
        response = await leader.request(
            PRODUCE,
            {
                "transactional_id": None,
                "acks": -1,
                "timeout": int(1000 * cluster.timeout_s),
                "topic_data": [{"topic_id": topic, "partition_data": rows}],
            },
            timeout_s=cluster.timeout_s,
        )
        row = response.responses[0].partition_responses[0]
        check(row.error_code, about=RECREATED_TOPIC)
        return int(row.base_offset)


def _record_values(sent: Iterable[ClientTransaction]) -> Iterator[bytes]:
    return (record.value for each in sent for record in each.sent)


def _has_no_broker(error: Exception) -> bool:
    """Whether the controller knows no running broker with a replica."""
    return isinstance(error, KafkaError) and error.code in (
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_replication_factor,
    )
