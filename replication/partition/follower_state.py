"""A partition's follower, as a state machine without I/O: what it asks its leader, and what it does.

It wants one thing at a time: `next_action` is the question to put to the leader (a driver puts those of many
followers into one request), or the change of its log that is to be made, or nothing. What came of it
goes in, and whatever comes for something that is not wanted any more is ignored: a new leader, or a
truncation, makes all that was asked before worth nothing.

| state | wants | and then |
|---|---|---|
| FETCHING | Fetch (what flush.messages wants flushed first) | takes the records, or truncates where the logs part |
| | | records from below the end of an empty log: starts anew there, takes them |
| | | OFFSET_OUT_OF_RANGE: LOCATING_END |
| | | OFFSET_MOVED_TO_TIERED_STORAGE: LOCATING_TIER |
| TRUNCATING | OffsetForLeaderEpoch | truncates, until no more is to be asked: FETCHING |
| LOCATING_END | ListOffsets: latest | below our end: truncates to it, FETCHING |
| | | else LOCATING_START |
| LOCATING_START | ListOffsets: earliest | past our end: starts anew there; FETCHING |
| LOCATING_TIER | ListOffsets: earliest | notes it; LOCATING_LOCAL |
| LOCATING_LOCAL | ListOffsets: earliest local (-4) | LOCATING_EPOCH |
| | | nothing is in the tier any more: starts anew there; FETCHING |
| LOCATING_EPOCH | OffsetForLeaderEpoch: the epoch before | BUILDING_REMOTE_AUX |
| BUILDING_REMOTE_AUX | the tier's state built (KIP-405) | FETCHING |
| STOPPED | nothing, until there is a newer leader epoch | |

TRUNCATING comes first only if the leader's Fetch tells no diverging epochs (before version 12). A log
without epochs has nothing to compare: what is past its high watermark goes, then it fetches.

An error delays (`due_ms`), the next one in a row for twice as long, and leaves the state as it is,
except that whoever was locating something fetches again, as what was located may be true no more. (A
leader that has not heard of its election yet is asked again soon.) Two errors stop: FENCED_LEADER_EPOCH, for this
node is behind and only a new image ends that, and KAFKA_STORAGE_ERROR, for a log that failed does not
follow.

Invariants: nothing is appended but at the log's end, by an answer to a question that was asked in this
leader epoch from just there; the high watermark and the log's start are taken from the leader only along
with an answer that did not part, and never past the own end.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from odradek.protocol.errors import ErrorCode
from odradek.replication.partition.truncation import Epochs, decide_truncation
from odradek.seams.values import value_class
from odradek.storage.log.epochs import NO_EPOCH, EpochEnd


class ReplicaFetchState(enum.Enum):
    FETCHING = "fetching"
    TRUNCATING = "truncating"
    LOCATING_END = "locating the leader's end"
    LOCATING_START = "locating the leader's start"
    LOCATING_TIER = "locating the leader's start in its tier"
    LOCATING_LOCAL = "locating the leader's local start"
    LOCATING_EPOCH = "locating the epoch before the leader's local start"
    BUILDING_REMOTE_AUX = "building the tier's state"
    STOPPED = "stopped"


class FollowerLog(Protocol):
    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def counted_end(self) -> int:
        """Less than the end while what is past it has to be on the disk first."""
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def epochs(self) -> Epochs: ...


# What it asks


@value_class
class Fetch:
    """From the log's end; `last_fetched_epoch` is that of the record before, -1 if there is none, or
    if the leader does not compare."""

    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    start_offset: int


@value_class
class QueryEpochEnd:
    """OffsetForLeaderEpoch: where does `epoch` end?"""

    leader_epoch: int
    epoch: int


@value_class
class QueryOffset:
    """ListOffsets by one of the special timestamps below."""

    leader_epoch: int
    timestamp: int


LATEST, EARLIEST, EARLIEST_LOCAL = -1, -2, -4

# What it does to its log; `FollowerState.changed` wants to hear when it is done


@value_class
class TruncateTo:
    offset: int


@value_class
class TruncateFullyAndStartAt:
    """Delete everything; the log is empty at `offset` and starts there."""

    offset: int


@value_class
class BuildRemoteLogAuxState:
    """What lies below `local_start_offset`, the first that the leader has on its disks, is in the tier:
    take the history of leaders and the producers' state from there, and start the log anew where the
    tier's segment with the record before it ends, with `start_offset` as its start. That record is of
    the leader's `epoch` (T-42)."""

    leader_epoch: int
    local_start_offset: int
    epoch: int
    start_offset: int


@value_class
class FlushTo:
    """Make all below `offset` durable: flush.messages wants that before the leader is told, by the next Fetch,
    that it is here."""

    offset: int


@value_class
class AppendFetched:
    """Append the records of the Fetch answer (but those of an epoch later than `leader_epoch`:
    KAFKA-18723), then advance high watermark and log start as far as `FollowerState.limits` says; then
    `FollowerState.appended`, or `failed`."""

    leader_epoch: int
    offset: int
    high_watermark: int
    start_offset: int


# What it is told


@value_class
class FetchResult:
    """A Fetch answer without its records."""

    high_watermark: int
    start_offset: int
    diverging: EpochEnd | None = None


@value_class
class OffsetResult:
    """ListOffsets' answer."""

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
    """See the module. Times are monotonic, in ms."""

    def __init__(
        self, log: FollowerLog, *, back_off_ms: int, first_back_off_ms: int | None = None
    ) -> None:
        """The delay after an error is `first_back_off_ms` at first, `back_off_ms` at most, and always
        if no other is given."""
        self._log = log
        self._back_off_ms = back_off_ms
        self._first_back_off_ms = min(
            back_off_ms, back_off_ms if first_back_off_ms is None else first_back_off_ms
        )
        self._next_back_off_ms = self._first_back_off_ms
        self.leader_epoch = NO_EPOCH
        self.state = ReplicaFetchState.STOPPED
        self.due_ms = 0
        """Nothing is wanted before."""
        self._compares = True
        self._pending_change: LogChange | None = None
        self._pending: FollowerAction | None = None
        self._superseded = False
        """The change under way was wanted before the last `follow` or `stop`."""
        self._tier_start = 0
        self._local_start = OffsetResult(0)
        self._was_out_of_range = False
        """Out of range before, and nothing has been fetched since."""

    def follow(self, leader_epoch: int, *, compares: bool = True) -> None:
        """There is a leader of this epoch; it `compares` if its Fetch tells diverging epochs.

        An epoch that is known already changes nothing. A change of the log that is under way is
        still to be told of: until then nothing else is wanted.
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
        """There is no leader, or it is this node itself; `follow` goes on in a later epoch."""
        self.state = ReplicaFetchState.STOPPED
        self._drop_pending()

    @property
    def is_changing(self) -> bool:
        """A change of the log is under way: this node must not lead before it is done."""
        return isinstance(self._pending, LogChange)

    def is_superseded(self, change: LogChange) -> bool:
        """Whether there was another leader, or none, since `change` was wanted."""
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

    # What it wants

    def next_action(self, now_ms: int) -> FollowerAction | None:
        """What is to be asked or done now; None: nothing, or it is under way, or delayed.

        Whoever is told it sees to it: it is under way from now on, until what came of it is told.
        """
        if self._pending is not None or now_ms < self.due_ms:
            return None
        self._pending = self._pending_change or self._flush() or self._leader_query()
        return self._pending

    def forget_pending(self) -> None:
        """Nobody has its question any more: it is to be put to the leader again."""
        if not self.is_changing:
            self._pending = None

    def is_awaiting(self, query: FollowerAction) -> bool:
        """Whether it is this one that is under way, and not another, or none."""
        return query is self._pending

    def _flush(self) -> FlushTo | None:
        end = self._log.end_offset
        is_due = self.state is ReplicaFetchState.FETCHING and self._log.counted_end < end
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

    # What it is told by its leader

    def fetched(self, query: Fetch, response: FetchResult) -> AppendFetched | None:
        """None if there is nothing to take: see what is wanted now."""
        if not self._resolve(query):
            return None
        if response.diverging is not None:
            self._diverge(response.diverging)
            return None
        self._pending = query  # until the records are taken
        return AppendFetched(
            query.leader_epoch, query.offset, response.high_watermark, response.start_offset
        )

    def limits(self, append: AppendFetched) -> tuple[int, int]:
        """The high watermark and the log start that `append` allows, once its records are appended."""
        high_watermark = min(append.high_watermark, self._log.end_offset)
        return high_watermark, min(
            append.start_offset, max(high_watermark, self._log.high_watermark)
        )

    def appended(self, append: AppendFetched) -> None:
        """It is in the log: the next records are wanted."""
        if self._is_under_way_for(append):
            self._pending = None
            self._was_out_of_range = False
            self._next_back_off_ms = self._first_back_off_ms

    def start_before(self, append: AppendFetched, first_offset: int) -> None:
        """The records begin at `first_offset`, below the end of a log that is empty: the leader's log
        starts within their first batch. What was fetched is taken in answer to the next Fetch."""
        if self._is_under_way_for(append):
            self._pending = None
            self._pending_change = TruncateFullyAndStartAt(first_offset)

    def epoch_end_received(self, query: QueryEpochEnd, response: EpochEnd) -> None:
        """OffsetForLeaderEpoch's answer; (-1, -1) if the leader knows no such epoch."""
        if not self._resolve(query):
            return
        if self.state is ReplicaFetchState.LOCATING_EPOCH:
            self._epoch_located(response)
        else:
            self._diverge(response)

    def offset_received(self, query: QueryOffset, response: OffsetResult, now_ms: int) -> None:
        """ListOffsets' answer."""
        if self._resolve(query):
            _LOCATED[self.state](self, response, now_ms)

    def failed(self, query: FollowerAction | AppendFetched, error: ErrorCode, now_ms: int) -> None:
        """The leader answered with an error, or not at all; or what was wanted could not be done.

        CORRUPT_MESSAGE and what a connection says back off, KAFKA_STORAGE_ERROR (of the own log)
        stops.
        """
        if isinstance(query, AppendFetched):
            if not self._is_under_way_for(query):
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

    def _is_under_way_for(self, append: AppendFetched) -> bool:
        asked = self._pending
        return (
            isinstance(asked, Fetch)
            and asked.leader_epoch == append.leader_epoch
            and asked.offset == append.offset
        )

    def _back_off(self, now_ms: int) -> None:
        self.due_ms = now_ms + self._next_back_off_ms
        self._next_back_off_ms = min(2 * self._next_back_off_ms, self._back_off_ms)
        if self.state in _STATES_RESTARTED_BY_ERRORS:
            self.state = ReplicaFetchState.FETCHING
            self._pending_change = None

    # Where the logs part

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
        """Even if that is the end: an epoch that began there and wrote nothing is to be forgotten."""
        self._pending_change = TruncateTo(offset)

    # The leader's log is elsewhere

    def _handle_out_of_range(self, now_ms: int) -> None:
        """Twice in a row, with nothing fetched between, the answers do not help: not at once again."""
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
        """Of the record before the local start; there may be epochs between that wrote nothing."""
        local = self._local_start
        self._build(local, response.epoch if response.end_offset >= local.offset else local.epoch)

    def _build(self, local: OffsetResult, epoch: int) -> None:
        self.state = ReplicaFetchState.BUILDING_REMOTE_AUX
        self._pending_change = BuildRemoteLogAuxState(
            self.leader_epoch, local.offset, epoch, self._tier_start
        )

    # What it did to its log

    def changed(self, change: LogChange) -> None:
        """It is done: the log is as it says."""
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
