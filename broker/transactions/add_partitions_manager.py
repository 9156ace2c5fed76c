"""Sends AddPartitionsToTxn to transaction coordinators (Kafka's AddPartitionsToTxnManager).

The coordinator is the leader of the transactional id's `__transaction_state` partition. Requests to
another broker (version 4 on, KIP-890) are batched, one in flight at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import trio

from odradek.broker.coordination.coordinator_log import partition_for
from odradek.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from odradek.broker.network.request_batcher import RequestBatcher
from odradek.broker.transactions.partition_verification import AddPartitionsToTransaction
from odradek.client.errors import ClientError, Unsupported
from odradek.protocol.apis import ADD_PARTITIONS_TO_TXN, Api
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.image import MetadataImage
from odradek.seams.values import value_class

log = logging.getLogger("odradek.transactions")

BATCHED_VERSION_MIN = 4
"""First AddPartitionsToTxn version for brokers."""
NO_LEADER = -1

PartitionErrors = Mapping[TopicPartition, ErrorCode]


class SendAddPartitionsRequest(Protocol):
    """Signature of `BrokerConnections.request` for AddPartitionsToTxn."""

    async def __call__(
        self,
        broker_id: int,
        api: Api,
        values: Mapping[str, Any],
        *,
        timeout_s: float,
        at_least: int,
    ) -> Any: ...


@value_class
class AddPartitionsToTxnTransaction:
    """One transaction of a batched AddPartitionsToTxn request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool

    def as_request(self) -> dict[str, Any]:
        topics: dict[str, list[int]] = {}
        for name, index in self.partitions:
            topics.setdefault(name, []).append(index)
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "verify_only": self.verify_only,
            "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
        }

    def all(self, code: ErrorCode) -> PartitionErrors:
        return dict.fromkeys(self.partitions, code)


class AddPartitionsToTxnManager:
    """Sends AddPartitionsToTxn to the coordinator's broker, or calls `local` if it is this one."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        node_id: int,
        local: Callable[[], AddPartitionsToTransaction],
        request: SendAddPartitionsRequest,
        nursery: trio.Nursery,
        *,
        timeout_s: float,
    ) -> None:
        """`timeout_s` is request.timeout.ms in seconds; `nursery` runs the requests."""
        self._image = image
        self._node_id = node_id
        self._local = local
        self._request = request
        self._timeout_s = timeout_s
        self._batcher = RequestBatcher[AddPartitionsToTxnTransaction, PartitionErrors](
            self._send_request, nursery
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> PartitionErrors:
        """Add or verify partitions; NETWORK_EXCEPTION if the coordinator does not respond."""
        coordinator = self._coordinator(transactional_id)
        if coordinator == self._node_id:
            return await self._local().add_partitions(
                transactional_id, producer_id, producer_epoch, partitions, verify_only=verify_only
            )
        transaction = AddPartitionsToTxnTransaction(
            transactional_id, producer_id, producer_epoch, tuple(partitions), verify_only
        )
        if coordinator == NO_LEADER:
            return transaction.all(ErrorCode.coordinator_not_available)
        try:
            return await self._batcher.send(coordinator, transactional_id, transaction)
        except Unsupported:  # as with a broker that does not verify partitions
            log.warning(
                "AddPartitionsToTxn to broker %d has an unsupported version: the partitions of %s are not verified",
                coordinator,
                transactional_id,
            )
            return transaction.all(ErrorCode.none)
        except ClientError as error:
            log.info(
                "AddPartitionsToTxn to broker %d for %s failed: %s",
                coordinator,
                transactional_id,
                error,
            )
            return transaction.all(ErrorCode.network_exception)

    def _coordinator(self, transactional_id: str) -> int:
        """The coordinator's broker id, or NO_LEADER if none is available."""
        image = self._image()
        topic = image.topics_by_name.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return NO_LEADER
        leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        broker = image.brokers.get(leader)
        return NO_LEADER if broker is None or broker.fenced else leader

    async def _send_request(
        self, broker_id: int, transactions: Sequence[AddPartitionsToTxnTransaction]
    ) -> list[PartitionErrors]:
        """Send one AddPartitionsToTxn request. Raises ClientError."""
        response = await self._request(
            broker_id,
            ADD_PARTITIONS_TO_TXN,
            {"transactions": [transaction.as_request() for transaction in transactions]},
            timeout_s=self._timeout_s,
            at_least=BATCHED_VERSION_MIN,
        )
        if response.error_code != ErrorCode.none:
            code = ErrorCode(response.error_code)
            log.error("AddPartitionsToTxn to broker %d failed: %s", broker_id, code.name)
            if code is ErrorCode.cluster_authorization_failed:
                code = ErrorCode.invalid_txn_state  # an error of this broker, not of the producer
            return [transaction.all(code) for transaction in transactions]
        errors = {each.transactional_id: _errors(each) for each in response.results_by_transaction}
        return [
            {
                **transaction.all(ErrorCode.unknown_server_error),
                **errors.get(transaction.transactional_id, {}),
            }
            for transaction in transactions
        ]


def _errors(result: Any) -> PartitionErrors:
    return {
        TopicPartition(topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for topic in result.topic_results
        for each in topic.results_by_partition
    }
