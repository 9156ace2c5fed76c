"""Verifies or adds the partitions of a transactional Produce request (KIP-890)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import check_topic_name_or_id
from odradek.broker.transactions.partition_verification import (
    AddPartitionsToTransaction,
    TransactionSupportedOperation,
    add_or_verify_partitions,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.produce_request_reader import ProduceRequest, ProduceTopic
from odradek.protocol.records.batch import Batch
from odradek.protocol.topics import TopicPartition
from odradek.replication.partition.partition import Partition
from odradek.seams.values import value_class
from odradek.storage.log.batch_validation import only_batch
from odradek.storage.log.transaction_verification import VERIFICATION_DISABLED, VerificationGuard

RETRIABLE_COORDINATOR_ERRORS = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.operation_not_attempted,
    }
)
"""Coordinator errors that become NOT_ENOUGH_REPLICAS, which producers retry.
OPERATION_NOT_ATTEMPTED is returned for partitions next to one that the coordinator does not
know."""


@dataclass(slots=True)
class _TransactionalBatch:
    """A transactional batch and its partition."""

    key: RequestPartition
    partition: Partition
    sequence: int


RequestPartition = tuple[UUID | str | None, int]
"""Topic id or name, and partition index, as in the request."""
VerificationResults = Mapping[RequestPartition, VerificationGuard | KafkaError]
"""Verification guard or error by partition. Partitions already in the transaction are absent."""


async def verify_partitions(
    request: ProduceRequest, transactional_id: str, ctx: RequestContext
) -> VerificationResults:
    """Verify or add the partitions in which the request starts writing in its transaction."""
    producers: set[tuple[int, int]] = set()
    batches: list[_TransactionalBatch] = []
    refused: dict[RequestPartition, KafkaError] = {}
    for topic in request.topics:
        for index, records in topic.partitions:
            header = _header(records)
            if header is None or not header.is_transactional:
                continue
            key = (topic.topic_id or topic.name, index)
            try:
                check_topic_name_or_id(ctx, topic.name, topic.topic_id)
                if ctx.services.diskless is not None and _is_diskless(topic, ctx):
                    continue  # the append refuses it
                partition = await ctx.services.partitions.get(topic.name, topic.topic_id, index)
            except KafkaError as error:  # not verified: the append must not be tried either
                refused[key] = error
                continue
            producers.add((header.producer_id, header.producer_epoch))
            batches.append(_TransactionalBatch(key, partition, header.base_sequence))
    if not batches:
        return refused
    if len(producers) > 1:
        failed = _fail_all(
            batches,
            ErrorCode.invalid_producer_id_mapping,
            "the request has batches of several producers",
        )
        return {**failed, **refused}
    is_enabled = ctx.services.config.get_bool("transaction.partition.verification.enable")
    support = TransactionSupportedOperation.of_produce(ctx.api_version)
    unguarded = {each.key: VERIFICATION_DISABLED for each in batches}
    if not is_enabled and not support.adds_partitions:
        return {**unguarded, **refused}
    coordinator = ctx.services.transaction_partitions
    ((producer_id, epoch),) = producers
    verification = _Verification(coordinator, transactional_id, producer_id, epoch, support)
    results = await _verify_until_decided(verification, batches, ctx)
    if not is_enabled:
        results = {**unguarded, **{k: v for k, v in results.items() if isinstance(v, KafkaError)}}
    return {**results, **refused}


def _is_diskless(topic: ProduceTopic, ctx: RequestContext) -> bool:
    image = ctx.services.metadata.image
    if topic.topic_id is not None:
        found = image.topics_by_id.get(topic.topic_id)
    else:
        found = image.topics_by_name.get(topic.name or "")
    return found is not None and found.is_diskless


def _header(records: memoryview | None) -> Batch | None:
    """Header of the batch; None unless there is exactly one batch, which the append reports."""
    with suppress(KafkaError):
        return None if records is None else only_batch(records)
    return None


@value_class
class _Verification:
    coordinator: AddPartitionsToTransaction
    transactional_id: str
    producer_id: int
    producer_epoch: int
    support: TransactionSupportedOperation

    async def verify(
        self, batches: Sequence[_TransactionalBatch], ctx: RequestContext
    ) -> dict[RequestPartition, VerificationGuard | ErrorCode]:
        results: dict[RequestPartition, VerificationGuard | ErrorCode] = {}
        wanted: dict[TopicPartition, RequestPartition] = {}
        for each in batches:
            partition = each.partition
            try:
                guard = partition.begin_verification(
                    self.producer_id,
                    self.producer_epoch,
                    each.sequence,
                    adds_partitions=self.support.adds_partitions,
                )
            except KafkaError as error:
                results[each.key] = error.code
                continue
            if guard is not None:
                results[each.key] = guard
                wanted[TopicPartition(partition.topic, partition.index)] = each.key
        if wanted:
            await ctx.flush()  # earlier responses must not wait for another broker
            errors = await add_or_verify_partitions(
                self.coordinator,
                self.transactional_id,
                self.producer_id,
                self.producer_epoch,
                list(wanted),
                self.support,
            )
            for partition_name, code in errors.items():
                if code is not ErrorCode.none:
                    results[wanted[partition_name]] = code
        return results


async def _verify_until_decided(
    verification: _Verification, batches: Sequence[_TransactionalBatch], ctx: RequestContext
) -> VerificationResults:
    """Verify until the coordinator decides. CONCURRENT_TRANSACTIONS is retried for
    add.partitions.to.txn.retry.backoff.max.ms while the previous transaction completes."""
    config, clock = ctx.services.config, ctx.services.seams.clock
    max_ms = config.get_int("add.partitions.to.txn.retry.backoff.max.ms")
    give_up_at = clock.monotonic() + max_ms / 1000
    while True:
        results = await verification.verify(batches, ctx)
        is_busy = ErrorCode.concurrent_transactions in results.values()
        if not (
            is_busy and verification.support.adds_partitions and clock.monotonic() < give_up_at
        ):
            break
        await clock.sleep(config.get_int("add.partitions.to.txn.retry.backoff.ms") / 1000)
    return {
        key: _as_producer(each, verification.support) if isinstance(each, ErrorCode) else each
        for key, each in results.items()
    }


def _fail_all(
    batches: Sequence[_TransactionalBatch], code: ErrorCode, message: str
) -> VerificationResults:
    return {each.key: KafkaError(code, message) for each in batches}


def _as_producer(error: ErrorCode, support: TransactionSupportedOperation) -> KafkaError:
    """Map a coordinator error to one that producers handle. All producers retry NOT_ENOUGH_REPLICAS
    without a metadata refresh."""
    if error is ErrorCode.invalid_txn_state:
        return KafkaError(error, "the partition was not added to the transaction")
    if error in RETRIABLE_COORDINATOR_ERRORS or (
        error is ErrorCode.concurrent_transactions and not support.adds_partitions
    ):
        return KafkaError(
            ErrorCode.not_enough_replicas,
            f"the transaction could not be verified: {error.name}",
        )
    return KafkaError(error)
