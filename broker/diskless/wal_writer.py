"""Writes the batches of diskless topics: buffer, upload of one object per file, commit, outcome (KIP-1163, D-05 to D-07).

    add → append_buffer → rotation → put (several at once) → commits, by coordinator in the order of rotation → outcomes

Files are rotated as `append_buffer.py` decides. Uploads overlap, but a coordinator gets the commit of a file only when
that of the file before has a response, so that the batches of an idempotent producer arrive there in the order of their
sequences. The coordinators that one broker leads get one request. A commit is repeated until there is a response or its
time is over: the coordinator recognises a file that it has committed before, so repeating cannot duplicate batches.

The memory of buffered and uploading batches is bounded. Producers wait (`wait_for_space`) when it is in use.

An object is deleted here only if no commit of it was sent. In all other cases it is either known to a coordinator, or
the orphan scan finds it: the outcome of a commit without a response is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final, Protocol
from uuid import UUID

import trio

from odradek.broker.diskless.append_buffer import (
    AppendBuffer,
    AppendOutcome,
    AppendWaiter,
    BufferedBatch,
    RotatedFile,
)
from odradek.broker.metrics.recent_statistics import RecentStatistics
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.batch import Batch
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatchResult,
    DisklessCommitFileRequest,
)
from odradek.replication.diskless.file_ownership import permuted_owners
from odradek.seams import Seams
from odradek.seams.locks import PromptLock
from odradek.seams.objects import ObjectDenied, Objects, ObjectsUnavailable
from odradek.seams.offload import OBJECTS_LANE
from odradek.seams.values import value_class
from odradek.storage.diskless.object_key import object_key
from odradek.storage.diskless.wal_file import WRITE_AHEAD_MULTI_SEGMENT, WalObject

log = logging.getLogger("odradek.diskless")

UPLOADS_MAX: Final = 8
"""Files that are uploaded at the same time. The commits after them are limited by the memory."""
BUFFERED_FILES_MAX: Final = 2 * UPLOADS_MAX
"""Memory of all batches without an outcome, in files of the largest size."""
UPLOAD_SECONDS_MAX: Final = 10.0
"""Time from the rotation of a file until its upload is not retried any more."""
WRITE_SECONDS_MAX: Final = 25.0
"""Time from the rotation of a file until its commit is not repeated any more. It is less than the default
`request.timeout.ms` of producers, and all files that wait for one coordinator end at about the same time."""
RETRY_SECONDS: Final = 0.05
"""Pause before the first retry. It doubles up to RETRY_SECONDS_MAX."""
RETRY_SECONDS_MAX: Final = 1.0
FLUSH_SECONDS_MAX: Final = 10.0
"""Time that a shutdown waits for the commit of what is buffered."""

REPEATED: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
    }
)
"""Errors after which a commit is repeated: the coordinator moves, or its response is lost."""
_NOT_FOR_PRODUCERS: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.network_exception,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_request,
        ErrorCode.invalid_timestamp,  # the file is too old to be committed: the producer sends another one
    }
)
"""Errors of a coordinator that a producer would misunderstand; it gets REQUEST_TIMED_OUT, which it retries."""


class CommitRequests(Protocol):
    """Sends commits to the coordinators of their batches."""

    def leader_of(self, coordinator_id: int) -> int:
        """Broker that leads the coordinator; -1 if it is unknown."""
        ...

    async def commit_file(
        self, request: DisklessCommitFileRequest
    ) -> Sequence[DisklessCommitBatchResult]:
        """Result of each batch; an unreachable coordinator is an error of its batches."""
        ...


class ObjectCache(Protocol):
    """Cache of whole objects, for consumers that read what was just written."""

    def put(self, key: str, data: bytes) -> None: ...


@value_class
class WalWriterSettings:
    """`diskless.append.commit.interval.ms` in seconds, and `diskless.append.buffer.max.bytes`."""

    interval_seconds: float = 0.25
    max_bytes: int = 8 << 20


class WalWriterStatistics:
    """Counters since the start, and times of the last minute, for metrics."""

    def __init__(self, clock: Seams) -> None:
        monotonic = clock.clock.monotonic
        self.files = 0
        """Files of which a coordinator accepted at least one batch."""
        self.file_bytes = 0
        self.batches = 0
        """Committed batches, without duplicates."""
        self.duplicates = 0
        self.failed_batches = 0
        self.upload_retries = 0
        self.failed_uploads = 0
        self.commit_retries = 0
        self.failed_commits = 0
        self.upload_ms = RecentStatistics(monotonic)
        self.commit_ms = RecentStatistics(monotonic)
        self.append_ms = RecentStatistics(monotonic)
        """Time from the arrival of a file's first batch to the outcome."""


class WalWriter:
    """Writer of one broker."""

    def __init__(
        self,
        node_id: int,
        seams: Seams,
        objects: Objects,
        requests: CommitRequests,
        settings: WalWriterSettings,
        cache: ObjectCache | None = None,
    ) -> None:
        self._node_id = node_id
        self._seams = seams
        self._objects = objects
        self._requests = requests
        self._cache = cache
        self._buffer = AppendBuffer(settings.interval_seconds, settings.max_bytes)
        self._bytes_max = BUFFERED_FILES_MAX * settings.max_bytes
        self._is_due = trio.Event()
        """Set when a file may be due earlier than the rotation task expects."""
        self._slots = trio.Semaphore(UPLOADS_MAX)
        self._space_lock = PromptLock()
        self._space = trio.Event()
        """Set when a file has its outcomes."""
        self._waiting = 0
        """Batches that wait for space."""
        self._files = 0
        """Files that are taken from the buffer and do not have all outcomes."""
        self._is_closed = False
        self._commits = _CommitOrder()
        self._request_id = 0
        self.buffered_bytes = 0
        """Bytes of all batches without an outcome."""
        self.statistics = WalWriterStatistics(seams)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Rotate, upload and commit files until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                await self._slots.acquire()
                file = await self._next_file()
                self._files += 1
                turns = self._commits.add(file.coordinator_ids())
                nursery.start_soon(self._write, file, turns)

    # Called by Produce handlers

    def next_request_id(self) -> int:
        """Return an id for the batches of a Produce request in their commit."""
        self._request_id = (self._request_id + 1) & 0x7FFFFFFF
        return self._request_id

    async def wait_for_space(self, size_bytes: int) -> None:
        """Wait until a batch of that size can be added; the callers get their turns in the order of their calls.

        Raises KafkaError if the writer is closed.
        """
        if not self.has_space(size_bytes):
            self._waiting += 1
            try:
                async with self._space_lock:
                    while not self._fits(size_bytes):
                        await self._space.wait()
            finally:
                self._waiting -= 1
        if self._is_closed:
            raise KafkaError(ErrorCode.not_leader_or_follower, "The broker is shutting down.")

    def has_space(self, size_bytes: int) -> bool:
        """Whether a batch of that size can be added at once: there is space, no earlier batch waits for it, and the writer
        is not closed."""
        return not self._waiting and not self._is_closed and self._fits(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return (
            not self.buffered_bytes
            or self.buffered_bytes + size_bytes <= self._bytes_max
            or self._is_closed
        )

    def add(
        self,
        topic_id: UUID,
        index: int,
        coordinator_id: int,
        batch: Batch,
        waiter: AppendWaiter,
    ) -> BufferedBatch:
        """Add a validated batch, after `wait_for_space`. Its bytes are copied. The outcome is set later."""
        buffered = BufferedBatch(topic_id, index, coordinator_id, batch, waiter)
        self.buffered_bytes += len(batch.view)
        if self._buffer.add(buffered, batch, trio.current_time()):
            self._is_due.set()
        return buffered

    # Rotation

    async def _next_file(self) -> RotatedFile:
        """Wait for the next file that is due, and take it from the buffer."""
        while True:
            file = self._buffer.take(trio.current_time())
            if file is not None:
                return file
            self._is_due = trio.Event()
            with trio.move_on_at(self._buffer.due_at):
                await self._is_due.wait()

    async def close(self) -> None:
        """Refuse new batches, and wait until all others are committed or have failed."""
        self._is_closed = True
        self._space.set()
        self._buffer.close()
        self._is_due.set()
        with trio.move_on_after(FLUSH_SECONDS_MAX) as limit:
            while self._buffer or self._files:
                self._space = trio.Event()
                await self._space.wait()
        for _ in range(2):  # the connections send the responses
            await trio.lowlevel.checkpoint()
        if limit.cancelled_caught:
            log.warning(
                "%d bytes of diskless topics are not committed at shutdown", self.buffered_bytes
            )

    # One file

    async def _write(self, file: RotatedFile, turns: _CommitTurns) -> None:
        """Upload and commit a file. All its batches have an outcome afterwards."""
        try:
            await self._upload_and_commit(file, turns)
        except Exception:
            log.exception(
                "Unexpected error while writing a file of diskless topics; %d batches fail",
                len(file.batches),
            )
        finally:
            turns.end(turns.coordinator_ids)
            text = "The commit of the batch was interrupted."
            self._fail(file.batches, ErrorCode.request_timed_out, text)
            self.buffered_bytes -= file.size_bytes
            self._files -= 1
            self._space.set()
            self._space = trio.Event()
            self.statistics.append_ms.record(1000 * (trio.current_time() - file.opened_at))

    async def _upload_and_commit(self, file: RotatedFile, turns: _CommitTurns) -> None:
        seams = self._seams
        deadline = trio.current_time() + WRITE_SECONDS_MAX
        is_uploaded = False
        try:
            key = object_key(seams.clock.wall_ms(), self._node_id, seams.entropy.uuid())
            wal = await _build(file)
            await self._upload(key, wal)
            is_uploaded = True
        except ObjectsUnavailable as error:
            self.statistics.failed_uploads += 1
            log.warning("Unable to upload %s with %d batches: %s", key, len(wal.batches), error)
            text = f"The object store of diskless topics is not available: {error}"
            self._fail(file.batches, ErrorCode.kafka_storage_error, text)
            turns.end(turns.coordinator_ids)
        finally:
            self._slots.release()  # an unavailable coordinator does not delay the files of others
        if not is_uploaded:
            await self._delete(key)
            return
        commit = _Commit(
            key, wal, file.batches, permuted_owners(turns.coordinator_ids, seams.entropy), deadline
        )
        async with trio.open_nursery() as nursery:
            for coordinator_ids in self._by_leader(turns.coordinator_ids):
                nursery.start_soon(self._commit, commit, coordinator_ids, turns)
        if not commit.is_sent:
            await self._delete(key)

    async def _upload(self, key: str, wal: WalObject) -> None:
        """Store the object. Raises ObjectsUnavailable when the time is over, or if the store denies access."""
        started = trio.current_time()
        for pause in _pauses():
            try:
                await self._seams.offload.run(
                    self._objects.put, key, (wal.data,), lane=OBJECTS_LANE
                )
                break
            except ObjectDenied:
                raise
            except ObjectsUnavailable:
                if trio.current_time() + pause >= started + UPLOAD_SECONDS_MAX:
                    raise
            self.statistics.upload_retries += 1
            await self._seams.clock.sleep(pause)
        self.statistics.upload_ms.record(1000 * (trio.current_time() - started))

    async def _delete(self, key: str) -> None:
        """Delete an object whose upload failed, because it may exist nevertheless. No commit of it was sent."""
        try:
            await self._seams.offload.run(self._objects.delete, key, lane=OBJECTS_LANE)
        except ObjectsUnavailable as error:
            log.info("%s is left to the orphan scan: %s", key, error)

    def _by_leader(self, coordinator_ids: Sequence[int]) -> Iterable[Sequence[int]]:
        """Coordinators grouped by the broker that leads them; each with an unknown leader is a group of its own."""
        groups: dict[tuple[int, int], list[int]] = {}
        for each in coordinator_ids:
            leader = self._requests.leader_of(each)
            groups.setdefault((leader, -1 if leader >= 0 else each), []).append(each)
        return groups.values()

    async def _commit(
        self, commit: _Commit, coordinator_ids: Sequence[int], turns: _CommitTurns
    ) -> None:
        """Commit the batches of some coordinators, after the files before."""
        await turns.wait(coordinator_ids)
        numbers = commit.numbers_of(coordinator_ids)
        started = trio.current_time()
        try:
            for pause in _pauses():
                numbers = await self._commit_once(commit, numbers)
                if not numbers or trio.current_time() + pause >= commit.deadline:
                    break
                self.statistics.commit_retries += 1
                await self._seams.clock.sleep(pause)
        finally:
            self._fail_commit(commit, numbers)
            turns.end(coordinator_ids)
        self.statistics.commit_ms.record(1000 * (trio.current_time() - started))

    async def _commit_once(self, commit: _Commit, numbers: Sequence[int]) -> Sequence[int]:
        """Send one commit request, unless the time is over; return the numbers of the batches to send again."""
        seconds = commit.deadline - trio.current_time()
        if not numbers or seconds <= 0:
            return numbers
        request = commit.request(numbers, seconds)
        commit.is_sent = True
        results: Sequence[DisklessCommitBatchResult] = ()
        try:
            with trio.move_on_after(seconds):
                results = await self._requests.commit_file(request)
        except Exception:
            log.exception("Unexpected error while committing %s; it is sent again", commit.key)
        if len(results) != len(numbers):
            return numbers
        again = []
        for number, result in zip(numbers, results, strict=True):
            if result.error_code in REPEATED:
                commit.errors[number] = result
                again.append(number)
            else:
                self._complete(commit, number, result)
        return again

    def _complete(self, commit: _Commit, number: int, result: DisklessCommitBatchResult) -> None:
        """Set the outcome of a batch from the response of its coordinator."""
        batch = commit.batch(number)
        if result.error_code:
            self.statistics.failed_batches += 1
            code = _for_producer(result.error_code)
            start = result.log_start_offset
            batch.complete(AppendOutcome(code, result.error_message, log_start_offset=start))
            return
        statistics = self.statistics
        if result.is_duplicate:
            statistics.duplicates += 1
        else:
            statistics.batches += 1
        if not commit.is_stored:
            commit.is_stored = True
            statistics.files += 1
            statistics.file_bytes += commit.wal.size_bytes
            if self._cache is not None:
                self._cache.put(commit.key, commit.wal.data)
        batch.complete(
            AppendOutcome(
                ErrorCode.none,
                None,
                result.assigned_base_offset,
                result.log_append_time if batch.has_append_time else -1,
                result.log_start_offset,
            )
        )

    def _fail_commit(self, commit: _Commit, numbers: Sequence[int]) -> None:
        """Fail batches whose coordinator has not responded in time. They may be committed later."""
        if not numbers:
            return
        self.statistics.failed_commits += 1
        log.warning(
            "Unable to commit %d batches of %s: %s",
            len(numbers),
            commit.key,
            commit.error(numbers[0]),
        )
        for number in numbers:
            text = f"The diskless coordinator has not committed the batch: {commit.error(number)}"
            self._fail([commit.batch(number)], ErrorCode.request_timed_out, text)

    def _fail(self, batches: Iterable[BufferedBatch], code: ErrorCode, text: str) -> None:
        """Fail batches that no coordinator has refused."""
        for batch in batches:
            if batch.outcome is None:
                self.statistics.failed_batches += 1
                batch.complete(AppendOutcome(code, text))


async def _build(file: RotatedFile) -> WalObject:
    """Lay out a file; other tasks run meanwhile."""
    steps = file.wal.build_in_steps()
    while True:
        try:
            next(steps)
        except StopIteration as done:
            built: WalObject = done.value
            return built
        await trio.lowlevel.checkpoint()


def _for_producer(code: ErrorCode) -> ErrorCode:
    if code is ErrorCode.unknown_topic_id:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.request_timed_out if code in _NOT_FOR_PRODUCERS else code


def _pauses() -> Iterable[float]:
    """Seconds before each retry."""
    seconds = RETRY_SECONDS
    while True:
        yield seconds
        seconds = min(2 * seconds, RETRY_SECONDS_MAX)


class _Commit:
    """Commit of one uploaded file. Batches are numbered in the order of their bytes."""

    def __init__(
        self,
        key: str,
        wal: WalObject,
        batches: Sequence[BufferedBatch],
        owner_ids: tuple[int, ...],
        deadline: float,
    ) -> None:
        self.key = key
        self.wal = wal
        self.deadline = deadline
        """Monotonic seconds after which no request is sent."""
        self.is_sent = False
        """Whether a coordinator may have got a request."""
        self.errors: dict[int, DisklessCommitBatchResult] = {}
        """Last error of the batches that are sent again."""
        self.is_stored = False
        """Whether a coordinator has accepted a batch."""
        self._batches = batches
        self._owner_ids = owner_ids

    def batch(self, number: int) -> BufferedBatch:
        return self._batches[self.wal.arrivals[number]]

    def numbers_of(self, coordinator_ids: Sequence[int]) -> Sequence[int]:
        return [
            number
            for number in range(len(self._batches))
            if self.batch(number).coordinator_id in coordinator_ids
        ]

    def request(self, numbers: Sequence[int], seconds: float) -> DisklessCommitFileRequest:
        return DisklessCommitFileRequest(
            object_key=self.key,
            object_format=WRITE_AHEAD_MULTI_SEGMENT,
            file_size=self.wal.size_bytes,
            owner_ids=self._owner_ids,
            batches=tuple([self.wal.batches[number] for number in numbers]),
            timeout_ms=max(1, int(seconds * 1000)),
        )

    def error(self, number: int) -> str:
        result = self.errors.get(number)
        if result is None:
            return "no response"
        return f"{ErrorCode(result.error_code).name}: {result.error_message}"


class _CommitOrder:
    """Order of the commits at each coordinator."""

    def __init__(self) -> None:
        self._last: dict[int, trio.Event] = {}

    def add(self, coordinator_ids: Sequence[int]) -> _CommitTurns:
        """Turns of the next file, after those of all earlier files."""
        before = {each: self._last.get(each) for each in coordinator_ids}
        ended = {each: trio.Event() for each in coordinator_ids}
        self._last.update(ended)
        return _CommitTurns(before, ended)


class _CommitTurns:
    """Turns of one file at its coordinators."""

    def __init__(self, before: dict[int, trio.Event | None], ended: dict[int, trio.Event]) -> None:
        self._before = before
        self._ended = ended

    @property
    def coordinator_ids(self) -> Sequence[int]:
        return list(self._ended)

    async def wait(self, coordinator_ids: Iterable[int]) -> None:
        """Wait until the file before has ended its turns at these coordinators."""
        for each in coordinator_ids:
            before = self._before.pop(each)
            if before is not None:
                await before.wait()

    def end(self, coordinator_ids: Iterable[int]) -> None:
        for each in coordinator_ids:
            self._ended[each].set()
