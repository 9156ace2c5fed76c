"""The group coordinator: runs requests against shards, appends their records, and owns timers and
loads.

Decisions are made by `GroupCoordinatorShard`. Appends are synchronous, so that operations on a
partition run one after the other; a response is sent when the high watermark has passed its
records.

Tasks: one for group deadlines, one for offset expiration, those of the coordinator runtime, and one
for each group whose regular expressions are being resolved.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar
from uuid import UUID

import trio

from odradek.broker.coordination.coordinator_runtime import (
    COORDINATOR_ERROR_BY_LOG_ERROR,
    CoordinatorContext,
    CoordinatorRuntime,
    LoadInProgress,
    NotCoordinator,
)
from odradek.broker.coordination.internal_topics import OFFSETS_TOPIC
from odradek.broker.coordination.response_future import ResponseFuture
from odradek.broker.groups.classic_group import DescribedGroup
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.consumer.consumer_group import DescribedConsumerGroup
from odradek.broker.groups.consumer.topic_metadata import ConsumerGroupEnvironment
from odradek.broker.groups.consumer.topic_regex_resolver import resolve_expressions
from odradek.broker.groups.coordinator_shard import NO_MEMBER, GroupCoordinatorShard, OffsetCommit
from odradek.broker.groups.group_log import GroupLoader, OffsetsLog, build_batches
from odradek.broker.groups.messages import (
    NO_ERROR,
    AppendCompletion,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResponse,
    CoordinatorResult,
    EventTime,
    Future,
    GroupErrors,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    ListedGroup,
    OffsetPartitionErrors,
    RecordAppend,
    Reply,
    ResolveRegularExpressions,
    Response,
    SendReplies,
    SyncGroup,
    SyncGroupResponse,
)
from odradek.broker.groups.offset_store import NO_PRODUCER, FetchedTopic
from odradek.broker.groups.transactional_commit import TransactionalCommit, verify_transaction
from odradek.broker.timers import EventLoopYield, Timers, monotonic_ms
from odradek.broker.transactions.markers import TransactionMarker
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import MetadataImage
from odradek.seams.clock import Clock
from odradek.seams.containment import Containment
from odradek.seams.entropy import Entropy

log = logging.getLogger("odradek.groups")

GroupContext: TypeAlias = CoordinatorContext[GroupCoordinatorShard, AppendCompletion]

T = TypeVar("T")
A = TypeVar("A", bound=Response)

LOADING_RETRY_MS = 100
"""Delay before a group's deadline is checked again while its partition is loading."""


@dataclass(slots=True)
class GroupStatistics:
    """Counters since start, under the names of Kafka's sensors."""

    offset_commits: int = 0
    offset_deletions: int = 0
    offset_expirations: int = 0
    completed_rebalances: int = 0


class GroupCoordinator:
    """Coordinates the groups of the partitions that this node leads.

    Requests raise KafkaError if this node can't coordinate the group.
    """

    def __init__(
        self,
        coordinator_log: OffsetsLog,
        config: GroupConfig,
        *,
        clock: Clock,
        entropy: Entropy,
        environment: ConsumerGroupEnvironment | None = None,
    ) -> None:
        """`environment` has the topics and configs for consumer groups."""
        self._log = coordinator_log
        self._config = config
        self._environment = environment or ConsumerGroupEnvironment(config)
        self._nursery: trio.Nursery | None = None
        self._clock = clock
        self._entropy = entropy
        self.runtime: CoordinatorRuntime[GroupCoordinatorShard, AppendCompletion] = (
            CoordinatorRuntime(
                OFFSETS_TOPIC,
                self,
                coordinator_log,
                clock,
                load_buffer_bytes=config.offsets_load_buffer_bytes,
                commit_timeout_ms=config.commit_timeout_ms,
            )
        )
        self._group_containment: Containment[tuple[GroupContext, str]] = Containment(
            "the coordinator",
            self._fail_group,
            name=lambda group: f"group {group[1]!r} of {OFFSETS_TOPIC}-{group[0].partition}",
            consequence="the group stays unavailable until its partition is loaded again",
        )
        self._timers = Timers(clock, self._on_deadline)
        self.statistics = GroupStatistics()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the coordinator's tasks until cancelled."""
        async with trio.open_nursery() as nursery:
            self.start(nursery)
            task_status.started()

    def start(self, nursery: trio.Nursery) -> None:
        """Start the coordinator's tasks in `nursery`. Must be called before the first request."""
        self._nursery = nursery
        self.runtime.start(nursery)
        nursery.start_soon(self._timers.run)
        nursery.start_soon(self._run_expiration)

    def _now(self) -> EventTime:
        return EventTime(monotonic_ms(self._clock), self._clock.wall_ms())

    # Callbacks of the runtime

    def new_shard(self) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(self._config, self._environment)

    def new_loader(self, shard: GroupCoordinatorShard) -> GroupLoader:
        return GroupLoader(shard)

    def on_replayed(self, context: GroupContext) -> Iterator[None]:
        for group_id in list(context.shard.groups):
            if context.failed:
                return
            self._run_operation(context, group_id, partial(context.shard.loaded, group_id))
            yield

    def on_loaded(self, context: GroupContext) -> str:
        return f"{len(context.shard.groups)} groups and {context.shard.offsets.count} offsets"

    def on_unloaded(self, context: GroupContext) -> None:
        code, now = ErrorCode.not_coordinator, self._now()
        replies = context.shard.unloaded(code, now).replies
        while context.uncommitted:
            completion = context.uncommitted.popleft().completion
            replies += context.shard.append_failed(completion, code, now, written=True).replies
        self._respond(replies)

    def on_append_completed(
        self, context: GroupContext, completion: AppendCompletion, code: ErrorCode
    ) -> None:
        group_id = getattr(completion, "group_id", None)
        self._run_operation(
            context, group_id, partial(_complete_append, context.shard, completion, code)
        )

    # Requests

    async def join(self, request: JoinGroup) -> JoinGroupResponse:
        if not request.group_id:
            return JoinGroupResponse(ErrorCode.invalid_group_id, request.member_id)
        low, high = self._config.min_session_timeout_ms, self._config.max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            return JoinGroupResponse(ErrorCode.invalid_session_timeout, request.member_id)
        return await self._run_request(
            request.group_id, lambda shard, *rest: shard.join(request, *rest), JoinGroupResponse
        )

    def new_member_uuid(self) -> str:
        """A UUID as text, for the member id that the coordinator generates."""
        return str(self._entropy.uuid())

    async def sync(self, request: SyncGroup) -> SyncGroupResponse:
        if not request.group_id:
            return SyncGroupResponse(ErrorCode.invalid_group_id)
        return await self._run_request(
            request.group_id, lambda shard, *rest: shard.sync(request, *rest), SyncGroupResponse
        )

    async def heartbeat(self, request: Heartbeat) -> HeartbeatResponse:
        if not request.group_id:
            return HeartbeatResponse(ErrorCode.invalid_group_id)
        try:
            return await self._run_request(
                request.group_id,
                lambda shard, *rest: shard.heartbeat(request, *rest),
                HeartbeatResponse,
            )
        except LoadInProgress:  # as in Kafka: sessions restart after the load
            return HeartbeatResponse(NO_ERROR)

    async def leave(self, request: LeaveGroup) -> LeaveGroupResponse:
        if not request.group_id:
            return LeaveGroupResponse(ErrorCode.invalid_group_id)
        return await self._run_request(
            request.group_id, lambda shard, *rest: shard.leave(request, *rest), LeaveGroupResponse
        )

    async def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeat
    ) -> ConsumerGroupHeartbeatResponse:
        return await self._run_request(
            request.group_id,
            lambda shard, *rest: shard.consumer_heartbeat(request, *rest),
            ConsumerGroupHeartbeatResponse,
        )

    async def commit(self, request: OffsetCommit) -> OffsetPartitionErrors:
        response = await self._run_request(
            request.group_id,
            lambda shard, *rest: shard.commit(request, *rest),
            OffsetPartitionErrors,
        )
        self.statistics.offset_commits += response.succeeded
        return response

    async def commit_transactional_offsets(
        self, request: OffsetCommit, transaction: TransactionalCommit
    ) -> OffsetPartitionErrors:
        """Commit offsets in a transaction (TxnOffsetCommit, KIP-98); they are pending until it ends."""
        if not request.group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        context = self.runtime.context_for(request.group_id)
        producer = await verify_transaction(transaction, self._log, context.partition)
        return await self.commit(replace(request, producer=producer))

    async def complete_transaction(self, partition: int, marker: TransactionMarker) -> None:
        """Append a transaction marker and apply it to the pending offsets.

        Returns when the marker is committed. Raises KafkaError.
        """
        context = self.runtime.active_context(partition)
        now = self._now()
        context.last_offset = self._log.append_marker(
            partition, marker.batch(now.wall_ms), now.wall_ms, marker.transaction_version
        )
        if not self._run_operation(context, None, partial(_end_transaction, context.shard, marker)):
            raise KafkaError(ErrorCode.not_coordinator, "the coordinator of the partition failed")
        await self._wait_until_committed(context)

    async def fetch(
        self,
        group_id: str,
        topics: Sequence[tuple[str, UUID | None, Iterable[int]]] | None,
        *,
        require_stable: bool,
        member: tuple[str | None, int] = NO_MEMBER,
    ) -> list[FetchedTopic]:
        """Committed offsets of these partitions, or of all if `topics` is None.

        The offsets are read at once and returned when they are below the high watermark, so that no
        other coordinator can return earlier ones. See `GroupCoordinatorShard.fetch`.
        """
        context = self.runtime.context_for(group_id)
        fetch = partial(context.shard.fetch, group_id, topics)
        return await self._read_committed(
            context, lambda: fetch(require_stable=require_stable, member=member)
        )

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> OffsetPartitionErrors:
        if not group_id:
            return OffsetPartitionErrors(ErrorCode.invalid_group_id, ())
        response = await self._run_request(
            group_id,
            lambda shard, future, now: shard.delete_offsets(group_id, partitions, future),
            OffsetPartitionErrors,
        )
        self.statistics.offset_deletions += response.succeeded
        return response

    async def delete_groups(self, group_ids: Iterable[str]) -> list[tuple[str, ErrorCode]]:
        """Delete groups; an error code for each."""
        self._timers.run_due()  # expire sessions first: an expired member does not count
        results: list[tuple[str, ErrorCode]] = []
        event_loop = EventLoopYield(self._clock)
        for group_id in dict.fromkeys(group_ids):
            await event_loop.yield_if_due()
            try:
                response = await self._run_request(group_id, _delete(group_id), GroupErrors)
                results += response.groups
            except KafkaError as error:
                results.append((group_id, error.code))
        return results

    async def delete_all(self) -> None:
        """Remove every group and offset of the partitions led here.

        Only for tests that share a broker.
        """
        for context in self.runtime:
            if self.runtime.active_context(context.partition) is context:
                self._run_operation(context, None, context.shard.delete_all)
                await self._wait_until_committed(context)

    def list_groups(self, states: Collection[str], kinds: Collection[str]) -> list[ListedGroup]:
        """Groups of the partitions led here; see `GroupCoordinatorShard.list_groups`.

        Raises COORDINATOR_LOAD_IN_PROGRESS while any partition is loading.
        """
        self.runtime.check_loaded()
        wanted, of_kinds = ({each.strip().lower() for each in given} for given in (states, kinds))
        return [
            group
            for context in self.runtime
            if context.serves
            for group in context.shard.list_groups(wanted, of_kinds)
        ]

    def describe(self, group_id: str) -> DescribedGroup:
        """Describe a classic group as it is in memory, as Kafka does: a rebalance is not in the log.

        Raises ClassicGroupNotFound.
        """
        return self.runtime.context_for(group_id).shard.describe(group_id)

    async def describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        """Describe a consumer group when its state is committed. Raises ConsumerGroupNotFound."""
        context = self.runtime.context_for(group_id)
        return await self._read_committed(
            context, partial(context.shard.describe_consumer, group_id)
        )

    @property
    def protocols(self) -> Collection[str]:
        """Enabled rebalance protocols (`group.coordinator.rebalance.protocols`)."""
        return self._config.protocols

    @property
    def assignors(self) -> Sequence[str]:
        """Names of the server-side assignors, the default first."""
        return self._config.consumer_assignors

    def topics_changed(
        self, image: MetadataImage, topics: Collection[str], *, created: bool
    ) -> None:
        """These topics were created, deleted or changed; `created` if any of them is new."""
        self._environment.topics_changed(image, topics, created=created)

    def topics_deleted(self, topics: Sequence[tuple[str, UUID]]) -> None:
        """Remove the offsets of deleted topics, given as (name, id)."""
        for context in self.runtime:
            for name, topic_id in topics:
                if context.serves:
                    self._run_operation(
                        context, None, partial(_delete_topic, context.shard, name, topic_id)
                    )

    async def _run_request(
        self,
        group_id: str,
        act: Callable[[GroupCoordinatorShard, Future, EventTime], CoordinatorResult],
        response_type: type[A],
    ) -> A:
        context = self.runtime.context_for(group_id)
        if group_id in context.shard.failed_groups:
            raise NotCoordinator(f"group {group_id!r} failed on this broker")
        future = ResponseFuture[Response]()
        if not self._run_operation(context, group_id, lambda now: act(context.shard, future, now)):
            raise KafkaError(
                ErrorCode.unknown_server_error, f"the coordinator of group {group_id!r} failed"
            )
        response = await future.wait()
        assert isinstance(response, response_type)
        return response

    async def _read_committed(self, context: GroupContext, read: Callable[[], T]) -> T:
        """Result of `read` now, returned when the state it read is committed. An error waits, too: the
        records that removed a group or member may not be committed yet."""
        try:
            result = read()
        except KafkaError:
            await self._wait_until_committed(context)
            raise
        await self._wait_until_committed(context)
        return result

    async def _wait_until_committed(self, context: GroupContext) -> None:
        """Wait until all appended records are committed."""
        if self._log.is_committed(context.partition, context.last_offset):
            return
        future = ResponseFuture[Response]()
        completion = SendReplies((Reply(future, HeartbeatResponse(NO_ERROR)),))
        self.runtime.complete_when_committed(context, completion)
        response = await future.wait()
        assert isinstance(response, HeartbeatResponse)
        if response.error is not NO_ERROR:
            raise KafkaError(ErrorCode.not_coordinator, "the records are not committed in time")

    # Applying results

    def _run_operation(
        self,
        context: GroupContext,
        group_id: str | None,
        act: Callable[[EventTime], CoordinatorResult],
    ) -> bool:
        """Run an operation on a shard and apply its result. Returns False if it raised, which fails
        the group, or the partition if it is not about one group."""
        try:
            self._apply_result(context, group_id, act(self._now()))
        except Exception as error:
            if group_id is None:
                self.runtime.fail(context, error)
            else:
                self._group_containment.failed((context, group_id), error)
            return False
        return True

    def _fail_group(self, failed: tuple[GroupContext, str], error: Exception) -> None:
        context, group_id = failed
        self._timers.disarm((context.partition, group_id))
        self._respond(context.shard.fail_group(group_id, self._now()).replies)

    def _apply_result(
        self, context: GroupContext, group_id: str | None, result: CoordinatorResult
    ) -> None:
        """Append records and send responses until no follow-up result is left."""
        todo = deque([result])
        while todo:
            result = todo.popleft()
            for note in result.notes:
                log.info("group %s: %s", group_id, note)
            self.statistics.completed_rebalances += result.completed_rebalances
            self._respond(result.replies)
            todo.extend(self._append(context, append) for append in result.appends)
            for resolve in result.resolves:
                assert self._nursery is not None, "the coordinator does not run"
                self._nursery.start_soon(self._resolve, context, resolve)
        if group_id is not None:
            self._timers.arm(
                (context.partition, group_id), context.shard.next_deadline_ms(group_id)
            )

    @staticmethod
    def _respond(replies: Iterable[Reply]) -> None:
        for future, response in replies:
            future.set(response)

    def _append(self, context: GroupContext, append: RecordAppend) -> CoordinatorResult:
        try:
            _write_records(append, context, self._log, self._config, self._now())
        except KafkaError as error:
            log.warning("appending to __consumer_offsets-%d failed: %s", context.partition, error)
            code = COORDINATOR_ERROR_BY_LOG_ERROR.get(error.code, error.code)
            return context.shard.append_failed(append.completion, code, self._now(), written=False)
        if self.runtime.is_committed(context):
            return context.shard.appended(append.completion, self._now())
        self.runtime.complete_when_committed(context, append.completion)
        return CoordinatorResult()

    def _on_deadline(self, key: tuple[int, str]) -> None:
        partition, group_id = key
        context = self.runtime.find_active_context(partition)
        if context is not None:
            self._run_operation(context, group_id, partial(context.shard.tick, group_id))
        elif self.runtime.is_loading(partition):
            self._timers.arm(key, monotonic_ms(self._clock) + LOADING_RETRY_MS)

    # Regular expressions

    async def _resolve(self, context: GroupContext, resolve: ResolveRegularExpressions) -> None:
        """Resolve a group's regular expressions against the current topics and apply the result."""
        try:
            resolved = await resolve_expressions(resolve, self._environment.topics, self._clock)
        except Exception as error:
            self._group_containment.failed((context, resolve.group_id), error)
            return
        if self.runtime.is_current(context):
            act = partial(context.shard.on_regular_expressions_resolved, resolve.group_id, resolved)
            self._run_operation(context, resolve.group_id, act)

    # Offset expiration

    async def _run_expiration(self) -> None:
        while True:
            await self._clock.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            for context in self.runtime:
                await self._expire_offsets(context)

    async def _expire_offsets(self, context: GroupContext) -> None:
        event_loop = EventLoopYield(self._clock)
        for group_id in list(context.shard.groups):
            if not self.runtime.is_current(context):
                return
            self._run_operation(
                context, group_id, partial(self._expire_group, context.shard, group_id)
            )
            await event_loop.yield_if_due()

    def _expire_group(
        self, shard: GroupCoordinatorShard, group_id: str, now: EventTime
    ) -> CoordinatorResult:
        result, count = shard.expire(group_id, now)
        self.statistics.offset_expirations += count
        return result

    # Metrics

    def count_by_state(self) -> Counter[tuple[str, str]]:
        """Number of groups by kind and state."""
        return Counter(
            (group.kind, group.state_name)
            for context in self.runtime
            for group in context.shard.groups.values()
        )


def _complete_append(
    shard: GroupCoordinatorShard, completion: AppendCompletion, code: ErrorCode, now: EventTime
) -> CoordinatorResult:
    if code is NO_ERROR:
        return shard.appended(completion, now)
    return shard.append_failed(completion, code, now, written=True)


def _delete(
    group_id: str,
) -> Callable[[GroupCoordinatorShard, Future, EventTime], CoordinatorResult]:
    return lambda shard, future, now: shard.delete_group(group_id, future)


def _delete_topic(
    shard: GroupCoordinatorShard, name: str, topic_id: UUID, now: EventTime
) -> CoordinatorResult:
    return shard.topic_deleted(name, topic_id)


def _end_transaction(
    shard: GroupCoordinatorShard, marker: TransactionMarker, now: EventTime
) -> CoordinatorResult:
    shard.complete_transaction(marker.producer_id, committed=marker.is_commit)
    return CoordinatorResult()


def _write_records(
    append: RecordAppend,
    context: GroupContext,
    coordinator_log: OffsetsLog,
    config: GroupConfig,
    now: EventTime,
) -> None:
    """Append the records in batches and replay each batch. After a KafkaError the batches before the
    failed one are appended and replayed."""
    producer = append.producer
    for batch, records in build_batches(
        append.records,
        now_ms=now.wall_ms,
        compression=config.offsets_topic_compression,
        batch_bytes_max=coordinator_log.batch_bytes_max(context.partition),
        atomic=append.atomic,
        producer=None if producer is None else producer[:2],
    ):
        if producer is None:
            first_offset = coordinator_log.append(context.partition, batch, now.wall_ms)
        else:
            first_offset = coordinator_log.append_in_transaction(
                context.partition, batch, now.wall_ms, producer.guard
            )
        context.last_offset = first_offset + len(records) - 1
        if append.replay:
            producer_id = NO_PRODUCER if producer is None else producer.producer_id
            for position, record in enumerate(records):
                context.shard.replay(record, first_offset + position, producer_id)
