"""Produce: batches are checked by their headers, stamped in place and appended; no record is read.

The records are views into the connection's buffer, valid until this handler returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from odradek.broker.apis.authorized import (
    TopicDenied,
    check_topic_called,
    may_transactional_id,
)
from odradek.broker.context import RequestContext
from odradek.broker.dispatch import Route
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.produce import ProduceRequest, ProduceTopic, read_produce
from odradek.protocol.produce_response import ProducedPartition, write_produce_response
from odradek.protocol.records.batch import MAGIC, TRANSACTIONAL_MASK
from odradek.replication.errors import RequestTimedOut
from odradek.replication.partition.partition import ACKS_ALL, Changed, Partition
from odradek.storage.errors import InvalidRecord
from odradek.storage.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from odradek.broker.transactions.producing import Verified

TURN_SECONDS = 0.003
"""How long a request appends before others get their turn."""


@dataclass(slots=True)
class Outcome(ProducedPartition):
    """One partition's answer, and what is needed until it can be given."""

    last_offset: int = -1
    partition: Partition | None = None
    """Where the batch went; None if it was refused."""

    def fail(self, error: KafkaError) -> Outcome:
        """The answer is `error`."""
        self.error_code = error.code
        self.error_message = error.message or None
        self.record_errors = getattr(error, "record_errors", ())
        self.partition = None
        return self


MAGIC_AT = 16
"""Where a batch has its magic, whatever else it is."""
FLAGS_AT = 22
"""Where it says that it is in a transaction."""


Topics = Sequence[tuple[ProduceTopic, list[Outcome]]]


async def produce(request: ProduceRequest, ctx: RequestContext) -> Topics | None:
    """Append every partition's batch, then answer as `acks` says: never (0), now (1), or when the
    in-sync replicas have it (-1)."""
    refused = _refusal(request, ctx)
    if refused is not None:
        topics: Topics = [
            (topic, [Outcome(index).fail(refused) for index, _ in topic.partitions])
            for topic in request.topics
        ]
    else:
        verified = None
        if request.transactional_id is not None:
            from odradek.broker.transactions.producing import verify

            verified = await verify(request, request.transactional_id, ctx)
        topics = [
            (topic, await _append_topic(topic, request.acks, verified, ctx))
            for topic in request.topics
        ]
    if request.acks == 0:
        _close_on_error(topics)
        return None
    await _durable(topics, ctx)
    if request.acks == ACKS_ALL:
        await _replicated(topics, request.timeout_ms, ctx)
    return topics


def _refusal(request: ProduceRequest, ctx: RequestContext) -> KafkaError | None:
    """What is wrong with the request as a whole."""
    if request.acks not in (-1, 0, 1):
        return KafkaError(ErrorCode.invalid_required_acks)
    transactional_id = request.transactional_id
    if transactional_id is not None and not may_transactional_id(ctx, transactional_id):
        return KafkaError(ErrorCode.transactional_id_authorization_failed)
    return None


async def _append_topic(
    topic: ProduceTopic, acks: int, verified: Verified | None, ctx: RequestContext
) -> list[Outcome]:
    """One partition after the other. Others get their turn where this takes long: a segment that is
    full costs a few files, and all partitions of a topic may be full at once."""
    clock = ctx.broker.seams.clock
    now_ms, turn_began = clock.wall_ms(), clock.monotonic()
    outcomes = []
    for index, records in topic.partitions:
        outcomes.append(await _append(topic, index, records, acks, now_ms, verified, ctx))
        if clock.monotonic() - turn_began > TURN_SECONDS:
            await trio.lowlevel.checkpoint()
            turn_began = clock.monotonic()
    return outcomes


async def _append(
    topic: ProduceTopic,
    index: int,
    records: memoryview | None,
    acks: int,
    now_ms: int,
    verified: Verified | None,
    ctx: RequestContext,
) -> Outcome:
    partition = None
    try:
        if ctx.authorizer is not None:
            _check_allowed(topic, ctx)
        partition = await ctx.broker.partitions.get(topic.name, topic.topic_id, index)
        if ctx.broker.is_internal(partition.topic) and ctx.client_id != "__admin_client":
            raise KafkaError(
                ErrorCode.invalid_topic_exception, f"{partition.topic} is written by brokers alone"
            )
        if not records:
            raise InvalidRecord("a produce request with no batch for the partition")
        guard = None
        if verified is not None:
            found = verified.get((topic.topic_id or topic.name, index))
            if isinstance(found, KafkaError):
                raise found
            guard = found
        elif _is_transactional(records):
            raise KafkaError(
                ErrorCode.transactional_id_authorization_failed,
                "a batch in a transaction, and no transactional id",
            )
        appended = partition.append(
            records,
            acks=acks,
            min_in_sync=partition.log.config.min_insync_replicas,
            now_ms=now_ms,
            guard=guard,
        )
    except KafkaError as error:
        outcome = Outcome(index).fail(error)
        if partition is not None and outcome.record_errors:  # as Kafka: with these, and only these
            outcome.log_start_offset = partition.log.log_start_offset
        return outcome
    return Outcome(
        index,
        ErrorCode.none,
        appended.first_offset,
        appended.log_append_time_ms,
        appended.log_start_offset,
        last_offset=appended.last_offset,
        partition=partition,
    )


def _check_allowed(topic: ProduceTopic, ctx: RequestContext) -> None:
    try:
        check_topic_called(ctx, topic.name, topic.topic_id)
    except TopicDenied as denied:
        raise KafkaError(denied.code) from None  # no more than that: Kafka has no text for it here


def _is_transactional(records: memoryview) -> bool:
    return (
        len(records) > FLAGS_AT
        and records[FLAGS_AT] & TRANSACTIONAL_MASK != 0
        and records[MAGIC_AT] == MAGIC
    )


def _close_on_error(topics: Topics) -> None:
    """A producer that wants no answer learns of an error by its connection being closed."""
    for topic, outcomes in topics:
        for outcome in outcomes:
            if outcome.error_code:
                raise InvalidFrame(
                    f"a produce with acks=0 to {topic.name or topic.topic_id}-{outcome.index} "
                    f"failed: {ErrorCode(outcome.error_code).name}: {outcome.error_message}"
                )


async def _durable(topics: Topics, ctx: RequestContext) -> None:
    """What flush.messages asks for is on the disk before it is acknowledged."""
    due = [
        (outcome, outcome.partition.log)
        for _, outcomes in topics
        for outcome in outcomes
        if outcome.partition is not None and outcome.partition.log.is_flush_due
    ]
    if not due:
        return

    async def flush(outcome: Outcome, log: PartitionLog) -> None:
        try:
            await ctx.broker.logs.flush(log, outcome.last_offset + 1)
        except KafkaError as error:
            outcome.fail(error)

    async with trio.open_nursery() as nursery:
        for outcome, log in due:
            nursery.start_soon(flush, outcome, log)


async def _replicated(topics: Topics, timeout_ms: int, ctx: RequestContext) -> None:
    """Wait until every batch is on all in-sync replicas; what is not by then gets its error."""
    pending = _pending(topics)
    if not pending:
        return
    await ctx.flush()
    with trio.move_on_after(timeout_ms / 1000):
        while pending := _pending(topics):
            await Changed.wait(
                outcome.partition for outcome in pending if outcome.partition is not None
            )
    for outcome in pending:
        outcome.fail(RequestTimedOut("not all in-sync replicas had it in time"))


def _pending(topics: Topics) -> list[Outcome]:
    pending = []
    for _, outcomes in topics:
        for outcome in outcomes:
            partition = outcome.partition
            if partition is None:
                continue
            if partition.is_replicated(outcome.last_offset):
                continue
            try:
                partition.check_leader()
            except KafkaError as error:
                outcome.fail(error)
            else:
                pending.append(outcome)
    return pending


def read(key: int, version: int, view: memoryview, offset: int) -> ProduceRequest:
    return read_produce(view, version, offset)


def write(key: int, version: int, topics: Topics) -> bytearray:
    return write_produce_response(
        version, [(topic.name, topic.topic_id, outcomes) for topic, outcomes in topics]
    )


HANDLERS = {apis.PRODUCE: Route(produce, read=read, write=write, prompt=True)}
