"""Reads of a Fetch, partition by partition, within the limits of the request (KIP-74).

`read_partitions` reads from the disk what is not in memory, and runs checkpoints in between.
`reread_from_memory` is for a completed wait: it reads changes from memory, immediately or not at
all.

Small slices are read when they are found. Larger ones stay slices of their files, pinned until they
are sent or unpinned.

A consumer reads up to the high watermark or the last stable offset, a follower up to the log end
offset. The leader records the progress of a follower once per request, at the first read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import trio

from odradek.broker.fetch.session_cache import CachedPartition
from odradek.broker.requests.context import RequestContext
from odradek.broker.security.request_authorization import (
    TopicDenied,
    check_topic_name_or_id,
    may_cluster,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.replication.controller.acls import AclOperation
from odradek.replication.partition.partition import Partition
from odradek.replication.partition.truncation import find_divergence
from odradek.seams.files import Buffer, FileSlice, WouldBlock
from odradek.storage.errors import InRemoteTier

if TYPE_CHECKING:
    from odradek.broker.replicas.leader_throttle import LeaderThrottle
    from odradek.broker.tiered.remote_read_service import RemoteReadService
    from odradek.storage.tiered.remote_log_reader import RemoteRead

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
STORAGE_ERROR_VERSION = 6
"""First Fetch version with KAFKA_STORAGE_ERROR."""
TIERED_VERSION = 14
"""First Fetch version with OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405)."""
PARTITIONS_PER_STEP = 64
"""Partitions read, about 10 µs each, before other tasks run."""
WARMED_AT_ONCE_BYTES = 256 * 1024
READ_AT_ONCE_BYTES = 64 << 10
"""Bytes of a response that are read when they are found.

Slices this small would be copied for sending anyway, and the read shows whether they are in memory;
for a later read of a slice that takes two more system calls.
"""


REMOTE_BYTES_MAX = 8 << 20
"""Maximum bytes from the remote tier in one response, an eighth of the range cache: they stay in
memory until the client has received them."""


class DisklessPartitions(Protocol):
    """The diskless partitions of one fetch (`broker/diskless/fetch.py`)."""

    def __bool__(self) -> bool:
        """Whether the fetch has diskless partitions, as far as is known."""
        ...

    async def read(self, wanted: CachedPartition, size_bytes: int) -> LogReadResult | None:
        """Choose batches of one partition after `size_bytes` of others; None if it is not a diskless partition."""
        ...

    def watch(self, wait: WaitingDisklessFetch) -> None:
        """Count new batches until `unwatch`."""
        ...

    def unwatch(self) -> None: ...

    async def load(self, found: Iterable[LogReadResult]) -> None:
        """Read the bytes of the chosen batches, before the response is sent."""
        ...


class WaitingDisklessFetch(Protocol):
    """Waiting fetch that has diskless partitions."""

    def visible_diskless(self, size_bytes: int) -> None: ...

    def resume(self) -> None: ...


@dataclass(slots=True)
class FetchParams:
    """Parameters of a Fetch request.

    `replica_id` and `replica_epoch` are those of a follower; -1 for a consumer, and the epoch also
    for a follower before KIP-903.
    """

    max_bytes: int
    isolation_level: int
    replica_id: int = -1
    replica_epoch: int = -1
    any_replica: bool = False
    """Whether a follower may serve the request (KIP-392)."""
    rack: str = ""
    """The client's rack, if it may be redirected to a replica there."""
    throttle: LeaderThrottle | None = None
    """Leader throttle for a follower."""
    remote_bytes: int = 0
    """Bytes that are still to be read from the remote tier."""
    diskless: DisklessPartitions | None = None
    """Reads diskless partitions; None for a follower, or if the broker has no diskless topics."""
    has_refused: bool = False
    """Whether a partition is unknown, is not here, or the client is not authorized to read it."""

    @property
    def has_remote(self) -> bool:
        return self.remote_bytes > 0

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0

    def is_held_back(self, partition: Partition) -> bool:
        """Whether the replication quota currently allows no records of this partition."""
        throttle = self.throttle
        return throttle is not None and throttle.is_held_back(partition, self.replica_id)

    def check_role(self, partition: Partition, current_leader_epoch: int) -> None:
        """Check that this replica may serve the request. Raises as `Partition.check_leader`."""
        if self.any_replica:
            partition.check_epoch(current_leader_epoch)
        else:
            partition.check_leader(current_leader_epoch)


@dataclass(slots=True)
class LogReadResult:
    """Result of a read of one partition; the partition is None if it cannot be read here."""

    wanted: CachedPartition
    response: FetchedPartition
    partition: Partition | None
    params: FetchParams
    end_offset: int = -1
    """Log end offset at a read of a follower."""
    left_out_bytes: int = 0
    """Bytes of a whole batch within the partition's limit that did not fit into the response."""
    is_remote: ClassVar[bool] = False
    """Whether its records come from the remote tier."""

    @property
    def size(self) -> int:
        """Size of the records in bytes."""
        size_bytes = 0
        for part in self.response.records:
            size_bytes += part.size if isinstance(part, FileSlice) else len(part)
        return size_bytes

    def is_served_here(self) -> bool:
        """Whether the partition still has the role and the epoch that the request requires."""
        if self.partition is None:
            return False
        try:
            self.params.check_role(self.partition, self.wanted.current_leader_epoch)
        except KafkaError:
            return False
        return True

    def is_current(self) -> bool:
        """Whether the read found no records and the response would be the same now."""
        assert self.partition is not None
        log, response = self.partition.log, self.response
        return (
            not response.records
            and self.end_offset in (-1, log.end_offset)
            and log.high_watermark == response.high_watermark
            and log.last_stable_offset == response.last_stable_offset
            and log.log_start_offset == response.log_start_offset
        )

    def is_overtaken(self) -> bool:
        """Whether records became readable, or the role changed, after the read and before the wait."""
        partition = self.partition
        if partition is None:
            return False
        if self.end_offset >= 0:
            return partition.log.end_offset != self.end_offset or not self.is_served_here()
        return (
            partition.log.high_watermark != self.response.high_watermark
            or not self.is_served_here()
        )


class PendingRemoteRead(LogReadResult):
    """Read of a partition that must be served from the remote tier; `size` is the reserved size
    until it is read."""

    __slots__ = ("at_least_one", "failure", "is_known", "reserved_bytes")

    is_remote = True

    def __init__(
        self, wanted: CachedPartition, partition: Partition, params: FetchParams, size_bytes: int
    ) -> None:
        """`size_bytes` is the size of the partitions that were read before."""
        log = partition.log
        response = FetchedPartition(
            index=wanted.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if params.isolation_level == READ_COMMITTED else None,
        )
        super().__init__(wanted, response, partition, params)
        left_bytes = min(params.max_bytes - size_bytes, REMOTE_BYTES_MAX - params.remote_bytes)
        self.at_least_one = not size_bytes
        self.reserved_bytes = max(int(self.at_least_one), min(wanted.max_bytes, left_bytes))
        self.failure: KafkaError | None = None
        self.is_known = False
        """Whether a read has succeeded or failed."""

    @property
    def size(self) -> int:
        return self.reserved_bytes or super().size

    def put_local(self, response: FetchedPartition) -> None:
        self.reserved_bytes = 0
        self.failure = None
        self.response = response

    def put(self, found: RemoteRead) -> None:
        self.put_local(self.response)
        self.response.records = tuple(found.records)
        if self.response.aborted_transactions is not None:
            self.response.aborted_transactions = [
                (each.producer_id, each.first_offset) for each in found.aborted
            ]

    def fail(self, error: KafkaError) -> None:
        self.reserved_bytes = 0
        self.response = FetchedPartition(
            index=self.wanted.index, error_code=error.code, aborted_transactions=()
        )


async def read_partitions(
    wanted: Sequence[CachedPartition],
    ctx: RequestContext,
    params: FetchParams,
    before: Sequence[LogReadResult] = (),
) -> list[LogReadResult]:
    """Read in the order of the plan, within the limit of the request. Returned slices are pinned.

    The first partition with records returns at least one batch, whatever its size (KIP-74).

    `before` are earlier results of the same plan: current ones are kept, and a partition that is
    still served here is not looked up and authorized again.
    """
    found: list[LogReadResult] = []
    size_bytes = 0
    try:
        for number, each in enumerate(wanted):
            if (number + 1) % PARTITIONS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            known = None
            if before and before[number].is_served_here():
                if before[number].is_current():
                    found.append(before[number])
                    continue
                known = before[number].partition
            read = await _read_partition(each, ctx, params, size_bytes, known, again=bool(before))
            found.append(read)
            size_bytes += read.size
    except BaseException:
        unpin(found)
        raise
    return found


def reread_from_memory(
    before: Sequence[LogReadResult], params: FetchParams, min_bytes: int
) -> list[LogReadResult] | None:
    """Read as `read_partitions` with `before`, then `load_slices`; all records are in memory,
    unpinned.

    Returns None if there are fewer than `min_bytes`, or if a lookup, the disk, a checkpoint or an
    error response is necessary.
    """
    if len(before) >= PARTITIONS_PER_STEP:
        return None
    found: list[LogReadResult] = []
    size_bytes = 0
    try:
        for known in before:
            if known.partition is None or not known.is_served_here():
                return None
            if not known.is_current():
                if params.is_held_back(known.partition):
                    return None
                read = read_log(known.partition, known.wanted, params, size_bytes, nowait=True)
                size_bytes += _read_slices(read.response, READ_AT_ONCE_BYTES - size_bytes)
                known = read
            found.append(known)
    except (KafkaError, OSError, WouldBlock):
        return None
    return found if size_bytes >= min_bytes else None


def _read_slices(response: FetchedPartition, limit_bytes: int) -> int:
    """Replace slices by their bytes, and return the size in bytes. Unpins the slices in any case.

    Raises WouldBlock if they are not in memory, or larger than `limit_bytes`.
    """
    size_bytes = 0
    for part in response.records:
        if not isinstance(part, FileSlice):
            size_bytes += len(part)
            if size_bytes > limit_bytes:
                raise WouldBlock
            continue
        try:
            size_bytes += part.size
            if size_bytes > limit_bytes:
                raise WouldBlock
            response.records = (part.file.read_at(part.position, part.size, nowait=True),)
        finally:
            part.file.unpin()
    return size_bytes


async def _read_partition(
    wanted: CachedPartition,
    ctx: RequestContext,
    params: FetchParams,
    size_bytes: int,
    partition: Partition | None,
    *,
    again: bool,
) -> LogReadResult:
    """Read one partition.

    `partition` is None if it has to be authorized and looked up. `size_bytes` were read before.
    `again`: an earlier read of the same request has recorded the follower's progress.
    """
    try:
        if partition is None:
            if ctx.authorizer is not None:
                _check_allowed(wanted, ctx, params)
            partition = await ctx.services.partitions.get(
                wanted.topic, wanted.topic_id, wanted.index
            )
            wanted.resolved_topic = partition.topic
        params.check_role(partition, wanted.current_leader_epoch)
        if params.is_follower:
            return await _read_for_follower(partition, wanted, ctx, params, size_bytes, again=again)
        if params.rack and partition.leader_role is not None:
            from odradek.broker.fetch.replica_selector import nearest_replica

            nearer = nearest_replica(partition, wanted.offset, params.rack, ctx)
            if nearer is not None:
                return LogReadResult(wanted, _redirect(nearer, partition), partition, params)
        if wanted.max_bytes < 0 or params.max_bytes < 0:
            _refuse_negative_size(partition, wanted, params)
        try:
            return read_log(partition, wanted, params, size_bytes, nowait=True)
        except WouldBlock:
            return await _read_from_disk(partition, wanted, ctx, params, size_bytes)
    except InRemoteTier:
        assert partition is not None
        if ctx.services.tiered_storage is not None and not params.is_follower:
            reads = ctx.services.tiered_storage.reads
            return _defer_remote_read(wanted, partition, params, size_bytes, reads)
        response = _in_remote_tier(partition, ctx, params)
    except KafkaError as error:
        if partition is None and params.diskless is not None and not isinstance(error, TopicDenied):
            diskless = await params.diskless.read(wanted, size_bytes)
            if diskless is not None:
                return diskless
        response = FetchedPartition(
            index=wanted.index,
            error_code=error_for_version(_error_in_session(error.code, wanted, ctx), ctx),
            aborted_transactions=() if partition is None else None,  # as in Kafka
        )
        if partition is None:
            params.has_refused = True
    return LogReadResult(wanted, response, partition, params)


def _refuse_negative_size(
    partition: Partition, wanted: CachedPartition, params: FetchParams
) -> None:
    """Raise UNKNOWN_SERVER_ERROR, as Kafka, if there are records to read."""
    log = partition.log
    if params.is_follower:
        limit = log.end_offset
    elif params.isolation_level == READ_COMMITTED:
        limit = log.last_stable_offset
    else:
        limit = log.high_watermark
    if not log.log_start_offset <= wanted.offset < limit:
        return
    if wanted.last_fetched_epoch >= 0:
        diverging = find_divergence(
            log.epochs,
            start_offset=log.log_start_offset,
            fetch_offset=wanted.offset,
            last_fetched_epoch=wanted.last_fetched_epoch,
        )
        if diverging is not None:
            return
    raise KafkaError(ErrorCode.unknown_server_error, "Invalid max length")


def _error_in_session(code: ErrorCode, wanted: CachedPartition, ctx: RequestContext) -> ErrorCode:
    """Error of a partition whose topic id was known earlier in the session: the topic was deleted, or recreated
    with another id (KIP-516)."""
    if code != ErrorCode.unknown_topic_id or wanted.resolved_topic is None:
        return code
    if ctx.services.metadata.image.topic(wanted.resolved_topic) is None:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.inconsistent_topic_id


def _defer_remote_read(
    wanted: CachedPartition,
    partition: Partition,
    params: FetchParams,
    size_bytes: int,
    reads: RemoteReadService,
) -> LogReadResult:
    """Pending read for a partition whose offset is in the remote tier, for `read_remote`; an empty
    result if the quota or the size limit of the response is exceeded."""
    pending = PendingRemoteRead(wanted, partition, params, size_bytes)
    if not pending.reserved_bytes or reads.is_left_out():
        pending.reserved_bytes = 0
        return LogReadResult(wanted, pending.response, partition, params)
    params.remote_bytes += pending.reserved_bytes
    return pending


def error_for_version(code: ErrorCode, ctx: RequestContext) -> ErrorCode:
    """Return the error, or NOT_LEADER_OR_FOLLOWER for a client without KAFKA_STORAGE_ERROR
    (KIP-112)."""
    if code == ErrorCode.kafka_storage_error and ctx.api_version < STORAGE_ERROR_VERSION:
        return ErrorCode.not_leader_or_follower
    return code


def _in_remote_tier(
    partition: Partition, ctx: RequestContext, params: FetchParams
) -> FetchedPartition:
    """Return the result for an offset that only the remote tier has.

    A follower gets OFFSET_MOVED_TO_TIERED_STORAGE (T-40), any other client OFFSET_OUT_OF_RANGE.
    """
    knows_error = params.is_follower and ctx.api_version >= TIERED_VERSION
    return FetchedPartition(
        index=partition.index,
        error_code=ErrorCode.offset_moved_to_tiered_storage
        if knows_error
        else ErrorCode.offset_out_of_range,
        high_watermark=partition.log.high_watermark,
        log_start_offset=partition.log.log_start_offset,
    )


def _redirect(replica: int, partition: Partition) -> FetchedPartition:
    log = partition.log
    return FetchedPartition(
        index=partition.index,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        preferred_read_replica=replica,
    )


async def _read_from_disk(
    partition: Partition,
    wanted: CachedPartition,
    ctx: RequestContext,
    params: FetchParams,
    size_bytes: int,
) -> LogReadResult:
    return await ctx.services.seams.offload.run(
        read_log,
        partition,
        wanted,
        params,
        size_bytes,
        lane=str(partition.log.directory.parent),
    )


async def _read_for_follower(
    partition: Partition,
    wanted: CachedPartition,
    ctx: RequestContext,
    params: FetchParams,
    size_bytes: int,
    *,
    again: bool,
) -> LogReadResult:
    """Read for a follower, and record its progress by the fetch offset."""
    follower, epoch = params.replica_id, params.replica_epoch
    has_leader_epoch = wanted.current_leader_epoch >= 0
    partition.check_follower(follower, epoch, has_leader_epoch=has_leader_epoch)
    if wanted.max_bytes < 0 or params.max_bytes < 0:
        _refuse_negative_size(partition, wanted, params)
    held_back = params.is_held_back(partition)
    try:
        read = read_log(partition, wanted, params, size_bytes, nowait=True, held_back=held_back)
    except WouldBlock:
        read = await _read_from_disk(partition, wanted, ctx, params, size_bytes)
    if again or read.response.diverging_epoch is not None:
        return read
    try:
        # the role may have changed during the read
        partition.check_leader(wanted.current_leader_epoch)
        partition.fetched(
            follower,
            offset=wanted.offset,
            start_offset=wanted.log_start_offset,
            broker_epoch=epoch,
        )
    except KafkaError:
        unpin([read])
        raise
    read.response.high_watermark = partition.log.high_watermark
    read.response.last_stable_offset = partition.log.last_stable_offset
    return read


def _check_allowed(wanted: CachedPartition, ctx: RequestContext, params: FetchParams) -> None:
    """Authorize a consumer for the topic, a follower for the cluster. Raises TopicDenied."""
    if not params.is_follower:
        check_topic_name_or_id(ctx, wanted.topic, wanted.topic_id)
    elif not may_cluster(ctx, AclOperation.CLUSTER_ACTION):
        raise TopicDenied


def read_log(
    partition: Partition,
    wanted: CachedPartition,
    params: FetchParams,
    size_bytes: int,
    nowait: bool = False,
    held_back: bool = False,
) -> LogReadResult:
    """Read records from the log after `size_bytes` of other partitions. The returned slice is
    pinned.

    Raises as `PartitionLog.read`.
    """
    log = partition.log
    high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
    response = FetchedPartition(
        index=wanted.index,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log.log_start_offset,
    )
    if wanted.last_fetched_epoch >= 0:
        end = find_divergence(
            log.epochs,
            start_offset=log.log_start_offset,
            fetch_offset=wanted.offset,
            last_fetched_epoch=wanted.last_fetched_epoch,
        )
        if end is not None:
            response.diverging_epoch = (end.epoch, end.end_offset)
            return LogReadResult(wanted, response, partition, params)
    end_offset = -1
    limit = high_watermark
    committed = params.isolation_level == READ_COMMITTED
    if params.is_follower:
        end_offset = log.end_offset
        limit = wanted.offset if held_back else end_offset
        committed = False
    elif committed:
        limit = last_stable_offset
    max_bytes = min(wanted.max_bytes, max(0, params.max_bytes - size_bytes))
    newest = partition.newest_batch(wanted.offset, limit)
    if newest is not None and (not size_bytes or len(newest) <= max_bytes):
        response.records = (newest,)
        response.aborted_transactions = [] if committed else None
        return LogReadResult(wanted, response, partition, params, end_offset)
    at_least_one = not size_bytes
    if committed:
        read, overlapping = log.read_committed(
            wanted.offset, max_bytes, limit=limit, at_least_one=at_least_one, nowait=nowait
        )
        response.aborted_transactions = [
            (each.producer_id, each.first_offset) for each in overlapping
        ]
    else:
        read = log.read(
            wanted.offset, max_bytes, limit=limit, at_least_one=at_least_one, nowait=nowait
        )
    left_out_bytes = 0
    if read.slice is not None:
        response.records = (read.slice,)
    elif read.first_batch_size:
        left_out_bytes = max(0, min(read.first_batch_size, wanted.max_bytes))
    return LogReadResult(wanted, response, partition, params, end_offset, left_out_bytes)


async def load_slices(found: Iterable[LogReadResult], ctx: RequestContext) -> None:
    """Read the first small slices, and load the others into the page cache off the loop, before
    sending."""
    left_bytes = READ_AT_ONCE_BYTES
    for each in found:
        if each.is_remote:
            continue  # already in memory
        for part in _slices([each]):
            try:
                if part.size <= left_bytes:
                    left_bytes -= part.size
                    each.response.records = (await _bytes_of(part, ctx),)
                    part.file.unpin()
                elif not part.is_in_memory():
                    await ctx.services.seams.offload.run(
                        read_into_page_cache, part, lane=_lane(part)
                    )
            except OSError as error:
                assert each.partition is not None
                ctx.services.logs.report(each.partition.log, error)
                unpin([each])
                each.response = FetchedPartition(
                    index=each.wanted.index,
                    error_code=error_for_version(ErrorCode.kafka_storage_error, ctx),
                )


async def _bytes_of(part: FileSlice, ctx: RequestContext) -> Buffer:
    try:
        return part.file.read_at(part.position, part.size, nowait=True)
    except WouldBlock:
        return await ctx.services.seams.offload.run(part.read, lane=_lane(part))


def _lane(part: FileSlice) -> str:
    """Return the log directory of the slice."""
    return str(part.file.path.parent.parent)


def read_into_page_cache(part: FileSlice) -> None:
    """Load the slice into the page cache by reading it in parts. Raises OSError.

    A slice may have fetch.max.bytes, and many consumers may read old records at once: it is never
    in memory as a whole.
    """
    end = part.position + part.size
    for position in range(part.position, end, WARMED_AT_ONCE_BYTES):
        part.file.read_at(position, min(WARMED_AT_ONCE_BYTES, end - position))


def _slices(found: Iterable[LogReadResult]) -> Iterator[FileSlice]:
    for each in found:
        for part in each.response.records:
            if isinstance(part, FileSlice):
                yield part


def total_size(found: Iterable[LogReadResult]) -> int:
    return sum(each.size for each in found)


def total_left_out_bytes(found: Iterable[LogReadResult]) -> int:
    return sum(each.left_out_bytes for each in found)


def unpin(found: Iterable[LogReadResult]) -> None:
    for part in _slices(found):
        part.file.unpin()
