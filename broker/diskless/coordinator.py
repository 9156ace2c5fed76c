"""One replica of a partition of `__diskless_metadata`, and the coordinator while this broker leads it (KIP-1164, D-13).

    request → decision (committed state + pending operations) → append, one batch → high watermark → state → response

Every replica applies the committed records to its `DisklessState`, in the order of their offsets and each once, so that
followers serve stale reads too. The leader makes decisions one after another, in the order of arrival, and does not
wait for the previous one to be committed (D-17, D-18). The response to an operation is sent when its records have been
applied. Operations without records, and strict reads, wait until all records before them have been applied (D-19).
Records are applied only below the high watermark.

A new leader makes its first decision after it has applied everything that its log had at its election. Until then it
returns COORDINATOR_LOAD_IN_PROGRESS. When it loses the leadership, its pending operations fail with NOT_COORDINATOR;
their records may still be committed, and the caller sends the same request to the next leader.

An unexpected error, or a record that cannot be decoded or applied, fails this coordinator only. It is started again
after a pause, and returns COORDINATOR_NOT_AVAILABLE until then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from uuid import UUID

import trio

from odradek.broker.coordination.coordinator_log import RECORD_OVERHEAD_MAX, RecordsTooLarge
from odradek.broker.coordination.coordinator_runtime import (
    COORDINATOR_ERROR_BY_LOG_ERROR,
    LoadInProgress,
    NotCoordinator,
)
from odradek.broker.coordination.internal_topics import DISKLESS_METADATA_TOPIC
from odradek.broker.diskless.metadata_comparison import MetadataComparison, creation_of
from odradek.broker.diskless.snapshots import (
    CoordinatorSnapshots,
    SnapshotEnvironment,
    StateSnapshot,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import records as log_records
from odradek.protocol.records.batch import HEADER_SIZE, batches
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitFileRequest,
    DisklessCommitFileResponse,
    DisklessCreatePartitionsRequest,
    DisklessCreatePartitionsResponse,
    DisklessDeleteRecordsRequest,
    DisklessDeleteRecordsResponse,
    DisklessDeleteTopicsRequest,
    DisklessDeleteTopicsResponse,
    DisklessHandOverFileRequest,
    DisklessHandOverFileResponse,
)
from odradek.protocol.schemas.diskless_records import (
    DisklessFileCommittedRecord,
    DisklessRecordsDeletedRecord,
    DisklessTopicDeletedRecord,
)
from odradek.protocol.schemas.serde import decode_diskless_record, encode_diskless_record
from odradek.replication.controller.image import MetadataDelta, MetadataImage
from odradek.replication.diskless.coordinator_state_machine import (
    Changes,
    CoordinatorStateMachine,
    Operation,
    RemoveFile,
    Request,
    read_state,
)
from odradek.replication.errors import NotLeader
from odradek.seams.locks import PromptLock
from odradek.seams.values import state_class, value_class
from odradek.storage.diskless.state import DisklessState, LogEntry, StateDamaged
from odradek.storage.errors import LogFailed, NoDescriptors, OffsetOutOfRange

if TYPE_CHECKING:
    from odradek.seams.clock import Clock
    from odradek.seams.files import Buffer, Path
    from odradek.seams.offload import Offload

log = logging.getLogger("odradek.diskless")

T = TypeVar("T")
READ_BYTES: Final = 1 << 20
"""Bytes of the log that are read at once."""
APPLIED_RECORDS_MAX: Final = 2000
"""Records that one transaction of the state applies at most; more wait for the next one."""
RETRY_SECONDS: Final = 1.0
DECODED_BATCHES: Final = 32
"""Batches of the log that are decoded without a pause for other tasks."""


class CoordinatorNotAvailable(KafkaError):
    code = ErrorCode.coordinator_not_available


class SnapshotNeeded(Exception):
    """The log starts after the records that the state has."""


class ReplicaLog(Protocol):
    """The log of a partition of `__diskless_metadata` on this broker. Its methods raise KafkaError as
    `CoordinatorLog` does."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def batch_bytes_max(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """Size of its segments."""
        ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def directory(self) -> str:
        """Path of the log directory that has the log."""
        ...

    def append(self, batch: bytearray, now_ms: int) -> int:
        """Append one batch as leader, and return its first offset. After an error, nothing was appended."""
        ...

    def delete_before(self, offset: int) -> None:
        """Raise the log start offset, as leader. Raises KafkaError."""
        ...

    async def read(self, offset: int, max_bytes: int) -> Buffer:
        """Read whole batches from the one that holds `offset`, at least one; empty at the log end."""
        ...


class StateStore(Protocol):
    """Opens the states of the coordinators on this broker. Its methods may block."""

    def open(self, coordinator_id: int, topic_id: UUID, directory: str) -> DisklessState:
        """Open the state of a replica whose log is in the log directory `directory`; an empty one if there is none, or if
        it is damaged or of another cluster or topic (D-16)."""
        ...

    def remove(self, coordinator_id: int, directory: str) -> None:
        """Delete the closed state of a replica, but not its snapshots."""
        ...

    def begin_snapshot(self, state: DisklessState) -> StateSnapshot:
        """Begin a snapshot of an open state; no other method of the state is called meanwhile. Raises StateDamaged."""
        ...

    def install(self, coordinator_id: int, topic_id: UUID, directory: str, snapshot: Path) -> None:
        """Check a snapshot, and replace the closed state by it. Raises StateDamaged if the snapshot cannot be used."""
        ...


@value_class
class CoordinatorEnvironment:
    """The broker's parts that a coordinator uses."""

    broker_id: int
    clock: Clock
    offload: Offload
    states: StateStore
    image: Callable[[], MetadataImage]
    producer_expiration_ms: int
    on_applied: Callable[[UUID, int], None]
    """Called on the event loop with each partition whose batches changed, after the change was applied here."""


@state_class
class PendingOperation:
    """An operation whose records, or the records before it, are not applied yet."""

    entries: Sequence[LogEntry]
    last_offset: int
    """Offset of its last record, or of the last record before it if it has none."""
    done: trio.Event = field(default_factory=trio.Event)
    error: KafkaError | None = None

    async def wait(self) -> None:
        """Wait until the records are applied. Raises KafkaError if this broker stops being the leader first."""
        await self.done.wait()
        if self.error is not None:
            raise self.error


@state_class
class Leadership:
    """Leadership of this broker without interruption, in one or several leader epochs."""

    load_end: int
    """Log end offset at the election: decisions are made once everything before it is applied."""
    machine: CoordinatorStateMachine
    last_offset: int
    """Offset of the last record of the log."""
    serves: bool = False
    error: KafkaError | None = None
    """Why the leadership has ended."""
    pending: deque[PendingOperation] = field(default_factory=deque)
    is_deciding: bool = False
    unreported_offset: int = -1
    """Applied offset that the machine gets after the current decision; -1 if it has it."""

    def end(self, error: KafkaError) -> None:
        self.error = error
        for operation in self.pending:
            operation.error = error
            operation.done.set()
        self.pending.clear()

    def check(self, name: str) -> None:
        """Check that this leadership makes decisions. Raises KafkaError."""
        if self.error is not None:
            raise self.error
        if not self.serves:
            raise LoadInProgress(f"{name} is loading")

    def applied(self, offset: int) -> None:
        """Complete the operations up to an applied offset."""
        if self.is_deciding:
            self.unreported_offset = offset
        else:
            self.machine.applied(offset)
        while self.pending and self.pending[0].last_offset <= offset:
            self.pending.popleft().done.set()


class DisklessCoordinator:
    """One replica. `run` applies the committed records; operations need the leadership."""

    def __init__(
        self,
        coordinator_id: int,
        topic_id: UUID,
        replica_log: ReplicaLog,
        environment: CoordinatorEnvironment,
        snapshots: SnapshotEnvironment | None = None,
    ) -> None:
        """`topic_id` is that of `__diskless_metadata`. Without `snapshots` there are none."""
        self.coordinator_id = coordinator_id
        self.name = f"{DISKLESS_METADATA_TOPIC}-{coordinator_id}"
        self.directory = replica_log.directory
        """Log directory of the state: that of the log when the state was opened."""
        self.log = replica_log
        self._topic_id = topic_id
        self._environment = environment
        self._state: DisklessState | None = None
        self._state_lock = PromptLock()
        self._deciding = PromptLock()
        self._changed = trio.Event()
        self._applied_offset = -1
        self._has_deleted_batches = True
        """Whether the state may still have batches of deleted records to remove."""
        self._leading_since = -1
        self._leadership: Leadership | None = None
        self._comparison = MetadataComparison(self, environment.image, environment.clock)
        self.snapshot_offset = -1
        """Offset of the last record in the newest snapshot; -1 if there is none."""
        self.snapshots = None if snapshots is None else CoordinatorSnapshots(self, snapshots)
        self._storage_error = ""
        """The last error of the log directory that was logged."""
        self._failure: Exception | None = None
        """Unexpected error of an operation, which `run` raises."""
        self.failed = False
        """Whether an unexpected error stopped the replica until it is started again."""

    # Role

    @property
    def applied_offset(self) -> int:
        """Offset of the last record that the state has; -1 if there is none."""
        return self._applied_offset

    @property
    def is_leader(self) -> bool:
        return self._leading_since >= 0

    @property
    def serves(self) -> bool:
        """Whether decisions are made here."""
        return self._leadership is not None and self._leadership.serves

    @property
    def leader_epoch(self) -> int:
        return self.log.leader_epoch

    def now_ms(self) -> int:
        """Wall clock in ms."""
        return self._environment.clock.wall_ms()

    @property
    def has_state(self) -> bool:
        """Whether this replica can serve stale reads."""
        return self._state is not None and not self.failed

    def lead_since(self, epoch: int) -> None:
        """Take over the role: this broker has led without interruption since leader epoch `epoch`; -1 if another broker
        leads."""
        if epoch == self._leading_since:
            return
        self._leading_since = epoch
        self._end_leadership(self._not_leader())
        if epoch >= 0 and not self.failed:
            self._begin_leadership()
            if self._state is not None:
                try:
                    self._check_not_ahead_of_log()
                except StateDamaged as error:
                    self._fail(error)
        self.wake()

    def _not_leader(self) -> NotCoordinator:
        return NotCoordinator(f"this broker is not the leader of {self.name}")

    def _begin_leadership(self) -> None:
        end = self.log.end_offset
        machine = CoordinatorStateMachine(
            self.coordinator_id,
            producer_expiration_ms=self._environment.producer_expiration_ms,
            elected_ms=self.now_ms(),
        )
        self._leadership = Leadership(end, machine, end - 1)

    def _end_leadership(self, error: KafkaError) -> None:
        leadership, self._leadership = self._leadership, None
        if leadership is not None:
            leadership.end(error)

    def _leads(self) -> Leadership:
        """The current leadership, which makes decisions. Raises KafkaError."""
        leadership = self._leadership
        if leadership is None:
            if self._leading_since < 0:
                raise self._not_leader()
            raise self._failed()
        leadership.check(self.name)
        return leadership

    # Applying

    async def run(self) -> None:
        """Open the state, and apply the committed records until cancelled. A state that cannot be used is removed, and
        built again from the newest snapshot and the log (D-16, D-20). After an error of the log directory it is opened
        again after a pause, unless the replica is closed first because the directory is offline."""
        needs_snapshot, pause_s = False, 0.0
        while True:
            try:
                if needs_snapshot and self.snapshots is not None:
                    needs_snapshot = False
                    await self.snapshots.fetch()
                await self._run_with_state()
            except* SnapshotNeeded:
                needs_snapshot = True
            except* StateDamaged as damaged:
                log.warning(
                    "The state of %s was removed, and is built again from the log: %s",
                    self.name,
                    damaged.exceptions[0],
                )
            except* OSError as failed:
                self.mark_failed(failed)
                self._report_storage_error(first_error(failed))
                pause_s = RETRY_SECONDS
            if not needs_snapshot or self.snapshots is None:
                await self._environment.clock.sleep(pause_s)
                pause_s = RETRY_SECONDS

    def _report_storage_error(self, error: BaseException) -> None:
        """Log an error of the log directory, unless it is the same as the last one."""
        if str(error) != self._storage_error:
            self._storage_error = str(error)
            log.error("The state of %s cannot be used, retrying: %s", self.name, error)

    async def _run_with_state(self) -> None:
        self.directory = self.log.directory
        if self.snapshots is not None:
            await self.snapshots.open()
        self._state = state = await self._open_state()
        self._applied_offset = state.applied_offset
        is_damaged = False
        try:
            self.failed, self._failure = False, None
            if self.is_leader:
                self._check_not_ahead_of_log()
                if self._leadership is None:
                    self._begin_leadership()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._comparison.run)
                if self.snapshots is not None:
                    nursery.start_soon(self.snapshots.run)
                    nursery.start_soon(self.snapshots.prune_repeatedly)
                await self._apply_forever()
        except* StateDamaged as damaged:
            is_damaged = True
            self.mark_failed(damaged)
            raise
        finally:
            with trio.CancelScope(shield=True):
                await self._close_state(is_damaged=is_damaged)

    def _check_not_ahead_of_log(self) -> None:
        """Check that the log of this leader has all records of the state. If it has lost some, new records get their
        offsets. Raises StateDamaged."""
        if self._applied_offset >= self.log.end_offset:
            raise StateDamaged(
                f"it has records up to offset {self._applied_offset}, and the log of the leader ends at offset"
                f" {self.log.end_offset}"
            )

    async def _open_state(self) -> DisklessState:
        return await self._environment.offload.run(
            self._environment.states.open,
            self.coordinator_id,
            self._topic_id,
            self.directory,
            lane=self.directory,
        )

    async def _apply_forever(self) -> None:
        while True:
            self._changed = trio.Event()
            if self._failure is not None:
                raise self._failure
            await self._apply_committed()
            self._serve_if_loaded()
            while self._has_deleted_batches and not self._changed.is_set():
                self._has_deleted_batches = await self._call_state(_remove_deleted_batches)
            await self._changed.wait()

    async def _close_state(self, *, is_damaged: bool) -> None:
        """Close the state, and remove it if it is damaged: `run` then builds it again from the log (D-16)."""
        async with self._state_lock:
            opened, self._state = self._state, None
            if opened is not None:
                await self._environment.offload.run(opened.close, lane=self.directory)
            if is_damaged:
                await self.remove_state()

    async def begin_snapshot(self) -> StateSnapshot:
        """Begin a snapshot of the open state. Raises StateDamaged or OSError."""
        return await self._call_state(self._environment.states.begin_snapshot)

    def install(self, snapshot: Path) -> None:
        """Replace the closed state by a snapshot. May block; raises StateDamaged if it cannot be used, OSError."""
        self._environment.states.install(
            self.coordinator_id, self._topic_id, self.directory, snapshot
        )

    async def remove_state(self, directory: str | None = None) -> None:
        """Remove the closed state, or one in another log directory. Raises OSError."""
        directory = directory or self.directory
        await self._environment.offload.run(
            self._environment.states.remove, self.coordinator_id, directory, lane=directory
        )

    def mark_failed(self, error: Exception) -> None:
        """Fail the pending operations after an unexpected error; `run` is called again after a pause."""
        self.failed = True
        self._end_leadership(self._failed())

    def _failed(self) -> CoordinatorNotAvailable:
        return CoordinatorNotAvailable(f"the coordinator of {self.name} has failed")

    def _fail(self, error: Exception) -> None:
        """Fail after an error that another task than `run` has found; `run` then raises it."""
        self.mark_failed(error)
        self._failure = error
        self.wake()

    def _refused(self, error: Exception) -> KafkaError:
        """Error for the one request that caused an unexpected error without an effect."""
        log.error("Unexpected error of a request to %s", self.name, exc_info=error)
        return KafkaError(ErrorCode.unknown_server_error, "unexpected error at the coordinator")

    def wake(self) -> None:
        """Check the log for committed records."""
        self._changed.set()

    async def _apply_committed(self) -> None:
        """Apply the records below the high watermark."""
        while self._applied_offset + 1 < self.log.high_watermark:
            entries, through_offset = await self._next_entries()
            if through_offset <= self._applied_offset:
                return
            await self._call_state(partial(_apply, entries=entries, through_offset=through_offset))
            self._applied_offset = through_offset
            if self._leadership is not None:
                self._leadership.applied(through_offset)
            self._notify(entries)
            if self.snapshots is not None:
                self.snapshots.applied()

    async def _next_entries(self) -> tuple[Sequence[LogEntry], int]:
        """The next committed records, with the offset of the last one. A leader has its own in memory."""
        high_watermark = self.log.high_watermark
        entries: list[LogEntry] = []
        through_offset = self._applied_offset
        for operation in self._leadership.pending if self._leadership is not None else ():
            if operation.last_offset >= high_watermark or len(entries) >= APPLIED_RECORDS_MAX:
                break
            if operation.entries:
                if operation.entries[0].offset != through_offset + 1:
                    break
                entries.extend(operation.entries)
                through_offset = operation.last_offset
        if entries:
            return entries, through_offset
        return await self._read_entries(high_watermark)

    async def _read_entries(self, high_watermark: int) -> tuple[Sequence[LogEntry], int]:
        """Read the next committed records from the log. Raises SnapshotNeeded if it starts after them, and KafkaError if
        one of them cannot be decoded."""
        start = self._applied_offset + 1
        self._check_log_has(start)
        try:
            data = await self._read_log(start)
        except OffsetOutOfRange:
            self._check_log_has(start)  # records were deleted meanwhile
            raise
        entries: list[LogEntry] = []
        through_offset = self._applied_offset
        for number, batch in enumerate(batches(memoryview(data)), 1):
            if batch.last_offset >= high_watermark or len(entries) >= APPLIED_RECORDS_MAX:
                break
            if number % DECODED_BATCHES == 0:
                await trio.lowlevel.checkpoint()
            if not batch.is_control:
                entries.extend(
                    self._decode(record)
                    for record in log_records.decode_lazily(batch)
                    if record.offset >= start
                )
            through_offset = batch.last_offset
        return entries, through_offset

    def _check_log_has(self, offset: int) -> None:
        """Raises SnapshotNeeded if the log starts after `offset`."""
        if offset < self.log.start_offset:
            raise SnapshotNeeded(
                f"{self.name} starts at offset {self.log.start_offset}, and the state has no records after"
                f" {offset - 1}"
            )

    async def _read_log(self, offset: int) -> Buffer:
        """Read from the log; wait while no file descriptor is available or the log is offline. `partition_gone` follows
        if its log directory has failed."""
        is_logged = False
        while True:
            try:
                return await self.log.read(offset, READ_BYTES)
            except (NoDescriptors, LogFailed, NotLeader) as error:
                if not is_logged:
                    log.warning("Unable to read %s, retrying: %s", self.name, error)
                is_logged = True
            await self._environment.clock.sleep(RETRY_SECONDS)

    def _decode(self, record: log_records.Record) -> LogEntry:
        try:
            decoded = decode_diskless_record(record.value or b"")
        except KafkaError as error:
            raise KafkaError(
                error.code,
                f"the record of {self.name} at offset {record.offset} cannot be decoded: {error.message}",
            ) from None
        return LogEntry(record.offset, record.timestamp, decoded)

    def _serve_if_loaded(self) -> None:
        leadership = self._leadership
        if (
            leadership is not None
            and not leadership.serves
            and self._applied_offset + 1 >= leadership.load_end
        ):
            leadership.serves = True
            self._comparison.begin()
            log.info(
                "The coordinator of %s serves with the state at offset %d",
                self.name,
                self._applied_offset,
            )

    def _notify(self, entries: Sequence[LogEntry]) -> None:
        """Report the partitions that the records changed."""
        changed: dict[tuple[UUID, int], None] = {}
        for entry in entries:
            record = entry.record
            if isinstance(record, DisklessFileCommittedRecord):
                for topic in record.topics:
                    for partition in topic.partitions:
                        changed[topic.topic_id, partition.partition_index] = None
            elif isinstance(record, DisklessRecordsDeletedRecord):
                changed[record.topic_id, record.partition_index] = None
                self._has_deleted_batches = True
            elif isinstance(record, DisklessTopicDeletedRecord):
                self._has_deleted_batches = True
        for topic_id, index in changed:
            self._environment.on_applied(topic_id, index)

    # Reads

    async def query(self, fn: Callable[[DisklessState], T]) -> T:
        """Call `fn` with the state as it is applied now (D-19). Raises KafkaError if there is no state."""
        try:
            return await self._call_state(fn)
        except KafkaError:
            raise
        except (StateDamaged, OSError) as error:
            self._fail(error)
            raise self._failed() from error
        except Exception as error:
            raise self._refused(error) from error

    async def _call_state(self, fn: Callable[[DisklessState], T]) -> T:
        async with self._state_lock:
            state = self._state
            if state is None:
                raise CoordinatorNotAvailable(f"the state of {self.name} is not open")
            return await self._environment.offload.run(fn, state, lane=self.directory)

    async def query_strictly(self, fn: Callable[[DisklessState], T]) -> T:
        """Call `fn` with a state that has everything which was appended before (D-19). Raises KafkaError."""
        leadership = self._leads()
        pending = PendingOperation((), leadership.last_offset)
        self._enqueue(leadership, pending)
        await pending.wait()
        return await self.query(fn)

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Compare the state with the metadata image again, while this broker leads."""
        self._comparison.metadata_changed(delta)

    # Operations

    async def commit_file(self, request: DisklessCommitFileRequest) -> DisklessCommitFileResponse:
        """Commit the batches of a file (D-05 to D-07).

        Partitions that the metadata image assigns to this coordinator, and that it lacks, are created before. Raises
        KafkaError if the outcome is unknown or nothing was committed; the same request can be sent again.
        """
        return await self._perform(
            request, lambda machine, now_ms: machine.decide_commit_file(request, now_ms)
        )

    async def create_partitions(
        self, request: DisklessCreatePartitionsRequest
    ) -> DisklessCreatePartitionsResponse:
        """Create the partitions that the metadata image assigns to this coordinator (D-03). Raises KafkaError."""
        return await self._perform(
            request,
            lambda machine, now_ms: machine.decide_create_partitions(
                request, self._comparison.topics(topic.topic_id for topic in request.topics), now_ms
            ),
        )

    async def delete_topics(
        self, request: DisklessDeleteTopicsRequest
    ) -> DisklessDeleteTopicsResponse:
        """Delete topics (D-04). Raises KafkaError."""
        return await self._perform(
            request, lambda machine, now_ms: machine.decide_delete_topics(request, now_ms)
        )

    async def delete_records(
        self, request: DisklessDeleteRecordsRequest
    ) -> DisklessDeleteRecordsResponse:
        """Raise log start offsets (D-08). Raises KafkaError."""
        return await self._perform(
            request, lambda machine, now_ms: machine.decide_delete_records(request, now_ms)
        )

    async def take_ownership(
        self, request: DisklessHandOverFileRequest
    ) -> DisklessHandOverFileResponse:
        """Become the owner of a file (D-21). Raises KafkaError."""
        return await self._perform(
            request, lambda machine, now_ms: machine.decide_take_ownership(request, now_ms)
        )

    async def remove_file(self, object_key: str) -> bool:
        """Stop tracking a file (D-21, D-22); returns whether it is not tracked any more. Raises KafkaError."""
        request = RemoveFile(object_key)
        return await self._perform(
            request, lambda machine, now_ms: machine.decide_remove_file(request, now_ms)
        )

    async def _perform(
        self, request: Request, decide: Callable[[CoordinatorStateMachine, int], Operation[T]]
    ) -> T:
        """Decide an operation in the order of arrival, append it, and return the response when it is applied (D-17).

        A cancellation during the wait does not undo the operation.
        """
        leadership = self._leads()
        async with self._deciding:
            leadership.check(self.name)
            leadership.is_deciding = True
            try:
                await self._read_missing(leadership, request)
                if isinstance(request, DisklessCommitFileRequest):
                    await self._create_missing(leadership, request)
                operation = decide(leadership.machine, self._environment.clock.wall_ms())
                pending = self._append(leadership, operation)
            except KafkaError:
                raise
            except Exception as error:
                raise self._refused(error) from error
            finally:
                leadership.is_deciding = False
                if leadership.unreported_offset >= 0:
                    leadership.machine.applied(leadership.unreported_offset)
                    leadership.unreported_offset = -1
        await pending.wait()
        return operation.response

    async def _read_missing(self, leadership: Leadership, request: Request) -> None:
        """Give the machine the values of the state that the decision needs. Raises KafkaError if the leadership ends."""
        while reads := leadership.machine.missing_reads(request):
            values = await self.query(partial(read_state, reads=reads))
            leadership.check(self.name)
            leadership.machine.fill(values)

    async def _create_missing(
        self, leadership: Leadership, request: DisklessCommitFileRequest
    ) -> None:
        """Create the partitions of the image that a commit is the first to need: the comparison with the image has not
        created them yet."""
        topic_ids = {
            batch.topic_id
            for batch in request.batches
            if not _has_partition(leadership.machine, batch.topic_id, batch.partition_index)
        }
        topics = self._comparison.topics(topic_ids)
        if topics:
            creation = creation_of(topics)
            await self._read_missing(leadership, creation)
            now_ms = self._environment.clock.wall_ms()
            operation = leadership.machine.decide_create_partitions(creation, topics, now_ms)
            if operation.records:
                self._append(leadership, operation)
            await self._read_missing(leadership, request)

    def _append(self, leadership: Leadership, operation: Operation[Any]) -> PendingOperation:
        """Append the records of an operation as one batch, and make it pending. Raises KafkaError if it is not
        appended."""
        records, append_ms = operation.records, operation.append_ms
        if not records:
            pending = PendingOperation((), leadership.last_offset)
        else:
            values = [encode_diskless_record(record) for record in records]
            size_bytes = HEADER_SIZE + sum(len(value) + RECORD_OVERHEAD_MAX for value in values)
            if size_bytes > self.log.batch_bytes_max:
                raise RecordsTooLarge(f"{len(records)} records of {size_bytes} bytes")
            batch = log_records.build_batch(
                [log_records.Record(-1, append_ms, None, value) for value in values]
            )
            try:
                first_offset = self.log.append(batch, append_ms)
            except KafkaError as error:
                code = COORDINATOR_ERROR_BY_LOG_ERROR.get(error.code, error.code)
                raise KafkaError(code, f"{self.name}: {error.message}") from error
            entries = tuple(
                [LogEntry(first_offset + n, append_ms, record) for n, record in enumerate(records)]
            )
            pending = PendingOperation(entries, entries[-1].offset)
            leadership.last_offset = pending.last_offset
            try:
                leadership.machine.accept(operation, pending.last_offset)
            except (
                Exception
            ) as error:  # the log has an operation that the next decisions would not see
                self._fail(error)
                raise self._failed() from error
        self._enqueue(leadership, pending)
        self.wake()
        return pending

    def _enqueue(self, leadership: Leadership, operation: PendingOperation) -> None:
        if operation.last_offset <= self._applied_offset:
            operation.done.set()
        else:
            leadership.pending.append(operation)


def first_error(group: BaseExceptionGroup[Any]) -> BaseException:
    """The first exception of a group that is not a group."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _apply(state: DisklessState, entries: Sequence[LogEntry], through_offset: int) -> None:
    state.apply(entries, through_offset)


def _remove_deleted_batches(state: DisklessState) -> bool:
    return state.remove_deleted_batches()


def _has_partition(machine: CoordinatorStateMachine, topic_id: UUID, index: int) -> bool:
    try:
        machine.partition(topic_id, index, Changes())
    except KafkaError:
        return False
    return True
