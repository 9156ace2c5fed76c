"""A partition's leader, as a decision without I/O: what its followers have, who is in sync, what is
replicated.

Appends, fetches, images, answers and time go in, actions come out, in the order in which they are to
be done. Invariants:

- The high watermark never goes back in a leader's life. It is the least end of the log among
  the maximal in-sync set (`in_sync.py`) and those who are about to join it: a follower that is caught
  up may be let in, and would never be if the high watermark ran ahead of it. It stands still while
  fewer than min.insync.replicas are in sync (KIP-966).
- Whoever joins the in-sync set has all below the high watermark and all that was before this
  leader's epoch, its broker is neither fenced nor shutting down, and it has fetched since its last
  restart: the broker epoch that it fetched with is the one that the cluster knows, and the controller
  is told it (KIP-841, KIP-903). Else a broker that lost its log with an unclean shutdown would be in
  sync by what it had before.
- Of a follower's fetch only that counts which was answered with records: one that was told where the
  logs part has not got what it asked for.
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
"""A broker epoch that the controller does not check."""


UNKNOWN = -1
NEVER = -(1 << 62)
"""Long before any time that a clock tells; a monotonic one may begin at 0."""


@value_class
class FollowerProgress:
    """Offsets are -1 and times NEVER until the first fetch. A broker epoch is None until then, and -1 of
    a follower that does not tell it (before KIP-903)."""

    end_offset: int = UNKNOWN
    start_offset: int = UNKNOWN
    leader_end_offset: int = UNKNOWN
    """The leader's own end when the last fetch came."""
    fetched_ms: int = NEVER
    caught_up_ms: int = NEVER
    broker_epoch: int | None = None

    def after_fetch(
        self, offset: int, start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int
    ) -> FollowerProgress:
        """The follower asked for what is at `offset`: it has all that is below."""
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
        """The leader was elected again: who is in sync gets its time anew, who is not has to fetch
        before it can be. What it has is known from before."""
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
    def counted_end(self) -> int:
        """Less than the end while what is past it has to be on the leader's disk first."""
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def min_insync_replicas(self) -> int: ...


@value_class
class BeginEpoch:
    """Write into the log's history that `leader_epoch` starts here, before anything is appended."""

    leader_epoch: int
    start_offset: int


@value_class
class AdvanceHighWatermark:
    """And let those know who wait."""

    offset: int


@value_class
class AlterPartition:
    """Ask the controller; `LeaderState.altered` wants the answer, with this `proposal`.

    `in_sync`: (broker, its epoch, or -1) by broker id.
    """

    proposal: IsrProposal
    isr: tuple[tuple[int, int], ...]


LeaderAction = BeginEpoch | AdvanceHighWatermark | AlterPartition
NO_ACTIONS: Sequence[LeaderAction] = ()


class LeaderState:
    """See the module. Times are monotonic, in ms. The actions of one call are to be done before the
    next one: the log's end and high watermark are read anew in each."""

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
        """Where the epoch begins."""
        self.isr = IsrState(frozenset(), leader_epoch=-1, partition_epoch=-1)
        self._last_request: AlterPartition | None = None
        """What the newest proposal was made by. It is sent again as it was: a broker that restarted since
        may have lost what it was proposed for, and only its epoch of then tells the controller."""

    @property
    def leader_epoch(self) -> int:
        return self.isr.leader_epoch

    @property
    def followers(self) -> dict[int, FollowerProgress]:
        return dict(self._followers)

    # What the cluster decided

    def adopt(self, image: PartitionImage, now_ms: int) -> Sequence[LeaderAction]:
        """This node leads by `image`: elected, elected again, or something else has changed."""
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
        """One was fenced, began to shut down, is back: who holds the high watermark may be another."""
        return self._advance_high_watermark(now_ms)

    # What is appended and fetched

    def check_append(self) -> None:
        """Before an append with acks=all. Raises NotEnoughReplicas."""
        in_sync, required = len(self.isr.committed), self._required
        if in_sync < required:
            raise NotEnoughReplicas(f"{in_sync} of {required} required replicas are in sync")

    def appended(self, now_ms: int) -> Sequence[LeaderAction]:
        return self._advance_high_watermark(now_ms)

    def check_fetch(self, follower: int, broker_epoch: int) -> None:
        """Before a follower's fetch is read for; its leader epoch is checked already.

        Raises UnknownLeaderEpoch for one that is no replica as far as is known here: it may have heard
        of a reassignment before this node did. NotLeader if its broker has restarted since it sent
        this, or `broker_epoch` is -1: it does not tell.
        """
        if follower not in self._followers:
            raise UnknownLeaderEpoch(f"{follower} is no replica in epoch {self.leader_epoch} yet")
        if not self._is_current(follower, broker_epoch):
            raise NotLeader(f"broker {follower} has a later epoch than {broker_epoch}")

    def fetched(
        self, follower: int, *, offset: int, start_offset: int, broker_epoch: int, now_ms: int
    ) -> Sequence[LeaderAction]:
        """A follower's fetch was read for, and its log did not part from this one.

        `offset`: what it wants next, so it has all below. Raises as `check_fetch`.
        """
        self.check_fetch(follower, broker_epoch)
        self._followers[follower] = self._followers[follower].after_fetch(
            offset, start_offset, broker_epoch, self._log.end_offset, now_ms
        )
        return [*self._expand_isr(follower), *self._advance_high_watermark(now_ms)]

    # The in-sync set

    def tick(self, now_ms: int) -> Sequence[LeaderAction]:
        """Due every half replica.lag.time.max.ms: who lags leaves, who was waited for is not any more."""
        return [*self._shrink_isr(now_ms), *self._advance_high_watermark(now_ms)]

    def altered(
        self, proposal: IsrProposal, response: CommittedIsr | ErrorCode, now_ms: int
    ) -> Sequence[LeaderAction]:
        """What came of an AlterPartition; a connection that broke is REQUEST_TIMED_OUT.

        One that is to be sent again is among the actions: the driver waits its back-off before.
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
        """The broker epoch that the controller is to check `member` by.

        A member that has not fetched yet is there already: if it restarted, the controller has taken
        it out, and with that refuses this by the partition epoch.
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
        """Of one that has not fetched, or is no replica, nothing is known."""
        return self._followers.get(replica) or FollowerProgress()

    # What is replicated

    @property
    def _required(self) -> int:
        """min.insync.replicas, of which there cannot be more than replicas."""
        return min(self._log.min_insync_replicas, len(self._followers) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr.committed) < self._required

    def is_replicated(self, offset: int) -> bool:
        """Whether all below `offset` is, for an append with acks=all that waits.

        Raises NotEnoughReplicasAfterAppend if it is, yet on fewer than are required by now.
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
        """Where the logs of all replicas start that are up, at the least (DeleteRecords); -1 as long
        as one of them has not fetched."""
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
        end, counted = self._log.end_offset, self._log.counted_end
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
        """Whose logs the high watermark waits for."""
        joining = {
            each
            for each, progress in self._followers.items()
            if progress.is_caught_up(end, now_ms, self._lag_max_ms) and self._is_eligible(each)
        }
        return self.isr.maximal | joining
