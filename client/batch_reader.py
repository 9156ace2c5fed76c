"""Fetch of encoded record batches of one partition.

`BatchReader` is for callers that decode many records at once; `consumer.Reader` returns single records. With a topic
id, records of a recreated topic with the same name are never returned: Fetch uses the topic id, and for brokers
before Kafka 3.1 the id in the metadata is checked after each fetch.
"""

from __future__ import annotations

from math import inf
from typing import Any
from uuid import UUID

import trio

from odradek.client.connection import BrokerConnection
from odradek.client.consumer import NAMED_TOPICS, IsolationLevel
from odradek.client.errors import ClientError, check, retriable
from odradek.client.metadata import BACKOFF_MAX_S, BACKOFF_S, Cluster
from odradek.protocol.apis import FETCH, METADATA
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.protocol.uuids import uuid_to_text
from odradek.seams.files import Buffer
from odradek.seams.values import value_class

STALE_TOPIC_ID_S = 3.0
"""Time for which a broker may still have the id of a deleted topic with the same name."""
_INCONSISTENT = ErrorCode.inconsistent_topic_id


@value_class
class FetchedBatches:
    """Response to one fetch.

    The first batch in `records` may start before the fetch offset, and the last one may be truncated.
    """

    records: Buffer
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of the aborted transactions in `records` (read_committed)."""
    end_offset: int
    """High watermark, or last stable offset for read_committed."""
    log_start_offset: int


class BatchReader:
    """Fetches batches from the leader of a partition."""

    def __init__(
        self,
        cluster: Cluster,
        where: TopicPartition,
        *,
        topic_id: UUID | None = None,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        max_bytes: int = 8 << 20,
        unavailable_s: float = 30.0,
    ) -> None:
        """Create a reader. `max_bytes` is the fetch size; `unavailable_s` limits the retries of a fetch."""
        self._cluster = cluster
        self._where = where
        self._topic_id = topic_id
        self._isolation = isolation
        self._max_bytes = max_bytes
        self._unavailable_s = unavailable_s

    async def fetch(self, offset: int, *, max_wait_s: float = 0.5) -> FetchedBatches:
        """Fetch batches from `offset`; empty if no record arrives in `max_wait_s`.

        A response without records because of a quota is retried after its throttle time. Raises
        KafkaError and ClientError: OFFSET_OUT_OF_RANGE at once, retriable errors after `unavailable_s`,
        INCONSISTENT_TOPIC_ID if the topic was recreated.
        """
        begun, another_since = trio.current_time(), inf
        pause = BACKOFF_S
        while True:
            try:
                found = await self._fetch(offset, max_wait_s)
                if found is not None:
                    return found
                begun = trio.current_time()
                continue
            except (KafkaError, ClientError) as error:
                now = trio.current_time()
                if not retriable(error) or now - begun > self._unavailable_s:
                    raise
                if isinstance(error, KafkaError) and error.code is _INCONSISTENT:
                    another_since = min(another_since, now)
                    if now - another_since > STALE_TOPIC_ID_S:
                        raise
                self._cluster.forget(self._where.topic)
            await trio.sleep(pause)
            pause = min(2 * pause, BACKOFF_MAX_S)

    async def _fetch(self, offset: int, max_wait_s: float) -> FetchedBatches | None:
        """Fetch once; None after a response that was throttled by a quota."""
        topic, partition = self._where
        leader = await self._cluster.node(await self._cluster.leader(topic, partition))
        known = self._cluster.topics.get(topic)
        self._check_id(None if known is None else known.topic_id)
        by_id = self._topic_id is not None and leader.version_of(FETCH) > NAMED_TOPICS
        response = await leader.request(
            FETCH,
            self._fetch_request(offset, max_wait_s),
            timeout_s=max_wait_s + self._cluster.timeout_s,
            at_most=None if by_id else NAMED_TOPICS,
        )
        check(getattr(response, "error_code", 0), about="fetch")
        if not response.responses:  # throttled without records (KIP-219)
            await trio.sleep(max(BACKOFF_S, response.throttle_time.total_seconds()))
            return None
        row = response.responses[0].partitions[0]
        if self._topic_id is not None and not by_id:
            await self._check_topic_id(leader)
        check(row.error_code, about=f"{self._where} at offset {offset}")
        committed = self._isolation is IsolationLevel.READ_COMMITTED
        aborted = (row.aborted_transactions or ()) if committed else ()
        return FetchedBatches(
            row.records or b"",
            tuple((each.producer_id, each.first_offset) for each in aborted),
            row.last_stable_offset if committed else row.high_watermark,
            getattr(row, "log_start_offset", -1),
        )

    async def _check_topic_id(self, leader: BrokerConnection) -> None:
        """Check the topic id after the fetch; an id is never reused, so it was the same during the fetch."""
        topic = self._where.topic
        request = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        response = await leader.request(METADATA, request, timeout_s=self._cluster.timeout_s)
        check(response.topics[0].error_code, about=f"topic {topic}")
        self._check_id(getattr(response.topics[0], "topic_id", None))

    def _check_id(self, now: UUID | None) -> None:
        """Compare the id with that of the broker, if the broker has one."""
        wanted = self._topic_id
        if wanted is None or not now or now == wanted:
            return
        raise KafkaError(
            _INCONSISTENT,
            f"{self._where.topic} was deleted and recreated: the topic with id {uuid_to_text(wanted)} is"
            f" gone, and there is one with id {uuid_to_text(now)}",
        )

    def _fetch_request(self, offset: int, max_wait_s: float) -> dict[str, Any]:
        partition = {
            "partition": self._where.partition,
            "current_leader_epoch": self._cluster.leader_epoch(*self._where),
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": self._max_bytes,
        }
        return {
            "replica_id": -1,
            "max_wait": int(max_wait_s * 1000),
            "min_bytes": 1,
            "max_bytes": self._max_bytes,
            "isolation_level": int(self._isolation),
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {
                    "topic": self._where.topic,
                    "topic_id": self._topic_id,
                    "partitions": [partition],
                }
            ],
            "forgotten_topics_data": [],
        }
