"""State of a partition's leader, without I/O: follower progress, ISR and high watermark.

Events are appends, fetches, images, responses and time. Each call returns actions, to be executed
in their order. Invariants:

- The high watermark never decreases while this node leads. It is the smallest log end offset of the
  maximal ISR (`isr_state.py`) and of the caught-up followers that are about to join it: otherwise
  the high watermark would stay ahead of such a follower, and it could never join. It does not
  advance while fewer than min.insync.replicas are in sync (KIP-966).
- A replica joins the ISR only if it has everything below the high watermark and everything before
  this leader epoch, its broker is neither fenced nor in controlled shutdown, and it has fetched
  since the broker's last restart: the broker epoch of the fetch is the registered one, and
  AlterPartition contains it (KIP-841, KIP-903). Otherwise a broker that lost its log in an unclean
  shutdown would be in sync because of offsets from before.
- A follower's fetch counts only if the response has records: a follower with a diverging epoch does
  not have the log up to its fetch offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import BrokerImage, PartitionImage
from odradek.replication.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    UnknownLeaderEpoch,
)
from odradek.replication.partition.high_watermark import decide_high_watermark
from odradek.replication.partition.isr_state import (
    CommittedIsr,
    IsrProposal,
    IsrState,
    ProposalOutcome,
    ReplicaIds,
)
from odradek.seams.values import value_class

NO_BROKER_EPOCH = -1
"""Broker epoch that the controller does not check."""


UNKNOWN = -1
NEVER = -(1 << 62)
"""Time before any monotonic time; the clock may begin at 0."""


@value_class
class FollowerProgress:
    """Fetch state of one follower.

    Offsets are -1 and times NEVER before the first fetch. The broker epoch is None before it, and
    -1 if the follower sends none (before KIP-903).
    """

    end_offset: int = UNKNOWN
    start_offset: int = UNKNOWN
    leader_end_offset: int = UNKNOWN
    """Log end offset of the leader at the last fetch."""
    fetched_ms: int = NEVER
    caught_up_ms: int = NEVER
    broker_epoch: int | None = None

    def after_fetch(
        self, offset: int, start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int
    ) -> FollowerProgress:
        """Return the progress after a fetch at `offset`: the follower has everything below it."""
        caught_up_ms = self.caught_up_ms if offset >= self.end_offset else NEVER
        if offset >= leader_end_offset:
            caught_up_ms = max(caught_up_ms, now_ms)
        elif offset >= self.leader_end_offset:
            caught_up_ms = max(caught_up_ms, self.fetched_ms)
        return FollowerProgress(
            end_offset=offset,
            start_offset=start_offset,
            leader_end_offset=max(leader_end_offset, self.leader_end_offset),
            fetched_ms=now_ms,
            caught_up_ms=caught_up_ms,
            broker_epoch=broker_epoch,
        )

    def after_election(
        self, leader_end_offset: int, now_ms: int, *, in_sync: bool
    ) -> FollowerProgress:
        """Return the progress at the start of a new leader epoch of the same leader.

        The lag time of an in-sync replica starts again; any other replica has to fetch first. Known
        offsets are kept.
        """
        since_ms = now_ms if in_sync else NEVER
        return FollowerProgress(
            end_offset=self.end_offset,
            start_offset=self.start_offset,
            leader_end_offset=leader_end_offset,
            fetched_ms=since_ms,
            caught_up_ms=since_ms,
            broker_epoch=self.broker_epoch,
        )

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        return self.end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_max_ms


class LeaderLog(Protocol):
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
    def min_insync_replicas(self) -> int: ...


@value_class
class BeginEpoch:
    """Add `leader_epoch` to the leader epoch cache before anything is appended."""

    leader_epoch: int
    start_offset: int


@value_class
class AdvanceHighWatermark:
    """Advance the high watermark to `offset` and notify the watchers."""

    offset: int


@value_class
class AlterPartition:
    """AlterPartition request to the controller; pass the response to `LeaderState.altered`.

    `isr`: (broker id, broker epoch or -1), by broker id.
    """

    proposal: IsrProposal
    isr: tuple[tuple[int, int], ...]


LeaderAction = BeginEpoch | AdvanceHighWatermark | AlterPartition
NO_ACTIONS: Sequence[LeaderAction] = ()


class LeaderState:
    """Leader of one partition. Times are monotonic, in ms.

    Execute the actions of a call before the next call: each call reads the log's end and high
    watermark again.
    """

    def __init__(
        self,
        node_id: int,
        log: LeaderLog,
        brokers: Callable[[int], BrokerImage | None],
        *,
        lag_max_ms: int,
    ) -> None:
        self._node_id = node_id
        self._log = log
        self._brokers = brokers
        self._lag_max_ms = lag_max_ms
        self._followers: dict[int, FollowerProgress] = {}
        self.start_offset = 0
        """Log end offset at the start of the leader epoch."""
        self.isr = IsrState(frozenset(), leader_epoch=-1, partition_epoch=-1)
        self._last_request: AlterPartition | None = None
        """The request of the newest proposal, which a retry sends unchanged.

        A broker that restarted since may have lost the log that it was proposed with; the
        controller detects this only by the broker epoch of then.
        """

    @property
    def leader_epoch(self) -> int:
        return self.isr.leader_epoch

    @property
    def followers(self) -> dict[int, FollowerProgress]:
        return dict(self._followers)

    # Metadata

    def adopt(self, image: PartitionImage, now_ms: int) -> Sequence[LeaderAction]:
        """Take over an image in which this node leads: elected, reelected, or any other change."""
        elected = image.leader_epoch > self.leader_epoch
        committed = frozenset(image.isr)
        if not self.isr.adopt(committed, image.leader_epoch, image.partition_epoch):
            return NO_ACTIONS
        followers = [each for each in image.replicas if each != self._node_id]
        known, end = self._followers, self._log.end_offset
        self._followers = {each: known.get(each, FollowerProgress()) for each in followers}
        if not elected:
            return self._advance_high_watermark(now_ms)
        self.start_offset = end
        self._followers = {
            each: progress.after_election(
                end if each in known else -1, now_ms, in_sync=each in committed
            )
            for each, progress in self._followers.items()
        }
        return [BeginEpoch(image.leader_epoch, end), *self._advance_high_watermark(now_ms)]

    def brokers_changed(self, now_ms: int) -> Sequence[LeaderAction]:
        """Advance the high watermark after a broker was fenced, unfenced, or started its shutdown."""
        return self._advance_high_watermark(now_ms)

    # Appends and fetches

    def check_append(self) -> None:
        """Check an append with acks=all. Raises NotEnoughReplicas."""
        in_sync, required = len(self.isr.committed), self._required
        if in_sync < required:
            raise NotEnoughReplicas(f"{in_sync} of {required} required replicas are in sync")

    def appended(self, now_ms: int) -> Sequence[LeaderAction]:
        return self._advance_high_watermark(now_ms)

    def check_fetch(self, follower: int, broker_epoch: int) -> None:
        """Check a follower's fetch before it is read; the caller has checked its leader epoch.

        Raises UnknownLeaderEpoch if the broker has no replica: it may have received a reassignment
        before this node. Raises NotLeader if the fetch is from before its broker's restart. A
        `broker_epoch` of -1 is not checked.
        """
        if follower not in self._followers:
            raise UnknownLeaderEpoch(f"{follower} is no replica in epoch {self.leader_epoch} yet")
        if not self._is_current(follower, broker_epoch):
            raise NotLeader(f"broker {follower} has a later epoch than {broker_epoch}")

    def fetched(
        self, follower: int, *, offset: int, start_offset: int, broker_epoch: int, now_ms: int
    ) -> Sequence[LeaderAction]:
        """Record a fetch that was read and whose log does not diverge.

        `offset` is the fetch offset: the follower has everything below it. Raises as `check_fetch`.
        """
        self.check_fetch(follower, broker_epoch)
        self._followers[follower] = self._followers[follower].after_fetch(
            offset, start_offset, broker_epoch, self._log.end_offset, now_ms
        )
        return [*self._expand_isr(follower), *self._advance_high_watermark(now_ms)]

    # In-sync replicas

    def tick(self, now_ms: int) -> Sequence[LeaderAction]:
        """Shrink the ISR by lagging replicas; call every half replica.lag.time.max.ms."""
        return [*self._shrink_isr(now_ms), *self._advance_high_watermark(now_ms)]

    def altered(
        self, proposal: IsrProposal, response: CommittedIsr | ErrorCode, now_ms: int
    ) -> Sequence[LeaderAction]:
        """Handle the response to AlterPartition; a lost connection is REQUEST_TIMED_OUT.

        A request to retry is among the actions; the caller waits for its back-off first.
        """
        outcome = self.isr.responded(proposal, response)
        if outcome is ProposalOutcome.RETRY:
            assert self._last_request is not None
            return [self._last_request]
        return self._advance_high_watermark(now_ms)

    def out_of_sync(self, now_ms: int) -> ReplicaIds:
        end = self._log.end_offset
        return frozenset(
            each
            for each in self.isr.committed
            if each != self._node_id
            and not self.progress_of(each).is_caught_up(end, now_ms, self._lag_max_ms)
        )

    def _shrink_isr(self, now_ms: int) -> Sequence[LeaderAction]:
        if self.isr.proposal is not None:
            return NO_ACTIONS
        lagging = self.out_of_sync(now_ms)
        return self._propose_isr(self.isr.committed - lagging) if lagging else NO_ACTIONS

    def _expand_isr(self, follower: int) -> Sequence[LeaderAction]:
        known = self.isr
        if known.proposal is not None or follower in known.committed:
            return NO_ACTIONS
        end = self.progress_of(follower).end_offset
        if end < max(self._log.high_watermark, self.start_offset) or not self._is_eligible(
            follower
        ):
            return NO_ACTIONS
        return self._propose_isr(known.committed | {follower})

    def _propose_isr(self, in_sync: ReplicaIds) -> Sequence[LeaderAction]:
        proposal = self.isr.propose(in_sync)
        isr_with_epochs = tuple((each, self._broker_epoch_of(each)) for each in sorted(in_sync))
        self._last_request = AlterPartition(proposal, isr_with_epochs)
        return [self._last_request]

    def _broker_epoch_of(self, member: int) -> int:
        """Return the broker epoch of `member` that AlterPartition contains.

        A member that has not fetched yet was in the ISR before: if its broker restarted, the
        controller has removed it, and rejects the request because of its partition epoch.
        """
        if member == self._node_id:
            broker = self._brokers(member)
            return NO_BROKER_EPOCH if broker is None else broker.epoch
        epoch = self.progress_of(member).broker_epoch
        return NO_BROKER_EPOCH if epoch is None else epoch

    def _is_eligible(self, follower: int) -> bool:
        broker, epoch = self._brokers(follower), self.progress_of(follower).broker_epoch
        return broker is not None and broker.active and epoch in (NO_BROKER_EPOCH, broker.epoch)

    def _is_current(self, follower: int, broker_epoch: int) -> bool:
        broker = self._brokers(follower)
        if broker_epoch == NO_BROKER_EPOCH or broker is None or broker.fenced:
            return True
        return broker_epoch >= broker.epoch

    def progress_of(self, replica: int) -> FollowerProgress:
        """Return the progress of a replica; an empty one if it has not fetched or is no replica."""
        return self._followers.get(replica) or FollowerProgress()

    # High watermark and low watermark

    @property
    def _required(self) -> int:
        """The required in-sync replicas: min.insync.replicas, at most the number of replicas."""
        return min(self._log.min_insync_replicas, len(self._followers) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr.committed) < self._required

    def is_replicated(self, offset: int) -> bool:
        """Whether everything below `offset` is replicated, for a waiting append with acks=all.

        Raises NotEnoughReplicasAfterAppend if it is replicated, but fewer than the required
        replicas are in sync.
        """
        if self._log.high_watermark < offset:
            return False
        in_sync, required = len(self.isr.maximal), self._required
        if in_sync < required:
            raise NotEnoughReplicasAfterAppend(
                f"{in_sync} of {required} required replicas are in sync, since it was appended"
            )
        return True

    def low_watermark(self) -> int:
        """Smallest log start offset of all unfenced replicas (DeleteRecords); -1 until all have
        fetched."""
        starts = [
            progress.start_offset
            for each, progress in self._followers.items()
            if (broker := self._brokers(each)) is not None and not broker.fenced
        ]
        return min([self._log.start_offset, *starts])

    def _advance_high_watermark(self, now_ms: int) -> Sequence[LeaderAction]:
        offset = self._high_watermark_candidate(now_ms)
        return [AdvanceHighWatermark(offset)] if offset > self._log.high_watermark else NO_ACTIONS

    def _high_watermark_candidate(self, now_ms: int) -> int:
        current = self._log.high_watermark
        if self.is_under_min_isr:
            return current
        end, counted = self._log.end_offset, self._log.reported_end_offset
        ends = {
            each: progress.end_offset
            for each, progress in self._followers.items()
            if progress.end_offset >= 0
        }
        ends[self._node_id] = counted
        return decide_high_watermark(
            current, self._node_id, ends, self._high_watermark_replicas(end, now_ms)
        )

    def _high_watermark_replicas(self, end: int, now_ms: int) -> ReplicaIds:
        """Replicas whose log end offsets limit the high watermark."""
        joining = {
            each
            for each, progress in self._followers.items()
            if progress.is_caught_up(end, now_ms, self._lag_max_ms) and self._is_eligible(each)
        }
        return self.isr.maximal | joining
