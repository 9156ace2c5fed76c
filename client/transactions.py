"""A producer whose records, and how far it has read for them, become visible together (KIP-98, KIP-447).

One transactional id, one transaction after the other, for whoever has whole batches to write:

    begin      fences whoever had the id before; what that left open is aborted
    send       batches of one topic, any number of times
    commit     with the offsets that were read for them, in the group where that is kept

The protocol is that of transactions before KIP-890's second part, which every broker since 2.5 serves:
partitions and groups are added before they are written to. A batch is repeated unchanged until it is
acknowledged, and the broker drops what it has. Other requests that are repeated may come late, too, once
there is an answer: so what a transaction had on its way when it ended does nothing to the next, which has an
epoch of its own then. After any error that is raised here the transaction cannot
go on: `begin` again, in this process or another, and see how far the group says that it came.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from odradek.client.connection import BrokerConnection
from odradek.client.consumer import TopicPartition
from odradek.client.errors import ClientError, TimedOut, check, retriable
from odradek.client.group_admin import CommittedOffset, offset_topics
from odradek.client.metadata import BACKOFF_MAX_S, BACKOFF_S, TRANSACTION, Cluster
from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.records import frame_batch
from odradek.seams.files import Buffer
from odradek.seams.values import value_class

AT_MOST = {
    apis.INIT_PRODUCER_ID: 4,
    apis.ADD_PARTITIONS_TO_TXN: 3,
    apis.ADD_OFFSETS_TO_TXN: 3,
    apis.TXN_OFFSET_COMMIT: 4,
    apis.END_TXN: 4,
    apis.PRODUCE: 11,
}
"""The last versions before KIP-890's second part."""
TOO_LARGE = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})
FENCED = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})
"""Somebody else has begun with the same transactional id."""


@value_class
class EncodedRecords:
    """The records of a batch to be, one behind the other; times in ms since 1970."""

    body: Buffer
    count: int
    base_timestamp: int
    max_timestamp: int


class TransactionalProducer:
    """See the module. One caller at a time."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int = 60_000,
        compression: int = 0,
        patience_s: float = 120.0,
    ) -> None:
        """`timeout_ms`: the coordinator aborts a transaction that is open for longer. `patience_s`: how
        long a request is repeated."""
        self._cluster = cluster
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._compression = compression
        self._patience_s = patience_s
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._may_come_late = False
        """Whether a request of this epoch had no answer: the broker may have it yet."""
        self._coordinator: BrokerConnection | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._added or self._groups)

    async def begin(self) -> None:
        """Become the one producer of this id. Returns when a transaction that was open is over."""
        await self._begin_epoch(-1, -1)

    async def _begin_epoch(self, producer_id: int, epoch: int) -> None:
        """As whoever comes next, or as who we are, in the next epoch (KIP-360)."""

        async def attempt() -> Any:
            respond = await self._coordinated(
                apis.INIT_PRODUCER_ID,
                transactional_id=self._id,
                transaction_timeout=self._timeout_ms,
                producer_id=producer_id,
                producer_epoch=epoch,
            )
            check(respond.error_code, about=f"transactional id {self._id}")
            return respond

        respond = await self._patiently(attempt)
        self._producer_id, self._epoch = respond.producer_id, respond.producer_epoch
        self._sequences.clear()
        self._added.clear()
        self._groups.clear()
        self._may_come_late = False

    async def send(self, topic: str, batches: Mapping[int, EncodedRecords]) -> set[int]:
        """Write a batch to each of these partitions, and wait for it. Those to which it was not written
        because the topic takes no batch as large."""
        await self._add({TopicPartition(topic, partition) for partition in batches})
        framed = {
            partition: self._framed(TopicPartition(topic, partition), records)
            for partition, records in batches.items()
        }
        refused: set[int] = set()
        since, pause = trio.current_time(), BACKOFF_S
        while framed:
            found = await self._produce(topic, framed)
            for partition, error in found.items():
                if isinstance(error, KafkaError) and error.code in TOO_LARGE:
                    refused.add(partition)
                elif error is not None:
                    if not retriable(error) or trio.current_time() - since > self._patience_s:
                        raise error
                    continue
                else:
                    self._count(TopicPartition(topic, partition), batches[partition].count)
                del framed[partition]
            if framed:
                self._cluster.forget(topic)
                await trio.sleep(pause)
                pause = min(2 * pause, BACKOFF_MAX_S)
        return refused

    async def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Have the group's offsets committed with the transaction."""

        async def add() -> None:
            respond = await self._coordinated(
                apis.ADD_OFFSETS_TO_TXN, **self._producer(), group_id=group
            )
            check(respond.error_code, about=f"group {group} in transaction {self._id}")

        async def commit() -> None:
            coordinator = await self._cluster.coordinator(group)
            respond = await self._request(
                coordinator,
                apis.TXN_OFFSET_COMMIT,
                **self._producer(),
                group_id=group,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=offset_topics(offsets),
            )
            for topic in respond.topics:
                for row in topic.partitions:
                    where = TopicPartition(topic.name, row.partition_index)
                    check(row.error_code, about=f"the offset of {where} in group {group}")

        if group not in self._groups:
            await self._patiently(add)
            self._groups.add(group)
        await self._patiently(commit)

    async def commit(self) -> None:
        """All of it becomes visible, or, if this raises, all of it or nothing."""
        await self._end(committed=True)

    async def abort(self) -> None:
        """Nothing of it becomes visible."""
        await self._end(committed=False)

    async def _end(self, *, committed: bool) -> None:
        async def attempt() -> None:
            respond = await self._coordinated(apis.END_TXN, **self._producer(), committed=committed)
            check(respond.error_code, about=f"transaction {self._id}")

        if self.is_open:
            await self._patiently(attempt)
            if self._may_come_late:
                # At once: later it might be another's transaction that this aborts.
                await self._begin_epoch(self._producer_id, self._epoch)
        self._added.clear()
        self._groups.clear()

    async def _add(self, wanted: set[TopicPartition]) -> None:
        new = wanted - self._added
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(new):
            topics.setdefault(topic, []).append(partition)
        rows = [{"name": name, "partitions": indexes} for name, indexes in topics.items()]

        async def attempt() -> None:
            respond = await self._coordinated(
                apis.ADD_PARTITIONS_TO_TXN,
                **{f"v3_and_below_{name}": value for name, value in self._producer().items()},
                v3_and_below_topics=rows,
            )
            for topic in respond.results_by_topic_v3_and_below:
                for row in topic.results_by_partition:
                    where = TopicPartition(topic.name, row.partition_index)
                    if row.partition_error_code != ErrorCode.operation_not_attempted:
                        check(row.partition_error_code, about=f"{where} in transaction {self._id}")

        if new:
            await self._patiently(attempt)
            self._added |= new

    def _framed(self, where: TopicPartition, records: EncodedRecords) -> bytes:
        return bytes(
            frame_batch(
                records.body,
                records.count,
                base_timestamp=records.base_timestamp,
                max_timestamp=records.max_timestamp,
                compression=self._compression,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=self._sequences.get(where, 0),
                transactional=True,
            )
        )

    def _count(self, where: TopicPartition, records: int) -> None:
        self._sequences[where] = (self._sequences.get(where, 0) + records) & 0x7FFFFFFF

    async def _produce(
        self, topic: str, framed: Mapping[int, bytes]
    ) -> dict[int, Exception | None]:
        """One request to each leader; by partition what came of it."""
        found: dict[int, Exception | None] = {}
        by_leader: dict[int, list[int]] = {}
        for partition in framed:
            try:
                leader = await self._cluster.leader(topic, partition)
                by_leader.setdefault(leader, []).append(partition)
            except (KafkaError, ClientError) as error:
                found[partition] = error
        async with trio.open_nursery() as nursery:
            for leader, partitions in by_leader.items():
                mine = {partition: framed[partition] for partition in partitions}
                nursery.start_soon(self._produce_at, leader, topic, mine, found)
        return found

    async def _produce_at(
        self,
        node_id: int,
        topic: str,
        framed: Mapping[int, bytes],
        found: dict[int, Exception | None],
    ) -> None:
        rows = [{"index": index, "records": data} for index, data in framed.items()]
        unanswered = TimedOut(f"no answer for {topic}")
        found.update(dict.fromkeys(framed, unanswered))
        try:
            respond = await self._request(
                await self._cluster.node(node_id),
                apis.PRODUCE,
                transactional_id=self._id,
                acks=-1,
                timeout=int(self._cluster.timeout_s * 1000),
                topic_data=[{"name": topic, "partition_data": rows}],
            )
        except (KafkaError, ClientError) as error:
            found.update(dict.fromkeys(framed, error))
            return
        for each in respond.responses:
            for row in each.partition_responses:
                found[row.index] = None
                if row.error_code not in (0, ErrorCode.duplicate_sequence_number):
                    text = getattr(row, "error_message", None)
                    code = ErrorCode(row.error_code)
                    what = text or code.name.replace("_", " ")
                    found[row.index] = KafkaError(code, f"{topic}-{row.index}: {what}")

    def _producer(self) -> dict[str, Any]:
        return {
            "transactional_id": self._id,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
        }

    async def _coordinated(self, api: Api, **values: Any) -> Any:
        """Ask the id's coordinator, who is looked for again after an attempt that failed."""
        coordinator = self._coordinator
        if coordinator is None or coordinator.broken:
            coordinator = await self._cluster.coordinator(self._id, key_type=TRANSACTION)
            self._coordinator = coordinator
        return await self._request(coordinator, api, **values)

    async def _request(self, connection: BrokerConnection, api: Api, **values: Any) -> Any:
        return await connection.request(
            api, values, timeout_s=self._cluster.timeout_s + 5, at_most=AT_MOST[api]
        )

    async def _patiently(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """While it may still come right: a coordinator may be moving, or ending the transaction before."""

        async def once() -> Any:
            try:
                return await attempt()
            except (KafkaError, ClientError) as error:
                self._coordinator = None  # wherever in the answer it was said, it may have moved
                self._may_come_late |= isinstance(error, ClientError)
                raise

        return await self._cluster.retrying(
            once,
            timeout_s=self._patience_s,
            also=lambda error: (
                isinstance(error, KafkaError) and error.code == ErrorCode.concurrent_transactions
            ),
        )
