"""DescribeLogDirs and AlterReplicaLogDirs (KIP-113, KIP-827, KIP-1066)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import trio

from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.steps import in_steps
from odradek.broker.security.request_authorization import ClusterDenied, may_cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.features import knows_cordoned
from odradek.replication.errors import NotLeader
from odradek.seams.files import Path
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.errors import LogFailed, ReplicaNotAvailable, StorageError
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_registry.directory_logs import MEASURED_AT_ONCE
from odradek.storage.moving.move import MoveStatus

Values = dict[str, Any]
Wanted = frozenset[tuple[str, int]] | None

log = logging.getLogger("odradek.replica_moves")

ANY = "any"
INT64_MAX = (1 << 63) - 1


async def describe_log_dirs(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """DescribeLogDirs: all log directories, with the replicas of the requested partitions; null requests all
    partitions."""
    if not may_cluster(ctx):
        return {"error_code": ClusterDenied.code, "results": []}
    wanted: Wanted = None
    if request.topics is not None:
        wanted = frozenset(
            (topic.topic, index) for topic in request.topics for index in topic.partitions
        )
    await ctx.services.partitions.settle()
    logs: defaultdict[LogDirectory, list[PartitionLog]] = defaultdict(list)
    for partition_log in ctx.services.logs.logs():
        logs[ctx.services.logs.directory_of(partition_log)].append(partition_log)
    copies: defaultdict[Path, list[MoveStatus]] = defaultdict(list)
    for move in ctx.services.logs.mover.moves():
        moved = ctx.services.logs.registry.logs.get(move.topic_partition)
        # After the swap the future replica is the current replica, although the move may not be complete:
        # it must not be listed twice.
        if moved is None or moved.directory.parent != move.destination:
            copies[move.destination].append(move)
    results = [
        await _directory(directory, logs[directory], copies[directory.path], wanted, ctx)
        for directory in ctx.services.directories.all
    ]
    return {"error_code": ErrorCode.none, "results": results}


async def _directory(
    directory: LogDirectory,
    logs: Iterable[PartitionLog],
    copies: Iterable[MoveStatus],
    wanted: Wanted,
    ctx: RequestContext,
) -> Values:
    path = str(directory.path)
    failed = {"error_code": ErrorCode.kafka_storage_error, "log_dir": path, "topics": []}
    if directory.failed:
        return failed
    try:
        usage = await ctx.services.seams.offload.run(directory.usage, lane=directory.lane)
        in_thread = partial(ctx.services.seams.offload.run, lane=directory.lane)
        topics = await _topics(logs, copies, wanted, in_thread)
    except OSError as error:
        directory.report(error)
        return failed
    except StorageError:
        return failed
    if directory.failed:  # during the pass of the event loop
        return failed
    return {
        "error_code": ErrorCode.none,
        "log_dir": path,
        "topics": topics,
        "total_bytes": min(usage.total_bytes, INT64_MAX),
        "usable_bytes": min(usage.free_bytes, INT64_MAX),
        "is_cordoned": knows_cordoned(ctx.services.metadata.image.features)
        and directory.path in ctx.services.logs.registry.cordoned,
    }


async def _topics(
    logs: Iterable[PartitionLog],
    copies: Iterable[MoveStatus],
    wanted: Wanted,
    in_thread: Callable[[Callable[[], int]], Awaitable[int]],
) -> list[Values]:
    """Topics of a directory, with the offset lag of future replicas. Passes the event loop between partitions."""
    by_topic: defaultdict[str, list[Values]] = defaultdict(list)
    requested = [
        partition_log
        for partition_log in logs
        if wanted is None or (partition_log.topic, partition_log.partition) in wanted
    ]
    for number, partition_log in enumerate(requested):
        if number % MEASURED_AT_ONCE == MEASURED_AT_ONCE - 1:
            await trio.lowlevel.checkpoint()
        try:
            size_bytes = partition_log.size_bytes
        except (OSError, ValueError):  # a disk error, or the files are being replaced or renamed
            try:
                size_bytes = await in_thread(partition_log.measure)
            except LogFailed:  # its directory is offline, or it was deleted
                continue
        by_topic[partition_log.topic].append(
            {
                "partition_index": partition_log.partition,
                "partition_size": size_bytes,
                "offset_lag": max(partition_log.high_watermark - partition_log.end_offset, 0),
                "is_future_key": False,
            }
        )
    for copy in copies:
        topic, partition = copy.topic_partition
        if wanted is None or (topic, partition) in wanted:
            by_topic[topic].append(
                {
                    "partition_index": partition,
                    "partition_size": copy.copied_bytes,
                    "offset_lag": copy.offset_lag,
                    "is_future_key": True,
                }
            )
    return [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()]


async def alter_replica_log_dirs(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """AlterReplicaLogDirs: start moves (J-01). If a partition is listed twice, the last directory counts."""
    wanted: dict[TopicPartition, str] = {
        TopicPartition(topic.name, index): each.path
        for each in request.dirs
        for topic in each.topics
        for index in topic.partitions
    }
    is_allowed = may_cluster(ctx)
    by_topic: defaultdict[str, list[Values]] = defaultdict(list)
    async for name, path in in_steps(wanted.items(), ctx):
        code = await _alter(name, path, ctx) if is_allowed else ClusterDenied.code
        by_topic[name.topic].append({"partition_index": name.partition, "error_code": code})
    return {
        "results": [
            {"topic_name": topic, "partitions": partitions}
            for topic, partitions in by_topic.items()
        ]
    }


async def _alter(name: TopicPartition, path: str, ctx: RequestContext) -> ErrorCode:
    try:
        if path == ANY:
            await _cancel(name, ctx)
        else:
            await _move(name, Path(path), ctx)
    except KafkaError as error:
        log.warning("Unable to move replica %s to log directory %s: %s", name, path, error)
        return error.code
    return ErrorCode.none


async def _move(name: TopicPartition, destination: Path, ctx: RequestContext) -> None:
    """Start a move. Without a local replica the directory is remembered for its creation (J-03)."""
    mover = ctx.services.logs.mover
    mover.check(name, destination)
    if ctx.services.logs.get(*name) is None:
        mover.remember(name, destination)
        await _here(name, ctx)
    await mover.move(name, destination)


async def _cancel(name: TopicPartition, ctx: RequestContext) -> None:
    """Cancel the move: KIP-113's directory "any" (J-02), which only Kafka's tools support."""
    ctx.services.logs.mover.remember(name, None)
    if ctx.services.logs.get(*name) is None:
        await _here(name, ctx)
    await ctx.services.logs.mover.cancel(name)


async def _here(name: TopicPartition, ctx: RequestContext) -> None:
    """Return the open replica of this broker. Raises ReplicaNotAvailable, UnknownPartition."""
    try:
        await ctx.services.partitions.get(name.topic, None, name.partition)
    except NotLeader as error:
        raise ReplicaNotAvailable(error.message) from error


HANDLERS = {
    apis.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
    apis.DESCRIBE_LOG_DIRS: describe_log_dirs,
}
