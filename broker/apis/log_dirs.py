"""DescribeLogDirs: what lies in which log directory (KIP-113, KIP-827, KIP-1066)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from odradek.broker.apis.authorized import ClusterDenied, may_cluster
from odradek.broker.context import RequestContext
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.storage.directories.directory import LogDirectory
from odradek.storage.errors import LogFailed
from odradek.storage.log.partition_log import PartitionLog

Values = dict[str, Any]
Wanted = frozenset[tuple[str, int]] | None

INT64_MAX = (1 << 63) - 1


async def describe_log_dirs(request: Any, ctx: RequestContext) -> Mapping[str, Any]:
    """Every directory, with those of its partitions that are asked for; null asks for all."""
    if not may_cluster(ctx):
        return {"error_code": ClusterDenied.code, "results": []}
    wanted: Wanted = None
    if request.topics is not None:
        wanted = frozenset(
            (topic.topic, index) for topic in request.topics for index in topic.partitions
        )
    await ctx.broker.partitions.settle()
    logs: defaultdict[LogDirectory, list[PartitionLog]] = defaultdict(list)
    for log in ctx.broker.logs.logs():
        logs[ctx.broker.logs.directory_of(log)].append(log)
    results = [
        await _directory(directory, logs[directory], wanted, ctx)
        for directory in ctx.broker.directories.all
    ]
    return {"error_code": ErrorCode.none, "results": results}


async def _directory(
    directory: LogDirectory, logs: Iterable[PartitionLog], wanted: Wanted, ctx: RequestContext
) -> Values:
    path = str(directory.path)
    failed = {"error_code": ErrorCode.kafka_storage_error, "log_dir": path, "topics": []}
    if directory.failed:
        return failed
    try:
        usage = await ctx.broker.seams.offload.run(directory.usage, lane=directory.lane)
        topics = _topics(logs, wanted)
    except OSError as error:
        directory.report(error)
        return failed
    except LogFailed:
        return failed
    return {
        "error_code": ErrorCode.none,
        "log_dir": path,
        "topics": topics,
        "total_bytes": min(usage.total_bytes, INT64_MAX),
        "usable_bytes": min(usage.free_bytes, INT64_MAX),
        "is_cordoned": directory.path in ctx.broker.logs.registry.cordoned,
    }


def _topics(logs: Iterable[PartitionLog], wanted: Wanted) -> list[Values]:
    by_topic: defaultdict[str, list[Values]] = defaultdict(list)
    for log in logs:
        if wanted is None or (log.topic, log.partition) in wanted:
            by_topic[log.topic].append(
                {
                    "partition_index": log.partition,
                    "partition_size": log.size_bytes,
                    "offset_lag": max(log.high_watermark - log.end_offset, 0),
                    "is_future_key": False,
                }
            )
    return [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()]


HANDLERS = {apis.DESCRIBE_LOG_DIRS: describe_log_dirs}
