"""Produce: batches are validated by their headers, assigned offsets in place and appended. Records are decoded
only if the topic configs require it, in a thread if there are many.

Records are views into the connection's buffer and valid until the handler returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from odradek.broker.apis.produce_results import ProducePartitionResult, ProduceResponse, Topics
from odradek.broker.coordination.internal_topics import (
    DISKLESS_METADATA_TOPIC,
    is_coordinator_topic,
)
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.route import WOULD_BLOCK, Route
from odradek.broker.security.request_authorization import (
    TopicDenied,
    check_topic_name_or_id,
    may_transactional_id,
)
from odradek.protocol import apis
from odradek.protocol.errors import CorruptBatch, ErrorCode, InvalidFrame, KafkaError
from odradek.protocol.leader_tags import NodeEndpoint
from odradek.protocol.produce_request_reader import (
    ProduceRequest,
    ProduceTopic,
    read_produce_request,
)
from odradek.protocol.produce_response_writer import (
    LEADER_VERSION,
    write_produce_response,
)
from odradek.protocol.records.batch import (
    COMPRESSION_MASK,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_MASK,
    Batch,
)
from odradek.protocol.records.compression import ZSTD
from odradek.replication.errors import NotLeader, RequestTimedOut
from odradek.replication.partition.partition import ACKS_ALL, Partition, PartitionChangeWatcher
from odradek.seams.offload import RECORDS_LANE
from odradek.storage.errors import LogFailed, NotOneBatch
from odradek.storage.log.batch_validation import ValidationTooSlow, check_produced, only_batch
from odradek.storage.log.config import INT64_MAX
from odradek.storage.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from odradek.broker.diskless.produce import DisklessProduce
    from odradek.broker.transactions.produce_verification import VerificationResults
    from odradek.replication.controller.image import TopicImage

STEP_SECONDS = 0.003
"""Time that a request appends before it passes the event loop."""


MAGIC_AT = 16
"""Offset of the magic byte in a batch."""
FLAGS_AT = 22
"""Offset of the low byte of the attributes: compression and the transactional flag."""
FIRST_WITH_ZSTD = 7


def produce_nowait(request: ProduceRequest, ctx: RequestContext) -> Any:
    """Handle the common request: one batch for an open partition that waits for no other replica, coordinator
    or flush. Returns WOULD_BLOCK for all others."""
    topics, acks = request.topics, request.acks
    if len(topics) != 1 or len(topics[0].partitions) != 1 or request.transactional_id is not None:
        return WOULD_BLOCK
    topic = topics[0]
    ((index, records),) = topic.partitions
    services = ctx.services
    partition = services.partitions.find(topic.name, topic.topic_id, index)
    if (
        partition is None
        or not (0 <= acks <= 1 or (acks == ACKS_ALL and partition.leader_role is None))
        or partition.log.config.flush_messages < INT64_MAX
    ):
        return WOULD_BLOCK
    try:
        if ctx.authorizer is not None:
            _check_allowed(topic, ctx)
    except KafkaError as error:
        outcome = ProducePartitionResult(index).fail(error)
    else:
        now_ms = services.seams.clock.wall_ms()
        try:
            outcome = _append(partition, topic, records, None, acks, now_ms, ctx)
        except ValidationTooSlow:
            ctx.nowait_failed = True
            return WOULD_BLOCK
    topics_described = ((topic.name, topic.topic_id, (outcome,)),)
    return (
        _respond(topics_described, acks, ctx)
        if outcome.error_code or not acks
        else ProduceResponse(topics_described)
    )


async def produce(request: ProduceRequest, ctx: RequestContext) -> ProduceResponse | None:
    """Produce: append the batches, and respond as `acks` requires: not at all (0), at once (1), or once all
    in-sync replicas have them (-1)."""
    request = _without_repeated_partitions(request)
    diskless: DisklessProduce | None = None
    if not _may_transact(request, ctx):
        denied = KafkaError(ErrorCode.transactional_id_authorization_failed)
        topics = _all_refused(request, denied)
    else:
        verified: VerificationResults | None = None
        if request.transactional_id is not None:
            from odradek.broker.transactions.produce_verification import verify_partitions

            verified = await verify_partitions(request, request.transactional_id, ctx)
        if -1 <= request.acks <= 1:
            if ctx.services.diskless is not None:
                from odradek.broker.diskless.produce import DisklessProduce

                diskless = DisklessProduce(ctx.services.diskless, ctx, request.timeout_ms)
            topics = await _append_all(request, verified, diskless, ctx)
        else:
            topics = await _refuse_acks(request, verified, ctx)
    if request.acks != 0 and (due := _to_flush(topics)):
        await _flush(due, ctx)
    if request.acks == ACKS_ALL and _pending(topics):
        await _replicated(topics, request.timeout_ms, ctx)
    if diskless is not None and diskless.has_batches:
        response: ProduceResponse | None = await diskless.respond(
            lambda: _respond(topics, request.acks, ctx)
        )
        return response
    return _respond(topics, request.acks, ctx)


def _respond(topics: Topics, acks: int, ctx: RequestContext) -> ProduceResponse | None:
    """Response to the request; None for acks=0."""
    if acks == 0:
        _close_on_error(topics)
        return None
    if ctx.api_version >= LEADER_VERSION:
        for _, _, outcomes in topics:
            for outcome in outcomes:
                if outcome.error_code == ErrorCode.not_leader_or_follower:
                    return ProduceResponse(topics, _set_current_leaders(topics, ctx))
    return ProduceResponse(topics)


def _set_current_leaders(topics: Topics, ctx: RequestContext) -> list[NodeEndpoint]:
    """Set the current leaders in the results (KIP-951)."""
    from odradek.broker.apis.current_leader import current_leader, endpoints_of

    leaders = []
    for name, topic_id, outcomes in topics:
        for outcome in outcomes:
            if outcome.error_code == ErrorCode.not_leader_or_follower:
                outcome.current_leader = current_leader(ctx, name, topic_id, outcome.index)
                leaders.append(outcome.current_leader[0])
    return endpoints_of(ctx, leaders)


def _without_repeated_partitions(request: ProduceRequest) -> ProduceRequest:
    """Return the request with the last records of each partition, and one entry for each topic, as in Kafka."""
    topics = request.topics
    if len({each.topic_id or each.name for each in topics}) == len(topics) and all(
        len(dict(each.partitions)) == len(each.partitions) for each in topics
    ):
        return request
    last: dict[object, tuple[ProduceTopic, dict[int, memoryview | None]]] = {}
    for each in topics:
        last.setdefault(each.topic_id or each.name, (each, {}))[1].update(each.partitions)
    return ProduceRequest(
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            ProduceTopic(topic.name, topic.topic_id, list(partitions.items()))
            for topic, partitions in last.values()
        ],
    )


def _may_transact(request: ProduceRequest, ctx: RequestContext) -> bool:
    """Whether the batches are not transactional, or the client may write with its transactional id."""
    transactional_id = request.transactional_id
    may_write = transactional_id is not None and may_transactional_id(ctx, transactional_id)
    return may_write or not _is_transactional(request)


def _is_transactional(request: ProduceRequest) -> bool:
    """Whether any batch is transactional."""
    for topic in request.topics:
        for _, records in topic.partitions:
            if records and _flags(records) & TRANSACTIONAL_MASK and _is_complete(records):
                return True
    return False


def _all_refused(request: ProduceRequest, error: KafkaError) -> Topics:
    return [
        (
            topic.name,
            topic.topic_id,
            [ProducePartitionResult(index).fail(error) for index, _ in topic.partitions],
        )
        for topic in request.topics
        if topic.partitions
    ]


async def _refuse_acks(
    request: ProduceRequest, verified: VerificationResults | None, ctx: RequestContext
) -> Topics:
    """Results for unknown `acks`. As in Kafka, unknown partitions, invalid records and partitions that were not
    added to the transaction have their own errors."""
    topics = []
    for topic in request.topics:
        outcomes = []
        for index, records in topic.partitions:
            error = KafkaError(ErrorCode.invalid_required_acks)
            try:
                _check_allowed(topic, ctx)
                await ctx.services.partitions.get(topic.name, topic.topic_id, index)
                only_batch(_checked_records(records, ctx))
                found = (verified or {}).get((topic.topic_id or topic.name, index))
                if isinstance(found, KafkaError):
                    error = found
            except (NotLeader, LogFailed):
                pass  # the partition exists, and Kafka checks acks first
            except KafkaError as refused:
                error = refused
            outcomes.append(ProducePartitionResult(index).fail(error))
        if outcomes:
            topics.append((topic.name, topic.topic_id, outcomes))
    return topics


async def _append_all(
    request: ProduceRequest,
    verified: VerificationResults | None,
    diskless: DisklessProduce | None,
    ctx: RequestContext,
) -> Topics:
    """Append to the partitions in order; batches of diskless topics are buffered.

    Passes the event loop if this takes long: rolling a segment creates files, and all partitions of a topic may roll
    together.
    """
    clock, partitions = ctx.services.seams.clock, ctx.services.partitions
    now_ms = clock.wall_ms()
    step_began = None  # only for further partitions: most requests have one
    topics: list[tuple[str | None, UUID | None, list[ProducePartitionResult]]] = []
    for topic in request.topics:
        outcomes: list[ProducePartitionResult] = []
        for index, records in topic.partitions:
            if step_began is not None and clock.monotonic() - step_began > STEP_SECONDS:
                await trio.lowlevel.checkpoint()
                step_began = None
            if step_began is None and (outcomes or topics):
                step_began = clock.monotonic()
            try:
                if ctx.authorizer is not None:
                    _check_allowed(topic, ctx)
                partition = partitions.find(topic.name, topic.topic_id, index)
                if partition is None:
                    image = None if diskless is None else diskless.find(topic.name, topic.topic_id)
                    if diskless is not None and image is not None:
                        outcomes.append(await _buffer(diskless, image, index, records, ctx))
                        continue
                    partition = await partitions.get(topic.name, topic.topic_id, index)
            except KafkaError as error:
                refused = (
                    _first_error(records, error, ctx)
                    if isinstance(error, (NotLeader, LogFailed))  # the partition exists
                    else error
                )
                outcomes.append(ProducePartitionResult(index).fail(refused))
            else:
                arguments = (partition, topic, records, verified, request.acks, now_ms, ctx)
                try:
                    outcome = None if ctx.nowait_failed else _append(*arguments)
                except ValidationTooSlow:
                    outcome = None
                if outcome is None:
                    outcome = await _check_and_append(*arguments)
                outcomes.append(outcome)
        if outcomes:  # as in Kafka, whose response has the results by partition
            topics.append((topic.name, topic.topic_id, outcomes))
    return topics


async def _buffer(
    diskless: DisklessProduce,
    topic: TopicImage,
    index: int,
    records: memoryview | None,
    ctx: RequestContext,
) -> ProducePartitionResult:
    """Buffer a batch of a diskless topic. The result is complete when it is committed."""
    try:
        checked = _checked_records(records, ctx)
        if _flags(checked) & TRANSACTIONAL_MASK and _is_complete(checked):
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"The diskless topic {topic.name} does not support transactions.",
            )
        return await diskless.append(topic, index, checked)
    except KafkaError as error:
        error = _first_error(records, error, ctx)
        diskless.refused(topic, error, len(records or b""))
        return ProducePartitionResult(index).fail(error)


async def _check_and_append(
    partition: Partition,
    topic: ProduceTopic,
    records: memoryview | None,
    verified: VerificationResults | None,
    acks: int,
    now_ms: int,
    ctx: RequestContext,
) -> ProducePartitionResult:
    """Append a batch whose records must be checked in a thread."""
    assert records is not None
    await ctx.flush()
    try:
        checked = await ctx.services.seams.offload.run(
            partial(check_produced, records, partition.log.config, now_ms, from_client=True),
            lane=RECORDS_LANE,
        )
    except KafkaError as error:
        return _refused(partition, records, error, ctx, is_from_log=True)
    return _append(partition, topic, records, verified, acks, now_ms, ctx, checked)


def _append(
    partition: Partition,
    topic: ProduceTopic,
    records: memoryview | None,
    verified: VerificationResults | None,
    acks: int,
    now_ms: int,
    ctx: RequestContext,
    checked: Batch | None = None,
) -> ProducePartitionResult:
    """Append one batch; errors are set in the result. Raises ValidationTooSlow without any effect unless the
    batch is `checked`."""
    try:
        if is_coordinator_topic(partition.topic) and (
            ctx.client_id != "__admin_client" or partition.topic == DISKLESS_METADATA_TOPIC
        ):
            raise KafkaError(
                ErrorCode.invalid_topic_exception,
                f"Cannot append to internal topic {partition.topic}",
            )
        if not records or ctx.api_version < FIRST_WITH_ZSTD:
            records = _checked_records(records, ctx)
        guard = None
        if verified is not None:
            found = verified.get((topic.topic_id or topic.name, partition.index))
            if isinstance(found, KafkaError):
                raise found
            guard = found
        elif _flags(records) & TRANSACTIONAL_MASK and _is_complete(records):
            raise KafkaError(
                ErrorCode.transactional_id_authorization_failed,
                "Produce request has transactional records but no transactional id",
            )
    except KafkaError as error:
        return _refused(partition, records, error, ctx, is_from_log=False)
    try:
        appended = partition.append(
            records, acks=acks, now_ms=now_ms, guard=guard, checked=checked, at_once=True
        )
    except KafkaError as error:
        return _refused(partition, records, error, ctx, is_from_log=True)
    is_committed = appended.duplicate and appended.last_offset < partition.log.high_watermark
    return ProducePartitionResult(
        partition.index,
        ErrorCode.none,
        appended.first_offset,
        appended.log_append_time_ms,
        appended.log_start_offset,
        (),
        None,
        None,
        appended.last_offset,
        None if is_committed else partition,  # nothing to wait for
        partition.leader_epoch,
    )


def _checked_records(records: memoryview | None, ctx: RequestContext) -> memoryview:
    """Return the records. Raises KafkaError if there are none, or if their compression requires a newer version."""
    if not records:
        raise NotOneBatch(
            f"Produce requests with version {ctx.api_version} must have at least one record batch per partition"
        )
    if ctx.api_version < FIRST_WITH_ZSTD and _flags(records) & COMPRESSION_MASK == ZSTD:
        raise KafkaError(
            ErrorCode.unsupported_compression_type,
            f"Produce requests with version {ctx.api_version} are not allowed to use ZStandard compression",
        )
    return records


def _first_error(records: memoryview | None, error: KafkaError, ctx: RequestContext) -> KafkaError:
    """Error of records that are not exactly one batch, else `error`: Kafka checks the number of batches before the
    transaction, the internal topics, the leader and the in-sync replicas (ProduceRequest.validateRecords)."""
    try:
        only_batch(_checked_records(records, ctx))
    except CorruptBatch:
        return error  # invalid in a way that Kafka finds later
    except KafkaError as first:
        return first
    return error


def _refused(
    partition: Partition,
    records: memoryview | None,
    error: KafkaError,
    ctx: RequestContext,
    *,
    is_from_log: bool,
) -> ProducePartitionResult:
    """Result of a batch that was refused before the append or by the log."""
    error = _first_error(records, error, ctx)
    if records:
        error = partition.error_for_producer(records, error)
    if partition.traffic is not None:
        is_too_large = error.code == ErrorCode.message_too_large
        partition.traffic.refused(len(records or b"") if is_too_large else 0)
    outcome = ProducePartitionResult(partition.index).fail(error)
    if is_from_log and error.code not in _WITHOUT_LOG_START and not isinstance(error, NotOneBatch):
        outcome.log_start_offset = partition.log.log_start_offset
    return outcome


_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.message_too_large,
        ErrorCode.record_list_too_large,
        ErrorCode.corrupt_message,
        ErrorCode.kafka_storage_error,
    }
)
"""Errors of an append whose response has no log start offset (ReplicaManager.appendToLocalLog)."""


def _check_allowed(topic: ProduceTopic, ctx: RequestContext) -> None:
    try:
        check_topic_name_or_id(ctx, topic.name, topic.topic_id)
    except TopicDenied as denied:
        raise KafkaError(denied.code) from None  # Kafka sends no error message here


def _flags(records: memoryview) -> int:
    """Low byte of the attributes of the first batch; 0 unless its magic is 2."""
    return records[FLAGS_AT] if len(records) > FLAGS_AT and records[MAGIC_AT] == MAGIC else 0


def _is_complete(records: memoryview) -> bool:
    """Whether the first batch is complete. Kafka does not see the flags of an incomplete batch."""
    return LOG_OVERHEAD + int.from_bytes(records[8:LOG_OVERHEAD], "big") <= len(records)


def _close_on_error(topics: Topics) -> None:
    """Close the connection after an error with acks=0: the producer has no other way to notice."""
    for name, topic_id, outcomes in topics:
        for outcome in outcomes:
            if outcome.error_code:
                raise InvalidFrame(
                    f"Produce request with acks=0 to {name or topic_id}-{outcome.index} "
                    f"failed: {ErrorCode(outcome.error_code).name}: {outcome.error_message}"
                )


def _to_flush(topics: Topics) -> list[tuple[ProducePartitionResult, PartitionLog]]:
    """Logs that flush.messages requires to be flushed before the acknowledgement."""
    return [
        (outcome, outcome.partition.log)
        for _, _, outcomes in topics
        for outcome in outcomes
        if outcome.partition is not None and outcome.partition.log.is_flush_due
    ]


async def _flush(
    due: Iterable[tuple[ProducePartitionResult, PartitionLog]], ctx: RequestContext
) -> None:
    async def flush(outcome: ProducePartitionResult, log: PartitionLog) -> None:
        try:
            await ctx.services.logs.flush(log, outcome.last_offset + 1)
        except KafkaError as error:
            outcome.fail(error)

    async with trio.open_nursery() as nursery:
        for outcome, log in due:
            nursery.start_soon(flush, outcome, log)


async def _replicated(topics: Topics, timeout_ms: int, ctx: RequestContext) -> None:
    """Wait until all in-sync replicas have every batch; on timeout a batch gets an error."""
    await ctx.flush()
    pending = _pending(topics)  # check after registering, or a change in between would be missed
    with trio.move_on_after(max(0, timeout_ms) / 1000):
        while pending:
            await PartitionChangeWatcher.wait(
                outcome.partition for outcome in pending if outcome.partition is not None
            )
            pending = _pending(topics)
    for outcome in pending:
        outcome.fail(
            RequestTimedOut("not all in-sync replicas have acknowledged the batch in time")
        )


def _pending(topics: Topics) -> list[ProducePartitionResult]:
    pending = []
    for _, _, outcomes in topics:
        for outcome in outcomes:
            partition = outcome.partition
            if partition is None:
                continue
            try:
                if not partition.is_replicated(outcome.last_offset, outcome.leader_epoch):
                    partition.check_leader()
                    pending.append(outcome)
            except KafkaError as error:
                outcome.fail(error)
    return pending


def read(key: int, version: int, view: memoryview, offset: int) -> ProduceRequest:
    return read_produce_request(view, version, offset)


def write(key: int, version: int, response: ProduceResponse) -> bytearray:
    return write_produce_response(
        version,
        response.topics,
        throttle_time_ms=response.throttle_time_ms,
        node_endpoints=response.endpoints,
    )


HANDLERS = {
    apis.PRODUCE: Route(
        produce, read=read, write=write, batches_responses=True, handler_nowait=produce_nowait
    )
}
