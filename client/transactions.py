"""Transactional producer of encoded batches, which commits consumed offsets in its transactions (KIP-98, KIP-447).

    begin           fences earlier producers with the transactional id, and aborts their open transaction
    send            writes batches to one topic, any number of times
    send_offsets    adds the consumed offsets of a group
    commit, abort   ends the transaction

The protocol is that before the second part of KIP-890, which brokers since Kafka 2.5 support: partitions and groups are
added to the transaction before they are written to. A batch is retried unchanged, and the broker drops duplicates.
If any request of a transaction had no response, the producer epoch is increased after the transaction, so that the
late request cannot affect the next one. After an error the transaction cannot continue: call `begin` again, in this
process or another, and continue from the committed offsets of the group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from odradek.client.connection import BrokerConnection
from odradek.client.errors import ClientError, TimedOut, check, retriable
from odradek.client.group_admin import CommittedOffset, offset_topics
from odradek.client.metadata import BACKOFF_MAX_S, BACKOFF_S, TRANSACTION, Cluster
from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.records import frame_batch
from odradek.protocol.topics import TopicPartition
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
"""Last versions before the second part of KIP-890."""
TOO_LARGE = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})
FENCED = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})
"""Error codes after another producer started with the same transactional id."""


@value_class
class EncodedRecords:
    """Encoded records of a batch, with their number; timestamps are in ms since the epoch."""

    body: Buffer
    count: int
    base_timestamp: int
    max_timestamp: int


class TransactionalProducer:
    """Producer of one transactional id, for one task at a time."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int = 60_000,
        compression: int = 0,
        retry_timeout_s: float = 120.0,
    ) -> None:
        """Create a producer.

        The coordinator aborts a transaction that is open for `timeout_ms`; requests are retried for
        `retry_timeout_s`.
        """
        self._cluster = cluster
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._compression = compression
        self._retry_timeout_s = retry_timeout_s
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._may_have_late_request = False
        """Whether a request of this epoch had no response, so that a broker may still process it."""
        self._coordinator: BrokerConnection | None = None

    @property
    def is_open(self) -> bool:
        """Whether the transaction has partitions or groups."""
        return bool(self._added or self._groups)

    async def begin(self) -> None:
        """Initialize the producer id; returns after an open transaction of the id was completed."""
        await self._begin_epoch(-1, -1)

    async def _begin_epoch(self, producer_id: int, epoch: int) -> None:
        """Increase the producer epoch; with a producer id only if the epoch is current (KIP-360)."""

        async def attempt() -> Any:
            response = await self._coordinated(
                apis.INIT_PRODUCER_ID,
                transactional_id=self._id,
                transaction_timeout=self._timeout_ms,
                producer_id=producer_id,
                producer_epoch=epoch,
            )
            check(response.error_code, about=f"transactional id {self._id}")
            return response

        response = await self._retrying(attempt)
        self._producer_id, self._epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()
        self._added.clear()
        self._groups.clear()
        self._may_have_late_request = False

    async def send(self, topic: str, batches: Mapping[int, EncodedRecords]) -> set[int]:
        """Write a batch to each of these partitions, and wait for the responses.

        Returns the partitions whose batch is too large for the topic.
        """
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
                    if not retriable(error) or trio.current_time() - since > self._retry_timeout_s:
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
        """Add offsets of a group to the transaction."""

        async def add() -> None:
            response = await self._coordinated(
                apis.ADD_OFFSETS_TO_TXN, **self._producer(), group_id=group
            )
            check(response.error_code, about=f"group {group} in transaction {self._id}")

        async def commit() -> None:
            coordinator = await self._cluster.coordinator(group)
            response = await self._request(
                coordinator,
                apis.TXN_OFFSET_COMMIT,
                **self._producer(),
                group_id=group,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=offset_topics(offsets),
            )
            for topic in response.topics:
                for row in topic.partitions:
                    where = TopicPartition(topic.name, row.partition_index)
                    check(row.error_code, about=f"the offset of {where} in group {group}")

        if group not in self._groups:
            await self._retrying(add)
            self._groups.add(group)
        await self._retrying(commit)

    async def commit(self) -> None:
        """Commit the transaction. After an error it is unknown whether it was committed or aborted."""
        await self._end(committed=True)

    async def abort(self) -> None:
        """Abort the current transaction, if it is open."""
        await self._end(committed=False)

    async def _end(self, *, committed: bool) -> None:
        async def attempt() -> None:
            response = await self._coordinated(
                apis.END_TXN, **self._producer(), committed=committed
            )
            check(response.error_code, about=f"transaction {self._id}")

        if self.is_open:
            await self._retrying(attempt)
            if self._may_have_late_request:
                # At once: later this could abort the transaction of another producer.
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
            response = await self._coordinated(
                apis.ADD_PARTITIONS_TO_TXN,
                **{f"v3_and_below_{name}": value for name, value in self._producer().items()},
                v3_and_below_topics=rows,
            )
            for topic in response.results_by_topic_v3_and_below:
                for row in topic.results_by_partition:
                    where = TopicPartition(topic.name, row.partition_index)
                    if row.partition_error_code != ErrorCode.operation_not_attempted:
                        check(row.partition_error_code, about=f"{where} in transaction {self._id}")

        if new:
            await self._retrying(attempt)
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
        """Send one request to each leader; return the error or None by partition."""
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
                of_leader = {partition: framed[partition] for partition in partitions}
                nursery.start_soon(self._produce_at, leader, topic, of_leader, found)
        return found

    async def _produce_at(
        self,
        node_id: int,
        topic: str,
        framed: Mapping[int, bytes],
        found: dict[int, Exception | None],
    ) -> None:
        rows = [{"index": index, "records": data} for index, data in framed.items()]
        no_response = TimedOut(f"no response for {topic}")
        found.update(dict.fromkeys(framed, no_response))
        try:
            response = await self._request(
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
        for each in response.responses:
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
        """Send a request to the transaction coordinator, and look it up again after a failed attempt."""
        coordinator = self._coordinator
        if coordinator is None or coordinator.broken:
            coordinator = await self._cluster.coordinator(self._id, key_type=TRANSACTION)
            self._coordinator = coordinator
        return await self._request(coordinator, api, **values)

    async def _request(self, connection: BrokerConnection, api: Api, **values: Any) -> Any:
        return await connection.request(
            api, values, timeout_s=self._cluster.timeout_s + 5, at_most=AT_MOST[api]
        )

    async def _retrying(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Retry while the coordinator moves or completes the previous transaction."""

        async def once() -> Any:
            try:
                return await attempt()
            except (KafkaError, ClientError) as error:
                self._coordinator = None  # the coordinator may have moved
                self._may_have_late_request |= isinstance(error, ClientError)
                raise

        return await self._cluster.retrying(
            once,
            timeout_s=self._retry_timeout_s,
            also=lambda error: (
                isinstance(error, KafkaError) and error.code == ErrorCode.concurrent_transactions
            ),
        )
