"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords of diskless partitions, for the request handlers (D-08, D-09).

The partitions of a request are sent to their coordinators together. A coordinator knows the timestamps of batches only;
the records of the batch that it finds are read here, so that the offset is exact, as in Kafka.

Errors of coordinators become errors that clients of these APIs know and retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from odradek.broker.diskless.coordinator_service import DeletePosition
from odradek.broker.diskless.log_reader import BatchFinder, DisklessLogReader
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.batch import LOG_APPEND_TIME, Batch
from odradek.protocol.records.records import Record, decode_lazily
from odradek.protocol.schemas.diskless_apis import (
    DisklessDeleteRecordsPartitionResult,
    DisklessFindBatchesBatchInfo,
    DisklessFindBatchesPartitionResponse,
)
from odradek.seams.offload import RECORDS_LANE, Offload
from odradek.seams.values import value_class
from odradek.storage.diskless.batch_reader import PartitionRead
from odradek.storage.diskless.queries import LATEST, MAX_TIMESTAMP, FindPosition, TimestampPosition
from odradek.storage.log.timestamp_lookup import TimestampAndOffset

if TYPE_CHECKING:
    from odradek.replication.controller.image import TopicImage

LEADER_EPOCH: Final = 0
"""Leader epoch of diskless partitions."""
NOT_FOUND: Final = TimestampAndOffset(-1, -1, -1)
BATCHES_READ_AT_ONCE: Final = 16
"""Batches that are read at once for timestamps, so that a request of many partitions needs little memory."""
BATCHES_SCANNED: Final = 1000
"""Batches that are found at once to find the next one with a timestamp."""
_CLIENT_ERRORS: Final = {
    ErrorCode.not_coordinator: ErrorCode.leader_not_available,
    ErrorCode.coordinator_not_available: ErrorCode.leader_not_available,
    ErrorCode.coordinator_load_in_progress: ErrorCode.leader_not_available,
    ErrorCode.network_exception: ErrorCode.leader_not_available,
    ErrorCode.unknown_topic_id: ErrorCode.unknown_topic_or_partition,
}


class OffsetRequests(BatchFinder, Protocol):
    """Requests to coordinators. They are repeated while errors are retriable, and raise nothing."""

    async def delete_records(
        self, positions: Sequence[DeletePosition], *, timeout_s: float = ...
    ) -> Sequence[DisklessDeleteRecordsPartitionResult]: ...


@value_class
class OffsetQuery:
    """A partition of a diskless topic, and a timestamp in ms or a special one from -1 to -5."""

    topic: TopicImage
    index: int
    timestamp_ms: int


@value_class
class EpochEnd:
    """End offset of a leader epoch; -1 and -1 if the partition does not have the epoch."""

    epoch: int
    end_offset: int


def client_error(code: ErrorCode, message: str | None = None) -> KafkaError:
    """The error for a client of an error of a coordinator."""
    return KafkaError(_CLIENT_ERRORS.get(code, code), message or "")


def check_epoch(current_leader_epoch: int) -> None:
    """Check the leader epoch that a client knows. Raises UNKNOWN_LEADER_EPOCH."""
    if current_leader_epoch > LEADER_EPOCH:
        raise KafkaError(
            ErrorCode.unknown_leader_epoch,
            f"diskless partitions have leader epoch {LEADER_EPOCH}, not {current_leader_epoch}",
        )


class DisklessOffsets:
    """Offsets of diskless partitions."""

    def __init__(
        self, requests: OffsetRequests, reader: DisklessLogReader, offload: Offload
    ) -> None:
        self._requests = requests
        self._reader = reader
        self._offload = offload

    async def list_offsets(
        self, queries: Sequence[OffsetQuery]
    ) -> Sequence[TimestampAndOffset | KafkaError]:
        """Result of each query; a timestamp without a record has the offset -1."""
        listed = await self._requests.list_offsets(
            [TimestampPosition(each.topic.id, each.index, each.timestamp_ms) for each in queries]
        )
        results: list[TimestampAndOffset | KafkaError] = []
        searches: list[_Search] = []
        for query, found in zip(queries, listed, strict=True):
            if found.error_code is not ErrorCode.none:
                results.append(client_error(found.error_code, found.error_message))
                continue
            is_known = found.offset >= 0
            if is_known and (query.timestamp_ms >= 0 or query.timestamp_ms == MAX_TIMESTAMP):
                searches.append(_Search(len(results), query, found.offset))
            results.append(
                TimestampAndOffset(found.timestamp, found.offset, LEADER_EPOCH if is_known else -1)
            )
        for first in range(0, len(searches), BATCHES_READ_AT_ONCE):
            some = searches[first : first + BATCHES_READ_AT_ONCE]
            for search, result in zip(some, await self._search(some), strict=True):
                results[search.number] = result
        return results

    async def end_of_epochs(
        self, wanted: Sequence[tuple[TopicImage, int, int]]
    ) -> Sequence[EpochEnd | KafkaError]:
        """End offset of each (topic, index, leader epoch): the high watermark for epoch 0."""
        results: list[EpochEnd | KafkaError] = [EpochEnd(-1, -1) for _ in wanted]
        numbers = [number for number, (_, _, epoch) in enumerate(wanted) if epoch == LEADER_EPOCH]
        listed = await self._requests.list_offsets(
            [
                TimestampPosition(wanted[number][0].id, wanted[number][1], LATEST)
                for number in numbers
            ]
        )
        for number, found in zip(numbers, listed, strict=True):
            if found.error_code is not ErrorCode.none:
                results[number] = client_error(found.error_code, found.error_message)
            else:
                results[number] = EpochEnd(LEADER_EPOCH, found.offset)
        return results

    async def delete_records(
        self, wanted: Sequence[tuple[TopicImage, int, int]], timeout_s: float
    ) -> Sequence[int | KafkaError]:
        """Delete the records of each (topic, index) below an offset, or up to the high watermark for -1.

        Returns the log start offsets after the deletion.
        """
        deleted = await self._requests.delete_records(
            [DeletePosition(topic.id, index, offset) for topic, index, offset in wanted],
            timeout_s=timeout_s,
        )
        return [
            each.low_watermark
            if each.error_code is ErrorCode.none
            else client_error(each.error_code, each.error_message)
            for each in deleted
        ]

    async def _search(
        self, searches: Sequence[_Search]
    ) -> Sequence[TimestampAndOffset | KafkaError]:
        """Find the records of timestamps in the batches that the coordinators have found."""
        found = await self._requests.find_batches(
            [each.position(max_bytes=1) for each in searches],
            max_bytes=2**31 - 1,
            max_batches=1,
            strict=True,
        )
        reads = [
            PartitionRead(each.query.topic.name, each.query.index, of_partition.batches)
            for each, of_partition in zip(searches, found, strict=True)
        ]
        await self._reader.batches.read(reads)
        results: list[TimestampAndOffset | KafkaError] = []
        for search, of_partition, read in zip(searches, found, reads, strict=True):
            if _is_behind(of_partition, search.offset):
                results.append(client_error(ErrorCode.coordinator_load_in_progress))
            elif of_partition.error_code is ErrorCode.offset_out_of_range:
                results.append(NOT_FOUND)  # deleted meanwhile
            elif of_partition.error_code is not ErrorCode.none:
                results.append(client_error(of_partition.error_code))
            else:
                results.append(await self._record_of(search, read))
        return results

    async def _record_of(
        self, search: _Search, read: PartitionRead
    ) -> TimestampAndOffset | KafkaError:
        """The record in the batch, or in a later one: those with the timestamp may be below the log start offset."""
        while True:
            if read.records is None:
                self._reader.batches.report(read)
                return read.failure or NOT_FOUND
            record = await self._offload.run(
                _find_record,
                memoryview(read.records),
                search.query.timestamp_ms,
                search.offset,
                lane=RECORDS_LANE,
            )
            if record is not None:
                return TimestampAndOffset(record.timestamp, record.offset, LEADER_EPOCH)
            try:
                batch = await self._next_batch(search, read.batches[0].last_offset + 1)
            except KafkaError as error:
                return error
            if batch is None:
                return NOT_FOUND
            read = PartitionRead(read.topic, read.index, [batch])
            await self._reader.batches.read([read])

    async def _next_batch(
        self, search: _Search, offset: int
    ) -> DisklessFindBatchesBatchInfo | None:
        """The first batch from an offset whose largest timestamp is not below that of the search. Raises KafkaError."""
        while search.query.timestamp_ms >= 0:
            (found,) = await self._requests.find_batches(
                [FindPosition(search.query.topic.id, search.query.index, offset, 2**31 - 1)],
                max_bytes=2**31 - 1,
                max_batches=BATCHES_SCANNED,
                strict=True,
            )
            if found.high_watermark == offset or _is_deleted(found, offset):
                return None
            if _is_behind(found, offset):
                raise client_error(ErrorCode.coordinator_load_in_progress)
            if found.error_code is not ErrorCode.none:
                raise client_error(found.error_code)
            for batch in found.batches:
                if _largest_timestamp(batch) >= search.query.timestamp_ms:
                    return batch
            offset = found.batches[-1].last_offset + 1
        return None


@value_class
class _Search:
    """Search for a record of a query from `offset`; `number` is the position of its result."""

    number: int
    query: OffsetQuery
    offset: int

    def position(self, max_bytes: int) -> FindPosition:
        return FindPosition(self.query.topic.id, self.query.index, self.offset, max_bytes)


def _is_behind(found: DisklessFindBatchesPartitionResponse, offset: int) -> bool:
    """Whether a new leader has not applied the batch at `offset` yet, which a strict read has returned."""
    return found.error_code in (ErrorCode.none, ErrorCode.offset_out_of_range) and (
        found.high_watermark <= offset
    )


def _is_deleted(found: DisklessFindBatchesPartitionResponse, offset: int) -> bool:
    return found.error_code is ErrorCode.offset_out_of_range and offset < found.log_start_offset


def _largest_timestamp(batch: DisklessFindBatchesBatchInfo) -> int:
    if batch.timestamp_type == LOG_APPEND_TIME:
        return batch.log_append_timestamp
    return batch.batch_max_timestamp


def _find_record(records: memoryview, timestamp_ms: int, start_offset: int) -> Record | None:
    """First record from `start_offset` with at least that timestamp, or with the largest one for -3.

    Runs in a thread. Appends have checked the records.
    """
    found: Record | None = None
    for record in decode_lazily(Batch(records)):
        if record.offset < start_offset:
            continue
        if timestamp_ms != MAX_TIMESTAMP:
            if record.timestamp >= timestamp_ms:
                return record
        elif found is None or record.timestamp > found.timestamp:
            found = record
    return found
