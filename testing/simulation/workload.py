"""The clients of a run, which record their requests and responses (`history.py`).

Writers are idempotent producers that send one record at a time; each record counts as a transaction.
Transactional clients commit, abort, commit offsets, abort after errors and die. Readers read all
committed records from the first offset on, during the run. At the end, the last reader reads
everything after recovery, and its result is compared with the record.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial

import trio

from odradek.client.admin import (
    ConfigChange,
    ConfigOperation,
    NewTopic,
    ResourceType,
    alter_configs,
    create_topics,
    delete_records,
    delete_topics,
)
from odradek.client.errors import RETRIABLE, ClientError, Unsupported
from odradek.client.log_dir_admin import Replica, alter_replica_log_dirs
from odradek.client.metadata import Cluster
from odradek.client.producer import Producer, ProducerOptions, open_producer
from odradek.client.quorum_admin import remove_voter
from odradek.client.reassignment_admin import alter_reassignments
from odradek.protocol.apis import ELECT_LEADERS
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import DISKLESS_METADATA, TopicPartition
from odradek.replication.raft.voters import ReplicaKey
from odradek.replication.tiered.whole_metadata_topic import WholeMetadataTopicReader
from odradek.seams.clock import Clock
from odradek.seams.entropy import SeededEntropy
from odradek.storage.tiered.audit import KnownSegments
from odradek.testing.simulation.history import (
    TRANSACTIONAL,
    Anomaly,
    ClientHistory,
    ClientTransaction,
    ReadRecord,
    SentRecord,
    TransactionOutcome,
)
from odradek.testing.simulation.plan import (
    ADMIN_REQUEST_S,
    DATA,
    OTHER_DATA,
    RUN_S,
    Fault,
    FaultKind,
    SimulationPlan,
)
from odradek.testing.simulation.readers import Readers
from odradek.testing.simulation.trace import Trace
from odradek.testing.simulation.transactional_client import (
    RETRIED_ERRORS,
    TIMEOUT_MS,
    TransactionalClient,
    TransactionProtocol,
)
from odradek.testing.simulation.transactional_workload import TransactionalWorkload

TOPIC = "records"
PARTITIONS = 2
SHARED = 0
"""The partition that has a replica on every node."""
MOVED = 1
"""The partition with two replicas, which is reassigned."""
TIERED_TOPIC = {
    "remote.storage.enable": "true",
    "segment.ms": "250",
    "local.retention.ms": "300",
    "retention.ms": "-1",
    "index.interval.bytes": "200",
    "file.delete.delay.ms": "100",
}
"""About ten segments in a run; the local disks keep only the last ones."""
COPY_DISABLED = {"remote.log.copy.disable": "true", "local.retention.ms": "-2"}
COPY_ENABLED = {
    "remote.log.copy.disable": "false",
    "local.retention.ms": TIERED_TOPIC["local.retention.ms"],
}
WRITES = 12
TRANSACTIONS = 4
DISKLESS_TOPIC = {"diskless.enable": "true"}
OPERATION_TIMEOUT_S = 60.0
"""The time limit of any operation; faults end long before."""
REQUEST_S = 5.0
RESPONDED_S = 3.0
"""The time limit for acknowledgements of writes and transactions after recovery.

A client that uses the wrong node retries within half a second. The summary has the longest time of
all runs.
"""
ERRORS_DURING_FAULTS = RETRIABLE | RETRIED_ERRORS
ERRORS_AFTER_TIMEOUT = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        # With KIP-890, an abort by timeout bumps the epoch to the one that a commit would return: a
        # commit that comes too late is treated as a retry, as in Apache Kafka (KAFKA-19367).
        ErrorCode.invalid_txn_state,
    }
)
ERRORS_FROM_PARTITIONED_NODES = frozenset({ErrorCode.transaction_abortable})
"""A partitioned node may still act as the leader of a partition and as transaction coordinator.

It does not know the partitions that were added at its successor, and responds without a request to a
replica, as Apache Kafka does; the client aborts and continues.
"""
PARTITIONING_FAULTS = frozenset(
    {
        FaultKind.PARTITION,
        FaultKind.ONE_WAY_PARTITION,
        FaultKind.MISSED_LEADER_EPOCH,
        FaultKind.LAGGING_VOTER,
        FaultKind.TOPIC_RECREATED,
    }
)
"""Faults in which a node may be partitioned from the others while it reaches the clients."""
POLL_S = 0.5


class Workload:
    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Cluster]],
        clock: Clock,
        plan: SimulationPlan,
        trace: Trace,
    ) -> None:
        """`connect` opens new connections for each client, so that no client delays another."""
        self.history = ClientHistory()
        self.anomalies: list[Anomaly] = []
        """Errors that no client may get, and missing acknowledgements after recovery."""
        self.deletion_requested: dict[int, int] = {}
        """By partition: the largest offset that a request to delete records had, acknowledged or not."""
        self.deletion_acknowledged: dict[int, int] = {}
        self.responded_s = 0.0
        """The longest wait of a client for a write or a transaction after recovery, in seconds."""
        self._connect = connect
        self._clock = clock
        self._plan = plan
        self._kinds = {fault.kind for fault in plan.faults}
        self._trace = trace
        self._chance = random.Random(f"clients {plan.seed}")
        self.replicated_topic = DISKLESS_METADATA if plan.diskless else TOPIC
        """The topic whose replicas are reassigned and moved, and whose leaders change."""
        self._readers = Readers(self.history, TOPIC, PARTITIONS, poll_s=POLL_S)
        self._pauses_ended = trio.Event()
        self._in_sync = trio.Event()

    async def create_topic(self) -> None:
        nodes = list(range(1, self._plan.nodes + 1))
        configs = {**(TIERED_TOPIC if self._plan.tiered else {}), **self._plan.topic_configs}
        topic = NewTopic(
            TOPIC, assignments=dict.fromkeys(range(PARTITIONS), nodes), configs=configs
        )
        if self._plan.diskless:
            topic = NewTopic(TOPIC, partitions=PARTITIONS, configs=DISKLESS_TOPIC)
        async with self._connect() as cluster:
            await cluster.retrying(
                partial(_create_if_absent, cluster, topic),
                timeout_s=OPERATION_TIMEOUT_S,
                also=_has_too_few_brokers,
            )
            if len(nodes) > 1:
                await cluster.retrying(
                    partial(self._reassign, cluster, nodes[-2:]), timeout_s=OPERATION_TIMEOUT_S
                )

    async def _reassign(
        self, cluster: Cluster, replicas: list[int] | None, index: int = MOVED
    ) -> None:
        where = TopicPartition(self.replicated_topic, index)
        for error in (await alter_reassignments(cluster, {where: replicas})).values():
            raise error

    async def reassign(self, fault: Fault) -> bool:
        """Reassign the partition; in one of four cases, cancel that later. Returns whether it
        began."""
        others = [each for each in range(1, self._plan.nodes + 1) if each != fault.node]
        replicas = sorted(others, key=lambda each: each != fault.other)
        async with self._connect() as cluster:
            begun = False
            with suppress(KafkaError, ClientError):
                await self._reassign(cluster, replicas)
                begun = True
            if fault.amount < 0.25:
                await trio.sleep(fault.seconds * fault.amount)
                with suppress(KafkaError, ClientError):
                    await self._reassign(cluster, None)
        return begun

    async def lead(self, replicas: Sequence[int], *, by: int) -> None:
        """Make the first replica of the shared partition the preferred leader, and elect it."""
        async with self._connect() as cluster:
            with suppress(KafkaError, ClientError):
                await cluster.refresh()
                cluster.controller_id = (
                    by  # a broker that would forward it may not get the response
                )
                await self._reassign(cluster, list(replicas), SHARED)
                connection = await cluster.controller()
                rows = [{"topic": self.replicated_topic, "partitions": [SHARED]}]
                await connection.request(
                    ELECT_LEADERS,
                    {"election_type": 0, "topic_partitions": rows, "timeout": 1000},
                )

    async def move_directories(self, fault: Fault) -> bool:
        """Move replicas to one directory, then to the other; return whether the second move began.

        The first move may do nothing.
        """
        topic = self.replicated_topic
        replicas = [Replica(fault.node, topic, index) for index in (SHARED, MOVED)]
        paths = (DATA, OTHER_DATA) if fault.amount < 0.5 else (OTHER_DATA, DATA)
        moved = False
        async with self._connect() as cluster:
            for path in paths:
                moved = False
                with suppress(KafkaError, ClientError), trio.move_on_after(ADMIN_REQUEST_S):
                    codes = await alter_replica_log_dirs(cluster, dict.fromkeys(replicas, path))
                    moved = ErrorCode.none in codes.values()
                    results = ", ".join(f"{each}: {code.name}" for each, code in codes.items())
                    self._trace.add(f"move to {path}: {results}")
                await trio.sleep(fault.seconds * fault.amount / 2)
        return moved

    async def set_remote_copy(self, copies: bool) -> None:
        """Enable or disable copies of the topic to the remote tier."""
        await self.configure(COPY_ENABLED if copies else COPY_DISABLED)
        self._trace.add("remote copies are enabled" if copies else "remote copies are disabled")

    async def delete_first_records(self, fault: Fault) -> bool:
        """Delete a share of the records of each partition; return whether that was acknowledged."""
        async with self._connect() as cluster:
            with suppress(KafkaError, ClientError), trio.move_on_after(ADMIN_REQUEST_S):
                ends = await self._readers.log_ends(cluster)
                before = {index: int(end * fault.amount) for index, end in ends.items()}
                raise_to(self.deletion_requested, before)
                wanted = {TopicPartition(TOPIC, index): each for index, each in before.items()}
                await delete_records(cluster, wanted)
                raise_to(self.deletion_acknowledged, before)
                self._trace.add(f"records are deleted below {before}")
                return True
        return False

    async def remove_voter(self, key: ReplicaKey) -> bool:
        """Remove a voter; it joins again by itself."""
        async with self._connect() as cluster:
            with suppress(KafkaError, ClientError), trio.move_on_after(ADMIN_REQUEST_S):
                await remove_voter(cluster, key.id, key.directory_id)
                self._trace.add(f"voter {key.id} was removed")
                return True
        return False

    async def write(self) -> None:
        """Run all writers and transactional clients; returns when they are done."""
        async with trio.open_nursery() as nursery:
            for number in range(self._plan.writers):
                nursery.start_soon(self._write, f"writer-{number}")
            for number in range(self._plan.transactional):
                nursery.start_soon(self._transact, f"{TRANSACTIONAL}{number}")

    def end_pauses(self) -> None:
        """End all pauses of clients; called when the faults have ended."""
        self._pauses_ended.set()

    def set_in_sync(self) -> None:
        """Require prompt acknowledgements; called when every replica is in sync."""
        self._in_sync.set()

    async def _pause(self, seconds: float) -> None:
        """Pause between two operations of a client, until `end_pauses` is called."""
        with trio.move_on_after(seconds):
            await self._pauses_ended.wait()

    # Writers

    async def _write(self, name: str) -> None:
        chance = random.Random(f"{name} {self._chance.random()}")
        entropy = SeededEntropy(random.Random(f"{name} {self._plan.seed}"))
        options = ProducerOptions(
            request_timeout_s=REQUEST_S,
            delivery_timeout_s=chance.choice([2.0, OPERATION_TIMEOUT_S]),
        )
        async with (
            self._connect() as cluster,
            open_producer(cluster, self._clock, entropy, options) as producer,
        ):
            bundles = self._plan.diskless and entropy.below(2) == 0
            if bundles:
                use_one_broker(cluster)
            for number in range(WRITES):
                if bundles:
                    await self._write_together(producer, name, number * PARTITIONS)
                else:
                    await self._write_one(producer, name, number, chance.randrange(PARTITIONS))
                await self._pause(chance.expovariate(WRITES / RUN_S))
            await self._in_sync.wait()
            await self._write_everywhere(producer, name, WRITES * PARTITIONS if bundles else WRITES)

    async def _write_together(self, producer: Producer, name: str, number: int) -> None:
        """Write a record to each partition at once, so that they are in one file of diskless topics."""
        async with trio.open_nursery() as nursery:
            for partition in range(PARTITIONS):
                nursery.start_soon(self._write_one, producer, name, number + partition, partition)

    async def write_as_new_producer(self) -> None:
        """Write as a new producer after recovery."""
        name = "late-writer"
        entropy = SeededEntropy(random.Random(f"{name} {self._plan.seed}"))
        async with (
            self._connect() as cluster,
            open_producer(cluster, self._clock, entropy, ProducerOptions()) as producer,
        ):
            await self._write_everywhere(producer, name, 0)

    async def _write_everywhere(self, producer: Producer, name: str, number: int) -> None:
        """Write a record to each partition; each must be acknowledged in time."""
        for partition in range(PARTITIONS):
            write = partial(self._write_one, producer, name, number + partition, partition)
            await self._in_time(write, f"{name}'s write to {partition}")

    async def _in_time(self, act: Callable[[], Awaitable[bool]], what: str) -> None:
        """Run `act`, which must succeed in time; nothing prevents it after recovery."""
        began, done = self._clock.monotonic(), False
        with trio.move_on_after(RESPONDED_S):
            done = await act()
        took_s = self._clock.monotonic() - began
        self.responded_s = max(self.responded_s, took_s)
        if not done:
            why = f"{what} was not acknowledged in {took_s:.1f} s after recovery"
            self.anomalies.append(Anomaly("not acknowledged", why))

    def _refused(self, name: str, error: Exception, open_s: float = 0.0) -> None:
        """Record a fatal error of a client as an anomaly, unless it is expected.

        Retriable errors are expected during faults; fencing, after an abort by timeout;
        TRANSACTION_ABORTABLE, from a partitioned node.
        """
        self._trace.add(f"{name} received an error: {error}")
        is_old = open_s >= TIMEOUT_MS / 1000 or FaultKind.CLOCK_JUMP in self._kinds
        if isinstance(error, Unsupported) or (
            isinstance(error, KafkaError)
            and error.code not in ERRORS_DURING_FAULTS
            and not (error.code in ERRORS_AFTER_TIMEOUT and is_old)
            and not (
                error.code in ERRORS_FROM_PARTITIONED_NODES and PARTITIONING_FAULTS & self._kinds
            )
        ):
            why = f"{name} received {error}, {open_s:.1f} s after its transaction began"
            self.anomalies.append(Anomaly("fatal client error", why))

    async def _write_one(self, producer: Producer, name: str, number: int, partition: int) -> bool:
        """Write one record; return whether it was acknowledged."""
        sent = SentRecord(partition, f"{name}.{number}".encode())
        written = ClientTransaction(name, number, [sent])
        self.history.transactions.append(written)
        try:
            value = sent.value + self._padding()
            sent.offset = await producer.send(TOPIC, value, partition=partition)
        except (KafkaError, ClientError) as error:
            self._refused(name, error)
            return False
        written.outcome = TransactionOutcome.COMMITTED
        self._trace.add(f"{name} has {number} at {partition}:{sent.offset}")
        return True

    def _padding(self) -> bytes:
        """Padding that makes batches span several sectors, which can be torn; not part of the
        value."""
        return b" " * self._chance.choice([0, 0, 600, 2000])

    # Transactional clients

    async def _transact(self, name: str) -> None:
        chance = random.Random(f"{name} {self._chance.random()}")
        protocol = chance.choice(list(TransactionProtocol))
        async with self._connect() as cluster:
            client = TransactionalClient(cluster, self._clock, name, TOPIC, protocol)
            client_workload = TransactionalWorkload(
                client,
                self.history,
                chance,
                partitions=PARTITIONS,
                padding=self._padding,
                pause=self._pause,
                refused=partial(self._refused, name),
            )
            await client_workload.run(TRANSACTIONS, RUN_S, self._ended)
            await self._in_sync.wait()
            await self._in_time(
                partial(client_workload.commit_one, TRANSACTIONS), f"{name}'s last transaction"
            )

    def _ended(self, transaction: ClientTransaction) -> None:
        name, number = transaction.client, transaction.number
        self._trace.add(f"{name}'s transaction {number} is {transaction.outcome.value}")

    # Readers

    async def read_along(self) -> None:
        """Read committed records during the run (see `Readers`)."""
        async with self._connect() as cluster:
            await self._readers.read_along(cluster, "reader")

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """The end offsets of the partitions, once `read_final` has found them."""
        return self._readers.ends

    async def read_final(self) -> None:
        """Read all committed records, open partitions and group offsets."""
        async with self._connect() as cluster:
            groups = [f"{TRANSACTIONAL}{number}" for number in range(self._plan.transactional)]
            # An open transaction of an ended client is aborted after its timeout.
            await self._readers.read_final(cluster, groups, timeout_s=TIMEOUT_MS / 1000 + 1)

    async def read_from(self, at_s: float, name: str) -> None:
        """Read all committed records, also from the remote tier, from a time of the run on."""
        await trio.sleep(at_s)
        async with self._connect() as cluster:
            await self._readers.read_along(cluster, name)

    async def find_log_starts(self) -> Mapping[int, int]:
        """Find the log start offsets after disablements of tiered storage or deletions of records; they are part of
        the history."""
        async with self._connect() as cluster:
            self.history.log_starts = await self._readers.log_starts(cluster)
        return self.history.log_starts

    async def read_again(self, starts: Mapping[int, int]) -> list[ReadRecord]:
        """Read all committed records again; partitions begin at `starts`."""
        async with self._connect() as cluster:
            return await self._readers.read_again(cluster, starts)

    async def configure(self, configs: Mapping[str, str]) -> None:
        """Set configs of the topic."""
        changes = [ConfigChange(ConfigOperation.SET, *each) for each in configs.items()]
        async with self._connect() as cluster:
            alter = partial(alter_configs, cluster, ResourceType.TOPIC, TOPIC, changes)
            await cluster.retrying(alter, timeout_s=OPERATION_TIMEOUT_S)

    async def delete_records(self, before: Mapping[int, int]) -> None:
        """Delete all records below an offset in each partition."""
        wanted = {TopicPartition(TOPIC, index): offset for index, offset in before.items()}
        async with self._connect() as cluster:
            await cluster.retrying(
                partial(delete_records, cluster, wanted), timeout_s=OPERATION_TIMEOUT_S
            )

    async def known_segments(self) -> KnownSegments:
        """Read all segments from `__remote_log_metadata`."""
        async with self._connect() as cluster:
            reading = WholeMetadataTopicReader(cluster)
            await reading.read_to_end()
            return reading.known

    async def delete_topics(self, names: Sequence[str]) -> None:
        async with self._connect() as cluster:
            await cluster.retrying(
                partial(delete_topics, cluster, names), timeout_s=OPERATION_TIMEOUT_S
            )


def use_one_broker(cluster: Cluster) -> None:
    """Send the records of all partitions to one broker: every broker takes those of diskless topics."""
    known_leader = cluster.known_leader
    cluster.known_leader = lambda topic, partition: known_leader(topic, SHARED)  # type: ignore[method-assign]


def raise_to(offsets: dict[int, int], others: Mapping[int, int]) -> None:
    """Raise offsets by partition to those that are larger."""
    for index, offset in others.items():
        offsets[index] = max(offset, offsets.get(index, 0))


async def _create_if_absent(cluster: Cluster, topic: NewTopic) -> None:
    try:
        await create_topics(cluster, [topic])
    except KafkaError as error:
        if error.code is not ErrorCode.topic_already_exists:  # an earlier try succeeded
            raise


def _has_too_few_brokers(error: Exception) -> bool:
    """Whether there are too few brokers for the replicas so far, also for those of `__diskless_metadata`."""
    return isinstance(error, KafkaError) and error.code in (
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_replication_factor,
    )
