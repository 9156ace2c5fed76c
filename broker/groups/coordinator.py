"""The driver of the group coordinator: shards and their log, waiting clients, timers, loading.

It decides nothing about groups. A request is handed to the shard of its group's partition together
with a waiter; what comes back is done at once and in order: records are appended, which is
synchronous, so that all that happens to a partition's groups happens one after the other, and the
answers that depend on them are given when the high watermark has passed them. Nobody else's answer
waits for that.

Tasks: one for timers (a heap of the groups' next deadlines), one that loads elected partitions, one
that lets old offsets expire, and while records of a partition are not replicated yet, one that waits
for them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

import trio

from odradek.broker.groups.actions import (
    NO_ERROR,
    Actions,
    Answer,
    Append,
    GroupErrors,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    Now,
    PartitionErrors,
    Reply,
    Respond,
    Sync,
    SyncAnswer,
    Then,
    Waiter,
)
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.led import (
    AS_COORDINATOR,
    ClientWaiter,
    GroupStatistics,
    LedPartition,
    LoadInProgress,
    NotCoordinator,
    Uncommitted,
)
from odradek.broker.groups.offsets import FetchedTopic
from odradek.broker.groups.shard import Commit, DescribedGroup, ListedGroup, Shard
from odradek.broker.groups.store import CoordinatorLog, Loader, build_batches, partition_for
from odradek.broker.groups.timers import Timers, Turn, monotonic_ms
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy

log = logging.getLogger("odradek.groups")

A = TypeVar("A", bound=Answer)


class GroupCoordinator:
    """See the module. Requests raise KafkaError where there is no group to ask."""

    def __init__(
        self, log: CoordinatorLog, config: GroupConfig, *, clock: Clock, entropy: Entropy
    ) -> None:
        self._log = log
        self._config = config
        self._clock = clock
        self._entropy = entropy
        self._led: dict[int, LedPartition] = {}
        self._to_load: deque[LedPartition] = deque()
        self._load_wanted = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._timers = Timers(clock, self._due)
        self.statistics = GroupStatistics()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the timers, loads and waits until cancelled; started() at once."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._run_loads)
            nursery.start_soon(self._timers.run)
            nursery.start_soon(self._run_expiry)
            task_status.started()

    def _now(self) -> Now:
        return Now(monotonic_ms(self._clock), self._clock.wall_ms())

    # Leadership

    def elected(self, partition: int, leader_epoch: int) -> None:
        """This node leads a partition of `__consumer_offsets`: load it and serve its groups.

        May be called before `run`, which then does the loading. An empty partition is served at
        once, without any waiting. Repeated for the same leadership it does nothing.
        """
        led = self._led.get(partition)
        if led is not None and not led.failed:
            led.leader_epoch = max(led.leader_epoch, leader_epoch)
            return
        led = LedPartition(partition, leader_epoch, Shard(self._config))
        self._led[partition] = led
        if self._log.start_offset(partition) == self._log.end_offset(partition):
            led.loading = False
        else:
            self._to_load.append(led)
            self._load_wanted.set()

    def resigned(self, partition: int) -> None:
        """This node leads it no more: everyone who waits is told NOT_COORDINATOR."""
        led = self._led.pop(partition, None)
        if led is not None:
            self._unload(led)

    def _unload(self, led: LedPartition) -> None:
        if led.running is not None:
            led.running.cancel()
        if not led.serves:
            return
        code = ErrorCode.not_coordinator
        now = self._now()
        replies = led.shard.unloaded(code, now).replies
        while led.uncommitted:
            then = led.uncommitted.popleft().then
            replies += led.shard.append_failed(then, code, now, written=True).replies
        self._answer(replies)

    def _break(self, led: LedPartition) -> None:
        """A bug showed itself. The groups of this partition alone lose their coordinator."""
        log.exception("partition %d of the offsets topic broke an invariant", led.partition)
        self._unload(led)
        led.failed = True

    def partition_for(self, group_id: str) -> int:
        """The partition whose leader coordinates the group.

        Raises COORDINATOR_NOT_AVAILABLE while the topic does not exist.
        """
        count = self._log.partition_count()
        if count == 0:
            raise KafkaError(ErrorCode.coordinator_not_available, "there is no offsets topic yet")
        return partition_for(group_id, count)

    def _active(self, group_id: str) -> LedPartition:
        if self._log.partition_count() == 0:
            raise NotCoordinator("there is no offsets topic yet")
        return self._serving(self.partition_for(group_id))

    def _serving(self, partition: int) -> LedPartition:
        led = self._led.get(partition)
        if led is not None and led.serves:
            return led
        if led is not None and led.loading:
            raise LoadInProgress(f"partition {partition} of the offsets topic is being loaded")
        raise NotCoordinator(f"partition {partition} of the offsets topic is not led here")

    # Requests

    async def join(self, request: Join) -> JoinAnswer:
        if not request.group_id:
            return JoinAnswer(ErrorCode.invalid_group_id, request.member_id)
        low, high = self._config.min_session_timeout_ms, self._config.max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            return JoinAnswer(ErrorCode.invalid_session_timeout, request.member_id)
        return await self._ask(
            request.group_id, lambda shard, *rest: shard.join(request, *rest), JoinAnswer
        )

    def fresh_id(self) -> str:
        """What makes a new member's id its own."""
        return str(self._entropy.uuid())

    async def sync(self, request: Sync) -> SyncAnswer:
        if not request.group_id:
            return SyncAnswer(ErrorCode.invalid_group_id)
        return await self._ask(
            request.group_id, lambda shard, *rest: shard.sync(request, *rest), SyncAnswer
        )

    async def heartbeat(self, request: Heartbeat) -> HeartbeatAnswer:
        if not request.group_id:
            return HeartbeatAnswer(ErrorCode.invalid_group_id)
        try:
            return await self._ask(
                request.group_id,
                lambda shard, *rest: shard.heartbeat(request, *rest),
                HeartbeatAnswer,
            )
        except LoadInProgress:  # nothing can have happened to the member meanwhile
            return HeartbeatAnswer(NO_ERROR)

    async def leave(self, request: Leave) -> LeaveAnswer:
        if not request.group_id:
            return LeaveAnswer(ErrorCode.invalid_group_id)
        return await self._ask(
            request.group_id, lambda shard, *rest: shard.leave(request, *rest), LeaveAnswer
        )

    async def commit(self, request: Commit) -> PartitionErrors:
        answer = await self._ask(
            request.group_id, lambda shard, *rest: shard.commit(request, *rest), PartitionErrors
        )
        self.statistics.offset_commits += _successes(answer)
        return answer

    async def fetch(
        self,
        group_id: str,
        topics: Sequence[tuple[str, UUID | None, Iterable[int]]] | None,
        *,
        require_stable: bool,
    ) -> list[FetchedTopic]:
        """Committed offsets, all of the group's where `topics` is None.

        What is fetched will not be taken back: it is on all in-sync replicas.
        """
        led = self._active(group_id)
        await self._committed(led)
        return led.shard.fetch(group_id, topics, require_stable=require_stable)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> PartitionErrors:
        if not group_id:
            return PartitionErrors(ErrorCode.invalid_group_id, ())
        answer = await self._ask(
            group_id,
            lambda shard, waiter, now: shard.delete_offsets(group_id, partitions, waiter),
            PartitionErrors,
        )
        self.statistics.offset_deletions += _successes(answer)
        return answer

    async def delete_groups(self, group_ids: Iterable[str]) -> list[tuple[str, ErrorCode]]:
        """Each group with what became of it."""
        results: list[tuple[str, ErrorCode]] = []
        for group_id in dict.fromkeys(group_ids):
            try:
                answer = await self._ask(group_id, _delete(group_id), GroupErrors)
                results += answer.groups
            except KafkaError as error:
                results.append((group_id, error.code))
        return results

    async def delete_all(self) -> None:
        """Forget every group of the partitions led here, with members or without, and their offsets.

        Not for clients: between two tests that share a broker. Members learn that they are unknown.
        """
        for led in list(self._led.values()):
            if self._serving(led.partition) is led:
                self._drive(led, None, led.shard.delete_all)
                await self._committed(led)

    def list_groups(self, states: Collection[str], kinds: Collection[str]) -> list[ListedGroup]:
        """Groups of the partitions led here; see `Shard.list_groups`.

        Raises COORDINATOR_LOAD_IN_PROGRESS while any of them is being loaded.
        """
        if any(led.loading for led in self._led.values()):
            raise LoadInProgress("groups are being loaded")
        wanted = {state.strip().lower() for state in states}
        of_kinds = {kind.strip().lower() for kind in kinds}
        return [
            group
            for led in self._led.values()
            if led.serves
            for group in led.shard.list_groups(wanted, of_kinds)
        ]

    def describe(self, group_id: str) -> DescribedGroup | None:
        """A group of this node, or None if there is no such group."""
        return self._active(group_id).shard.describe(group_id)

    def topics_deleted(self, topics: Sequence[tuple[str, UUID]]) -> None:
        """Forget the offsets committed for topics (name, id) that were deleted."""
        for led in list(self._led.values()):
            for name, topic_id in topics:
                if led.serves:
                    self._drive(led, None, partial(_delete_topic, led.shard, name, topic_id))

    async def _ask(
        self,
        group_id: str,
        act: Callable[[Shard, Waiter, Now], Actions],
        answer_type: type[A],
    ) -> A:
        led = self._active(group_id)
        waiter = ClientWaiter()
        if not self._drive(led, group_id, lambda now: act(led.shard, waiter, now)):
            raise KafkaError(ErrorCode.unknown_server_error, "a group broke an invariant")
        answer = await waiter.wait()
        assert isinstance(answer, answer_type)
        return answer

    async def _committed(self, led: LedPartition) -> None:
        """Wait for the records that are on their way to the replicas, if there are any."""
        if self._log.is_committed(led.partition, led.last_offset):
            return
        waiter = ClientWaiter()
        then = Respond((Reply(waiter, HeartbeatAnswer(NO_ERROR)),))
        self._wait_for(led, led.last_offset, then)
        answer = await waiter.wait()
        assert isinstance(answer, HeartbeatAnswer)
        if answer.error is not NO_ERROR:
            raise KafkaError(ErrorCode.not_coordinator, "what was committed is not replicated")

    # Doing what a shard says

    def _drive(
        self, led: LedPartition, group_id: str | None, act: Callable[[Now], Actions]
    ) -> bool:
        """Let something happen to a shard, and do what it says. False if that showed a bug."""
        try:
            self._perform(led, group_id, act(self._now()))
        except Exception:
            self._break(led)
            return False
        return True

    def _perform(self, led: LedPartition, group_id: str | None, actions: Actions) -> None:
        """Append, answer, and go on with what follows from that, until nothing does."""
        todo = deque([actions])
        while todo:
            actions = todo.popleft()
            for note in actions.notes:
                log.info("group %s: %s", group_id, note)
            self.statistics.completed_rebalances += actions.completed_rebalances
            self._answer(actions.replies)
            todo.extend(self._append(led, append) for append in actions.appends)
        if group_id is not None:
            self._timers.arm((led.partition, group_id), led.shard.wake_ms(group_id))

    @staticmethod
    def _answer(replies: Iterable[Reply]) -> None:
        for waiter, answer in replies:
            waiter.set(answer)

    def _append(self, led: LedPartition, append: Append) -> Actions:
        try:
            self._write(led, append)
        except KafkaError as error:
            log.warning("records of the offsets topic could not be written: %s", error)
            code = AS_COORDINATOR.get(error.code, error.code)
            return led.shard.append_failed(append.then, code, self._now(), written=False)
        if not led.uncommitted and self._log.is_committed(led.partition, led.last_offset):
            return led.shard.appended(append.then, self._now())
        self._wait_for(led, led.last_offset, append.then)
        return Actions()

    def _write(self, led: LedPartition, append: Append) -> None:
        """Raises KafkaError if not all records could be written; those that were are replayed."""
        now = self._now()
        for batch, records in build_batches(
            append.records,
            now_ms=now.wall_ms,
            compression=self._config.offsets_topic_compression,
            batch_bytes_max=self._log.batch_bytes_max(led.partition),
            atomic=append.atomic,
        ):
            first_offset = self._log.append(led.partition, batch, now.wall_ms)
            led.last_offset = first_offset + len(records) - 1
            if append.replay:
                for position, record in enumerate(records):
                    led.shard.replay(record, first_offset + position)

    def _wait_for(self, led: LedPartition, offset: int, then: Then) -> None:
        deadline_ms = self._now().monotonic_ms + self._config.commit_timeout_ms
        led.uncommitted.append(Uncommitted(offset, then, deadline_ms))
        if led.running is None:
            assert self._nursery is not None, "the coordinator does not run"
            led.running = trio.CancelScope()
            self._nursery.start_soon(self._await_replicas, led, led.running)

    async def _await_replicas(self, led: LedPartition, scope: trio.CancelScope) -> None:
        """Go on with what waits for the high watermark, in order, until nothing does."""
        with scope:
            while led.serves and led.uncommitted:
                head = led.uncommitted[0]
                code = await self._await_commit(led, head)
                if led.serves and self._led.get(led.partition) is led:
                    group_id = getattr(head.then, "group_id", None)
                    self._drive(led, group_id, partial(_settled, led.shard, head.then, code))
                    if led.uncommitted:  # it stood there until now so that nothing overtook it
                        led.uncommitted.popleft()
        led.running = None

    async def _await_commit(self, led: LedPartition, head: Uncommitted) -> ErrorCode:
        seconds = max(head.deadline_ms - self._now().monotonic_ms, 0) / 1000
        with trio.move_on_after(seconds):
            try:
                await self._log.wait_committed(led.partition, head.offset)
            except KafkaError as error:
                return AS_COORDINATOR.get(error.code, error.code)
            return NO_ERROR
        return ErrorCode.coordinator_not_available

    def _due(self, key: tuple[int, str]) -> None:
        partition, group_id = key
        led = self._led.get(partition)
        if led is not None and led.serves:
            self._drive(led, group_id, partial(led.shard.tick, group_id))

    # Expiry

    async def _run_expiry(self) -> None:
        while True:
            await self._clock.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            for led in list(self._led.values()):
                await self._expire(led)

    async def _expire(self, led: LedPartition) -> None:
        turn = Turn(self._clock)
        for group_id in list(led.shard.groups):
            if not led.serves or self._led.get(led.partition) is not led:
                return
            self._drive(led, group_id, partial(self._expire_group, led.shard, group_id))
            await turn.pass_on()

    def _expire_group(self, shard: Shard, group_id: str, now: Now) -> Actions:
        actions, count = shard.expire(group_id, now)
        self.statistics.offset_expirations += count
        return actions

    # Loading

    async def _run_loads(self) -> None:
        while True:
            while self._to_load:
                led = self._to_load.popleft()
                if self._led.get(led.partition) is led:
                    with trio.CancelScope() as led.running:
                        await self._load(led)
                    led.running = None
            self._load_wanted = trio.Event()
            await self._load_wanted.wait()

    async def _load(self, led: LedPartition) -> None:
        started = self._clock.monotonic()
        loader = Loader(led.shard)
        try:
            await self._replay_all(led, loader)
        except Exception as error:  # whatever stands there, it takes nothing else down
            log.error(
                "partition %d of the offsets topic can't be loaded, its groups have no coordinator: %s",
                led.partition,
                error,
                exc_info=not isinstance(error, KafkaError),
            )
            led.loading, led.failed = False, True
            self.statistics.failed_loads += 1
            return
        led.loading = False
        led.last_offset = loader.next_offset - 1
        self.statistics.loads += 1
        for group_id in list(led.shard.groups):
            if led.serves:
                self._drive(led, group_id, partial(led.shard.loaded, group_id))
        log.info(
            "partition %d of the offsets topic: %d records gave %d groups and %d offsets in %.0f ms",
            led.partition,
            loader.record_count,
            len(led.shard.groups),
            led.shard.offsets.count,
            (self._clock.monotonic() - started) * 1000,
        )

    async def _replay_all(self, led: LedPartition, loader: Loader) -> None:
        turn = Turn(self._clock)
        offset = self._log.start_offset(led.partition)
        while offset < self._log.end_offset(led.partition):
            size = self._config.offsets_load_buffer_bytes
            data = await self._log.read(led.partition, offset, size)
            if not len(data):
                break
            for _ in loader.feed(data):
                await turn.pass_on()
            offset = loader.next_offset
        for _ in loader.finish():
            await turn.pass_on()

    # What is going on

    def count_by_state(self) -> Counter[tuple[str, str]]:
        """How many groups there are by kind and state."""
        return Counter(
            (group.kind, group.state_name)
            for led in self._led.values()
            for group in led.shard.groups.values()
        )

    @property
    def offset_count(self) -> int:
        return sum(led.shard.offsets.count for led in self._led.values())


def _settled(shard: Shard, then: Then, code: ErrorCode, now: Now) -> Actions:
    if code is NO_ERROR:
        return shard.appended(then, now)
    return shard.append_failed(then, code, now, written=True)


def _delete(group_id: str) -> Callable[[Shard, Waiter, Now], Actions]:
    return lambda shard, waiter, now: shard.delete_group(group_id, waiter)


def _delete_topic(shard: Shard, name: str, topic_id: UUID, now: Now) -> Actions:
    return shard.topic_deleted(name, topic_id)


def _successes(answer: PartitionErrors) -> int:
    return sum(error is NO_ERROR for _, _, error in answer.partitions)
