"""Finds the batches of diskless partitions at their coordinators, and reads their bytes from the object store (KIP-1163).

`broker/diskless/fetch.py` uses it for Fetch requests, `offset_queries.py` for timestamps.

The batches may come from a replica of the coordinator that is behind (D-10). An offset that such a replica does not
have yet, or an object that was deleted meanwhile, is therefore confirmed by the coordinator before it is an error. While
a coordinator is unavailable, its partitions have no records and no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

import trio

from odradek.broker.diskless.fetch_polls import DisklessKey, FetchPolls, Found, Routes, is_known
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.diskless_apis import (
    DisklessFindBatchesBatchInfo,
    DisklessFindBatchesPartitionResponse,
    DisklessListOffsetsPartitionResponse,
)
from odradek.seams.files import Buffer, FileSlice, Path
from odradek.storage.diskless.batch_reader import (
    BatchReader,
    ObjectNotFound,
    PartitionRead,
)
from odradek.storage.diskless.queries import EARLIEST, LATEST, FindPosition, TimestampPosition

if TYPE_CHECKING:
    from odradek.replication.controller.image import MetadataDelta, MetadataImage, TopicImage
    from odradek.replication.partition.partition import PartitionTraffic
    from odradek.seams import Seams
    from odradek.seams.objects import Objects
    from odradek.storage.diskless.object_cache import ObjectCache

RESPONSE_BYTES_MAX: Final = 16 << 20
"""Maximum size of a response with diskless partitions, except for its first batch: it stays in memory until it is
sent."""
UNSENT_BYTES_MAX: Final = 128 << 20
"""Bytes of responses that are not sent yet from which on responses are small."""
SMALL_RESPONSE_BYTES: Final = 64 << 10
BATCHES_MAX: Final = 2000
"""Batches of one partition that are found at once."""
FIND_SECONDS: Final = 1.0
"""Time limit of finding batches. Waiting fetches ask again at the next poll."""
FAILED_SECONDS: Final = 2.0
"""Time for which only waiting fetches ask a coordinator that did not respond."""
READ_AHEAD_BYTES_MAX: Final = 32 << 20
"""Bytes that a broker reads ahead at the same time."""
SLOW_SECONDS: Final = 0.5
"""Time after which a response does not wait for further objects if it has records."""
SECONDS_MAX: Final = 10.0
"""Time after which a response does not wait for any object."""
FAILURE_SECONDS: Final = 0.1
"""Delay of a response whose objects could not be read, because the client retries at once."""
END_SECONDS: Final = 5.0
"""Time for which a partition's end is reused, as long as the replica of the coordinator here applies no commit."""
ENDS_MAX: Final = 100_000
CONSUMERS_MAX: Final = 10_000
"""Consumers that are recognized by the offset that they read next."""
UNAVAILABLE: Final = ErrorCode.replica_not_available
"""Error of a partition whose coordinator is not available: clients refresh their metadata and retry."""
_FAILURES: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    }
)
"""Errors of a coordinator that did not respond."""
_INT32_MAX: Final = 2**31 - 1


class _End:
    """The end of a partition: an offset at which there was no batch."""

    __slots__ = ("found", "found_at", "seconds")

    def __init__(self, found: Found, found_at: int, seconds: float) -> None:
        """`found_at` is the value of `FetchPolls.now` before the request, `seconds` the time of the monotonic clock."""
        self.found = found
        self.found_at = found_at
        self.seconds = seconds


class BatchFinder(Routes, Protocol):
    """Requests to coordinators, of which the reader uses those for batches."""

    async def find_batches(
        self,
        positions: Sequence[FindPosition],
        *,
        max_bytes: int,
        max_batches: int,
        strict: bool = False,
        timeout_s: float = ...,
    ) -> Sequence[Found]:
        """Result of each position, from a replica here if there is one; with `strict`, from the leader.

        Repeats the request after retriable errors while the time allows. Raises nothing.
        """
        ...

    async def find_at_isr(
        self, positions: Sequence[FindPosition], *, timeout_s: float = ...
    ) -> Sequence[Sequence[Found]]:
        """Results of each position of all members of the ISR of its coordinator's partition."""
        ...

    async def list_offsets(
        self, positions: Sequence[TimestampPosition], *, timeout_s: float = ...
    ) -> Sequence[DisklessListOffsetsPartitionResponse]:
        """Offset of each timestamp, after everything that the coordinator has appended before."""
        ...


class UnsentRecords:
    """Records of a large response in memory, until they are sent: the source of one slice, pinned once."""

    __slots__ = ("_data", "_sent", "path", "pins")

    def __init__(self, data: bytearray, sent: Callable[[int], None]) -> None:
        """`sent` is called with the size in bytes when the last pin is released."""
        self._data = memoryview(data).toreadonly()
        self._sent = sent
        self.pins = 1
        self.path = Path("diskless/response")
        """Name for messages; no such file exists."""

    def read_at(self, position: int, size: int, *, nowait: bool = False) -> memoryview:
        return self._data[position : position + size]

    def is_in_memory(self, position: int, size: int) -> bool:
        return True

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        if not self.pins:
            raise ValueError(f"{self.path} is not pinned")
        self.pins -= 1
        if not self.pins:
            self._sent(len(self._data))


class ReadBatches:
    """Batches of one partition for a response: chosen within a size, then read.

    `error_code` is that of the partition. `is_unavailable`: the coordinator did not respond.
    """

    __slots__ = (
        "batches",
        "error_code",
        "high_watermark",
        "index",
        "is_unavailable",
        "log_start_offset",
        "next_batches",
        "offset",
        "records",
        "size_bytes",
        "topic",
    )

    def __init__(self, topic: TopicImage, index: int, offset: int, found: Found | None) -> None:
        """`offset` is the fetch offset. `found` is None if nothing is known of the partition."""
        self.topic = topic
        self.index = index
        self.offset = offset
        self.batches: Sequence[DisklessFindBatchesBatchInfo] = ()
        self.next_batches: Sequence[DisklessFindBatchesBatchInfo] = ()
        """Batches that were found and are not chosen."""
        self.error_code = ErrorCode.none
        self.is_unavailable = True
        self.high_watermark = -1
        self.log_start_offset = -1
        self.records: bytearray | None = None
        self.size_bytes = 0
        """Size of the chosen batches, and of `records` once they are read."""
        if found is not None and is_known(found):
            self.take(found)

    def take(self, found: Found) -> None:
        """Take the result of the coordinator."""
        self.is_unavailable = False
        if found.error_code is not ErrorCode.none:
            self.fail(found.error_code)
            return
        self.high_watermark = found.high_watermark
        self.log_start_offset = found.log_start_offset
        self.next_batches = found.batches

    def choose(self, max_bytes: int, *, at_least_one: bool) -> None:
        """Choose the first batches with at most `max_bytes`."""
        count = size_bytes = 0
        found = self.next_batches
        for batch in found:
            if size_bytes + batch.byte_size > max_bytes and (count or not at_least_one):
                break
            size_bytes += batch.byte_size
            count += 1
        self.batches, self.next_batches = found[:count], found[count:]
        self.size_bytes = size_bytes

    def put(self, partition: PartitionRead) -> None:
        """Take the records that were read. The other batches remain for the next fetch."""
        count = partition.batches_read
        self.records = partition.records
        self.size_bytes = 0 if partition.records is None else len(partition.records)
        self.next_batches = [*self.batches[count:], *self.next_batches]
        self.batches = self.batches[:count]

    def fail(self, code: ErrorCode) -> None:
        self.error_code = code
        self.high_watermark = self.log_start_offset = -1
        self.batches = self.next_batches = ()
        self.records, self.size_bytes = None, 0


class DisklessLogReader:
    """Reads diskless partitions for the fetches of a broker. `run` must be running."""

    def __init__(
        self,
        requests: BatchFinder,
        objects: Objects,
        cache: ObjectCache,
        seams: Seams,
        image: Callable[[], MetadataImage],
        *,
        is_local: Callable[[int], bool],
        poll_seconds: Callable[[], float],
    ) -> None:
        """`is_local` returns whether this broker has a replica of a coordinator, whose state it can ask."""
        self._requests = requests
        self._clock = seams.clock
        self._image = image
        self._nursery: trio.Nursery | None = None
        self.batches = BatchReader(objects, seams.offload, cache, self._open_nursery)
        self.polls = FetchPolls(self.find, requests, is_local, seams.clock, poll_seconds)
        self._is_local = is_local
        self._failed: dict[int, float] = {}
        """Coordinators that did not respond, and when, in seconds of the monotonic clock."""
        self.unsent_bytes = 0
        """Bytes of large responses that are not sent yet."""
        self._ends: dict[DisklessKey, _End] = {}
        self.traffic: Callable[[str], PartitionTraffic | None] = lambda topic: None
        """Traffic counters of a topic; None if they are not counted."""
        self._continued: dict[tuple[UUID, int, int], None] = {}
        """Partitions with the next offsets of their consumers, least recently read first."""

    @property
    def response_bytes_max(self) -> int:
        """Size of a response from which on no batches of diskless partitions are added.

        It is small while clients that do not receive their responses occupy much memory.
        """
        if self.unsent_bytes < UNSENT_BYTES_MAX:
            return RESPONSE_BYTES_MAX
        return SMALL_RESPONSE_BYTES

    def records_to_send(self, records: bytearray) -> Buffer | FileSlice:
        """The records for the response; large ones are counted in `unsent_bytes` until they are sent."""
        if len(records) <= SMALL_RESPONSE_BYTES:
            return records
        self.unsent_bytes += len(records)
        return FileSlice(UnsentRecords(records, self._sent), 0, len(records))

    def _sent(self, size_bytes: int) -> None:
        self.unsent_bytes -= size_bytes

    def _open_nursery(self) -> trio.Nursery:
        assert self._nursery is not None, "the reader of diskless topics does not run"
        return self._nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the requests to the store and the polls until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await self.polls.run()

    def committed(self, topic_id: UUID, index: int) -> None:
        """A commit of a partition was applied on this broker, or was made by it."""
        self.polls.committed(topic_id, index)

    def metadata_changed(self, delta: MetadataDelta) -> None:
        self.polls.metadata_changed(delta)

    def topic_of(self, name: str | None, topic_id: UUID | None, index: int) -> TopicImage | None:
        """The topic if it is diskless and has that partition."""
        image = self._image()
        if topic_id is not None:
            topic = image.topics_by_id.get(topic_id)
        else:
            topic = image.topics_by_name.get(name or "")
        if topic is None or index not in topic.partitions or not topic.is_diskless:
            return None
        return topic

    async def find(
        self, positions: Sequence[FindPosition], max_bytes: int = RESPONSE_BYTES_MAX
    ) -> Sequence[Found]:
        """Batches from each position.

        If a replica that is behind does not have an offset or a partition yet, the leader is asked. A new leader may be
        behind, too: only a strict read decides that an offset is out of range.
        """
        found_at = self.polls.now
        found = list(await self._find(positions, max_bytes))
        doubtful = _doubtful(positions, found)
        if doubtful:
            of_leader = await self._find(
                [positions[number] for number in doubtful], max_bytes, strict=True
            )
            for number, each in zip(doubtful, of_leader, strict=True):
                found[number] = each
            await self._confirm_out_of_range(positions, found, _doubtful(positions, found))
        self._keep_ends(positions, found, found_at)
        self._keep_failed(positions, found)
        return found

    def is_failed(self, topic_id: UUID, index: int) -> bool:
        """Whether the coordinator of a partition did not respond a moment ago.

        A fetch does not ask it again before it waits, because its other partitions would be delayed every time.
        """
        if not self._failed:
            return False
        coordinator = self._requests.coordinator_of(topic_id, index)
        failed_at = self._failed.get(-1 if coordinator is None else coordinator)
        return failed_at is not None and self._clock.monotonic() - failed_at < FAILED_SECONDS

    def _keep_failed(self, positions: Sequence[FindPosition], found: Sequence[Found]) -> None:
        for position, each in zip(positions, found, strict=True):
            is_failed = each.error_code in _FAILURES
            if not is_failed and not self._failed:
                continue
            coordinator = self._requests.coordinator_of(position.topic_id, position.index)
            if coordinator is None:
                continue
            if is_failed:
                self._failed[coordinator] = self._clock.monotonic()
            else:
                self._failed.pop(coordinator, None)

    async def _confirm_out_of_range(
        self, positions: Sequence[FindPosition], found: list[Found], doubtful: Sequence[int]
    ) -> None:
        """Replace OFFSET_OUT_OF_RANGE by OFFSET_NOT_AVAILABLE unless the offset is above the high watermark (D-19).

        A strict read of a leader that was replaced and does not know it is old, too. So all members of the ISR must
        respond, and none may have the offset: at least one of them has every committed record.
        """
        numbers = [number for number in doubtful if is_known(found[number])]
        if not numbers:
            return
        asked = [positions[number] for number in numbers]
        ends = await self._list_offsets(asked, LATEST)
        of_isr = await self._requests.find_at_isr(asked, timeout_s=FIND_SECONDS)
        for number, end, replicas in zip(numbers, ends, of_isr, strict=True):
            offset = positions[number].offset
            is_above = end.error_code is ErrorCode.none and end.offset < offset
            if (
                not is_above
                or not replicas
                or not all(is_known(each) and each.high_watermark < offset for each in replicas)
            ):
                found[number] = DisklessFindBatchesPartitionResponse(
                    partition_index=positions[number].index,
                    error_code=ErrorCode.offset_not_available,
                )

    async def _list_offsets(
        self, positions: Sequence[FindPosition], timestamp_ms: int
    ) -> Sequence[DisklessListOffsetsPartitionResponse]:
        return await self._requests.list_offsets(
            [TimestampPosition(each.topic_id, each.index, timestamp_ms) for each in positions],
            timeout_s=FIND_SECONDS,
        )

    def find_end(self, position: FindPosition) -> Found | None:
        """The result for a position at the end of a partition that has had no commit since it was asked last.

        None if that is not known: only a replica of the coordinator here reports all commits. So idle consumers cost
        no queries.
        """
        key = (position.topic_id, position.index)
        end = self._ends.get(key)
        if end is None or end.found.high_watermark != position.offset:
            return None
        coordinator = self._requests.coordinator_of(*key)
        if coordinator is None or not self._is_local(coordinator):
            return None
        if (
            self.polls.is_changed_since(key, end.found_at)
            or self._clock.monotonic() - end.seconds > END_SECONDS
        ):
            del self._ends[key]
            return None
        return end.found

    def _keep_ends(
        self, positions: Sequence[FindPosition], found: Sequence[Found], found_at: int
    ) -> None:
        seconds = self._clock.monotonic()
        for position, each in zip(positions, found, strict=True):
            is_end = each.high_watermark == position.offset
            if is_end and each.error_code is ErrorCode.none:
                self._ends[position.topic_id, position.index] = _End(each, found_at, seconds)
        if len(self._ends) > ENDS_MAX:
            self._ends.clear()

    async def _find(
        self, positions: Sequence[FindPosition], max_bytes: int, *, strict: bool = False
    ) -> Sequence[Found]:
        return await self._requests.find_batches(
            positions,
            max_bytes=min(max_bytes, _INT32_MAX),
            max_batches=BATCHES_MAX,
            strict=strict,
            timeout_s=FIND_SECONDS,
        )

    async def load(self, reads: Sequence[ReadBatches]) -> None:
        """Read the chosen batches of a fetch from the cache and the store, then read ahead."""
        partitions = [PartitionRead(each.topic.name, each.index, each.batches) for each in reads]
        await self.batches.read(partitions, slow_seconds=SLOW_SECONDS, seconds_max=SECONDS_MAX)
        missing = []
        has_failed = False
        for read, partition in zip(reads, partitions, strict=True):
            read.put(partition)
            if partition.failure is None:
                continue
            is_missing = isinstance(partition.failure, ObjectNotFound)
            if not is_missing:
                self.batches.report(partition)
            if partition.records is None:
                has_failed = True
                read.fail(partition.failure.code)
                if is_missing:
                    missing.append((read, partition))
        if missing:
            await self._confirm_missing(missing)
        if has_failed and not any(each.records for each in reads):
            await self._clock.sleep(FAILURE_SECONDS)
        self._read_ahead(reads)

    async def _confirm_missing(self, missing: Sequence[tuple[ReadBatches, PartitionRead]]) -> None:
        """Report objects that do not exist, unless their batches were deleted: a replica that is behind still has them."""
        starts = await self._list_offsets(
            [FindPosition(read.topic.id, read.index, read.offset, 1) for read, _ in missing],
            EARLIEST,
        )
        for (read, partition), start in zip(missing, starts, strict=True):
            if start.error_code is not ErrorCode.none:
                read.fail(UNAVAILABLE)
            elif start.offset > read.offset:
                read.fail(ErrorCode.offset_out_of_range)
            else:
                self.batches.report(partition)

    def is_continued(self, topic_id: UUID, index: int, offset: int) -> bool:
        """Whether an earlier response ended at this offset, so that the consumer reads sequentially."""
        return (topic_id, index, offset) in self._continued

    def _read_ahead(self, reads: Iterable[ReadBatches]) -> None:
        """Remember the next offsets of the consumers, and read the next batches of those that read sequentially."""
        ahead: list[DisklessFindBatchesBatchInfo] = []
        for read in reads:
            if not read.records:
                continue
            topic_id, index = read.topic.id, read.index
            is_continued = self._continued.pop((topic_id, index, read.offset), 0) is None
            self._continued[topic_id, index, read.batches[-1].last_offset + 1] = None
            if is_continued:
                ahead.extend(read.next_batches)
        while len(self._continued) > CONSUMERS_MAX:
            del self._continued[next(iter(self._continued))]
        if ahead:
            self.batches.read_ahead(ahead, READ_AHEAD_BYTES_MAX)

    def count(self, reads: Iterable[ReadBatches]) -> None:
        """Count the traffic of a response."""
        for each in reads:
            traffic = self.traffic(each.topic.name)
            if traffic is None:
                return
            traffic.fetches += 1
            traffic.bytes_out += each.size_bytes
            traffic.failed_fetches += each.error_code is not ErrorCode.none


def _doubtful(positions: Sequence[FindPosition], found: Sequence[Found]) -> list[int]:
    """Numbers of results of a replica that may be behind: it does not have the partition or the offset yet."""
    return [
        number
        for number, (position, each) in enumerate(zip(positions, found, strict=True))
        if (
            each.error_code is ErrorCode.offset_out_of_range
            and position.offset > each.high_watermark
        )
        or each.error_code in (ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
    ]
