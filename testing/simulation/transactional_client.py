"""A transactional producer that sends one request at a time and reports only confirmed results.

It finds its coordinators and the partition leaders as every client does. `TransactionProtocol.CLASSIC` adds
partitions with AddPartitionsToTxn and keeps its epoch from one transaction to the next. With
`TransactionProtocol.IMPLICIT` (KIP-890) the partition leader adds them, and the end of each transaction bumps the
epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import trio

from odradek.client.connection import BrokerConnection
from odradek.client.errors import ClientError, check, retriable
from odradek.client.metadata import Cluster
from odradek.protocol.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Api,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.clock import Clock
from odradek.seams.network import Address

TIMEOUT_MS = 2_500
REQUEST_TIMEOUT_S = 20.0
PAUSE_S, PAUSE_MAX_S = 0.02, 0.32
"""The delay before a retry, and its maximum; it doubles each time."""
GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""

RETRIED_ERRORS = frozenset(
    {ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress}
)


class TransactionProtocol(Enum):
    CLASSIC = "classic"
    IMPLICIT = "implicit"


class TransactionalClient:
    def __init__(
        self, cluster: Cluster, clock: Clock, name: str, topic: str, protocol: TransactionProtocol
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._clock = clock
        self._topic = topic
        self._implicit = protocol is TransactionProtocol.IMPLICIT
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[int, int] = {}
        self._added: set[int] = set()
        self._coordinators: dict[int, Address] = {}

    async def init(self) -> None:
        """Initialize the transactional id (InitProducerId); this aborts an open transaction of it."""
        response = await self._request(
            INIT_PRODUCER_ID,
            {
                "transactional_id": self.name,
                "transaction_timeout": TIMEOUT_MS,
                "producer_id": -1,
                "producer_epoch": -1,
            },
            at_most=5,
            timeout_s=10 * REQUEST_TIMEOUT_S,
        )
        self._producer_id, self._epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()
        self._added.clear()

    async def send(self, partition: int, value: bytes) -> int:
        """Write one record in the transaction; return its offset.

        Raises KafkaError or ClientError on failure; the transaction must then be aborted.
        """
        return await self.send_all(partition, [Record(0, self._clock.wall_ms(), None, value)])

    async def send_all(
        self, partition: int, records: Sequence[Record], *, compression: int = 0
    ) -> int:
        """Write a batch of records in the transaction; return the first one's offset. Raises as
        `send`."""
        if not self._implicit and partition not in self._added:
            await self._add_partition(partition)
        self._added.add(partition)
        sequence = self._sequences.get(partition, 0)
        batch = build_batch(
            records,
            compression=compression,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            transactional=True,
        )
        rows = [{"index": partition, "records": bytes(batch)}]
        response = await self._request(
            PRODUCE,
            {
                "transactional_id": self.name,
                "acks": -1,
                "timeout": 30_000,
                "topic_data": [{"name": self._topic, "partition_data": rows}],
            },
            at_most=12 if self._implicit else 11,
        )
        self._sequences[partition] = sequence + len(records)
        return int(response.responses[0].partition_responses[0].base_offset)

    async def commit_offset(self, offset: int) -> None:
        """Commit `offset` of partition 0 for the group with the client's name."""
        if not self._implicit:
            await self._request(ADD_OFFSETS_TO_TXN, {**self._identity(), "group_id": self.name}, 3)
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        await self._request(
            TXN_OFFSET_COMMIT,
            {
                **self._identity(),
                "group_id": self.name,
                "topics": [{"name": self._topic, "partitions": [row]}],
            },
            at_most=5 if self._implicit else 3,
        )

    async def end(self, *, commit: bool) -> None:
        """End the transaction. Raises if its end is not confirmed."""
        response = await self._request(
            END_TXN,
            {**self._identity(), "committed": commit},
            at_most=5 if self._implicit else 3,
            timeout_s=10 * REQUEST_TIMEOUT_S,
        )
        self._added.clear()
        if self._implicit:
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch
            self._sequences.clear()

    async def _add_partition(self, partition: int) -> None:
        topics = [{"name": self._topic, "partitions": [partition]}]
        values = {f"v3_and_below_{name}": value for name, value in self._identity().items()}
        await self._request(ADD_PARTITIONS_TO_TXN, {**values, "v3_and_below_topics": topics}, 3)

    def _identity(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
        }

    async def _request(
        self,
        api: Api,
        values: Mapping[str, Any],
        at_most: int,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """Send the request until it succeeds or fails with a fatal error; all of them are
        idempotent."""
        limit, pause_s = trio.current_time() + timeout_s, PAUSE_S
        while True:
            try:
                node = await self._node_for(api, values)
                response = await node.request(api, values, timeout_s=5.0, at_most=at_most)
                code = _error_of(response)
                if code is ErrorCode.none:
                    return response
                raise KafkaError(code, f"{api.title} of {self.name}")
            except (KafkaError, ClientError) as error:
                again = retriable(error) or (
                    isinstance(error, KafkaError) and error.code in RETRIED_ERRORS
                )
                if not again or trio.current_time() > limit:
                    raise
                if isinstance(error, ClientError) or error.code not in RETRIED_ERRORS:
                    self._cluster.forget(self._topic)
                    self._coordinators.clear()
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _node_for(self, api: Api, values: Mapping[str, Any]) -> BrokerConnection:
        """The connection to the node that serves the request."""
        if api is PRODUCE:
            partition = values["topic_data"][0]["partition_data"][0]["index"]
            return await self._cluster.node(await self._cluster.leader(self._topic, partition))
        key_type = GROUP if api is TXN_OFFSET_COMMIT else TRANSACTION
        if key_type not in self._coordinators:
            node = await self._cluster.any_node()
            found = await node.request(
                FIND_COORDINATOR, {"key": self.name, "key_type": key_type}, at_most=3
            )
            check(found.error_code)
            self._coordinators[key_type] = Address(found.host, found.port)
        return await self._cluster.connect(self._coordinators[key_type])


def _error_of(response: Any) -> ErrorCode:
    """The first error code in a response, at any level."""
    codes = [getattr(response, "error_code", 0)]
    for name in ("responses", "topics", "results_by_topic_v3_and_below"):
        for topic in getattr(response, name, ()):
            for rows in ("partition_responses", "partitions", "results_by_partition"):
                codes += [
                    getattr(row, "error_code", getattr(row, "partition_error_code", 0))
                    for row in getattr(topic, rows, ())
                ]
    return next((ErrorCode(code) for code in codes if code), ErrorCode.none)
