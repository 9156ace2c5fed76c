"""The driver of the group coordinator: shards and their log, waiting clients, timers, loading.

It decides nothing about groups. A request is handed to the shard of its group's partition together
with a waiter; what comes back is done at once and in order: records are appended, which is
synchronous, so that all that happens to a partition's groups happens one after the other, and the
answers that depend on them are given when the high watermark has passed them. Nobody else's answer
waits for that.

Tasks: one for timers (a heap of the groups' next deadlines), one that lets old offsets expire, and
those of `coordination.leadership`, which loads partitions and waits for their replicas; and one for
each group whose expressions are being matched with the topics.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import UUID

import trio

from odradek.broker.coordination.leadership import AS_COORDINATOR, Leadership, LoadInProgress
from odradek.broker.coordination.topics import OFFSETS_TOPIC
from odradek.broker.coordination.waiter import ClientWaiter
from odradek.broker.groups.actions import (
    NO_ERROR,
    Actions,
    Append,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    GroupErrors,
    Heartbeat,
    HeartbeatResponse,
    Join,
    JoinResponse,
    Leave,
    LeaveResponse,
    Now,
    PartitionErrors,
    Reply,
    Resolve,
    Respond,
    Response,
    Sync,
    SyncResponse,
    Then,
    Waiter,
)
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.consumer.describe import DescribedConsumerGroup
from odradek.broker.groups.consumer.environment import Environment
from odradek.broker.groups.consumer.resolving import resolve_expressions
from odradek.broker.groups.describe import DescribedGroup, ListedGroup
from odradek.broker.groups.led import GroupStatistics, Led
from odradek.broker.groups.offsets import FetchedTopic
from odradek.broker.groups.shard import NOBODY, Commit, Shard
from odradek.broker.groups.store import Loader, OffsetsLog
from odradek.broker.groups.transactions import InTransaction, verify
from odradek.broker.groups.writing import write
from odradek.broker.timers import Timers, Turn, monotonic_ms
from odradek.broker.transactions.markers import TransactionMarker
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import MetadataImage
from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy

log = logging.getLogger("odradek.groups")

T = TypeVar("T")
A = TypeVar("A", bound=Response)

WHILE_LOADING_MS = 100
"""How soon a group that is due is looked at again while its partition is still being loaded."""


class GroupCoordinator:
    """See the module. Requests raise KafkaError where there is no group to ask."""

    def __init__(
        self,
        log: OffsetsLog,
        config: GroupConfig,
        *,
        clock: Clock,
        entropy: Entropy,
        environment: Environment | None = None,
    ) -> None:
        """`environment` is what consumer groups are told of topics and of their settings."""
        self._log = log
        self._config = config
        self._environment = environment or Environment(config)
        self._nursery: trio.Nursery | None = None
        self._clock = clock
        self._entropy = entropy
        self.leadership: Leadership[Shard, Then] = Leadership(
            OFFSETS_TOPIC,
            self,
            log,
            clock,
            load_buffer_bytes=config.offsets_load_buffer_bytes,
            commit_timeout_ms=config.commit_timeout_ms,
        )
        self._timers = Timers(clock, self._due)
        self.statistics = GroupStatistics()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the timers, loads and waits until cancelled; started() at once."""
        async with trio.open_nursery() as nursery:
            self.start(nursery)
            task_status.started()

    def start(self, nursery: trio.Nursery) -> None:
        """Have `nursery` own the timers, loads and waits, from now on: the next request may need it."""
        self._nursery = nursery
        self.leadership.start(nursery)
        nursery.start_soon(self._timers.run)
        nursery.start_soon(self._run_expiry)

    def _now(self) -> Now:
        return Now(monotonic_ms(self._clock), self._clock.wall_ms())

    # What `leadership` asks for

    def new_shard(self) -> Shard:
        return Shard(self._config, self._environment)

    def new_loader(self, shard: Shard) -> Loader:
        return Loader(shard)

    def take_up(self, led: Led) -> Iterator[None]:
        for group_id in list(led.shard.groups):
            if led.failed:
                return
            self._drive(led, group_id, partial(led.shard.loaded, group_id))
            yield

    def loaded(self, led: Led) -> str:
        return f"{len(led.shard.groups)} groups and {led.shard.offsets.count} offsets"

    def unloaded(self, led: Led) -> None:
        code, now = ErrorCode.not_coordinator, self._now()
        replies = led.shard.unloaded(code, now).replies
        while led.uncommitted:
            then = led.uncommitted.popleft().then
            replies += led.shard.append_failed(then, code, now, written=True).replies
        self._respond(replies)

    def settled(self, led: Led, then: Then, code: ErrorCode) -> None:
        group_id = getattr(then, "group_id", None)
        self._drive(led, group_id, partial(_settled, led.shard, then, code))

    # Requests

    async def join(self, request: Join) -> JoinResponse:
        if not request.group_id:
            return JoinResponse(ErrorCode.invalid_group_id, request.member_id)
        low, high = self._config.min_session_timeout_ms, self._config.max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            return JoinResponse(ErrorCode.invalid_session_timeout, request.member_id)
        return await self._ask(
            request.group_id, lambda shard, *rest: shard.join(request, *rest), JoinResponse
        )

    def fresh_id(self) -> str:
        """What makes a new member's id its own."""
        return str(self._entropy.uuid())

    async def sync(self, request: Sync) -> SyncResponse:
        if not request.group_id:
            return SyncResponse(ErrorCode.invalid_group_id)
        return await self._ask(
            request.group_id, lambda shard, *rest: shard.sync(request, *rest), SyncResponse
        )

    async def heartbeat(self, request: Heartbeat) -> HeartbeatResponse:
        if not request.group_id:
            return HeartbeatResponse(ErrorCode.invalid_group_id)
        try:
            return await self._ask(
                request.group_id,
                lambda shard, *rest: shard.heartbeat(request, *rest),
                HeartbeatResponse,
            )
        except LoadInProgress:  # nothing can have happened to the member meanwhile
            return HeartbeatResponse(NO_ERROR)

    async def leave(self, request: Leave) -> LeaveResponse:
        if not request.group_id:
            return LeaveResponse(ErrorCode.invalid_group_id)
        return await self._ask(
            request.group_id, lambda shard, *rest: shard.leave(request, *rest), LeaveResponse
        )

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResponse:
        return await self._ask(
            request.group_id,
            lambda shard, *rest: shard.consumer_heartbeat(request, *rest),
            ConsumerHeartbeatResponse,
        )

    async def commit(self, request: Commit) -> PartitionErrors:
        respond = await self._ask(
            request.group_id, lambda shard, *rest: shard.commit(request, *rest), PartitionErrors
        )
        self.statistics.offset_commits += respond.succeeded
        return respond

    async def commit_in_transaction(
        self, request: Commit, transaction: InTransaction
    ) -> PartitionErrors:
        """TxnOffsetCommit: what is committed is pending until the transaction ends (KIP-98)."""
        if not request.group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        led = self.leadership.active(request.group_id)
        producer = await verify(transaction, self._log, led.partition)
        return await self.commit(replace(request, producer=producer))

    async def complete_transaction(self, partition: int, marker: TransactionMarker) -> None:
        """Write a transaction's marker; what was pending holds, or is dropped, from then on.

        Returns when it is on all in-sync replicas. Raises KafkaError.
        """
        led = self.leadership.serving(partition)
        now = self._now()
        led.last_offset = self._log.append_marker(
            partition, marker.batch(now.wall_ms), now.wall_ms, marker.transaction_version
        )
        if not self._drive(led, None, partial(_end_transaction, led.shard, marker)):
            raise KafkaError(ErrorCode.not_coordinator, "a group broke an invariant")
        await self._committed(led)

    async def fetch(
        self,
        group_id: str,
        topics: Sequence[tuple[str, UUID | None, Iterable[int]]] | None,
        *,
        require_stable: bool,
        member: tuple[str | None, int] = NOBODY,
    ) -> list[FetchedTopic]:
        """Committed offsets, all of the group's where `topics` is None; see `Shard.fetch`.

        What is fetched will not be taken back: as it stands when asked, told when it is on all in-sync
        replicas. What is appended meanwhile, and may never be there, is for the next one who asks.
        """
        led = self.leadership.active(group_id)
        fetch = partial(led.shard.fetch, group_id, topics)
        return await self._look(led, lambda: fetch(require_stable=require_stable, member=member))

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> PartitionErrors:
        if not group_id:
            return PartitionErrors(ErrorCode.invalid_group_id, ())
        respond = await self._ask(
            group_id,
            lambda shard, waiter, now: shard.delete_offsets(group_id, partitions, waiter),
            PartitionErrors,
        )
        self.statistics.offset_deletions += respond.succeeded
        return respond

    async def delete_groups(self, group_ids: Iterable[str]) -> list[tuple[str, ErrorCode]]:
        """Each group with what became of it."""
        self._timers.tell_due()  # whoever's session is over is no member any more
        results: list[tuple[str, ErrorCode]] = []
        for group_id in dict.fromkeys(group_ids):
            try:
                respond = await self._ask(group_id, _delete(group_id), GroupErrors)
                results += respond.groups
            except KafkaError as error:
                results.append((group_id, error.code))
        return results

    async def delete_all(self) -> None:
        """Forget every group of the partitions led here, with members or without, and their offsets.

        Not for clients: between two tests that share a broker. Members learn that they are unknown.
        """
        for led in self.leadership:
            if self.leadership.serving(led.partition) is led:
                self._drive(led, None, led.shard.delete_all)
                await self._committed(led)

    def list_groups(self, states: Collection[str], kinds: Collection[str]) -> list[ListedGroup]:
        """Groups of the partitions led here; see `Shard.list_groups`.

        Raises COORDINATOR_LOAD_IN_PROGRESS while any of them is being loaded.
        """
        self.leadership.check_loaded()
        wanted, of_kinds = ({each.strip().lower() for each in given} for given in (states, kinds))
        return [
            group
            for led in self.leadership
            if led.serves
            for group in led.shard.list_groups(wanted, of_kinds)
        ]

    def describe(self, group_id: str) -> DescribedGroup:
        """A classic group of this node, as it is in memory: so it is in Kafka, and a rebalance is in no
        log. Raises NotClassicGroup."""
        return self.leadership.active(group_id).shard.describe(group_id)

    async def describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        """As for `fetch`, what will not be taken back. Raises GROUP_ID_NOT_FOUND for what is no
        consumer group of this node."""
        led = self.leadership.active(group_id)
        return await self._look(led, partial(led.shard.describe_consumer, group_id))

    @property
    def protocols(self) -> Collection[str]:
        """The kinds of groups that may be joined (`group.coordinator.rebalance.protocols`)."""
        return self._config.protocols

    @property
    def assignors(self) -> Sequence[str]:
        """What members of consumer groups may ask for, the default first."""
        return self._config.consumer_assignors

    def topics_changed(
        self, image: MetadataImage, topics: Collection[str], *, created: bool
    ) -> None:
        """`image` has these topics created, deleted or changed, `created` if there are new ones."""
        self._environment.topics_changed(image, topics, created=created)

    def topics_deleted(self, topics: Sequence[tuple[str, UUID]]) -> None:
        """Forget the offsets committed for topics (name, id) that were deleted."""
        for led in self.leadership:
            for name, topic_id in topics:
                if led.serves:
                    self._drive(led, None, partial(_delete_topic, led.shard, name, topic_id))

    async def _ask(
        self,
        group_id: str,
        act: Callable[[Shard, Waiter, Now], Actions],
        response_type: type[A],
    ) -> A:
        led = self.leadership.active(group_id)
        waiter = ClientWaiter[Response]()
        if not self._drive(led, group_id, lambda now: act(led.shard, waiter, now)):
            raise KafkaError(ErrorCode.unknown_server_error, "a group broke an invariant")
        respond = await waiter.wait()
        assert isinstance(respond, response_type)
        return respond

    async def _look(self, led: Led, look: Callable[[], T]) -> T:
        """What `look` finds now, told when it is replicated: that a member or a group is not there too."""
        try:
            found = look()
        except KafkaError:
            await self._committed(led)
            raise
        await self._committed(led)
        return found

    async def _committed(self, led: Led) -> None:
        """Wait for the records that are on their way to the replicas, if there are any."""
        if self._log.is_committed(led.partition, led.last_offset):
            return
        waiter = ClientWaiter[Response]()
        then = Respond((Reply(waiter, HeartbeatResponse(NO_ERROR)),))
        self.leadership.wait_for(led, then)
        respond = await waiter.wait()
        assert isinstance(respond, HeartbeatResponse)
        if respond.error is not NO_ERROR:
            raise KafkaError(ErrorCode.not_coordinator, "what was committed is not replicated")

    # Doing what a shard says

    def _drive(self, led: Led, group_id: str | None, act: Callable[[Now], Actions]) -> bool:
        """Let something happen to a shard, and do what it says. False if that showed a bug."""
        try:
            self._perform(led, group_id, act(self._now()))
        except Exception:
            self.leadership.broken(led)
            return False
        return True

    def _perform(self, led: Led, group_id: str | None, actions: Actions) -> None:
        """Append, answer, and go on with what follows from that, until nothing does."""
        todo = deque([actions])
        while todo:
            actions = todo.popleft()
            for note in actions.notes:
                log.info("group %s: %s", group_id, note)
            self.statistics.completed_rebalances += actions.completed_rebalances
            self._respond(actions.replies)
            todo.extend(self._append(led, append) for append in actions.appends)
            for resolve in actions.resolves:
                assert self._nursery is not None, "the coordinator does not run"
                self._nursery.start_soon(self._resolve, led, resolve)
        if group_id is not None:
            self._timers.arm((led.partition, group_id), led.shard.wake_ms(group_id))

    @staticmethod
    def _respond(replies: Iterable[Reply]) -> None:
        for waiter, respond in replies:
            waiter.set(respond)

    def _append(self, led: Led, append: Append) -> Actions:
        try:
            write(append, led, self._log, self._config, self._now())
        except KafkaError as error:
            log.warning("records of the offsets topic could not be written: %s", error)
            code = AS_COORDINATOR.get(error.code, error.code)
            return led.shard.append_failed(append.then, code, self._now(), written=False)
        if self.leadership.is_committed(led):
            return led.shard.appended(append.then, self._now())
        self.leadership.wait_for(led, append.then)
        return Actions()

    def _due(self, key: tuple[int, str]) -> None:
        partition, group_id = key
        led = self.leadership.served(partition)
        if led is not None:
            self._drive(led, group_id, partial(led.shard.tick, group_id))
        elif self.leadership.is_loading(partition):
            self._timers.arm(key, monotonic_ms(self._clock) + WHILE_LOADING_MS)

    # Expressions

    async def _resolve(self, led: Led, resolve: Resolve) -> None:
        """Match the topics there are now, and say which were found."""
        try:
            resolved = await resolve_expressions(resolve, self._environment.topics, self._clock)
        except Exception:  # a bug takes its partition out of service, not the node
            self.leadership.broken(led)
            return
        if self.leadership.holds(led):
            act = partial(led.shard.expressions_resolved, resolve.group_id, resolved)
            self._drive(led, resolve.group_id, act)

    # Expiry

    async def _run_expiry(self) -> None:
        while True:
            await self._clock.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            for led in self.leadership:
                await self._expire(led)

    async def _expire(self, led: Led) -> None:
        turn = Turn(self._clock)
        for group_id in list(led.shard.groups):
            if not self.leadership.holds(led):
                return
            self._drive(led, group_id, partial(self._expire_group, led.shard, group_id))
            await turn.pass_on()

    def _expire_group(self, shard: Shard, group_id: str, now: Now) -> Actions:
        actions, count = shard.expire(group_id, now)
        self.statistics.offset_expirations += count
        return actions

    # What is going on

    def count_by_state(self) -> Counter[tuple[str, str]]:
        """How many groups there are by kind and state."""
        return Counter(
            (group.kind, group.state_name)
            for led in self.leadership
            for group in led.shard.groups.values()
        )

    @property
    def offset_count(self) -> int:
        return sum(led.shard.offsets.count for led in self.leadership)


def _settled(shard: Shard, then: Then, code: ErrorCode, now: Now) -> Actions:
    if code is NO_ERROR:
        return shard.appended(then, now)
    return shard.append_failed(then, code, now, written=True)


def _delete(group_id: str) -> Callable[[Shard, Waiter, Now], Actions]:
    return lambda shard, waiter, now: shard.delete_group(group_id, waiter)


def _delete_topic(shard: Shard, name: str, topic_id: UUID, now: Now) -> Actions:
    return shard.topic_deleted(name, topic_id)


def _end_transaction(shard: Shard, marker: TransactionMarker, now: Now) -> Actions:
    shard.end_transaction(marker.producer_id, committed=marker.is_commit)
    return Actions()
