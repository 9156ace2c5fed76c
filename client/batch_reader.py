"""Reading one partition as bytes: whole record batches, not looked into.

For who decodes many records at once; `Reader` is for who wants them one by one. Who knows the topic's id gets
nothing of another topic that has its name by then: the topic is asked for by its id, and brokers that can't be
asked so (before Kafka 3.1) have to say which topic it was that they gave something of.
"""

from __future__ import annotations

from math import inf
from typing import Any
from uuid import UUID

import trio

from odradek.client.connection import BrokerConnection
from odradek.client.consumer import NAMED_TOPICS, Isolation, TopicPartition
from odradek.client.errors import ClientError, check, retriable
from odradek.client.metadata import BACKOFF_MAX_S, BACKOFF_S, Cluster
from odradek.protocol.apis import FETCH, METADATA
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.uuids import uuid_to_text
from odradek.seams.files import Buffer
from odradek.seams.values import value_class

MADE_AGAIN_S = 3.0
"""For so long brokers may have heard of another topic of the name: of the one before, whose deletion is news
to them."""
_ANOTHER = ErrorCode.inconsistent_topic_id


@value_class
class FetchedBatches:
    """Answer to one fetch. `records` may begin with a batch that began before the offset asked for,
    and end with one that is cut short."""

    records: Buffer
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of aborted transactions that reach into it (read_committed)."""
    end_offset: int
    """Up to where can be read now: high watermark, or last stable offset under read_committed."""
    log_start_offset: int


class BatchReader:
    """Fetches from whoever leads the partition."""

    def __init__(
        self,
        cluster: Cluster,
        where: TopicPartition,
        *,
        topic_id: UUID | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        max_bytes: int = 8 << 20,
        unavailable_s: float = 30.0,
    ) -> None:
        """`topic_id`: nothing is wanted of another topic. `max_bytes` is asked for at once; `unavailable_s` how
        long the partition may stay without a leader that answers."""
        self._cluster = cluster
        self._where = where
        self._topic_id = topic_id
        self._isolation = isolation
        self._max_bytes = max_bytes
        self._unavailable_s = unavailable_s

    async def fetch(self, offset: int, *, max_wait_s: float = 0.5) -> FetchedBatches:
        """What there is from `offset` on; nothing, if nothing comes in `max_wait_s`. Where a quota holds it up, it is
        asked again once that is over: the leader answers, be it slowly.

        Raises KafkaError (OFFSET_OUT_OF_RANGE at once, what may pass after a while; INCONSISTENT_TOPIC_ID where
        the name is another topic's now) and ClientError.
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
                if isinstance(error, KafkaError) and error.code is _ANOTHER:
                    another_since = min(another_since, now)
                    if now - another_since > MADE_AGAIN_S:
                        raise
                self._cluster.forget(self._where.topic)
            await trio.sleep(pause)
            pause = min(2 * pause, BACKOFF_MAX_S)

    async def _fetch(self, offset: int, max_wait_s: float) -> FetchedBatches | None:
        """None once a quota has held it up."""
        topic, partition = self._where
        leader = await self._cluster.node(await self._cluster.leader(topic, partition))
        known = self._cluster.topics.get(topic)
        self._check_id(None if known is None else known.topic_id)
        by_id = self._topic_id is not None and leader.version_of(FETCH) > NAMED_TOPICS
        respond = await leader.request(
            FETCH,
            self._question(offset, max_wait_s),
            timeout_s=max_wait_s + self._cluster.timeout_s,
            at_most=None if by_id else NAMED_TOPICS,
        )
        check(getattr(respond, "error_code", 0), about="fetch")
        if not respond.responses:  # in place of records that would be too many (Kafka, KIP-219)
            await trio.sleep(max(BACKOFF_S, respond.throttle_time.total_seconds()))
            return None
        row = respond.responses[0].partitions[0]
        if self._topic_id is not None and not by_id:
            await self._ask_for_id(leader)
        check(row.error_code, about=f"{self._where} at offset {offset}")
        committed = self._isolation is Isolation.READ_COMMITTED
        aborted = (row.aborted_transactions or ()) if committed else ()
        return FetchedBatches(
            row.records or b"",
            tuple((each.producer_id, each.first_offset) for each in aborted),
            row.last_stable_offset if committed else row.high_watermark,
            getattr(row, "log_start_offset", -1),
        )

    async def _ask_for_id(self, leader: BrokerConnection) -> None:
        """An id is given once: what it has now it had when it was asked for records, too."""
        topic = self._where.topic
        asked = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        respond = await leader.request(METADATA, asked, timeout_s=self._cluster.timeout_s)
        check(respond.topics[0].error_code, about=f"topic {topic}")
        self._check_id(getattr(respond.topics[0], "topic_id", None))

    def _check_id(self, now: UUID | None) -> None:
        """What brokers say of it, if they know any."""
        wanted = self._topic_id
        if wanted is None or not now or now == wanted:
            return
        raise KafkaError(
            _ANOTHER,
            f"{self._where.topic} was deleted and made again: the topic with id {uuid_to_text(wanted)} is"
            f" gone, and there is one with id {uuid_to_text(now)}",
        )

    def _question(self, offset: int, max_wait_s: float) -> dict[str, Any]:
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
