"""Diskless partitions of a Fetch request of a consumer (KIP-1150, KIP-1163).

A fetch finds the batches of all its diskless partitions in one call, and chooses among them within its size limits, in
the order of the request together with its classic partitions. It knows the sizes of batches without reading them, so
that a long poll reads no object: the bytes are read once, before the response is sent.

A partition whose coordinator does not respond has no records and no error until the end of the fetch. Then it gets
REPLICA_NOT_AVAILABLE.

Diskless topics have no transactions: the last stable offset is the high watermark, and both isolation levels read the
same records. Followers do not fetch diskless partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import trio

from odradek.broker.diskless.fetch_polls import DisklessKey, Found, WaitingFetch
from odradek.broker.diskless.log_reader import (
    UNAVAILABLE,
    DisklessLogReader,
    ReadBatches,
)
from odradek.broker.fetch.log_reading import (
    PARTITIONS_PER_STEP,
    READ_COMMITTED,
    FetchParams,
    LogReadResult,
    error_for_version,
)
from odradek.broker.fetch.session_cache import CachedPartition
from odradek.broker.security.request_authorization import TopicDenied, check_topic_name_or_id
from odradek.protocol.errors import ErrorCode
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.storage.diskless.queries import FindPosition

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext
    from odradek.replication.controller.image import TopicImage


class DisklessRead(LogReadResult):
    """Result of one partition; `size` is that of its batches before they are read."""

    __slots__ = ("chosen",)

    is_remote = True

    def __init__(self, wanted: CachedPartition, params: FetchParams, chosen: ReadBatches) -> None:
        super().__init__(wanted, FetchedPartition(index=wanted.index), None, params)
        self.chosen = chosen
        self.set_response()
        if chosen.next_batches and not chosen.batches:
            first_bytes = chosen.next_batches[0].byte_size
            self.left_out_bytes = max(0, min(first_bytes, wanted.max_bytes))

    @property
    def size(self) -> int:
        return self.chosen.size_bytes

    def set_response(self) -> None:
        """Set the response to what is known of the partition."""
        chosen, response = self.chosen, self.response
        response.error_code = chosen.error_code
        response.high_watermark = response.last_stable_offset = chosen.high_watermark
        response.log_start_offset = chosen.log_start_offset
        committed = self.params.isolation_level == READ_COMMITTED
        if chosen.error_code:
            response.aborted_transactions = ()
        else:
            response.aborted_transactions = [] if committed else None


class DisklessFetch:
    """The diskless partitions of one fetch. Costs nothing before the first of them is read."""

    __slots__ = (
        "_ctx",
        "_is_watched",
        "_params",
        "_reader",
        "_wanted",
        "found",
        "found_at",
        "positions",
    )

    def __init__(
        self, wanted: Sequence[CachedPartition], ctx: RequestContext, params: FetchParams
    ) -> None:
        """`wanted` are all partitions of the fetch."""
        diskless = ctx.services.diskless
        assert diskless is not None
        self._reader: DisklessLogReader = diskless.reader
        self._wanted = wanted
        self._ctx = ctx
        self._params = params
        self._is_watched = False
        self.found: dict[DisklessKey, Found] = {}
        self.found_at = 0
        self.positions: dict[DisklessKey, FindPosition] = {}

    def __bool__(self) -> bool:
        """Whether the fetch has diskless partitions, as far as is known."""
        return bool(self.positions)

    async def read(self, wanted: CachedPartition, size_bytes: int) -> LogReadResult | None:
        """Choose batches of one partition after `size_bytes` of others; None if it is not a diskless partition.

        The caller has authorized the client. The first call finds the batches of all partitions of the fetch.
        """
        topic = self._topic_of(wanted)
        if topic is None:
            return None
        wanted.resolved_topic = topic.name
        key = (topic.id, wanted.index)
        if key not in self.positions:
            await self._find_all()
        read = ReadBatches(topic, wanted.index, wanted.offset, self.found.get(key))
        if wanted.current_leader_epoch > 0:
            read.fail(ErrorCode.unknown_leader_epoch)
        elif read.next_batches and (wanted.max_bytes < 0 or self._params.max_bytes < 0):
            read.fail(ErrorCode.unknown_server_error)  # as in Kafka
        else:
            left_bytes = min(self._params.max_bytes, self._reader.response_bytes_max) - size_bytes
            read.choose(min(wanted.max_bytes, max(0, left_bytes)), at_least_one=not size_bytes)
        return DisklessRead(wanted, self._params, read)

    def watch(self, wait: WaitingFetch) -> None:
        """Count new batches until `unwatch`."""
        if self.positions:
            self._is_watched = True
            self._reader.polls.watch(self, wait)

    def unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._reader.polls.unwatch(self)

    async def load(self, found: Iterable[LogReadResult]) -> None:
        """Read the bytes of the chosen batches, before the response is sent."""
        reads = [each for each in found if isinstance(each, DisklessRead)]
        chosen = [each.chosen for each in reads]
        if any(each.batches for each in chosen):
            await self._ctx.flush()
            await self._reader.load(chosen)
        for read in reads:
            if read.chosen.is_unavailable and not read.chosen.error_code:
                read.chosen.fail(UNAVAILABLE)
            read.chosen.error_code = error_for_version(read.chosen.error_code, self._ctx)
            read.set_response()
            if read.chosen.records is not None:
                read.response.records = (self._reader.records_to_send(read.chosen.records),)
        self._reader.count(chosen)

    def _topic_of(self, wanted: CachedPartition) -> TopicImage | None:
        return self._reader.topic_of(wanted.topic, wanted.topic_id, wanted.index)

    async def _find_all(self) -> None:
        """Find the batches of all diskless partitions that the client may read."""
        params, reader = self._params, self._reader
        response_bytes = max(1, min(params.max_bytes, reader.response_bytes_max))
        find_bytes = response_bytes
        self.positions = {}
        for number, wanted in enumerate(self._wanted):
            if (number + 1) % PARTITIONS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            topic = self._topic_of(wanted)
            if topic is None or not self._may_read(wanted):
                continue
            max_bytes = max(1, min(wanted.max_bytes, response_bytes))
            if reader.is_continued(topic.id, wanted.index, wanted.offset):
                find_bytes += max_bytes  # for read-ahead
                max_bytes *= 2
            self.positions[topic.id, wanted.index] = FindPosition(
                topic.id, wanted.index, wanted.offset, max_bytes
            )
        self.found_at = reader.polls.now
        self.found = {}
        to_find: dict[DisklessKey, FindPosition] = {}
        for key, position in self.positions.items():
            end = reader.find_end(position)
            if end is not None:
                self.found[key] = end
            elif not reader.is_failed(*key):
                to_find[key] = position
        if to_find:
            await self._ctx.flush()
            results = await reader.find(list(to_find.values()), find_bytes)
            self.found.update(zip(to_find, results, strict=True))

    def _may_read(self, wanted: CachedPartition) -> bool:
        if self._ctx.authorizer is None:
            return True
        try:
            check_topic_name_or_id(self._ctx, wanted.topic, wanted.topic_id)
        except TopicDenied:
            return False
        return True
