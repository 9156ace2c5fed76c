"""A partition that this node follows: its `FollowerState` at work on the log.

The fetcher of the leader's broker (`replication/fetching`) asks what is wanted and brings what came of
it; here it is done. What changes the log at its end, or is quick, happens on the loop, in the same step
as the decision. What cuts it (`apply_change`) waits for a task, the tier and the log's turn first, and this node may
lead by then: whether the decision still stands is asked when it begins, in the same step. From then on it is
in a thread, and the partition changes its role to nothing that appends (`Partition.begin_change`).

An answer may hold ten thousand batches. They are appended in pieces, with turns of others in between:
what is left answers the follower's next question, which it fits if the log still ends where it begins
and the leader's epoch is still the same, and is dropped otherwise.
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
from odradek.replication.partition.truncation import Epochs
from odradek.seams.clock import Clock
from odradek.seams.values import value_class
from odradek.storage.errors import LogFailed, StorageError, UnexpectedOffset
from odradek.storage.log.epochs import EpochEnd
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.truncation import EmptyLogStart
from odradek.storage.tiered.errors import RemoteNotReady

log = logging.getLogger("odradek.following")

FIRST_BACK_OFF_MS = 20
CHUNK_BYTES = 256 << 10
CHUNK_BATCHES = 100
"""What is appended between two turns of others: half a millisecond or so."""

_OFFSET_AND_LENGTH = Struct(">qi")
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_AT = 23


class LogChanger(Protocol):
    """Changes of a log that take long, each beside no other of the same log: `LogManager`. `begin` is
    called on the loop when its turn has come; what it raises is raised, and nothing is changed."""

    async def truncate(
        self, partition_log: PartitionLog, offset: int, *, begin: Callable[[], None]
    ) -> None: ...

    async def truncate_fully(
        self, partition_log: PartitionLog, beginning: EmptyLogStart, *, begin: Callable[[], None]
    ) -> None: ...

    async def flush(self, partition_log: PartitionLog, up_to: int) -> None:
        """Which may run beside appends, and needs no turn."""
        ...


class RemoteTier(Protocol):
    """Where the leader's log is that it does not have on its own disks any more (KIP-405)."""

    async def beginning(
        self, partition_log: PartitionLog, change: BuildRemoteLogAuxState
    ) -> EmptyLogStart:
        """How a log begins that goes on where the tier ends; see `BuildRemoteLogAuxState`. Nothing is done to
        the log. KafkaError: it is tried again after a while."""
        ...


class NoRemoteTier:
    """Nothing can be read from a tier here: the follower starts where the leader's disks do."""

    async def beginning(
        self, partition_log: PartitionLog, change: BuildRemoteLogAuxState
    ) -> EmptyLogStart:
        return EmptyLogStart.at(change.local_start_offset)


class FollowerLogView:
    """The log as its follower knows it."""

    def __init__(self, partition_log: PartitionLog) -> None:
        self._log = partition_log

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def counted_end(self) -> int:
        return self._log.counted_end

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def epochs(self) -> Epochs:
        return self._log.epochs


class _Superseded(Exception):
    """There was another leader, or none, since the change was decided."""


@value_class
class _RemainingResponse:
    """What is left of an answer."""

    leader_epoch: int
    offset: int
    """The first that it holds."""
    response: FetchResult
    records: memoryview


class FollowerRole:
    """See the module. All but `apply_change` is synchronous, on the loop."""

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
        """`on_role` hears of a role that was put off until a change of the log was done."""
        self.partition = partition
        self.state = FollowerState(
            FollowerLogView(partition.log),
            back_off_ms=back_off_ms,
            first_back_off_ms=FIRST_BACK_OFF_MS,
        )
        self.is_behind = True
        """Whether the leader has records that are replicated and not here, as far as is known."""
        self._logs = logs
        self._tier = tier
        self._clock = clock
        self._on_role = on_role
        self._remaining: _RemainingResponse | None = None
        self._has_begun = False
        """Whether the log is being changed."""

    def __repr__(self) -> str:
        return f"<Following {self.partition.topic}-{self.partition.index} {self.state.state}>"

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def due_ms(self) -> int:
        return self.state.due_ms

    def follow(self, leader_epoch: int) -> None:
        """There is a leader of this epoch, on another broker."""
        if leader_epoch > self.leader_epoch:
            self.is_behind = True
        self.state.follow(leader_epoch)

    def stop(self) -> None:
        """There is no leader, or it is this node, or the replica is gone."""
        self.state.stop()
        self._remaining = None

    # Asking

    def next_action(self) -> FollowerAction | None:
        """As `FollowerState.next_action`; no log is asked that is offline."""
        if self.partition.log.failure is not None:
            self.stop()
            return None
        return self.state.next_action(self._now_ms())

    def has_remaining(self, query: Fetch) -> bool:
        """Whether the rest of an earlier answer answers this; `append_remaining` then."""
        rest, self._remaining = self._remaining, None
        if rest is None or (rest.leader_epoch, rest.offset) != (
            query.leader_epoch,
            query.offset,
        ):
            return False
        self._remaining = rest
        return True

    # Answers

    def fetched(self, query: Fetch, response: FetchResult, records: memoryview) -> int:
        """Take the records, or the first of them; how many bytes. The follower wants something else
        then, or the same again later."""
        append = self.state.fetched(query, response)
        if append is None:
            return 0
        try:
            return self._append(append, response, records)
        except KafkaError as error:
            log.warning("%r cannot take offset %d: %s", self.partition, append.offset, error)
            self.state.failed(append, _code_of(error), self._now_ms())
        except Exception:  # ours, and this partition's alone
            log.exception("%r is not followed any more", self.partition)
            self.stop()
        return 0

    def append_remaining(self, query: Fetch) -> int:
        """`has_remaining` said so."""
        rest, self._remaining = self._remaining, None
        assert rest is not None
        return self.fetched(query, rest.response, rest.records)

    def epoch_end_received(self, query: QueryEpochEnd, response: EpochEnd) -> None:
        """Where an epoch ended on the leader."""
        self.state.epoch_end_received(query, response)

    def offset_received(self, query: QueryOffset, response: OffsetResult) -> None:
        """Where the leader's log begins or ends."""
        self.state.offset_received(query, response, self._now_ms())

    def failed_on_leader(self, query: FollowerAction, code: ErrorCode) -> None:
        """The leader answered with an error, or nobody did."""
        if code is ErrorCode.kafka_storage_error:
            code = (
                ErrorCode.unknown_server_error
            )  # the leader's disk: it may get another, or a leader
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
        high_watermark, start = self.state.limits(append)
        self.partition.replicated(high_watermark, size_bytes)
        partition_log.advance_log_start(start, "the leader's log does")
        self.state.appended(append)
        end = partition_log.end_offset
        self.is_behind = response.high_watermark > end
        if last_offset >= 0 and appended.last_offset == last_offset:
            # And not fewer: they may be of a later epoch.
            self._remaining = _RemainingResponse(
                append.leader_epoch, end, response, records[size_bytes:]
            )
        return size_bytes

    # Changes of the log

    async def apply_change(self, change: LogChange) -> None:
        """Do it, unless it is outlived by then, and go on; what goes wrong is this partition's affair."""
        beginning: EmptyLogStart | None = None
        if isinstance(change, BuildRemoteLogAuxState):
            beginning = await self._read_tier(change)
            if beginning is None:
                return
        try:
            await self._pending_change(change, beginning)
        except _Superseded:
            log.info("%r stays as it is: another leader wanted it changed", self.partition)
            self.state.failed(change, ErrorCode.not_leader_or_follower, self._now_ms())
        except KafkaError as error:
            self._failed(change, error)
        except (
            Exception
        ) as error:  # ours, and this partition's alone: nobody knows what its log is now
            log.exception("%r is offline, by an error of its own", self.partition)
            self.partition.log.take_offline_alone(error)
            self.state.failed(change, ErrorCode.kafka_storage_error, self._now_ms())
        else:
            self.state.changed(change)
        finally:
            if self._has_begun:
                self._has_begun = False
                if self.partition.end_change():
                    self._on_role(self.partition)

    def _begin(self, change: LogChange) -> None:
        """From here on this node does not become the leader."""
        if self.state.is_superseded(change):
            raise _Superseded
        self.partition.begin_change()
        self._has_begun = True

    async def _read_tier(self, change: BuildRemoteLogAuxState) -> EmptyLogStart | None:
        """What the tier knows, however long it takes: this node may become the leader meanwhile. None:
        it failed; the follower knows."""
        try:
            return await self._tier.beginning(self.partition.log, change)
        except KafkaError as error:
            self._failed(change, error)
        except Exception:  # ours; the log is as it was
            log.exception("%r: its tier could not be read", self.partition)
            self.state.failed(change, ErrorCode.unknown_server_error, self._now_ms())
        return None

    def _failed(self, change: LogChange, error: KafkaError) -> None:
        passes_by_itself = isinstance(error, RemoteNotReady)
        level = logging.INFO if passes_by_itself else logging.WARNING
        log.log(level, "%r could not be changed: %s", self.partition, error)
        self.state.failed(change, _code_of(error), self._now_ms())

    async def _pending_change(self, change: LogChange, beginning: EmptyLogStart | None) -> None:
        partition_log, begin = self.partition.log, partial(self._begin, change)
        if isinstance(change, FlushTo):
            await self._logs.flush(partition_log, change.offset)
        elif isinstance(change, TruncateTo):
            if change.offset < partition_log.end_offset:
                log.info("%r is cut at %d, where its leader's parts", self.partition, change.offset)
            await self._logs.truncate(partition_log, change.offset, begin=begin)
        elif isinstance(change, TruncateFullyAndStartAt):
            log.info("%r starts anew at %d", self.partition, change.offset)
            await self._logs.truncate_fully(
                partition_log, EmptyLogStart.at(change.offset), begin=begin
            )
        else:
            assert beginning is not None
            log.info("%r goes on at %d, behind its tier", self.partition, beginning.offset)
            await self._logs.truncate_fully(partition_log, beginning, begin=begin)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def _code_of(error: KafkaError) -> ErrorCode:
    """What the follower makes of an error of its own: only a log that failed is past helping."""
    if error.code is ErrorCode.kafka_storage_error and not isinstance(error, LogFailed):
        return ErrorCode.unknown_server_error
    return error.code


def first_chunk(records: memoryview) -> tuple[int, int]:
    """The size of the first so many whole batches, and their last offset; all, and -1, if there is
    nothing to be left for later."""
    size = len(records)
    position = last = count = 0
    while position < CHUNK_BYTES and count < CHUNK_BATCHES:
        if size - position < HEADER_SIZE:
            return size, -1
        length: int = _OFFSET_AND_LENGTH.unpack_from(records, position)[1]
        after = position + LOG_OVERHEAD + length
        if length <= 0 or after >= size:
            return (
                size,
                -1,
            )  # the last; if it is cut short, or garbage, whoever appends it looks closer
        position, last, count = after, position, count + 1
    (base_offset, _) = _OFFSET_AND_LENGTH.unpack_from(records, last)
    (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, last + _LAST_OFFSET_DELTA_AT)
    return position, base_offset + delta
