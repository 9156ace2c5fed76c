"""Reads committed batches from WAL objects (KIP-1163).

A read gets batches of many partitions at once. Batches that are not in the cache are read with few ranged GETs:
neighbouring batches of an object share one, also with a gap between them. A GET continues if its reader stops waiting
for it, and later readers of the same bytes wait for the same GET. The ranges go to the cache.

A batch is checked before it is returned: its size, magic and offsets each time, its CRC once after it was read from the
store. A batch that is damaged or missing ends the records of its partition, and is logged once with its object and
offsets; the bytes are read a second time before that. The base offset and the leader epoch, which is always 0, are set
in the copy that is returned. With LogAppendTime, so are the timestamp type and the max timestamp with a new CRC.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from math import inf
from struct import Struct

import trio

from odradek.protocol.errors import CorruptBatch, ErrorCode
from odradek.protocol.records.batch import (
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    Batch,
)
from odradek.protocol.schemas.diskless_apis import DisklessFindBatchesBatchInfo
from odradek.seams.containment import Containment
from odradek.seams.files import Buffer
from odradek.seams.objects import ObjectMissing, Objects, ObjectsUnavailable
from odradek.seams.offload import OBJECTS_LANE, Offload
from odradek.seams.values import state_class, value_class
from odradek.storage.diskless.object_cache import CachedRange, ObjectCache
from odradek.storage.errors import StorageError

_logger = logging.getLogger("odradek.diskless")

GAP_BYTES_MAX = 64 << 10
"""Bytes between two batches that are read with them: cheaper than another request."""
GET_BYTES_MAX = 8 << 20
"""Bytes of one GET, unless a batch is larger."""
GETS_MAX = 16
"""Concurrent GETs, a part of the threads for object stores."""
GETS_KEPT_FREE = 4
"""Of these, the GETs that read-ahead leaves to waiting reads."""
FAILURES_LOGGED_MAX = 10_000
"""Damaged batches that are remembered, so that each is logged once."""
LEADER_EPOCH = 0
"""Leader epoch of all batches of diskless partitions."""

_BASE_OFFSET_LENGTH_EPOCH = Struct(">qii")
_Place = tuple[str, int]
"""Object key and byte offset of a batch."""


class ObjectReadError(StorageError):
    """A batch cannot be read from its object."""

    code = ErrorCode.kafka_storage_error


class ObjectUnavailable(ObjectReadError):
    """The store does not return the bytes now; a retry may succeed."""


class ObjectNotFound(ObjectReadError):
    """The object does not exist: it was deleted, or the position of the batch is out of date."""


class DamagedObject(ObjectReadError):
    """The bytes of the object are not the committed batch."""


@value_class
class RangedGet:
    """A GET of the bytes [start, end) of an object, which contain `batches`."""

    key: str
    start: int
    end: int
    batches: Sequence[DisklessFindBatchesBatchInfo]


def plan_gets(
    batches: Iterable[DisklessFindBatchesBatchInfo],
    *,
    gap_bytes_max: int = GAP_BYTES_MAX,
    get_bytes_max: int = GET_BYTES_MAX,
) -> list[RangedGet]:
    """The fewest GETs for `batches`, sorted by object and position.

    Neighbours share a GET of up to `get_bytes_max` bytes if at most `gap_bytes_max` bytes are between them.
    """
    gets: list[RangedGet] = []
    group: list[DisklessFindBatchesBatchInfo] = []
    key, start, end = "", 0, 0
    for batch in sorted(batches, key=_place):
        batch_end = batch.byte_offset + batch.byte_size
        if (
            group
            and batch.object_key == key
            and batch.byte_offset - end <= gap_bytes_max
            and max(end, batch_end) - start <= get_bytes_max
        ):
            end = max(end, batch_end)
        else:
            if group:
                gets.append(RangedGet(key, start, end, group))
            group = []
            key, start, end = batch.object_key, batch.byte_offset, batch_end
        group.append(batch)
    if group:
        gets.append(RangedGet(key, start, end, group))
    return gets


def _place(batch: DisklessFindBatchesBatchInfo) -> _Place:
    return (batch.object_key, batch.byte_offset)


def header_fault(view: memoryview, batch: DisklessFindBatchesBatchInfo) -> str | None:
    """Difference between the header of the bytes and the committed batch; None if there is none."""
    if len(view) < batch.byte_size or len(view) < HEADER_SIZE:
        return f"{len(view)} bytes instead of {batch.byte_size}"
    fields = HEADER.unpack_from(view)
    length, magic, last_offset_delta = fields[1], fields[3], fields[6]
    if magic != batch.magic:
        return f"magic {magic} instead of {batch.magic}"
    if length + LOG_OVERHEAD != batch.byte_size:
        return f"a batch of {length + LOG_OVERHEAD} bytes instead of {batch.byte_size}"
    if last_offset_delta != batch.last_offset - batch.base_offset:
        return f"last offset delta {last_offset_delta} instead of {batch.last_offset - batch.base_offset}"
    return None


def batch_fault(view: memoryview, batch: DisklessFindBatchesBatchInfo) -> str | None:
    """Same as `header_fault`, and checks the CRC."""
    fault = header_fault(view, batch)
    if fault is not None:
        return fault
    try:
        Batch(view).check()
    except CorruptBatch as error:
        return str(error)
    return None


def append_batch(out: bytearray, view: memoryview, batch: DisklessFindBatchesBatchInfo) -> None:
    """Append a copy of the batch with its assigned base offset, leader epoch 0 and the timestamp of LogAppendTime."""
    if batch.timestamp_type != LOG_APPEND_TIME:
        out += _BASE_OFFSET_LENGTH_EPOCH.pack(
            batch.base_offset, batch.byte_size - LOG_OVERHEAD, LEADER_EPOCH
        )
        out += view[_BASE_OFFSET_LENGTH_EPOCH.size :]
        return
    copy = bytearray(view)
    rewritten = Batch(memoryview(copy))
    rewritten.stamp(batch.base_offset, LEADER_EPOCH)
    rewritten.set_max_timestamp(LOG_APPEND_TIME, batch.log_append_timestamp)
    out += copy


@state_class
class PartitionRead:
    """Batches to read of one partition in the order of their offsets, and the result."""

    topic: str
    index: int
    batches: Sequence[DisklessFindBatchesBatchInfo]
    records: bytearray | None = None
    """The batches up to the first that could not be read; None if there are none."""
    failure: ObjectReadError | None = None
    """Why the first batch that is not in `records` could not be read; None if all are there or are still being read."""
    batches_read: int = 0


class _Get:
    """A GET that is running, and its result: the range, or an error, and the faults of batches by byte offset."""

    __slots__ = ("done", "error", "faults", "is_read_ahead", "plan", "range")

    def __init__(self, plan: RangedGet, *, is_read_ahead: bool) -> None:
        self.plan = plan
        self.is_read_ahead = is_read_ahead
        self.done = trio.Event()
        self.range: CachedRange | None = None
        self.error: ObjectReadError | None = None
        self.faults: dict[int, str] = {}

    def contains(self, batch: DisklessFindBatchesBatchInfo) -> bool:
        end = batch.byte_offset + batch.byte_size
        return self.plan.start <= batch.byte_offset and end <= self.plan.end


class BatchReader:
    """Reads batches through the cache; the GETs run in a nursery of the caller."""

    def __init__(
        self,
        objects: Objects,
        offload: Offload,
        cache: ObjectCache,
        nursery: Callable[[], trio.Nursery],
        *,
        gets_max: int = GETS_MAX,
    ) -> None:
        self._objects = objects
        self._offload = offload
        self.cache = cache
        self._nursery = nursery
        self._gets = trio.CapacityLimiter(gets_max)
        self.gets = self.get_bytes = self.failed_gets = 0
        """Successful GETs with their bytes, and failed GETs, since the start."""
        self._running: dict[str, list[_Get]] = {}
        self._logged: dict[tuple[str, int], None] = {}
        self._containment: Containment[str] = Containment(
            "reading an object of diskless topics",
            consequence="the fetch fails with KAFKA_STORAGE_ERROR",
        )
        self._is_unavailable = False
        self.read_ahead_bytes = 0
        """Bytes of the read-ahead GETs that are running."""

    async def read(
        self,
        partitions: Sequence[PartitionRead],
        *,
        slow_seconds: float = inf,
        seconds_max: float = inf,
    ) -> None:
        """Read the batches of all partitions.

        After `slow_seconds` it returns as soon as a partition has records, after `seconds_max` in any case. GETs that
        are still running then continue.
        """
        cached: dict[_Place, CachedRange] = {}
        gets: dict[_Place, _Get] = {}
        missing = []
        for partition in partitions:
            for batch in partition.batches:
                place = (batch.object_key, batch.byte_offset)
                found = self.cache.find(batch.object_key, batch.byte_offset, batch.byte_size)
                running = None if found is not None else self._find_running(batch)
                if found is not None:
                    cached[place] = found
                elif running is not None:
                    gets[place] = running
                else:
                    missing.append(batch)
        for get in self._start(missing, is_read_ahead=False):
            for batch in get.plan.batches:
                gets[_place(batch)] = get
        if gets:
            await self._wait(partitions, gets, slow_seconds, seconds_max)
        for number, partition in enumerate(partitions):
            if number:
                await trio.lowlevel.checkpoint()  # a large response takes milliseconds
            self._assemble(partition, cached, gets)

    def read_ahead(
        self, batches: Iterable[DisklessFindBatchesBatchInfo], read_ahead_bytes_max: int
    ) -> None:
        """Start GETs for batches that are not in the cache, in the order of `batches`, while GETs are free and fewer
        than `read_ahead_bytes_max` bytes are being read ahead."""
        missing = []
        size_bytes = self.read_ahead_bytes
        for batch in batches:
            if self.cache.contains(batch.object_key, batch.byte_offset, batch.byte_size):
                continue
            if self._find_running(batch) is not None:
                continue
            size_bytes += batch.byte_size
            if size_bytes > read_ahead_bytes_max:
                break
            missing.append(batch)
        free = int(self._gets.available_tokens) - GETS_KEPT_FREE
        if missing and free > 0:
            self._start(missing, is_read_ahead=True, gets_max=free)

    def report(self, partition: PartitionRead) -> None:
        """Log the failure of a partition: a damaged or missing batch once, with its object."""
        failure = partition.failure
        if failure is None or isinstance(failure, ObjectUnavailable):
            return  # logged when the store stopped responding
        batch = partition.batches[partition.batches_read]
        place = _place(batch)
        if place in self._logged:
            return
        if len(self._logged) >= FAILURES_LOGGED_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[place] = None
        _logger.error(
            "The batch with offsets %d to %d of %s-%d cannot be read from byte %d of object %s: %s",
            batch.base_offset,
            batch.last_offset,
            partition.topic,
            partition.index,
            batch.byte_offset,
            batch.object_key,
            failure.message,
        )

    def _find_running(self, batch: DisklessFindBatchesBatchInfo) -> _Get | None:
        for get in self._running.get(batch.object_key, ()):
            if get.contains(batch):
                return get
        return None

    def _start(
        self,
        batches: Sequence[DisklessFindBatchesBatchInfo],
        *,
        is_read_ahead: bool,
        gets_max: int = 2**31,
    ) -> list[_Get]:
        plans = plan_gets(batches)
        if len(plans) > gets_max:  # the first batches are needed first
            first = {_place(batch): at for at, batch in reversed(list(enumerate(batches)))}
            plans = sorted(
                plans, key=lambda plan: min(first[_place(each)] for each in plan.batches)
            )
            plans = plans[:gets_max]
        gets = []
        for plan in plans:
            get = _Get(plan, is_read_ahead=is_read_ahead)
            self._running.setdefault(plan.key, []).append(get)
            if is_read_ahead:
                self.read_ahead_bytes += plan.end - plan.start
            self._nursery().start_soon(self._run, get)
            gets.append(get)
        return gets

    async def _run(self, get: _Get) -> None:
        plan = get.plan
        try:
            async with self._gets:
                await self._containment.run(plan.key, self._get, get)
        finally:
            if get.range is None and get.error is None:
                get.error = ObjectUnavailable(f"the object {plan.key} could not be read")
            running = self._running[plan.key]
            running.remove(get)
            if not running:
                del self._running[plan.key]
            if get.is_read_ahead:
                self.read_ahead_bytes -= plan.end - plan.start
            get.done.set()

    async def _get(self, get: _Get) -> None:
        plan = get.plan
        try:
            data, faults = await self._offload.run(
                _get_checked, self._objects, plan, lane=OBJECTS_LANE
            )
        except ObjectMissing:
            self.failed_gets += 1
            get.error = ObjectNotFound("the object does not exist")
            return
        except ObjectsUnavailable as error:
            self.failed_gets += 1
            get.error = ObjectUnavailable(str(error))
            if not self._is_unavailable:
                self._is_unavailable = True
                _logger.warning(
                    "The object store of diskless topics does not respond; fetches of records that are not in memory "
                    "fail with KAFKA_STORAGE_ERROR: %s",
                    error,
                )
            return
        if self._is_unavailable:
            self._is_unavailable = False
            _logger.info("The object store of diskless topics responds again")
        self.gets += 1
        self.get_bytes += len(data)
        get.faults = faults
        if faults:
            read = CachedRange(plan.key, plan.start, memoryview(data), is_checked=False)
        else:
            read = self.cache.put_range(plan.key, plan.start, data)
        for batch in plan.batches:
            if batch.byte_offset not in faults:
                read.set_checked(batch.byte_offset)
        get.range = read

    async def _wait(
        self,
        partitions: Sequence[PartitionRead],
        gets: dict[_Place, _Get],
        slow_seconds: float,
        seconds_max: float,
    ) -> None:
        running = list({id(get): get for get in gets.values()}.values())
        with trio.move_on_after(min(slow_seconds, seconds_max)):
            for get in running:
                await get.done.wait()
            return
        with trio.move_on_after(max(0.0, seconds_max - slow_seconds)):
            while running := [get for get in running if not get.done.is_set()]:
                if any(_has_first_batch(partition, gets) for partition in partitions):
                    return
                async with trio.open_nursery() as nursery:
                    for get in running:
                        nursery.start_soon(_cancel_when_done, get, nursery.cancel_scope)

    def _assemble(
        self,
        partition: PartitionRead,
        cached: dict[_Place, CachedRange],
        gets: dict[_Place, _Get],
    ) -> None:
        out = bytearray()
        for batch in partition.batches:
            place = _place(batch)
            source = cached.get(place)
            if source is None:
                get = gets[place]
                if not get.done.is_set():
                    break
                fault = get.faults.get(batch.byte_offset)
                if get.error is not None or fault is not None:
                    partition.failure = get.error or DamagedObject(fault or "")
                    break
                source = get.range
                assert source is not None
            view = source.view(batch.byte_offset, batch.byte_size)
            is_checked = source.is_checked(batch.byte_offset)
            fault = header_fault(view, batch) if is_checked else batch_fault(view, batch)
            if fault is not None:
                self.cache.forget(batch.object_key)
                partition.failure = DamagedObject(fault)
                break
            source.set_checked(batch.byte_offset)
            append_batch(out, view, batch)
            partition.batches_read += 1
        partition.records = out or None


async def _cancel_when_done(get: _Get, scope: trio.CancelScope) -> None:
    await get.done.wait()
    scope.cancel()


def _has_first_batch(partition: PartitionRead, gets: dict[_Place, _Get]) -> bool:
    if not partition.batches:
        return False
    get = gets.get(_place(partition.batches[0]))
    return get is None or get.range is not None


def _get_checked(objects: Objects, plan: RangedGet) -> tuple[Buffer, dict[int, str]]:
    """Bytes of a GET, and the faults of its batches by byte offset. The bytes are read again if there are faults.

    Runs in a thread. Raises ObjectMissing or ObjectsUnavailable.
    """
    data = objects.get_range(plan.key, plan.start, plan.end - plan.start)
    faults = _faults(data, plan)
    if faults:
        again = objects.get_range(plan.key, plan.start, plan.end - plan.start)
        faults_again = _faults(again, plan)
        if len(faults_again) < len(faults):
            return again, faults_again
    return data, faults


def _faults(data: Buffer, plan: RangedGet) -> dict[int, str]:
    view = memoryview(data)
    faults = {}
    for batch in plan.batches:
        at = batch.byte_offset - plan.start
        fault = batch_fault(view[at : at + batch.byte_size], batch)
        if fault is not None:
            faults[batch.byte_offset] = fault
    return faults
