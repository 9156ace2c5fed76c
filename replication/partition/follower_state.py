"""State machine of a partition's follower, without I/O: its next request or log change.

The follower has one pending action at a time. `next_action` returns a request for the leader (the
fetcher puts the requests of many followers into one), a change of its log, or None. The result is
passed in. A result for an action that is no longer pending is ignored: a new leader epoch or a
truncation invalidates all earlier requests.

| state | next action | then |
|---|---|---|
| FETCHING | Fetch (after the flush that flush.messages requires) | appends the records, or truncates if the logs diverge |
| | | records from below the end of an empty log: truncates fully, starts there, appends them |
| | | OFFSET_OUT_OF_RANGE: LOCATING_END |
| | | OFFSET_MOVED_TO_TIERED_STORAGE: LOCATING_TIER |
| TRUNCATING | OffsetForLeaderEpoch | truncates, until no other epoch has to be compared: FETCHING |
| LOCATING_END | ListOffsets: latest | below the local end: truncates to it, FETCHING |
| | | else LOCATING_START |
| LOCATING_START | ListOffsets: earliest | past the local end: truncates fully, starts there; FETCHING |
| LOCATING_TIER | ListOffsets: earliest | keeps it; LOCATING_LOCAL |
| LOCATING_LOCAL | ListOffsets: earliest local (-4) | LOCATING_EPOCH |
| | | no remote segment is left: truncates fully, starts there; FETCHING |
| LOCATING_EPOCH | OffsetForLeaderEpoch: the epoch before | BUILDING_REMOTE_AUX |
| BUILDING_REMOTE_AUX | builds the auxiliary state (KIP-405) | FETCHING |
| STOPPED | none, until there is a newer leader epoch | |

TRUNCATING comes first only if the leader's Fetch returns no diverging epochs (before version 12). A
log without leader epochs has nothing to compare: it is truncated to its high watermark, then it
fetches.

An error delays the next action (`due_ms`), each further error in a row for twice as long, and keeps
the state. Only the LOCATING and BUILDING states return to FETCHING, because their offsets may have
changed. (The first delay is short: the leader may not have replayed its election yet.) Two errors
stop the follower: FENCED_LEADER_EPOCH, because this node's metadata is behind and only a newer
image helps, and KAFKA_STORAGE_ERROR, because a failed log cannot be appended to.

Invariants: records are appended only at the log's end, from the response to a Fetch of this leader
epoch at that offset. The high watermark and the log start offset are taken only from a Fetch
response without a diverging epoch, and never exceed the local log end offset.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from odradek.protocol.errors import ErrorCode
from odradek.replication.partition.truncation import LeaderEpochs, decide_truncation
from odradek.seams.values import value_class
from odradek.storage.log.leader_epoch_cache import NO_EPOCH, EpochEnd


class ReplicaFetchState(enum.Enum):
    FETCHING = "fetching"
    TRUNCATING = "truncating"
    LOCATING_END = "locating the leader's log end offset"
    LOCATING_START = "locating the leader's log start offset"
    LOCATING_TIER = "locating the leader's remote log start offset"
    LOCATING_LOCAL = "locating the leader's local log start offset"
    LOCATING_EPOCH = "locating the epoch before the leader's local log start offset"
    BUILDING_REMOTE_AUX = "building the remote log auxiliary state"
    STOPPED = "stopped"


class FollowerLog(Protocol):
    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def reported_end_offset(self) -> int:
        """Log end offset, or the recovery point while flush.messages requires a flush first."""
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def epochs(self) -> LeaderEpochs: ...


# Requests to the leader


@value_class
class Fetch:
    """Fetch from the log end offset.

    `last_fetched_epoch` is the epoch of the record before; -1 if there is none, or if the leader
    does not compare epochs.
    """

    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    start_offset: int


@value_class
class QueryEpochEnd:
    """OffsetForLeaderEpoch request: the end offset of `epoch` on the leader."""

    leader_epoch: int
    epoch: int


@value_class
class QueryOffset:
    """ListOffsets request with one of the special timestamps below."""

    leader_epoch: int
    timestamp: int


LATEST, EARLIEST, EARLIEST_LOCAL = -1, -2, -4

# Changes of the log; the result goes to `FollowerState.changed` or `failed`


@value_class
class TruncateTo:
    offset: int


@value_class
class TruncateFullyAndStartAt:
    """Delete all records; the log is empty and starts at `offset`."""

    offset: int


@value_class
class BuildRemoteLogAuxState:
    """Build the auxiliary state from the remote tier, and start the log after the remote segments
    (T-42).

    The records below `local_start_offset`, the leader's local log start offset, are only in the
    remote tier. The leader epochs and the producer state come from the remote segment that has the
    record before that offset, which is of leader epoch `epoch`. The log starts empty at the end of
    that segment, with `start_offset` as its log start offset.
    """

    leader_epoch: int
    local_start_offset: int
    epoch: int
    start_offset: int


@value_class
class FlushTo:
    """Flush everything below `offset`: flush.messages requires it before the next Fetch.

    That Fetch reports to the leader that this replica has the records.
    """

    offset: int


@value_class
class AppendFetched:
    """Append the records of the Fetch response, then advance the high watermark and the log start
    offset.

    Records of an epoch later than `leader_epoch` are left out (KAFKA-18723). `FollowerState.limits`
    returns the two offsets; call `FollowerState.appended` or `failed` afterwards.
    """

    leader_epoch: int
    offset: int
    high_watermark: int
    start_offset: int


# Results of requests


@value_class
class FetchResult:
    """Fetch response of one partition, without its records."""

    high_watermark: int
    start_offset: int
    diverging: EpochEnd | None = None


@value_class
class OffsetResult:
    """ListOffsets response of one partition."""

    offset: int
    epoch: int = NO_EPOCH


LeaderQuery = Fetch | QueryEpochEnd | QueryOffset
LogChange = TruncateTo | TruncateFullyAndStartAt | BuildRemoteLogAuxState | FlushTo
FollowerAction = LeaderQuery | LogChange

_TIMESTAMPS = {
    ReplicaFetchState.LOCATING_END: LATEST,
    ReplicaFetchState.LOCATING_START: EARLIEST,
    ReplicaFetchState.LOCATING_TIER: EARLIEST,
    ReplicaFetchState.LOCATING_LOCAL: EARLIEST_LOCAL,
}
_STATES_RESTARTED_BY_ERRORS = frozenset(
    {*_TIMESTAMPS, ReplicaFetchState.LOCATING_EPOCH, ReplicaFetchState.BUILDING_REMOTE_AUX}
)
_STOPPING_ERRORS = frozenset({ErrorCode.kafka_storage_error, ErrorCode.fenced_leader_epoch})


class FollowerState:
    """Follower of one partition. Times are monotonic, in ms."""

    def __init__(
        self, log: FollowerLog, *, back_off_ms: int, first_back_off_ms: int | None = None
    ) -> None:
        """Start in STOPPED.

        The delay after errors doubles from `first_back_off_ms` to `back_off_ms`; it is always
        `back_off_ms` if there is no first one.
        """
        self._log = log
        self._back_off_ms = back_off_ms
        self._first_back_off_ms = min(
            back_off_ms, back_off_ms if first_back_off_ms is None else first_back_off_ms
        )
        self._next_back_off_ms = self._first_back_off_ms
        self.leader_epoch = NO_EPOCH
        self.state = ReplicaFetchState.STOPPED
        self.due_ms = 0
        """Earliest time of the next action."""
        self._compares = True
        self._pending_change: LogChange | None = None
        self._pending: FollowerAction | None = None
        self._superseded = False
        """Whether the running change was decided before the last `follow` or `stop`."""
        self._tier_start = 0
        self._local_start = OffsetResult(0)
        self._was_out_of_range = False
        """Whether an OFFSET_OUT_OF_RANGE was followed by no successful fetch yet."""

    def follow(self, leader_epoch: int, *, compares: bool = True) -> None:
        """Follow the leader of this epoch. `compares`: its Fetch returns diverging epochs.

        An epoch that is not newer changes nothing. A running change of the log has to be reported
        first; until then there is no next action.
        """
        if leader_epoch <= self.leader_epoch:
            return
        self.leader_epoch = leader_epoch
        self.due_ms = 0
        self._compares = compares
        self._was_out_of_range = False
        self._next_back_off_ms = self._first_back_off_ms
        self._drop_pending()
        self._begin()

    def stop(self) -> None:
        """Stop: there is no leader, or it is this node. `follow` with a later epoch starts again."""
        self.state = ReplicaFetchState.STOPPED
        self._drop_pending()

    @property
    def is_changing(self) -> bool:
        """Whether a change of the log is running. This node must not become the leader meanwhile."""
        return isinstance(self._pending, LogChange)

    def is_superseded(self, change: LogChange) -> bool:
        """Whether the leader or its epoch changed after `change` was decided."""
        return self._superseded or change is not self._pending

    def _drop_pending(self) -> None:
        self._pending_change = None
        if self.is_changing:
            self._superseded = True
        else:
            self._pending = None

    def _begin(self) -> None:
        log = self._log
        has_epochs = log.epochs.latest is not None
        self.state = (
            ReplicaFetchState.TRUNCATING
            if has_epochs and not self._compares
            else ReplicaFetchState.FETCHING
        )
        if not has_epochs and log.end_offset > log.high_watermark:
            self._truncate(log.high_watermark)

    # Next action

    def next_action(self, now_ms: int) -> FollowerAction | None:
        """Return the next action; None if one is pending, or delayed, or there is none.

        The action is pending until the caller reports its result.
        """
        if self._pending is not None or now_ms < self.due_ms:
            return None
        self._pending = self._pending_change or self._flush() or self._leader_query()
        return self._pending

    def forget_pending(self) -> None:
        """Drop the pending request, because its fetcher was removed: it is sent again."""
        if not self.is_changing:
            self._pending = None

    def is_awaiting(self, query: FollowerAction) -> bool:
        """Whether this very action is the pending one."""
        return query is self._pending

    def _flush(self) -> FlushTo | None:
        end = self._log.end_offset
        is_due = self.state is ReplicaFetchState.FETCHING and self._log.reported_end_offset < end
        return FlushTo(end) if is_due else None

    def _leader_query(self) -> LeaderQuery | None:
        if self.state is ReplicaFetchState.STOPPED:
            return None
        latest = self._log.epochs.latest
        epoch = NO_EPOCH if latest is None else latest
        if self.state is ReplicaFetchState.FETCHING:
            end, start = self._log.end_offset, self._log.start_offset
            return Fetch(self.leader_epoch, end, epoch if self._compares else NO_EPOCH, start)
        if self.state is ReplicaFetchState.TRUNCATING:
            return QueryEpochEnd(self.leader_epoch, epoch)
        if self.state is ReplicaFetchState.LOCATING_EPOCH:
            return QueryEpochEnd(self.leader_epoch, self._local_start.epoch - 1)
        return QueryOffset(self.leader_epoch, _TIMESTAMPS[self.state])

    # Responses of the leader

    def fetched(self, query: Fetch, response: FetchResult) -> AppendFetched | None:
        """Handle a Fetch response; None if no records are to be appended. See `next_action` then."""
        if not self._resolve(query):
            return None
        if response.diverging is not None:
            self._diverge(response.diverging)
            return None
        self._pending = query  # until the records are appended
        return AppendFetched(
            query.leader_epoch, query.offset, response.high_watermark, response.start_offset
        )

    def limits(self, append: AppendFetched) -> tuple[int, int]:
        """Return the high watermark and the log start offset to set after the append."""
        high_watermark = min(append.high_watermark, self._log.end_offset)
        return high_watermark, min(
            append.start_offset, max(high_watermark, self._log.high_watermark)
        )

    def appended(self, append: AppendFetched) -> None:
        """Finish the append: the next action is another Fetch."""
        if self._is_pending_for(append):
            self._pending = None
            self._was_out_of_range = False
            self._next_back_off_ms = self._first_back_off_ms

    def start_before(self, append: AppendFetched, first_offset: int) -> None:
        """Start the empty log at `first_offset`, where the fetched batch begins, below the log's
        end.

        The leader's log starts within its first batch. The fetched records serve the next Fetch.
        """
        if self._is_pending_for(append):
            self._pending = None
            self._pending_change = TruncateFullyAndStartAt(first_offset)

    def epoch_end_received(self, query: QueryEpochEnd, response: EpochEnd) -> None:
        """Handle an OffsetForLeaderEpoch result; (-1, -1) if the leader does not know the epoch."""
        if not self._resolve(query):
            return
        if self.state is ReplicaFetchState.LOCATING_EPOCH:
            self._epoch_located(response)
        else:
            self._diverge(response)

    def offset_received(self, query: QueryOffset, response: OffsetResult, now_ms: int) -> None:
        """Handle a ListOffsets result of the leader."""
        if self._resolve(query):
            _LOCATED[self.state](self, response, now_ms)

    def failed(self, query: FollowerAction | AppendFetched, error: ErrorCode, now_ms: int) -> None:
        """Handle an error of the leader or the connection, or a local failure of the action.

        KAFKA_STORAGE_ERROR of the local log and FENCED_LEADER_EPOCH stop the follower; other errors
        delay it or change its state.
        """
        if isinstance(query, AppendFetched):
            if not self._is_pending_for(query):
                return
            self._pending = None
        elif not self._resolve(query):
            return
        superseded, self._superseded = self._superseded, False
        if error in _STOPPING_ERRORS:
            self.state = ReplicaFetchState.STOPPED
            self._pending_change = None
        elif superseded:
            self._restart_partition()
        elif isinstance(query, Fetch) and error is ErrorCode.offset_out_of_range:
            self._handle_out_of_range(now_ms)
        elif isinstance(query, Fetch) and error is ErrorCode.offset_moved_to_tiered_storage:
            self.state = ReplicaFetchState.LOCATING_TIER
        else:
            self._back_off(now_ms)

    def _resolve(self, query: FollowerAction) -> bool:
        if query is not self._pending:
            return False
        self._pending = None
        return True

    def _is_pending_for(self, append: AppendFetched) -> bool:
        pending = self._pending
        return (
            isinstance(pending, Fetch)
            and pending.leader_epoch == append.leader_epoch
            and pending.offset == append.offset
        )

    def _back_off(self, now_ms: int) -> None:
        self.due_ms = now_ms + self._next_back_off_ms
        self._next_back_off_ms = min(2 * self._next_back_off_ms, self._back_off_ms)
        if self.state in _STATES_RESTARTED_BY_ERRORS:
            self.state = ReplicaFetchState.FETCHING
            self._pending_change = None

    # Truncation

    def _diverge(self, leader: EpochEnd) -> None:
        log = self._log
        decided = decide_truncation(
            log.epochs,
            end_offset=log.end_offset,
            high_watermark=log.high_watermark,
            leader=leader,
        )
        self.state = (
            ReplicaFetchState.FETCHING
            if self._compares or decided.done
            else ReplicaFetchState.TRUNCATING
        )
        self._truncate(decided.offset)

    def _truncate(self, offset: int) -> None:
        """Truncate even at the log end offset, to remove a leader epoch that begins there without
        records."""
        self._pending_change = TruncateTo(offset)

    # Fetch offset out of range, or in the remote tier

    def _handle_out_of_range(self, now_ms: int) -> None:
        """Locate the end of the leader's log; the second time in a row after a delay."""
        if self._was_out_of_range:
            self.due_ms = now_ms + self._back_off_ms
        self._was_out_of_range = True
        self.state = ReplicaFetchState.LOCATING_END

    def _end_located(self, response: OffsetResult, now_ms: int) -> None:
        if response.offset < self._log.end_offset:
            self.state = ReplicaFetchState.FETCHING
            self._truncate(response.offset)
        else:
            self.state = ReplicaFetchState.LOCATING_START

    def _start_located(self, response: OffsetResult, now_ms: int) -> None:
        self.state = ReplicaFetchState.FETCHING
        if response.offset > self._log.end_offset:
            self._pending_change = TruncateFullyAndStartAt(response.offset)

    def _tier_located(self, response: OffsetResult, now_ms: int) -> None:
        self._tier_start = response.offset
        self.state = ReplicaFetchState.LOCATING_LOCAL

    def _local_located(self, response: OffsetResult, now_ms: int) -> None:
        if response.offset <= self._tier_start:
            self.state = ReplicaFetchState.FETCHING
            self._pending_change = TruncateFullyAndStartAt(response.offset)
        elif response.epoch > 0:
            self._local_start = response
            self.state = ReplicaFetchState.LOCATING_EPOCH
        else:
            self._build(response, response.epoch)

    def _epoch_located(self, response: EpochEnd) -> None:
        """Use the epoch of the record before the local log start: epochs between may have no
        records."""
        local = self._local_start
        self._build(local, response.epoch if response.end_offset >= local.offset else local.epoch)

    def _build(self, local: OffsetResult, epoch: int) -> None:
        self.state = ReplicaFetchState.BUILDING_REMOTE_AUX
        self._pending_change = BuildRemoteLogAuxState(
            self.leader_epoch, local.offset, epoch, self._tier_start
        )

    # Results of log changes

    def changed(self, change: LogChange) -> None:
        """Finish a change: the log is as the change describes."""
        if not self._resolve(change):
            return
        self._pending_change = None
        superseded, self._superseded = self._superseded, False
        if superseded:
            self._restart_partition()
        elif self.state is ReplicaFetchState.BUILDING_REMOTE_AUX:
            self.state = ReplicaFetchState.FETCHING

    def _restart_partition(self) -> None:
        if self.state is not ReplicaFetchState.STOPPED:
            self._begin()


_Located = Callable[[FollowerState, OffsetResult, int], None]
_LOCATED: dict[ReplicaFetchState, _Located] = {
    ReplicaFetchState.LOCATING_END: FollowerState._end_located,
    ReplicaFetchState.LOCATING_START: FollowerState._start_located,
    ReplicaFetchState.LOCATING_TIER: FollowerState._tier_located,
    ReplicaFetchState.LOCATING_LOCAL: FollowerState._local_located,
}
