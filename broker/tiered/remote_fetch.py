"""Serves the partitions of a Fetch request whose offsets are only in the remote tier (T-32, T-33).

The partitions of one fetch are read concurrently. The response is sent when all are read, or after
remote.fetch.max.wait.ms with those that are. Unfinished fetches of ranges continue, and the next
request finds them in memory. A failed read is retried until then, unless all other partitions are
complete and have records. The failure is then reported as UNKNOWN_SERVER_ERROR (T-34), after a
short delay, because consumers retry at once. Metadata that this node has not read yet is no
failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from odradek.broker.fetch.log_reading import (
    READ_COMMITTED,
    LogReadResult,
    PendingRemoteRead,
    read_log,
)
from odradek.protocol.errors import KafkaError
from odradek.storage.errors import InRemoteTier
from odradek.storage.tiered.errors import RemoteNotReady, RemoteStorageError
from odradek.storage.tiered.remote_log_reader import ReadLimits
from odradek.storage.tiered.segment_range_cache import RemoteFetchQuotaExceeded

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext
    from odradek.broker.tiered.remote_read_service import RemoteReadService

BACKOFF_SECONDS = 0.05
BACKOFF_SECONDS_MAX = 1.0
FAILURE_SECONDS = 0.1
"""Delay of a final failure, because the client retries at once."""
_NO_FAILURE = (RemoteNotReady, RemoteFetchQuotaExceeded)


async def read_remote(found: Sequence[LogReadResult], ctx: RequestContext) -> None:
    """Complete the deferred reads in `found`; their records are pinned."""
    tiering = ctx.services.tiered_storage
    assert tiering is not None
    pending = [
        each for each in found if isinstance(each, PendingRemoteRead) and each.reserved_bytes
    ]
    await ctx.flush()
    await _RemoteFetch(pending, ctx, tiering.reads).run()


class _RemoteFetch:
    """Remote reads of one fetch request."""

    def __init__(
        self, pending: Sequence[PendingRemoteRead], ctx: RequestContext, reads: RemoteReadService
    ) -> None:
        self._pending = pending
        self._clock = ctx.services.seams.clock
        self._offload = ctx.services.seams.offload
        self._meter = ctx.services.metrics.meter
        self._reads = reads
        self._left = len(pending)
        """Partitions that have neither succeeded nor failed yet."""
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        reads = self._reads
        reads.waiting += 1
        try:
            with trio.move_on_after(reads.wait_seconds) as self._scope:
                async with trio.open_nursery() as nursery:
                    for each in self._pending:
                        nursery.start_soon(self._read, each)
        finally:
            reads.waiting -= 1
        if any(each.reserved_bytes and each.failure is None for each in self._pending):
            self._meter("ExpiresPerSec").mark()
        for each in self._pending:
            self._finish(each)

    def _finish(self, pending: PendingRemoteRead) -> None:
        failure, pending.reserved_bytes = pending.failure, 0
        if failure is None or isinstance(failure, _NO_FAILURE):
            return
        if isinstance(failure, RemoteStorageError):
            self._meter("RemoteFetchErrorsPerSec", topic=_topic_of(pending)).mark()
            self._reads.failed(
                _topic_of(pending), pending.wanted.index, pending.wanted.offset, failure
            )
        pending.fail(failure)

    async def _read(self, pending: PendingRemoteRead) -> None:
        self._meter("RemoteFetchRequestsPerSec", topic=_topic_of(pending)).mark()
        backoff_seconds = BACKOFF_SECONDS
        while True:
            try:
                await self._read_once(pending)
                self._mark_known(pending)
                return
            except InRemoteTier:
                continue  # local retention has deleted the segment meanwhile
            except KafkaError as error:
                pending.failure = error
                self._mark_known(pending)
                if not (isinstance(error, RemoteStorageError) and error.retryable):
                    if isinstance(error, RemoteStorageError):
                        await self._clock.sleep(FAILURE_SECONDS)
                    return
            await self._clock.sleep(backoff_seconds)
            backoff_seconds = min(2 * backoff_seconds, BACKOFF_SECONDS_MAX)

    def _mark_known(self, pending: PendingRemoteRead) -> None:
        """A read has succeeded or failed. Failed reads are not retried if all others are complete
        and there are records."""
        if not pending.is_known:
            pending.is_known = True
            self._left -= 1
        if self._left or all(each.failure is None for each in self._pending):
            return  # no read is being retried
        if any(each.response.records for each in self._pending):
            self._scope.cancel()

    async def _read_once(self, pending: PendingRemoteRead) -> None:
        partition, wanted, params = pending.partition, pending.wanted, pending.params
        assert partition is not None
        partition_log = partition.log
        committed = params.isolation_level == READ_COMMITTED
        found = await self._reads.reads.read(
            partition_log,
            wanted.offset,
            ReadLimits(
                pending.reserved_bytes,
                partition_log.last_stable_offset if committed else partition_log.high_watermark,
                pending.at_least_one,
            ),
            committed=committed,
        )
        try:
            # Leadership may have changed meanwhile
            params.check_role(partition, wanted.current_leader_epoch)
        except KafkaError:
            found.unpin()
            raise
        self._meter("RemoteFetchBytesPerSec", topic=partition.topic).mark(found.size)
        self._reads.succeeded(partition.topic, partition.index, found)
        if found.next_offset > wanted.offset and not found.records:
            await self._read_local(pending, found.next_offset)
        else:
            pending.put(found)

    async def _read_local(self, pending: PendingRemoteRead, offset: int) -> None:
        """Read from the local log start offset if compaction has removed all remote records before
        it."""
        partition = pending.partition
        assert partition is not None
        read = await self._offload.run(
            read_log,
            partition,
            replace(pending.wanted, offset=offset),
            pending.params,
            0 if pending.at_least_one else 1,
            lane=str(partition.log.directory.parent),
        )
        pending.put_local(read.response)


def _topic_of(pending: PendingRemoteRead) -> str:
    assert pending.partition is not None
    return pending.partition.topic
