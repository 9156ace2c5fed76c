"""Follower role of a partition: applies the decisions of `FollowerState` to the log.

The fetcher of the leader's broker (`replication/fetching`) sends the requests that `next_action`
returns and passes the responses in. Appends and other fast changes run on the event loop, in the
same step as the decision.

`apply_change` runs truncations and flushes in a task. A truncation first waits for the remote tier
and for the log's maintenance lock. This node may become the leader meanwhile, so `_begin` checks on
the loop that no newer `follow` or `stop` has superseded the truncation. From then on it runs in a
thread, and the partition defers any role that would append (`Partition.begin_change`). A flush
needs neither.

A Fetch response may hold ten thousand batches. They are appended in chunks, and other tasks run
between the chunks. The remaining records serve the follower's next Fetch if the log still ends
where they begin and the leader epoch is unchanged; otherwise they are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.batch import HEADER_SIZE, LOG_OVERHEAD
from odradek.replication.partition.follower_state import (
    AppendFetched,
    BuildRemoteLogAuxState,
    Fetch,
    FetchResult,
    FlushTo,
    FollowerAction,
    FollowerState,
    LogChange,
    OffsetResult,
    QueryEpochEnd,
    QueryOffset,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from odradek.replication.partition.partition import Partition
from odradek.replication.partition.truncation import LeaderEpochs
from odradek.seams.clock import Clock
from odradek.seams.values import value_class
from odradek.storage.errors import LogFailed, StorageError, UnexpectedOffset
from odradek.storage.log.leader_epoch_cache import EpochEnd
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.truncation import EmptyLogStart
from odradek.storage.tiered.errors import RemoteNotReady

log = logging.getLogger("odradek.fetching")

FIRST_BACK_OFF_MS = 20
CHUNK_BYTES = 256 << 10
CHUNK_BATCHES = 100
"""Limits of one chunk of a response, which takes about half a millisecond to append."""

_OFFSET_AND_LENGTH = Struct(">qi")
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_AT = 23


class LogChanger(Protocol):
    """Slow changes of a log, one at a time for each log: the interface of `LogManager`.

    `begin` is called on the loop once the log's maintenance lock is held. If it raises, nothing is
    changed and the exception propagates.
    """

    async def truncate(
        self, partition_log: PartitionLog, offset: int, *, begin: Callable[[], None]
    ) -> None: ...

    async def truncate_fully(
        self, partition_log: PartitionLog, beginning: EmptyLogStart, *, begin: Callable[[], None]
    ) -> None: ...

    async def flush(self, partition_log: PartitionLog, up_to: int) -> None:
        """Make everything below offset `up_to` durable. Needs no lock; appends may run meanwhile."""
        ...


class RemoteTier(Protocol):
    """Access to the part of the leader's log that only the remote tier has (KIP-405)."""

    async def beginning(
        self, partition_log: PartitionLog, change: BuildRemoteLogAuxState
    ) -> EmptyLogStart:
        """Return where the empty log starts after the last remote segment; see
        `BuildRemoteLogAuxState`.

        Changes nothing in the log. Raises KafkaError; the follower retries later.
        """
        ...


class NoRemoteTier:
    """Tier of a node without remote storage: followers start at the leader's local log start."""

    async def beginning(
        self, partition_log: PartitionLog, change: BuildRemoteLogAuxState
    ) -> EmptyLogStart:
        return EmptyLogStart.at(change.local_start_offset)


class FollowerLogView:
    """A `PartitionLog` as a `FollowerLog`."""

    def __init__(self, partition_log: PartitionLog) -> None:
        self._log = partition_log

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def reported_end_offset(self) -> int:
        return self._log.reported_end_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def epochs(self) -> LeaderEpochs:
        return self._log.epochs


class _Superseded(Exception):
    """The leader or its epoch changed after the change was decided."""


@value_class
class _RemainingResponse:
    """Records of a Fetch response that are not appended yet."""

    leader_epoch: int
    offset: int
    """Offset of the first remaining record."""
    response: FetchResult
    records: memoryview


class FollowerRole:
    """Role of a replica that follows a leader. All methods except `apply_change` are synchronous."""

    def __init__(
        self,
        partition: Partition,
        logs: LogChanger,
        tier: RemoteTier,
        clock: Clock,
        *,
        back_off_ms: int,
        on_role: Callable[[Partition], None],
    ) -> None:
        """`on_role` is called with the partition when a deferred role takes effect after a change."""
        self.partition = partition
        self.state = FollowerState(
            FollowerLogView(partition.log),
            back_off_ms=back_off_ms,
            first_back_off_ms=FIRST_BACK_OFF_MS,
        )
        self.is_behind = True
        """Whether the leader's high watermark is past this log's end, as of the last response."""
        self._logs = logs
        self._tier = tier
        self._clock = clock
        self._on_role = on_role
        self._remaining: _RemainingResponse | None = None
        self._has_begun = False
        """Whether a change of the log is running in a thread."""
        self._append_error: str | None = None
        """The error of the last append, which is logged once while it is repeated."""

    def __repr__(self) -> str:
        return f"<FollowerRole {self.partition.topic}-{self.partition.index} {self.state.state}>"

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def due_ms(self) -> int:
        return self.state.due_ms

    def follow(self, leader_epoch: int) -> None:
        """Follow the leader of this epoch, which is on another broker."""
        if leader_epoch > self.leader_epoch:
            self.is_behind = True
        self.state.follow(leader_epoch)

    def stop(self) -> None:
        """Stop: there is no leader, this node is the leader, or the replica was removed."""
        self.state.stop()
        self._remaining = None

    # Requests

    def next_action(self) -> FollowerAction | None:
        """Return `FollowerState.next_action`; stops if the log is offline."""
        if self.partition.log.failure is not None:
            self.stop()
            return None
        return self.state.next_action(self._now_ms())

    def has_remaining(self, query: Fetch) -> bool:
        """Whether remaining records serve this fetch; the caller then calls `append_remaining`."""
        rest, self._remaining = self._remaining, None
        if rest is None or (rest.leader_epoch, rest.offset) != (
            query.leader_epoch,
            query.offset,
        ):
            return False
        self._remaining = rest
        return True

    # Responses

    def fetched(self, query: Fetch, response: FetchResult, records: memoryview) -> int:
        """Append the records, or the first chunk of them, and return how many bytes.

        After 0 the follower needs another request, or the same one after a delay.
        """
        append = self.state.fetched(query, response)
        if append is None:
            return 0
        try:
            return self._append(append, response, records)
        except KafkaError as error:
            is_repeated, self._append_error = self._append_error == str(error), str(error)
            log.log(
                logging.DEBUG if is_repeated else logging.WARNING,
                "Error while processing data for partition %s at offset %d: %s",
                self._name,
                append.offset,
                error,
            )
            self.state.failed(append, _code_of(error), self._now_ms())
        except Exception:  # a bug: only this partition stops fetching
            log.exception(
                "Unexpected error occurred while processing data for partition %s at offset %d: "
                "partition marked as failed",
                self._name,
                append.offset,
            )
            self.stop()
        return 0

    def append_remaining(self, query: Fetch) -> int:
        """Append the next chunk; only after `has_remaining` returned True."""
        rest, self._remaining = self._remaining, None
        assert rest is not None
        return self.fetched(query, rest.response, rest.records)

    def epoch_end_received(self, query: QueryEpochEnd, response: EpochEnd) -> None:
        """Handle the leader's OffsetForLeaderEpoch result."""
        self.state.epoch_end_received(query, response)

    def offset_received(self, query: QueryOffset, response: OffsetResult) -> None:
        """Handle the leader's ListOffsets result."""
        self.state.offset_received(query, response, self._now_ms())

    def failed_on_leader(self, query: FollowerAction, code: ErrorCode) -> None:
        """Handle an error of the leader, or a lost connection to it."""
        if code is ErrorCode.kafka_storage_error:
            # The leader's disk failed, not this one: the leader or its log directory may change.
            code = ErrorCode.unknown_server_error
        self.state.failed(query, code, self._now_ms())

    def _append(self, append: AppendFetched, response: FetchResult, records: memoryview) -> int:
        size_bytes, last_offset = first_chunk(records)
        partition_log = self.partition.log
        try:
            appended = partition_log.append_as_follower(
                records[:size_bytes], leader_epoch=append.leader_epoch
            )
        except UnexpectedOffset as error:
            is_empty = partition_log.log_start_offset == partition_log.end_offset
            if not is_empty or error.last_offset < partition_log.end_offset:
                raise StorageError(ErrorCode.corrupt_message, str(error)) from error
            self._remaining = _RemainingResponse(
                append.leader_epoch, error.first_offset, response, records
            )
            self.state.start_before(append, error.first_offset)
            return 0
        self._append_error = None
        high_watermark, start = self.state.limits(append)
        self.partition.replicated(high_watermark, size_bytes)
        partition_log.advance_log_start(start, "the leader's log start offset")
        self.state.appended(append)
        end = partition_log.end_offset
        self.is_behind = response.high_watermark > end
        if last_offset >= 0 and appended.last_offset == last_offset:
            # If fewer were appended, the rest belongs to a later leader epoch.
            self._remaining = _RemainingResponse(
                append.leader_epoch, end, response, records[size_bytes:]
            )
        return size_bytes

    # Changes of the log

    async def apply_change(self, change: LogChange) -> None:
        """Apply the change unless it is superseded, and report the result to the follower state.

        An unexpected error takes only this partition offline.
        """
        beginning: EmptyLogStart | None = None
        if isinstance(change, BuildRemoteLogAuxState):
            beginning = await self._read_tier(change)
            if beginning is None:
                return
        try:
            await self._run_change(change, beginning)
        except _Superseded:
            log.info("The truncation of %s was superseded by a new leader epoch", self._name)
            self.state.failed(change, ErrorCode.not_leader_or_follower, self._now_ms())
        except KafkaError as error:
            self._failed(change, error)
        except Exception as error:  # a bug: the log's state is unknown
            log.exception(
                "Unexpected error occurred during truncation for %s: its log is offline", self._name
            )
            self.partition.log.take_log_offline(error)
            self.state.failed(change, ErrorCode.kafka_storage_error, self._now_ms())
        else:
            self.state.changed(change)
        finally:
            if self._has_begun:
                self._has_begun = False
                if self.partition.end_change():
                    self._on_role(self.partition)

    def _begin(self, change: LogChange) -> None:
        """Start the change. Until it ends, this node does not become the leader."""
        if self.state.is_superseded(change):
            raise _Superseded
        self.partition.begin_change()
        self._has_begun = True

    async def _read_tier(self, change: BuildRemoteLogAuxState) -> EmptyLogStart | None:
        """Return where the log starts after the remote segments; None after a failure.

        Reading may take long, and this node may become the leader meanwhile.
        """
        try:
            return await self._tier.beginning(self.partition.log, change)
        except KafkaError as error:
            self._failed(change, error)
        except Exception:  # a bug; the log is unchanged
            log.exception("Error building remote log auxiliary state for %s", self._name)
            self.state.failed(change, ErrorCode.unknown_server_error, self._now_ms())
        return None

    def _failed(self, change: LogChange, error: KafkaError) -> None:
        is_temporary = isinstance(error, RemoteNotReady)
        level = logging.INFO if is_temporary else logging.WARNING
        match change:
            case BuildRemoteLogAuxState():
                text = "Could not build remote log auxiliary state for %s due to error: %s"
            case FlushTo():
                text = "Failed to flush %s: %s"
            case _:
                text = "Failed to truncate %s: %s"
        log.log(level, text, self._name, error)
        self.state.failed(change, _code_of(error), self._now_ms())

    async def _run_change(self, change: LogChange, beginning: EmptyLogStart | None) -> None:
        partition_log, begin = self.partition.log, partial(self._begin, change)
        if isinstance(change, FlushTo):
            await self._logs.flush(partition_log, change.offset)
        elif isinstance(change, TruncateTo):
            if change.offset < partition_log.end_offset:
                log.info(
                    "Truncating partition %s to offset %d, where its log diverges from the leader's",
                    self._name,
                    change.offset,
                )
            await self._logs.truncate(partition_log, change.offset, begin=begin)
        elif isinstance(change, TruncateFullyAndStartAt):
            log.info(
                "Truncate fully and reset fetch offset for partition %s to offset %d",
                self._name,
                change.offset,
            )
            await self._logs.truncate_fully(
                partition_log, EmptyLogStart.at(change.offset), begin=begin
            )
        else:
            assert beginning is not None
            log.info(
                "Truncate fully and reset fetch offset for partition %s to offset %d, "
                "the end of its remote log segments",
                self._name,
                beginning.offset,
            )
            await self._logs.truncate_fully(partition_log, beginning, begin=begin)

    @property
    def _name(self) -> str:
        """Name of the partition in log messages, as in Kafka."""
        return f"{self.partition.topic}-{self.partition.index}"

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def _code_of(error: KafkaError) -> ErrorCode:
    """Error code of a local failure: only a failed log stops the follower."""
    if error.code is ErrorCode.kafka_storage_error and not isinstance(error, LogFailed):
        return ErrorCode.unknown_server_error
    return error.code


def first_chunk(records: memoryview) -> tuple[int, int]:
    """Return the size in bytes and the last offset of the first whole batches, up to the chunk
    limits.

    Returns the whole size and -1 if everything fits in one chunk, or the next batch is incomplete
    or corrupt.
    """
    size = len(records)
    position = last = count = 0
    while position < CHUNK_BYTES and count < CHUNK_BATCHES:
        if size - position < HEADER_SIZE:
            return size, -1
        length: int = _OFFSET_AND_LENGTH.unpack_from(records, position)[1]
        after = position + LOG_OVERHEAD + length
        if length <= 0 or after >= size:
            return size, -1  # the last batch; the append checks whether it is complete
        position, last, count = after, position, count + 1
    (base_offset, _) = _OFFSET_AND_LENGTH.unpack_from(records, last)
    (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, last + _LAST_OFFSET_DELTA_AT)
    return position, base_offset + delta
