"""ListOffsets: offsets by timestamp (KIP-79). OffsetForLeaderEpoch: the end offset of a leader epoch (KIP-101)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import trio

from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import check_topic, may_cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import field
from odradek.replication.controller.acls import AclOperation
from odradek.replication.controller.image import TopicImage
from odradek.replication.errors import NotLeader
from odradek.replication.partition.partition import Partition
from odradek.storage.log.partition_log import PartitionLog, TimestampAndOffset

EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -2,
    -1,
    -3,
    -4,
    -5,
    -6,
)
SPECIAL_SINCE_VERSION = {
    EARLIEST: 1,
    LATEST: 1,
    MAX_TIMESTAMP: 7,  # KIP-734
    EARLIEST_LOCAL: 7,  # version 7 in KIP-405, 8 in Kafka
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
OFFSET_NOT_AVAILABLE_VERSION = 5
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
CONSUMER, DEBUGGER = -1, -2


async def list_offsets(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """ListOffsets: find offsets by timestamp (KIP-79); negative timestamps are special offsets."""
    times_named = Counter(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    if field(request, "isolation_level", 0) not in (READ_UNCOMMITTED, READ_COMMITTED):
        return _all_failed(request, ErrorCode.unknown_server_error)  # as in Kafka
    searches: list[_TieredSearch] = []
    diskless: list[_DisklessQuery] = []
    topics: dict[str, dict[int, dict[str, Any]]] = {}
    every = ((topic.name, each) for topic in request.topics for each in topic.partitions)
    async for name, each in in_steps(every, ctx):
        partitions = topics.setdefault(name, {})
        if each.partition_index not in partitions:
            partitions[each.partition_index] = await _list_partition(
                name, each, request, ctx, times_named, searches, diskless
            )
    if searches:
        await _search_tiers(searches, request, ctx)
    if diskless:
        await _list_diskless(diskless, ctx)
    return {
        "topics": [
            {"name": name, "partitions": list(partitions.values())}
            for name, partitions in topics.items()
        ]
    }


def _all_failed(request: Any, code: ErrorCode) -> Mapping[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_failed(each.partition_index, code) for each in topic.partitions],
            }
            for topic in request.topics
        ]
    }


async def _list_partition(
    topic: str,
    wanted: Any,
    request: Any,
    ctx: RequestContext,
    times_named: Counter[Any],
    searches: list[_TieredSearch],
    diskless: list[_DisklessQuery],
) -> dict[str, Any]:
    index = wanted.partition_index
    try:
        check_topic(ctx, topic)
        if times_named[topic, index] > 1:
            raise KafkaError(ErrorCode.invalid_request, f"{topic}-{index} is listed more than once")
        since = SPECIAL_SINCE_VERSION.get(wanted.timestamp, 2**15)
        if wanted.timestamp < 0 and ctx.api_version < since:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"ListOffsets version {ctx.api_version} does not support timestamp {wanted.timestamp}",
            )
        partition = await ctx.services.partitions.get(topic, None, index)
        epoch = field(wanted, "current_leader_epoch", -1)
        if request.replica_id == DEBUGGER:
            partition.check_epoch(epoch)
        else:
            partition.check_leader(epoch)
        if _is_in_tiers(partition.log, wanted.timestamp, ctx):
            # A placeholder, replaced by the result of the search
            response = _failed(index, ErrorCode.request_timed_out)
            searches.append(_TieredSearch(partition, wanted.timestamp, response))
            return response
        found = await _find(partition, wanted.timestamp, request, ctx)
    except NotLeader as error:
        services = ctx.services
        if services.diskless is not None and request.replica_id < 0:
            diskless_topic = services.diskless.reader.topic_of(topic, None, index)
            if diskless_topic is not None:
                return _defer_diskless(diskless_topic, wanted, diskless)
        return _failed(index, error.code)
    except KafkaError as error:
        return _failed(index, error.code)
    return _respond(index, found)


def _respond(index: int, found: TimestampAndOffset) -> dict[str, Any]:
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "timestamp": found.timestamp,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }


def _failed(index: int, code: ErrorCode) -> dict[str, Any]:
    return {"partition_index": index, "error_code": code, "timestamp": -1, "offset": -1}


@dataclass(slots=True)
class _TieredSearch:
    """Search for a timestamp in both tiers, and the partition response that it updates."""

    partition: Partition
    timestamp: int
    response: dict[str, Any]

    async def run(self, request: Any, ctx: RequestContext) -> None:
        partition, index = self.partition, self.partition.index
        assert ctx.services.tiered_storage is not None
        timestamp = None if self.timestamp == MAX_TIMESTAMP else self.timestamp
        epoch = partition.leader_epoch
        try:
            found = await ctx.services.tiered_storage.reads.find_timestamp(partition.log, timestamp)
            found = _if_fetchable(found, partition, epoch, request, ctx)
        except KafkaError as error:
            self.response.update(_failed(index, error.code))
        else:
            self.response.update(_respond(index, found))


def _is_in_tiers(log: PartitionLog, timestamp: int, ctx: RequestContext) -> bool:
    return (
        ctx.services.tiered_storage is not None
        and log.is_tiered
        and (timestamp >= 0 or timestamp == MAX_TIMESTAMP)
        and log.log_start_offset < log.end_offset
    )


async def _search_tiers(
    searches: Sequence[_TieredSearch], request: Any, ctx: RequestContext
) -> None:
    """Run all searches concurrently, limited by the timeout of the request and the config; late searches time
    out."""
    seconds = field(request, "timeout", timedelta(0)).total_seconds()
    if seconds <= 0:
        seconds = ctx.services.config.get_int("remote.list.offsets.request.timeout.ms") / 1000
    await ctx.flush()
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for each in searches:
                nursery.start_soon(each.run, request, ctx)


@dataclass(slots=True)
class _DisklessQuery:
    """Query for an offset of a diskless partition, and the partition response that it updates."""

    topic: TopicImage
    index: int
    timestamp: int
    response: dict[str, Any]


def _defer_diskless(
    topic: TopicImage, wanted: Any, diskless: list[_DisklessQuery]
) -> dict[str, Any]:
    """Placeholder for a diskless partition, which `_list_diskless` replaces."""
    from odradek.broker.diskless.offset_queries import check_epoch

    index = wanted.partition_index
    try:
        check_epoch(field(wanted, "current_leader_epoch", -1))
    except KafkaError as error:
        return _failed(index, error.code)
    response = _failed(index, ErrorCode.leader_not_available)
    diskless.append(_DisklessQuery(topic, index, wanted.timestamp, response))
    return response


async def _list_diskless(queries: Sequence[_DisklessQuery], ctx: RequestContext) -> None:
    from odradek.broker.diskless.offset_queries import OffsetQuery

    assert ctx.services.diskless is not None
    await ctx.flush()
    results = await ctx.services.diskless.offsets.list_offsets(
        [OffsetQuery(each.topic, each.index, each.timestamp) for each in queries]
    )
    for query, result in zip(queries, results, strict=True):
        if isinstance(result, KafkaError):
            query.response.update(_failed(query.index, result.code))
        else:
            query.response.update(_respond(query.index, result))


def _last_fetchable(partition: Partition, request: Any) -> int:
    if request.replica_id != CONSUMER:
        return partition.log.end_offset
    if field(request, "isolation_level", 0) == READ_COMMITTED:
        return partition.log.last_stable_offset
    return partition.log.high_watermark


def _check_newest(partition: Partition, request: Any, ctx: RequestContext) -> None:
    """Raise OFFSET_NOT_AVAILABLE to a consumer while the high watermark of a new leader is below the start
    offset of its epoch, because the offset would go backwards (KIP-207)."""
    if request.replica_id == CONSUMER and partition.is_behind_its_epoch:
        is_known = ctx.api_version >= OFFSET_NOT_AVAILABLE_VERSION
        raise KafkaError(
            ErrorCode.offset_not_available if is_known else ErrorCode.leader_not_available,
            f"the high watermark of {partition!r} has not reached the start offset of its leader epoch",
        )


async def _find(
    partition: Partition, timestamp: int, request: Any, ctx: RequestContext
) -> TimestampAndOffset:
    log = partition.log
    if timestamp == LATEST:
        _check_newest(partition, request, ctx)
        return TimestampAndOffset(-1, _last_fetchable(partition, request), partition.leader_epoch)
    if timestamp in _PLACES:
        return _with_epoch(log, _PLACES[timestamp](log))
    lane, epoch = str(log.directory.parent), partition.leader_epoch
    if timestamp == MAX_TIMESTAMP:
        found = await ctx.services.seams.offload.run(log.max_timestamp, lane=lane)
    else:
        found = await ctx.services.seams.offload.run(log.find_timestamp, timestamp, lane=lane)
    return _if_fetchable(found, partition, epoch, request, ctx)


def _if_fetchable(
    found: TimestampAndOffset | None,
    partition: Partition,
    epoch: int,
    request: Any,
    ctx: RequestContext,
) -> TimestampAndOffset:
    """Result if the reader may fetch it. The search started in leader epoch `epoch`; if another node led
    meanwhile, the records may have changed."""
    if request.replica_id != DEBUGGER:
        partition.check_leader()
        partition.check_led_since(epoch)
    if found is None or found.offset >= _last_fetchable(partition, request):
        _check_newest(partition, request, ctx)
        return TimestampAndOffset(-1, -1, -1)
    return found


def _pending_upload(log: PartitionLog) -> int:
    """First offset that is not copied to the remote tier yet; -1 if a new leader does not know it yet
    (KIP-1023)."""
    if not log.is_tiered:
        return -1
    if log.highest_copied_offset >= 0:
        return max(log.highest_copied_offset + 1, log.log_start_offset)
    is_all_here = log.local_log_start_offset == log.log_start_offset
    return log.log_start_offset if is_all_here else -1


_PLACES: dict[int, Callable[[PartitionLog], int]] = {
    EARLIEST: lambda log: log.log_start_offset,
    EARLIEST_LOCAL: lambda log: log.local_log_start_offset,
    LATEST_TIERED: lambda log: log.highest_copied_offset if log.is_tiered else -1,
    EARLIEST_PENDING_UPLOAD: _pending_upload,
}


def _with_epoch(log: PartitionLog, offset: int) -> TimestampAndOffset:
    epoch = log.epochs.epoch_for(offset)
    return TimestampAndOffset(-1, offset, -1 if epoch is None else epoch)


async def offset_for_leader_epoch(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """OffsetForLeaderEpoch: the end offset of a leader epoch (KIP-101, KIP-279)."""
    topics: list[dict[str, Any]] = [
        {"topic": topic.topic, "partitions": []} for topic in request.topics
    ]
    diskless: list[tuple[dict[str, Any], TopicImage, Any]] = []
    every = (
        (values, each)
        for values, topic in zip(topics, request.topics, strict=True)
        for each in topic.partitions
    )
    async for values, each in in_steps(every, ctx):
        values["partitions"].append(await _end_of_epoch(values["topic"], each, ctx, diskless))
    if diskless:
        await _end_of_diskless_epochs(diskless, ctx)
    return {"topics": topics}


async def _end_of_epoch(
    topic: str,
    wanted: Any,
    ctx: RequestContext,
    diskless: list[tuple[dict[str, Any], TopicImage, Any]],
) -> dict[str, Any]:
    response = {"partition": wanted.partition, "leader_epoch": -1, "end_offset": -1}
    try:
        if not may_cluster(ctx, AclOperation.CLUSTER_ACTION):  # which followers have
            check_topic(ctx, topic)
        partition = await ctx.services.partitions.get(topic, None, wanted.partition)
        partition.check_leader(field(wanted, "current_leader_epoch", -1))
        end = partition.log.epochs.end_offset_for(wanted.leader_epoch)
    except KafkaError as error:
        if isinstance(error, NotLeader) and ctx.services.diskless is not None:
            found = ctx.services.diskless.reader.topic_of(topic, None, wanted.partition)
            if found is not None:
                diskless.append((response, found, wanted))
                return response
        return {**response, "error_code": error.code}
    return {
        **response,
        "error_code": ErrorCode.none,
        "leader_epoch": end.epoch,
        "end_offset": end.end_offset,
    }


async def _end_of_diskless_epochs(
    wanted: Sequence[tuple[dict[str, Any], TopicImage, Any]], ctx: RequestContext
) -> None:
    """Complete the responses of diskless partitions."""
    from odradek.broker.diskless.offset_queries import check_epoch

    assert ctx.services.diskless is not None
    await ctx.flush()
    results = await ctx.services.diskless.offsets.end_of_epochs(
        [(topic, each.partition, each.leader_epoch) for _, topic, each in wanted]
    )
    for (response, _, each), result in zip(wanted, results, strict=True):
        response["error_code"] = ErrorCode.none
        try:
            check_epoch(field(each, "current_leader_epoch", -1))
            if isinstance(result, KafkaError):
                raise result
        except KafkaError as error:
            response["error_code"] = error.code
        else:
            response["leader_epoch"], response["end_offset"] = result.epoch, result.end_offset


HANDLERS = {
    apis.LIST_OFFSETS: list_offsets,
    apis.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
}
