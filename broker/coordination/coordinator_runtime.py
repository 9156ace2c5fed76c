"""The partitions of a coordinator's topic that this node leads: elected, loaded, served, resigned.

An elected partition is loaded: its records are replayed into its shard, the state of all keys that
belong to it. Then it serves, until it resigns or a bug shows itself in it. Records that were written
take effect for clients once all in-sync replicas have them; who waits for that is told in the order
of the log, one task for each partition while there is something to wait for.
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
from odradek.broker.timers import Turn, monotonic_ms
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.clock import Clock
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
"""What a coordinator's clients are told of an error of its log."""

LOAD_RETRY_SECONDS = 1.0
"""After which a load goes on that found no file descriptor."""

S = TypeVar("S")
T = TypeVar("T")


class NotCoordinator(KafkaError):
    code = ErrorCode.not_coordinator


class LoadInProgress(KafkaError):
    code = ErrorCode.coordinator_load_in_progress


@dataclass(slots=True)
class PendingAppend(Generic[T]):
    """Records that are in the log, but not yet on all in-sync replicas; `completion` is what follows."""

    offset: int
    completion: T
    deadline_ms: int


@dataclass(slots=True)
class CoordinatorContext(Generic[S, T]):
    """A partition that this node leads."""

    partition: int
    leader_epoch: int
    shard: S
    loading: bool = True
    failed: bool = False
    """Its records can't be read; its keys have no coordinator until it changes hands."""
    uncommitted: deque[PendingAppend[T]] = field(default_factory=deque)
    last_offset: int = -1
    """Of the last record written here."""
    running: trio.CancelScope | None = None
    """Around the task that runs for it: its load, later on the wait for replicas."""

    @property
    def serves(self) -> bool:
        return not self.loading and not self.failed


class CoordinatorCallbacks(Protocol[S, T]):
    """Whose partitions these are. All is called on the loop."""

    def new_shard(self) -> S: ...

    def new_loader(self, shard: S) -> CoordinatorLoader: ...

    def on_replayed(self, context: CoordinatorContext[S, T]) -> Iterator[None]:
        """All is replayed, and nobody is served yet: see to every key, which there may be many of;
        yields wherever others may run."""
        ...

    def on_loaded(self, context: CoordinatorContext[S, T]) -> str:
        """It is served from now on; what there is, in words."""
        ...

    def on_unloaded(self, context: CoordinatorContext[S, T]) -> None:
        """It is served no more: whoever waits, for replicas too, is told NOT_COORDINATOR."""
        ...

    def on_append_completed(
        self, context: CoordinatorContext[S, T], completion: T, code: ErrorCode
    ) -> None:
        """The replicas have the records of `completion`, or will not have them in time."""
        ...


class CoordinatorRuntime(Generic[S, T]):
    """See the module."""

    def __init__(
        self,
        topic: str,
        coordinator: CoordinatorCallbacks[S, T],
        log: CoordinatorLog,
        clock: Clock,
        *,
        load_buffer_bytes: int,
        commit_timeout_ms: int,
        serves_committed: bool = False,
    ) -> None:
        """`serves_committed`: a partition is not served before all in-sync replicas have what was
        loaded. What is done or said by it then cannot be undone by a leader that has not got it."""
        self._serves_committed = serves_committed
        self._topic = topic
        self._coordinator = coordinator
        self._log = log
        self._clock = clock
        self._load_buffer_bytes = load_buffer_bytes
        self._commit_timeout_ms = commit_timeout_ms
        self._contexts: dict[int, CoordinatorContext[S, T]] = {}
        self._to_load: deque[CoordinatorContext[S, T]] = deque()
        self._load_wanted = trio.Event()
        self._nursery: trio.Nursery | None = None
        self.loads = 0
        self.failed_loads = 0
        """Partitions whose records could not be read."""

    def __iter__(self) -> Iterator[CoordinatorContext[S, T]]:
        """The partitions led, those that are being loaded included."""
        return iter(tuple(self._contexts.values()))

    def is_current(self, context: CoordinatorContext[S, T]) -> bool:
        """Whether it is still served, under the same leadership."""
        return context.serves and self._contexts.get(context.partition) is context

    # Elected and resigned

    def schedule_load(self, partition: int, leader_epoch: int) -> None:
        """This node leads the partition: load it, and serve what belongs to it.

        May be called before `start`, which then does the loading. An empty partition is served at
        once, without any waiting. Repeated for the same leadership it does nothing, nor for the next
        epoch, which this node leads again. Where an epoch was left out another node may have led it,
        and written: all is loaded anew.
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
        """This node leads it no more."""
        context = self._contexts.pop(partition, None)
        if context is not None:
            self._unload(context)

    def _unload(self, context: CoordinatorContext[S, T]) -> None:
        if context.running is not None:
            context.running.cancel()
        if context.serves:
            self._coordinator.on_unloaded(context)

    def fail(self, context: CoordinatorContext[S, T]) -> None:
        """A bug showed itself (an exception is at hand). This partition alone is not served."""
        log.exception("%s-%d broke an invariant", self._topic, context.partition)
        self._unload(context)
        context.loading, context.failed = False, True

    # Asking

    def partition_for(self, key: str) -> int:
        """The partition whose leader coordinates the key.

        Raises COORDINATOR_NOT_AVAILABLE while the topic does not exist.
        """
        count = self._log.partition_count()
        if count == 0:
            raise KafkaError(ErrorCode.coordinator_not_available, f"there is no {self._topic} yet")
        return partition_for(key, count)

    def context_for(self, key: str) -> CoordinatorContext[S, T]:
        """The partition of a key. Raises NotCoordinator or LoadInProgress."""
        if self._log.partition_count() == 0:
            raise NotCoordinator(f"there is no {self._topic} yet")
        return self.active_context(self.partition_for(key))

    def active_context(self, partition: int) -> CoordinatorContext[S, T]:
        context = self._contexts.get(partition)
        if context is not None and context.serves:
            return context
        if context is not None and context.loading:
            raise LoadInProgress(f"{self._topic}-{partition} is being loaded")
        raise NotCoordinator(f"{self._topic}-{partition} is not led here")

    def find_active_context(self, partition: int) -> CoordinatorContext[S, T] | None:
        """The partition, if it is served here."""
        context = self._contexts.get(partition)
        return context if context is not None and context.serves else None

    def is_loading(self, partition: int) -> bool:
        context = self._contexts.get(partition)
        return context is not None and context.loading

    def check_loaded(self) -> None:
        """Raises LoadInProgress while any partition is being loaded."""
        if any(context.loading for context in self._contexts.values()):
            raise LoadInProgress(f"{self._topic} is being loaded")

    def start(self, nursery: trio.Nursery) -> None:
        """Have `nursery` own the loads and the waits for replicas."""
        self._nursery = nursery
        nursery.start_soon(self._run_loads)

    # The replicas

    def is_committed(self, context: CoordinatorContext[S, T]) -> bool:
        """Whether all that was written has reached the replicas, and whoever waited was told."""
        return not context.uncommitted and self._log.is_committed(
            context.partition, context.last_offset
        )

    def complete_when_committed(self, context: CoordinatorContext[S, T], completion: T) -> None:
        """Tell the coordinator `completion` when the replicas have what was written last, or are late."""
        deadline_ms = monotonic_ms(self._clock) + self._commit_timeout_ms
        context.uncommitted.append(PendingAppend(context.last_offset, completion, deadline_ms))
        self._start_waiting_for_commit(context)

    def _start_waiting_for_commit(self, context: CoordinatorContext[S, T]) -> None:
        """See to it that somebody waits for what is uncommitted. A load ends before that begins."""
        if context.running is None and context.uncommitted and self.is_current(context):
            assert self._nursery is not None, "the coordinator does not run"
            context.running = trio.CancelScope()
            self._nursery.start_soon(self._complete_pending_appends, context, context.running)

    async def _complete_pending_appends(
        self, context: CoordinatorContext[S, T], scope: trio.CancelScope
    ) -> None:
        """Go on with what waits for the high watermark, in order, until nothing does."""
        with scope:
            while context.serves and context.uncommitted:
                head = context.uncommitted[0]
                code = await self._await_commit(context, head)
                if self.is_current(context):
                    self._coordinator.on_append_completed(context, head.completion, code)
                    if context.uncommitted:  # it stood there until now so that nothing overtook it
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
                        await self._load(context)
                    context.running = None
                    self._start_waiting_for_commit(
                        context
                    )  # what taking up the loaded state has written
            self._load_wanted = trio.Event()
            await self._load_wanted.wait()

    async def _load(self, context: CoordinatorContext[S, T]) -> None:
        started = self._clock.monotonic()
        loader = self._coordinator.new_loader(context.shard)
        try:
            await self._replay_all(context, loader)
        except Exception as error:  # whatever stands there, it takes nothing else down
            log.error(
                "%s-%d can't be loaded, nobody coordinates what belongs to it: %s",
                self._topic,
                context.partition,
                error,
                exc_info=not isinstance(error, KafkaError),
            )
            context.loading, context.failed = False, True
            self.failed_loads += 1
            return
        if context.failed or self._contexts.get(context.partition) is not context:
            return
        self.loads += 1
        what = (
            f"{loader.record_count} records in {(self._clock.monotonic() - started) * 1000:.0f} ms"
        )
        if self._serves_committed and not self._log.is_committed(
            context.partition, context.last_offset
        ):
            assert self._nursery is not None, "the coordinator does not run"
            self._nursery.start_soon(self._serve_committed, context, what)
        else:
            self._serve(context, what)

    def _serve(self, context: CoordinatorContext[S, T], what: str) -> None:
        context.loading = False
        found = self._coordinator.on_loaded(context)
        log.info("%s-%d: %s gave %s", self._topic, context.partition, what, found)

    async def _serve_committed(self, context: CoordinatorContext[S, T], what: str) -> None:
        """Serve it when the replicas have what was loaded, if it is led until then."""
        with trio.CancelScope() as scope:
            if self._contexts.get(context.partition) is not context:
                return
            context.running = scope
            try:
                await self._log.wait_committed(context.partition, context.last_offset)
            except KafkaError:
                return  # led by another, of which we shall hear
            context.running = None
            self._serve(context, what)

    async def _replay_all(
        self, context: CoordinatorContext[S, T], loader: CoordinatorLoader
    ) -> None:
        turn = Turn(self._clock)
        offset = self._log.start_offset(context.partition)
        while offset < self._log.end_offset(context.partition):
            data = await self._read(context, offset)
            if not len(data):
                break
            for _ in loader.feed(data):
                await turn.pass_on()
            offset = loader.next_offset
        for _ in loader.finish():
            await turn.pass_on()
        context.last_offset = loader.next_offset - 1
        for _ in self._coordinator.on_replayed(context):
            await turn.pass_on()

    async def _read(self, context: CoordinatorContext[S, T], offset: int) -> Buffer:
        """For want of a descriptor it is waited: nobody would load the partition again before it changes
        hands."""
        is_told = False
        while True:
            try:
                return await self._log.read(context.partition, offset, self._load_buffer_bytes)
            except NoDescriptors as error:
                if not is_told:
                    log.warning(
                        "%s-%d is not loaded yet: %s", self._topic, context.partition, error
                    )
                is_told = True
            await self._clock.sleep(LOAD_RETRY_SECONDS)
