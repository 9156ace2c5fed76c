"""Fetch (KIP-74 sizes, KIP-227 sessions, KIP-320 epochs, KIP-392 fetch from followers, KIP-516 topic ids).

A response holds slices of segment files, pinned until they are sent, or copies of small slices. A fetch with
less than `min_bytes` waits in purgatory for appends and then reads only the changed partitions
(log_reading.py). A small result is sent in the same step as the append (purgatory.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import TYPE_CHECKING, cast

from odradek.broker.apis.current_leader import current_leader, endpoints_of
from odradek.broker.fetch.log_reading import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchParams,
    LogReadResult,
    load_slices,
    read_partitions,
    reread_from_memory,
    total_left_out_bytes,
    total_size,
    unpin,
)
from odradek.broker.fetch.purgatory import DelayedFetch, DelayedReadCommittedFetch
from odradek.broker.fetch.session_cache import CachedPartition, FetchContext, PartitionKey
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.route import Route
from odradek.broker.timers import monotonic_ms
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.fetch_request_reader import (
    RACK_VERSION,
    TOPIC_ID_VERSION,
    FetchRequest,
    read_fetch_request,
)
from odradek.protocol.fetch_response_writer import (
    NODE_ENDPOINTS_VERSION,
    FetchedPartition,
    FetchedTopic,
    write_fetch_response,
)
from odradek.protocol.leader_tags import NodeEndpoint
from odradek.replication.partition.partition import Partition
from odradek.seams.files import Buffer, FileSlice
from odradek.seams.values import value_class
from odradek.storage.log.file_names import LOG, file_name

if TYPE_CHECKING:
    from odradek.broker.fetch.unchanged_partitions import UnchangedPartitions


@value_class
class FetchResponse:
    """Values of a Fetch response, for the encoder."""

    error_code: ErrorCode
    session_id: int
    chosen: Sequence[tuple[CachedPartition, FetchedPartition]]
    endpoints: Sequence[NodeEndpoint] = ()
    failed: Sequence[FetchedTopic] = ()
    """Topics of an invalid request, instead of `chosen`: one for each in the request."""


_LED_ELSEWHERE = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})
_REFUSALS = frozenset(
    {
        ErrorCode.topic_authorization_failed,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
    }
)
_NOT_CHOSEN = -1


async def fetch(request: FetchRequest, ctx: RequestContext) -> FetchResponse | None:
    """Fetch: read all partitions of the session, and wait up to `max_wait_ms` for `min_bytes`."""
    uses_topic_ids = ctx.api_version >= TOPIC_ID_VERSION
    try:
        fetch_context = ctx.services.fetch_sessions.new_context(
            request.session_id,
            request.session_epoch,
            _wanted(request),
            _forgotten(request),
            uses_topic_ids=uses_topic_ids,
            now=ctx.services.seams.clock.monotonic(),
            is_follower=request.replica_id >= 0,
        )
    except KafkaError as error:
        return FetchResponse(error.code, 0, ())
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED) and any(
        _exists(each, ctx) for each in fetch_context.wanted
    ):  # Kafka reads the isolation level only if there is a partition to read
        return _all_failed(request, uses_topic_ids, ErrorCode.unknown_server_error)
    params = _fetch_params(request, ctx)
    if ctx.services.diskless is not None and not params.is_follower:
        from odradek.broker.diskless.fetch import DisklessFetch

        params.diskless = DisklessFetch(fetch_context.wanted, ctx, params)
    unchanged = _skip_unchanged(fetch_context, request, ctx) if params.is_follower else None
    found = await read_partitions(fetch_context.wanted, ctx, params)
    min_bytes = min(request.min_bytes, params.max_bytes)
    if request.max_wait_ms > 0 and total_size(found) < min_bytes and not params.has_remote:
        waiting = _DelayedFetch(found, fetch_context, min_bytes, ctx, params, unchanged)
        await waiting.wait(_wait_ms_max(request, ctx))
        if waiting.is_responded:
            return None
        found = waiting.found
    try:
        if params.has_remote:
            from odradek.broker.tiered.remote_fetch import read_remote

            await read_remote(found, ctx)
        if params.diskless:
            await params.diskless.load(found)
        await load_slices(found, ctx)
    except BaseException:
        unpin(found)
        raise
    if unchanged is not None:
        unchanged.settle(found)
    return _respond(fetch_context, found, ctx)


def _exists(wanted: CachedPartition, ctx: RequestContext) -> bool:
    image = ctx.services.metadata.image
    if wanted.topic_id is not None:
        topic = image.topics_by_id.get(wanted.topic_id)
    else:
        topic = image.topics_by_name.get(wanted.topic or "")
    return topic is not None and wanted.index in topic.partitions


def _all_failed(request: FetchRequest, uses_topic_ids: bool, code: ErrorCode) -> FetchResponse:
    """Response to an invalid request: no partitions with topic ids, all partitions without."""
    failed = [
        FetchedTopic(
            name=topic.name or "",
            topic_id=None,
            partitions=[
                FetchedPartition(
                    index=each.partition_index, error_code=code, aborted_transactions=()
                )
                for each in topic.partitions
            ],
        )
        for topic in (() if uses_topic_ids else request.topics)
    ]
    return FetchResponse(code, request.session_id, (), (), failed)


def _wait_ms_max(request: FetchRequest, ctx: RequestContext) -> int:
    """Wait time of the fetch in ms, at most `connections.max.idle.ms`: Kafka closes the connection after that
    time, and the client may be gone."""
    idle_max_ms = ctx.services.config.get_int("connections.max.idle.ms")
    return request.max_wait_ms if idle_max_ms < 0 else min(request.max_wait_ms, idle_max_ms)


def _skip_unchanged(
    fetch_context: FetchContext, request: FetchRequest, ctx: RequestContext
) -> UnchangedPartitions | None:
    """Remove unchanged partitions from the fetch context of a follower's fetch session; None without a session."""
    session = fetch_context.session
    if session is None:
        return None
    unchanged = cast("UnchangedPartitions | None", session.unchanged)
    if unchanged is None:
        from odradek.broker.fetch.unchanged_partitions import UnchangedPartitions

        lag_max_ms = ctx.services.config.get_int("replica.lag.time.max.ms")
        session.unchanged = unchanged = UnchangedPartitions(lag_max_ms=lag_max_ms)
    changed = [
        (topic.topic_id or topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    fetch_context.wanted = unchanged.take(
        session.partitions,
        [*changed, *_forgotten(request)],
        broker_epoch=request.replica_epoch,
        now=ctx.services.seams.clock.monotonic(),
    )
    return unchanged


def _respond(
    fetch_context: FetchContext, found: Sequence[LogReadResult], ctx: RequestContext
) -> FetchResponse:
    if found:
        params = found[0].params
        if params.throttle is not None:
            params.throttle.sent(
                (each.partition, each.response) for each in found if each.partition is not None
            )
        if params.has_refused:
            found = sorted(found, key=_place_in_response)
    if ctx.services.partitions.counts_traffic:
        _count(found)
    chosen = fetch_context.select((each.wanted, each.response) for each in found)
    endpoints: Sequence[NodeEndpoint] = ()
    if ctx.api_version >= NODE_ENDPOINTS_VERSION:
        lost = [each for each in chosen if each[1].error_code in _LED_ELSEWHERE]
        if lost:
            leaders = _set_current_leaders(lost, ctx)
            if not params.is_follower:  # as in Kafka: followers know the endpoints of brokers
                endpoints = leaders
    return FetchResponse(ErrorCode.none, fetch_context.session_id, chosen, endpoints)


def _count(found: Sequence[LogReadResult]) -> None:
    for each in found:
        traffic = None if each.partition is None else each.partition.traffic
        if traffic is None:
            continue
        if each.params.is_follower:
            traffic.replicated_bytes_out += each.size
            continue
        traffic.fetches += 1
        if each.response.records:
            traffic.bytes_out += each.size
        elif each.response.error_code:
            traffic.failed_fetches += 1


def _set_current_leaders(
    lost: Iterable[tuple[CachedPartition, FetchedPartition]], ctx: RequestContext
) -> list[NodeEndpoint]:
    """Set the current leaders in the results, and return the endpoints of these brokers."""
    leaders = []
    for wanted, response in lost:
        response.current_leader = current_leader(ctx, wanted.topic, wanted.topic_id, wanted.index)
        leaders.append(response.current_leader[0])
    return endpoints_of(ctx, leaders)


class _DelayedFetch:
    """A fetch that waits for more bytes. Results that it holds while it waits are not pinned."""

    __slots__ = (
        "_ctx",
        "_fetch_context",
        "_min_bytes",
        "_params",
        "_refused",
        "_unchanged",
        "found",
        "is_responded",
    )

    def __init__(
        self,
        found: list[LogReadResult],
        fetch_context: FetchContext,
        min_bytes: int,
        ctx: RequestContext,
        params: FetchParams,
        unchanged: UnchangedPartitions | None,
    ) -> None:
        self.found = found
        self.is_responded = False
        """Whether the response was sent during the wait."""
        self._fetch_context = fetch_context
        self._min_bytes = min_bytes
        self._ctx = ctx
        self._params = params
        self._unchanged = unchanged
        self._refused = {each.wanted.key for each in found if _is_refused(each)}
        """Partitions that were refused before the wait; their errors do not complete the fetch."""

    async def wait(self, wait_ms: int) -> None:
        """Wait until there are enough bytes or `wait_ms` have passed, reading again after each change. Return
        at once after an error, and if no append can add bytes. A batch that exceeds the size limit counts,
        because the next fetch returns it. Partitions that were refused before the read do not end the wait, as
        in Kafka."""
        ctx, params = self._ctx, self._params
        clock = ctx.services.seams.clock
        until_ms = ceil(clock.monotonic() * 1000) + wait_ms
        while monotonic_ms(clock) < until_ms:
            found = self.found
            missing = self._min_bytes - total_size(found) - total_left_out_bytes(found)
            read = self._without_refused(found) if self._refused else found
            if missing <= 0 or _failed(read) or _is_cut_short(read):
                return
            if params.has_remote or (not read and not self._unchanged):
                return
            unpin(found)
            # Flush first: an append may send the response of this fetch while it waits.
            await ctx.flush()
            wait = self._begin(missing)
            try:
                if not self._watch(wait):
                    await wait.wait(until_ms)
            finally:
                self._unwatch(wait)
            if wait.is_responded:
                self.is_responded = True
                return
            self._take_changed()
            self.found = await read_partitions(self._fetch_context.wanted, ctx, params, self.found)

    def _without_refused(self, found: Iterable[LogReadResult]) -> list[LogReadResult]:
        refused = self._refused
        return [each for each in found if not (_is_refused(each) and each.wanted.key in refused)]

    def _watch(self, wait: DelayedFetch | DelayedReadCommittedFetch) -> bool:
        """Register the wait; True if a partition has changed already."""
        found, unchanged = self.found, self._unchanged
        if unchanged is not None:
            assert isinstance(wait, DelayedFetch)
            unchanged.settle(found)
            unchanged.waiting = wait
            found = [each for each in found if not unchanged.is_unchanged(each)]
        wait.watch(
            [each.partition for each in found if each.partition is not None],
            end=self._params.is_follower,
        )
        if self._params.diskless:
            self._params.diskless.watch(wait)
        has_changed = unchanged is not None and unchanged.has_changed
        return has_changed or any(each.is_overtaken() for each in found)

    def _unwatch(self, wait: DelayedFetch | DelayedReadCommittedFetch) -> None:
        wait.unwatch()
        if self._params.diskless:
            self._params.diskless.unwatch()
        if self._unchanged is not None and self._unchanged.waiting is wait:
            self._unchanged.waiting = None

    def _take_changed(self) -> None:
        """Add partitions that have changed to the partitions to read."""
        if self._unchanged is None:
            return
        known = {each.wanted.key for each in self.found}
        more = [each for each in self._unchanged.take_changed() if each.wanted.key not in known]
        self.found = [*self.found, *more]
        self._fetch_context.wanted = [*self._fetch_context.wanted, *(each.wanted for each in more)]

    def _begin(self, missing_bytes: int) -> DelayedFetch | DelayedReadCommittedFetch:
        services = self._ctx.services
        completable, timers, connection = (
            services.completable_fetches,
            services.fetch_timers,
            self._ctx.connection,
        )
        if self._params.isolation_level == READ_COMMITTED and not self._params.is_follower:
            return DelayedReadCommittedFetch(
                _stable(self.found), completable, timers, connection, self._respond_nowait
            )
        return DelayedFetch(missing_bytes, completable, timers, connection, self._respond_nowait)

    def _respond_nowait(self) -> bool:
        """Send a response from memory in the step of the append; False if the records are not in memory."""
        self._take_changed()
        found = reread_from_memory(self.found, self._params, self._min_bytes)
        if found is None:
            return False
        if self._unchanged is not None:
            self._unchanged.settle(found)
        assert self._ctx.connection is not None
        self._ctx.connection.respond_nowait(
            self._ctx, _respond(self._fetch_context, found, self._ctx)
        )
        return True


def _wanted(request: FetchRequest) -> list[CachedPartition]:
    return [
        CachedPartition(name, topic_id, index, offset, max_bytes, epoch, last_fetched, log_start)
        for name, topic_id, partitions in request.topics
        for index, epoch, offset, last_fetched, log_start, max_bytes in partitions
    ]


def _forgotten(request: FetchRequest) -> Iterable[PartitionKey]:
    for name, topic_id, partitions in request.forgotten:
        for index in partitions:
            yield (topic_id or name, index)


def _fetch_params(request: FetchRequest, ctx: RequestContext) -> FetchParams:
    config = ctx.services.config
    max_bytes = min(request.max_bytes, config.get_int("fetch.max.bytes"))
    if ctx.services.client_quotas is not None and request.replica_id < 0:
        from odradek.broker.quotas.request_throttling import fetch_bytes_max

        max_bytes = int(min(max_bytes, fetch_bytes_max(ctx)))
    is_modern = ctx.api_version >= RACK_VERSION and request.replica_id < 0
    return FetchParams(
        max_bytes,
        request.isolation_level,
        request.replica_id,
        request.replica_epoch,
        any_replica=is_modern,
        throttle=ctx.services.replicas.leader_throttle if request.replica_id >= 0 else None,
        rack=request.rack if is_modern and config["replica.selector.class"] else "",
    )


def _is_refused(read: LogReadResult) -> bool:
    """Whether the client is not authorized, or the partition does not exist."""
    return read.partition is None and read.response.error_code in _REFUSALS


def _place_in_response(read: LogReadResult) -> int:
    """Sort key: as in Kafka, refused partitions are last, and those of unknown topic ids come first among them."""
    if not _is_refused(read):
        return 0
    is_first = read.params.is_follower or read.response.error_code == ErrorCode.unknown_topic_id
    return 1 if is_first else 2


def _failed(found: Iterable[LogReadResult]) -> bool:
    """Whether a result completes the fetch at once: an error, a diverging epoch, or a preferred read replica."""
    return any(
        each.response.error_code != ErrorCode.none
        or each.response.diverging_epoch is not None
        or each.response.preferred_read_replica != _NOT_CHOSEN
        for each in found
    )


def _is_cut_short(found: Iterable[LogReadResult]) -> bool:
    """Whether a slice ends at the end of its segment and the log continues. A response has one slice per
    partition, so appends do not make it longer."""
    return any(
        part.file.path.name != file_name(each.partition.log.log_end.segment.base_offset, LOG)
        for each in found
        if each.partition is not None
        for part in each.response.records
        if isinstance(part, FileSlice)
    )


def _stable(found: Iterable[LogReadResult]) -> dict[Partition, int]:
    """Last stable offsets of the partitions that were read."""
    return {
        each.partition: each.response.last_stable_offset
        for each in found
        if each.partition is not None
    }


def read(key: int, version: int, view: memoryview, offset: int) -> FetchRequest:
    return read_fetch_request(view, version, offset)


def write(key: int, version: int, response: FetchResponse) -> list[Buffer | FileSlice]:
    """Encode the response; records remain slices of files.

    Partitions keep their order, so that a topic has an entry for each run of its partitions, as in Kafka.
    """
    topics: list[FetchedTopic] = []
    last: object = None
    partitions: list[FetchedPartition] = []
    for wanted, partition in response.chosen:
        topic = wanted.topic_id or wanted.topic
        if topics and (topic is last or topic == last):
            partitions.append(partition)
            continue
        last, partitions = topic, [partition]
        topics.append(
            FetchedTopic(name=wanted.topic or "", topic_id=wanted.topic_id, partitions=partitions)
        )
    return write_fetch_response(
        version,
        throttle_time_ms=0,
        error_code=response.error_code,
        session_id=response.session_id,
        topics=response.failed or topics,
        node_endpoints=response.endpoints,
    )


HANDLERS = {apis.FETCH: Route(fetch, read=read, write=write, batches_responses=True)}
