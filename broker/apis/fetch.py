"""Fetch (KIP-74 sizes, KIP-227 sessions, KIP-320 epochs, KIP-516 topic ids).

Records go from the segment's file to the socket: an answer holds slices of files, pinned until they
were sent, or their bytes where they are few. A fetch that finds less than `min_bytes` waits for
appends, not for a timer, and then reads only what has changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import trio

from odradek.broker.apis.authorized import TopicDenied, check_topic_called, may_cluster
from odradek.broker.context import RequestContext
from odradek.broker.dispatch import Route
from odradek.broker.fetch_sessions import PartitionKey, Wanted
from odradek.broker.fetch_wait import FetchWait, StableWait
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.fetch import FetchedPartition, FetchedTopic, write_fetch_response
from odradek.protocol.fetch_request import TOPIC_ID_VERSION, FetchRequest, read_fetch
from odradek.replication.controller.acls import AclOperation
from odradek.replication.errors import NotLeader
from odradek.replication.partition.partition import Partition
from odradek.seams.files import Buffer, FileSlice, WouldBlock
from odradek.storage.log.names import LOG, file_name

READ_COMMITTED = 1
PARTITIONS_A_TURN = 64
"""How many a request reads, about 10 µs each, before others have the loop."""
WARMED_AT_ONCE_BYTES = 256 * 1024
READ_AT_ONCE_BYTES = 64 << 10
"""So much of an answer is read where it is found: a slice that small would be read to be sent anyway,
and the read tells whether it is in memory, which takes two more of a slice that is left for later."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the writer of the response needs."""

    error_code: ErrorCode
    session_id: int
    chosen: Sequence[tuple[Wanted, FetchedPartition]]


@dataclass(slots=True)
class Limits:
    max_bytes: int
    isolation_level: int
    replica_id: int


async def fetch(request: FetchRequest, ctx: RequestContext) -> Answer:
    """Read every partition of the plan; wait while there is too little and time is left."""
    uses_topic_ids = ctx.api_version >= TOPIC_ID_VERSION
    try:
        plan = ctx.broker.fetch_sessions.plan(
            request.session_id,
            request.session_epoch,
            _wanted(request),
            _forgotten(request),
            uses_topic_ids=uses_topic_ids,
            now=ctx.broker.seams.clock.monotonic(),
        )
    except KafkaError as error:
        return Answer(error.code, 0, ())
    limits = _limits(request, ctx)
    found = await _read(plan.wanted, ctx, limits)
    min_bytes = min(request.min_bytes, limits.max_bytes)
    missing = min_bytes - _size(found)
    wait_seconds = request.max_wait_ms / 1000
    if missing > 0 and wait_seconds > 0:
        found = await _wait_for_more(found, plan.wanted, min_bytes, wait_seconds, ctx, limits)
    try:
        await _bring_in(found, ctx)
    except BaseException:
        _let_go(found)
        raise
    return Answer(
        ErrorCode.none, plan.session_id, plan.select((each.wanted, each.answer) for each in found)
    )


async def _wait_for_more(
    found: list[Read],
    wanted: Sequence[Wanted],
    min_bytes: int,
    wait_seconds: float,
    ctx: RequestContext,
    limits: Limits,
) -> list[Read]:
    """Read again when there is enough, or after `wait_seconds`; no wait where something failed, or
    where none would bring more."""
    clock = ctx.broker.seams.clock
    give_up_at = clock.monotonic() + wait_seconds
    while True:
        missing, left_seconds = min_bytes - _size(found), give_up_at - clock.monotonic()
        if missing <= 0 or left_seconds <= 0 or not found or _failed(found) or _is_cut_short(found):
            return found
        _let_go(found)
        partitions = [each.partition for each in found if each.partition is not None]
        is_committed = limits.isolation_level == READ_COMMITTED
        wait = StableWait(_stable(found)) if is_committed else FetchWait(missing)
        with wait.watching(partitions):
            if not _moved(found):
                await ctx.flush()
                await wait.wait(left_seconds)
        found = await _read(wanted, ctx, limits, found)


def _wanted(request: FetchRequest) -> list[Wanted]:
    return [
        Wanted(name, topic_id, index, offset, max_bytes, epoch, last_fetched, log_start)
        for name, topic_id, partitions in request.topics
        for index, epoch, offset, last_fetched, log_start, max_bytes in partitions
    ]


def _forgotten(request: FetchRequest) -> Iterable[PartitionKey]:
    for name, topic_id, partitions in request.forgotten:
        for index in partitions:
            yield (topic_id or name, index)


def _limits(request: FetchRequest, ctx: RequestContext) -> Limits:
    max_bytes = min(request.max_bytes, ctx.broker.config.get_int("fetch.max.bytes"))
    return Limits(max_bytes, request.isolation_level, request.replica_id)


@dataclass(slots=True)
class Read:
    """What was found in one partition, which is None where it can't be read here."""

    wanted: Wanted
    answer: FetchedPartition
    partition: Partition | None

    @property
    def size(self) -> int:
        """Bytes of records."""
        size_bytes = 0
        for part in self.answer.records:
            size_bytes += part.size if isinstance(part, FileSlice) else len(part)
        return size_bytes

    def is_led_here(self) -> bool:
        """Whether the partition is still there, and led by this node in the epoch asked for."""
        if self.partition is None:
            return False
        try:
            self.partition.check_leader(self.wanted.current_leader_epoch)
        except KafkaError:
            return False
        return True

    def is_current(self) -> bool:
        """Whether nothing was found, and nothing has changed since that an answer would tell."""
        assert self.partition is not None
        log, answer = self.partition.log, self.answer
        return (
            not answer.records
            and log.high_watermark == answer.high_watermark
            and log.last_stable_offset == answer.last_stable_offset
            and log.log_start_offset == answer.log_start_offset
        )


async def _read(
    wanted: Sequence[Wanted], ctx: RequestContext, limits: Limits, before: Sequence[Read] = ()
) -> list[Read]:
    """Read in the order of the plan within the request's bytes; the first that has any is not cut
    (KIP-74). The slices in what it returns are pinned.

    `before` is what was found of the same plan earlier in this request: where that is still current
    it stands, and a partition that is still led here is not looked up and authorized again.
    """
    found: list[Read] = []
    left_bytes = limits.max_bytes
    size_bytes = 0
    try:
        for number, each in enumerate(wanted):
            if (number + 1) % PARTITIONS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            known = None
            if before and before[number].is_led_here():
                if before[number].is_current():
                    found.append(before[number])
                    continue
                known = before[number].partition
            read = await _read_partition(each, ctx, limits, left_bytes, size_bytes == 0, known)
            found.append(read)
            size_bytes += read.size
            left_bytes = max(0, limits.max_bytes - size_bytes)
    except BaseException:
        _let_go(found)
        raise
    return found


async def _read_partition(
    wanted: Wanted,
    ctx: RequestContext,
    limits: Limits,
    left_bytes: int,
    at_least_one: bool,
    partition: Partition | None,
) -> Read:
    """`partition` is what `wanted` names, None to look it up as far as the client may."""
    try:
        if partition is None:
            if ctx.authorizer is not None:
                _check_allowed(wanted, ctx, limits)
            partition = await ctx.broker.partitions.get(wanted.topic, wanted.topic_id, wanted.index)
        partition.check_leader(wanted.current_leader_epoch)
        if limits.replica_id >= 0 and limits.replica_id not in partition.replicas:
            raise NotLeader(f"node {limits.replica_id} has no replica of {partition!r}")
        max_bytes = min(wanted.max_bytes, left_bytes)
        try:
            answer = _read_log(partition, wanted, limits, max_bytes, at_least_one, True)
        except WouldBlock:
            answer = await ctx.broker.seams.offload.run(
                _read_log,
                partition,
                wanted,
                limits,
                max_bytes,
                at_least_one,
                False,
                lane=str(partition.log.directory.parent),
            )
    except KafkaError as error:
        answer = FetchedPartition(
            index=wanted.index,
            error_code=error.code,
            aborted_transactions=() if partition is None else None,  # as Kafka has it
        )
    return Read(wanted, answer, partition)


def _check_allowed(wanted: Wanted, ctx: RequestContext, limits: Limits) -> None:
    """Consumers read topics; followers act for the cluster. Raises TopicDenied."""
    if limits.replica_id < 0:
        check_topic_called(ctx, wanted.topic, wanted.topic_id)
    elif not may_cluster(ctx, AclOperation.CLUSTER_ACTION):
        raise TopicDenied


def _read_log(
    partition: Partition,
    wanted: Wanted,
    limits: Limits,
    max_bytes: int,
    at_least_one: bool,
    nowait: bool,
) -> FetchedPartition:
    log = partition.log
    high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
    if wanted.last_fetched_epoch >= 0:
        end = log.epochs.end_offset_for(wanted.last_fetched_epoch)
        if end.epoch < wanted.last_fetched_epoch or end.end_offset < wanted.offset:
            return FetchedPartition(
                index=wanted.index,
                high_watermark=high_watermark,
                last_stable_offset=last_stable_offset,
                log_start_offset=log.log_start_offset,
                diverging_epoch=(end.epoch, end.end_offset),
            )
    committed = limits.isolation_level == READ_COMMITTED
    limit = last_stable_offset if committed else high_watermark
    read = log.read(wanted.offset, max_bytes, limit=limit, at_least_one=at_least_one, nowait=nowait)
    records: Sequence[Buffer | FileSlice] = () if read.slice is None else (read.slice,)
    aborted = None
    if committed:
        overlapping = log.aborted_in(read, nowait=nowait)
        aborted = [(each.producer_id, each.first_offset) for each in overlapping]
    return FetchedPartition(
        index=wanted.index,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log.log_start_offset,
        aborted_transactions=aborted,
        records=records,
    )


async def _bring_in(found: Iterable[Read], ctx: RequestContext) -> None:
    """Read the first slices that are small, and bring those that are not in memory there off the
    loop, so that sending them does not block."""
    left_bytes = READ_AT_ONCE_BYTES
    for each in found:
        for part in _slices([each]):
            try:
                if part.size <= left_bytes:
                    left_bytes -= part.size
                    each.answer.records = (await _bytes_of(part, ctx),)
                    part.file.unpin()
                elif not _in_memory(part):
                    await ctx.broker.seams.offload.run(read_through, part, lane=_lane(part))
            except OSError as error:
                assert each.partition is not None
                ctx.broker.logs.report(each.partition.log, error)
                _let_go([each])
                each.answer = FetchedPartition(
                    index=each.wanted.index, error_code=ErrorCode.kafka_storage_error
                )


async def _bytes_of(part: FileSlice, ctx: RequestContext) -> bytes:
    try:
        return part.file.read_at(part.position, part.size, nowait=True)
    except WouldBlock:
        return await ctx.broker.seams.offload.run(part.read, lane=_lane(part))


def _lane(part: FileSlice) -> str:
    """The log directory that a slice lies in."""
    return str(part.file.path.parent.parent)


def read_through(part: FileSlice) -> None:
    """Read a slice for what that leaves in the page cache; it may have fetch.max.bytes, and many
    readers of old data may be here at once, so never all of it at a time. Raises OSError."""
    end = part.position + part.size
    for position in range(part.position, end, WARMED_AT_ONCE_BYTES):
        part.file.read_at(position, min(WARMED_AT_ONCE_BYTES, end - position))


def _in_memory(part: FileSlice) -> bool:
    """By a probe of both ends: old data lies on disk."""
    try:
        part.file.read_at(part.position, 1, nowait=True)
        part.file.read_at(part.position + part.size - 1, 1, nowait=True)
    except WouldBlock:
        return False
    return True


def _slices(found: Iterable[Read]) -> Iterator[FileSlice]:
    for each in found:
        for part in each.answer.records:
            if isinstance(part, FileSlice):
                yield part


def _size(found: Iterable[Read]) -> int:
    return sum(each.size for each in found)


def _failed(found: Iterable[Read]) -> bool:
    """An error, or a history that parts from the leader's, is answered at once."""
    return any(
        each.answer.error_code != ErrorCode.none or each.answer.diverging_epoch is not None
        for each in found
    )


def _is_cut_short(found: Iterable[Read]) -> bool:
    """Whether a slice ends with its segment while the log goes on in another: there is more, but not
    for this answer (a slice lies in one segment), and nothing that is appended changes that."""
    return any(
        part.file.path.name != file_name(each.partition.log.tip.segment.base_offset, LOG)
        for each in found
        if each.partition is not None
        for part in _slices([each])
    )


def _moved(found: Iterable[Read]) -> bool:
    """Whether something became visible since it was read, while another read went to disk."""
    return any(
        each.partition is not None
        and each.partition.log.high_watermark != each.answer.high_watermark
        for each in found
    )


def _stable(found: Iterable[Read]) -> dict[Partition, int]:
    """The last stable offsets that were seen."""
    return {
        each.partition: each.answer.last_stable_offset
        for each in found
        if each.partition is not None
    }


def _let_go(found: Iterable[Read]) -> None:
    for part in _slices(found):
        part.file.unpin()


def read(key: int, version: int, view: memoryview, offset: int) -> FetchRequest:
    return read_fetch(view, version, offset)


def write(key: int, version: int, answer: Answer) -> list[Buffer | FileSlice]:
    """The response, its records still slices of files."""
    topics: dict[object, tuple[Wanted, list[FetchedPartition]]] = {}
    for wanted, partition in answer.chosen:
        topics.setdefault(wanted.topic_id or wanted.topic, (wanted, []))[1].append(partition)
    return write_fetch_response(
        version,
        throttle_time_ms=0,
        error_code=answer.error_code,
        session_id=answer.session_id,
        topics=[
            FetchedTopic(name=first.topic or "", topic_id=first.topic_id, partitions=partitions)
            for first, partitions in topics.values()
        ],
    )


HANDLERS = {apis.FETCH: Route(fetch, read=read, write=write, prompt=True)}
