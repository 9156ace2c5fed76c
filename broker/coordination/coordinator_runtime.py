"""Loads, serves and unloads a coordinator's partitions, as Kafka's CoordinatorRuntime does.

When this node becomes leader of a partition, the runtime replays the partition's records into a
shard. The shard is then active until the node resigns or an exception shows a bug in it. A write
completes when all in-sync replicas have its records; pending appends complete in log order, in one
task per partition.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import trio

from odradek.broker.coordination.coordinator_loader import CoordinatorLoader
from odradek.broker.coordination.coordinator_log import CoordinatorLog, partition_for
from odradek.broker.timers import EventLoopYield, monotonic_ms
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.clock import Clock
from odradek.seams.containment import Containment
from odradek.seams.files import Buffer
from odradek.storage.errors import NoDescriptors

log = logging.getLogger("odradek.coordination")

COORDINATOR_ERROR_BY_LOG_ERROR: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}
"""Error codes of the log, and the codes that the coordinator returns to clients for them."""

LOAD_RETRY_SECONDS = 1.0
"""Delay before a load that found no file descriptor is retried."""

S = TypeVar("S")
T = TypeVar("T")


class NotCoordinator(KafkaError):
    code = ErrorCode.not_coordinator


class LoadInProgress(KafkaError):
    code = ErrorCode.coordinator_load_in_progress


@dataclass(slots=True)
class PendingAppend(Generic[T]):
    """Appended records that are not committed yet. `completion` is delivered when they are."""

    offset: int
    completion: T
    deadline_ms: int


@dataclass(slots=True)
class CoordinatorContext(Generic[S, T]):
    """State of one internal partition that this node leads."""

    partition: int
    leader_epoch: int
    shard: S
    loading: bool = True
    failed: bool = False
    """The load failed: the keys of this partition have no coordinator until leadership changes."""
    uncommitted: deque[PendingAppend[T]] = field(default_factory=deque)
    last_offset: int = -1
    """Offset of the last record that this leader appended."""
    running: trio.CancelScope | None = None
    """Cancels the partition's task: first the load, later the wait for commits."""

    @property
    def serves(self) -> bool:
        return not self.loading and not self.failed


class CoordinatorCallbacks(Protocol[S, T]):
    """Callbacks of the runtime. All run on the event loop."""

    def new_shard(self) -> S: ...

    def new_loader(self, shard: S) -> CoordinatorLoader: ...

    def on_replayed(self, context: CoordinatorContext[S, T]) -> Iterator[None]:
        """Called after replay, before the shard is active. Yields so that other tasks can run."""
        ...

    def on_loaded(self, context: CoordinatorContext[S, T]) -> str:
        """Called when the shard becomes active. Returns a summary for the log line."""
        ...

    def on_unloaded(self, context: CoordinatorContext[S, T]) -> None:
        """Called when the shard is unloaded: pending requests fail with NOT_COORDINATOR."""
        ...

    def on_append_completed(
        self, context: CoordinatorContext[S, T], completion: T, code: ErrorCode
    ) -> None:
        """Called when an append is committed (`code` is none), failed or timed out."""
        ...


class CoordinatorRuntime(Generic[S, T]):
    """Runtime of all partitions of one internal topic."""

    def __init__(
        self,
        topic: str,
        coordinator: CoordinatorCallbacks[S, T],
        coordinator_log: CoordinatorLog,
        clock: Clock,
        *,
        load_buffer_bytes: int,
        commit_timeout_ms: int,
        serves_committed: bool = False,
    ) -> None:
        """A shard with `serves_committed` becomes active only when all in-sync replicas have the loaded
        records. Another leader can then not revert its responses."""
        self._serves_committed = serves_committed
        self._topic = topic
        self._coordinator = coordinator
        self._log = coordinator_log
        self._clock = clock
        self._load_buffer_bytes = load_buffer_bytes
        self._commit_timeout_ms = commit_timeout_ms
        self._contexts: dict[int, CoordinatorContext[S, T]] = {}
        self._to_load: deque[CoordinatorContext[S, T]] = deque()
        self._load_wanted = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._containment: Containment[CoordinatorContext[S, T]] = Containment(
            "the coordinator",
            self._mark_failed,
            name=lambda context: f"{topic}-{context.partition}",
            consequence="it stays unavailable until its partition is loaded again",
        )
        self.loads = 0
        self.failed_loads = 0
        """Number of partitions whose load failed."""

    def __iter__(self) -> Iterator[CoordinatorContext[S, T]]:
        """Iterate over the partitions led here, including those being loaded."""
        return iter(tuple(self._contexts.values()))

    def is_current(self, context: CoordinatorContext[S, T]) -> bool:
        """Whether this context is active and still the current one of its partition."""
        return context.serves and self._contexts.get(context.partition) is context

    # Load and unload

    def schedule_load(self, partition: int, leader_epoch: int) -> None:
        """Load the partition, of which this node became leader, and make its shard active.

        `start` runs the loads that were scheduled before it. An empty partition becomes active at
        once. A call for the same or the next leader epoch changes nothing. After a gap in the
        epochs another node may have led the partition, so that it is loaded again.
        """
        context = self._contexts.get(partition)
        if context is not None and leader_epoch > context.leader_epoch + 1:
            self.unload(partition)
            context = None
        if context is not None and not context.failed:
            context.leader_epoch = max(context.leader_epoch, leader_epoch)
            return
        context = CoordinatorContext[S, T](partition, leader_epoch, self._coordinator.new_shard())
        self._contexts[partition] = context
        if self._log.start_offset(partition) == self._log.end_offset(partition):
            context.loading = False
        else:
            self._to_load.append(context)
            self._load_wanted.set()

    def unload(self, partition: int) -> None:
        """Unload the partition after this node lost leadership."""
        context = self._contexts.pop(partition, None)
        if context is not None:
            self._unload(context)

    def _unload(self, context: CoordinatorContext[S, T]) -> None:
        if context.running is not None:
            context.running.cancel()
        if context.serves:
            context.failed = True
            self._containment.call(context, self._coordinator.on_unloaded, context)

    def fail(self, context: CoordinatorContext[S, T], error: Exception) -> None:
        """Log an unexpected error and mark the partition as failed. Other partitions stay active."""
        self._containment.failed(context, error)

    def _mark_failed(self, context: CoordinatorContext[S, T], error: Exception) -> None:
        if not context.failed:
            self._unload(context)
        context.loading, context.failed = False, True

    # Lookups

    def partition_for(self, key: str) -> int:
        """Partition of the internal topic that a key belongs to.

        Raises COORDINATOR_NOT_AVAILABLE while the topic does not exist.
        """
        count = self._log.partition_count()
        if count == 0:
            raise KafkaError(
                ErrorCode.coordinator_not_available, f"{self._topic} does not exist yet"
            )
        return partition_for(key, count)

    def context_for(self, key: str) -> CoordinatorContext[S, T]:
        """Context of a key's partition. Raises NotCoordinator or LoadInProgress."""
        if self._log.partition_count() == 0:
            raise NotCoordinator(f"{self._topic} does not exist yet")
        return self.active_context(self.partition_for(key))

    def active_context(self, partition: int) -> CoordinatorContext[S, T]:
        context = self._contexts.get(partition)
        if context is not None and context.serves:
            return context
        if context is not None and context.loading:
            raise LoadInProgress(f"{self._topic}-{partition} is loading")
        raise NotCoordinator(f"this broker is not the leader of {self._topic}-{partition}")

    def find_active_context(self, partition: int) -> CoordinatorContext[S, T] | None:
        """The partition's context if it is active, otherwise None."""
        context = self._contexts.get(partition)
        return context if context is not None and context.serves else None

    def is_loading(self, partition: int) -> bool:
        context = self._contexts.get(partition)
        return context is not None and context.loading

    def check_loaded(self) -> None:
        """Raises LoadInProgress while any partition is being loaded."""
        if any(context.loading for context in self._contexts.values()):
            raise LoadInProgress(f"{self._topic} is loading")

    def start(self, nursery: trio.Nursery) -> None:
        """Run the loads and the waits for commits in `nursery`."""
        self._nursery = nursery
        nursery.start_soon(self._run_loads)

    # Commits

    def is_committed(self, context: CoordinatorContext[S, T]) -> bool:
        """Whether all appended records are committed and all their completions were delivered."""
        return not context.uncommitted and self._log.is_committed(
            context.partition, context.last_offset
        )

    def complete_when_committed(self, context: CoordinatorContext[S, T], completion: T) -> None:
        """Deliver `completion` when the last append is committed or times out."""
        deadline_ms = monotonic_ms(self._clock) + self._commit_timeout_ms
        context.uncommitted.append(PendingAppend(context.last_offset, completion, deadline_ms))
        self._start_waiting_for_commit(context)

    def _start_waiting_for_commit(self, context: CoordinatorContext[S, T]) -> None:
        """Start the task that waits for commits unless it runs. It does not start during a load."""
        if context.running is None and context.uncommitted and self.is_current(context):
            assert self._nursery is not None, "the coordinator does not run"
            context.running = trio.CancelScope()
            self._nursery.start_soon(
                self._containment.run,
                context,
                self._complete_pending_appends,
                context,
                context.running,
            )

    async def _complete_pending_appends(
        self, context: CoordinatorContext[S, T], scope: trio.CancelScope
    ) -> None:
        """Deliver completions in log order until none is pending."""
        with scope:
            while context.serves and context.uncommitted:
                head = context.uncommitted[0]
                code = await self._await_commit(context, head)
                if self.is_current(context):
                    self._coordinator.on_append_completed(context, head.completion, code)
                    # Removed only now, so that later appends complete after it
                    if context.uncommitted:
                        context.uncommitted.popleft()
        context.running = None

    async def _await_commit(
        self, context: CoordinatorContext[S, T], head: PendingAppend[T]
    ) -> ErrorCode:
        seconds = max(head.deadline_ms - monotonic_ms(self._clock), 0) / 1000
        with trio.move_on_after(seconds):
            try:
                await self._log.wait_committed(context.partition, head.offset)
            except KafkaError as error:
                return COORDINATOR_ERROR_BY_LOG_ERROR.get(error.code, error.code)
            return ErrorCode.none
        return ErrorCode.coordinator_not_available

    # Loading

    async def _run_loads(self) -> None:
        while True:
            while self._to_load:
                context = self._to_load.popleft()
                if self._contexts.get(context.partition) is context:
                    with trio.CancelScope() as context.running:
                        await self._containment.run(context, self._load, context)
                    context.running = None
                    self._start_waiting_for_commit(context)  # records that `on_replayed` appended
            self._load_wanted = trio.Event()
            await self._load_wanted.wait()

    async def _load(self, context: CoordinatorContext[S, T]) -> None:
        started = self._clock.monotonic()
        loader = self._coordinator.new_loader(context.shard)
        try:
            await self._replay_all(context, loader)
        except Exception as error:  # an invalid record fails only its partition
            log.error(
                "Failed to load %s-%d at offset %d: its coordinator stays unavailable until another replica leads or"
                " the records up to this offset are deleted (kafka-delete-records) and this broker restarts: %s",
                self._topic,
                context.partition,
                loader.next_offset,
                error,
                exc_info=not isinstance(error, KafkaError),
            )
            context.loading, context.failed = False, True
            self.failed_loads += 1
            return
        if context.failed or self._contexts.get(context.partition) is not context:
            return
        if loader.invalid_count:
            log.warning(
                "Skipped %d invalid records of %s-%d, the first at %s",
                loader.invalid_count,
                self._topic,
                context.partition,
                loader.first_invalid,
            )
        self.loads += 1
        load_summary = (
            f"{loader.record_count} records in {(self._clock.monotonic() - started) * 1000:.0f} ms"
        )
        if self._serves_committed and not self._log.is_committed(
            context.partition, context.last_offset
        ):
            assert self._nursery is not None, "the coordinator does not run"
            self._nursery.start_soon(
                self._containment.run, context, self._serve_committed, context, load_summary
            )
        else:
            self._serve(context, load_summary)

    def _serve(self, context: CoordinatorContext[S, T], load_summary: str) -> None:
        context.loading = False
        state_summary = self._coordinator.on_loaded(context)
        log.info(
            "Loaded %s-%d: %s with %s", self._topic, context.partition, load_summary, state_summary
        )

    async def _serve_committed(self, context: CoordinatorContext[S, T], load_summary: str) -> None:
        """Make the shard active once the loaded records are committed, if this node still leads."""
        with trio.CancelScope() as scope:
            if self._contexts.get(context.partition) is not context:
                return
            context.running = scope
            try:
                await self._log.wait_committed(context.partition, context.last_offset)
            except KafkaError:
                return  # lost leadership; the metadata change unloads the partition
            context.running = None
            self._serve(context, load_summary)

    async def _replay_all(
        self, context: CoordinatorContext[S, T], loader: CoordinatorLoader
    ) -> None:
        event_loop = EventLoopYield(self._clock)
        offset = self._log.start_offset(context.partition)
        while offset < self._log.end_offset(context.partition):
            data = await self._read(context, offset)
            if not len(data):
                break
            for _ in loader.feed(data):
                await event_loop.yield_if_due()
            offset = loader.next_offset
        for _ in loader.finish():
            await event_loop.yield_if_due()
        context.last_offset = loader.next_offset - 1
        for _ in self._coordinator.on_replayed(context):
            await event_loop.yield_if_due()

    async def _read(self, context: CoordinatorContext[S, T], offset: int) -> Buffer:
        """Read from the log; retry while no file descriptor is available. A failed load would not
        be repeated before leadership changes."""
        is_logged = False
        while True:
            try:
                return await self._log.read(context.partition, offset, self._load_buffer_bytes)
            except NoDescriptors as error:
                if not is_logged:
                    log.warning(
                        "Unable to load the coordinator of %s-%d, retrying: %s",
                        self._topic,
                        context.partition,
                        error,
                    )
                is_logged = True
            await self._clock.sleep(LOAD_RETRY_SECONDS)
