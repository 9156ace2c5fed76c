"""Reading one partition as bytes: whole record batches, not looked into.

For who decodes many records at once; `Reader` is for who wants them one by one.
"""

from __future__ import annotations

from typing import Any

import trio

from odradek.client.consumer import NAMED_TOPICS, Isolation, TopicPartition
from odradek.client.errors import ClientError, check, retriable
from odradek.client.metadata import BACKOFF_MAX_S, BACKOFF_S, Cluster
from odradek.protocol.apis import FETCH
from odradek.protocol.errors import KafkaError
from odradek.seams.files import Buffer
from odradek.seams.values import value_class


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
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        max_bytes: int = 8 << 20,
        unavailable_s: float = 30.0,
    ) -> None:
        """`max_bytes` is asked for at once; `unavailable_s` how long the partition may stay without a
        leader that answers."""
        self._cluster = cluster
        self._where = where
        self._isolation = isolation
        self._max_bytes = max_bytes
        self._unavailable_s = unavailable_s

    async def fetch(self, offset: int, *, max_wait_s: float = 0.5) -> FetchedBatches:
        """What there is from `offset` on; nothing, if nothing comes in `max_wait_s`.

        Raises KafkaError (OFFSET_OUT_OF_RANGE at once, what may pass after a while) and ClientError.
        """
        begun = trio.current_time()
        pause = BACKOFF_S
        while True:
            try:
                return await self._fetch(offset, max_wait_s)
            except (KafkaError, ClientError) as error:
                if not retriable(error) or trio.current_time() - begun > self._unavailable_s:
                    raise
                self._cluster.forget(self._where.topic)
            await trio.sleep(pause)
            pause = min(2 * pause, BACKOFF_MAX_S)

    async def _fetch(self, offset: int, max_wait_s: float) -> FetchedBatches:
        topic, partition = self._where
        leader = await self._cluster.node(await self._cluster.leader(topic, partition))
        answer = await leader.request(
            FETCH,
            self._question(offset, max_wait_s),
            timeout_s=max_wait_s + self._cluster.timeout_s,
            at_most=NAMED_TOPICS,
        )
        check(getattr(answer, "error_code", 0), about="fetch")
        row = answer.responses[0].partitions[0]
        check(row.error_code, about=f"{self._where} at offset {offset}")
        committed = self._isolation is Isolation.READ_COMMITTED
        aborted = (row.aborted_transactions or ()) if committed else ()
        return FetchedBatches(
            row.records or b"",
            tuple((each.producer_id, each.first_offset) for each in aborted),
            row.last_stable_offset if committed else row.high_watermark,
            getattr(row, "log_start_offset", -1),
        )

    def _question(self, offset: int, max_wait_s: float) -> dict[str, Any]:
        partition = {
            "partition": self._where.partition,
            "current_leader_epoch": -1,
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
            "topics": [{"topic": self._where.topic, "partitions": [partition]}],
            "forgotten_topics_data": [],
        }
