"""Leader role of a partition with several replicas: executes the actions of `LeaderState`.

Everything is synchronous, on the event loop: each event's actions are executed before the next
event. The controller's response to a proposal is ignored if this node is no longer the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import BrokerImage, PartitionImage
from odradek.replication.partition.high_watermark import UncommittedBytes
from odradek.replication.partition.isr_state import CommittedIsr, IsrProposal
from odradek.replication.partition.leader_state import (
    AdvanceHighWatermark,
    AlterPartition,
    BeginEpoch,
    LeaderAction,
    LeaderState,
)
from odradek.seams.values import value_class
from odradek.storage.errors import DiskFull
from odradek.storage.log.partition_log import PartitionLog

OnAlterPartitionResponse = Callable[[CommittedIsr | ErrorCode], None]


@value_class
class ClusterContext:
    """Services of the node that the leader of a partition uses.

    `brokers` returns the registration of a broker. `lag_max_ms` is replica.lag.time.max.ms.
    `propose` sends a proposed ISR of a partition (topic id, index) to the controller and calls back
    once with the response, on the loop, never within the call; a retried proposal waits for its
    back-off. `disk_full` is called when an append fails because the disk is full. `isr_changed` is
    called with the number of replicas that a committed proposal added (negative: removed). None: the
    response did not commit the proposal (error, retry or unknown result).
    """

    brokers: Callable[[int], BrokerImage | None]
    lag_max_ms: int
    propose: Callable[[UUID, int, AlterPartition, OnAlterPartitionResponse], None]
    disk_full: Callable[[PartitionLog, DiskFull], None]
    isr_changed: Callable[[int | None], None]


class LeaderLogView:
    """A `PartitionLog` as a `LeaderLog`."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.log_end.end_offset

    @property
    def reported_end_offset(self) -> int:
        return self._log.reported_end_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def min_insync_replicas(self) -> int:
        return self._log.config.min_insync_replicas


class LeaderRole:
    """Leadership of one replica, from its election until another replica leads.

    `advanced` is called with the number of bytes that became readable whenever the high watermark
    or the low watermark of the replicas has moved.
    """

    def __init__(
        self,
        log: PartitionLog,
        node_id: int,
        topic_id: UUID,
        cluster_context: ClusterContext,
        advanced: Callable[[int], None],
    ) -> None:
        self.state = LeaderState(
            node_id,
            LeaderLogView(log),
            cluster_context.brokers,
            lag_max_ms=cluster_context.lag_max_ms,
        )
        self._log = log
        self._node_id = node_id
        self._topic_id = topic_id
        self._propose_isr = cluster_context.propose
        self._brokers = cluster_context.brokers
        self._disk_full = cluster_context.disk_full
        self._isr_changed = cluster_context.isr_changed
        self._advanced = advanced
        self._uncommitted_bytes = UncommittedBytes(log.high_watermark, log.end_offset)
        self._is_over = False

    def adopt(self, image: PartitionImage) -> None:
        """Take over an image in which this node leads. Raises LogFailed if the epoch cannot begin
        in the log.

        The image with a committed proposal may arrive before the response: always, if this node is
        also the active controller.
        """
        isr = self.state.isr
        proposal, before = isr.proposal, isr.committed
        self._do(self.state.adopt(image, self._now_ms()))
        if (
            proposal is not None
            and isr.proposal is None
            and isr.leader_epoch == proposal.leader_epoch
            and isr.committed == proposal.isr
        ):
            self._isr_changed(len(proposal.isr) - len(before))

    def is_ahead_of(self, image: PartitionImage) -> bool:
        """Whether the controller has already sent this leader a newer partition epoch than `image`
        has."""
        return image.partition_epoch < self.state.isr.partition_epoch

    def appended(self, size_bytes: int) -> None:
        self._uncommitted_bytes.appended(self._log.log_end.end_offset, size_bytes)
        self._do(self.state.appended(self._now_ms()))

    def flushed(self) -> None:
        """Advance the high watermark after a flush, as far as it now may."""
        self._do(self.state.appended(self._now_ms()))

    def disk_full(self, error: DiskFull) -> None:
        """Report an append that failed because the disk is full; nothing was appended."""
        self._disk_full(self._log, error)

    def is_dispensable(self) -> bool:
        """Whether enough other in-sync replicas are active for acks=all without this node."""
        live = 0
        for replica in self.state.isr.committed - {self._node_id}:
            broker = self._brokers(replica)
            live += broker is not None and broker.active
        return live >= max(1, self._log.config.min_insync_replicas)

    def fetched(self, follower: int, *, offset: int, start_offset: int, broker_epoch: int) -> None:
        """Record a fetch of a follower. Raises as `LeaderState.fetched`."""
        before = self.state.progress_of(follower).start_offset
        self._do(
            self.state.fetched(
                follower,
                offset=offset,
                start_offset=start_offset,
                broker_epoch=broker_epoch,
                now_ms=self._now_ms(),
            )
        )
        if start_offset != before:
            self._advanced(0)

    def tick(self) -> None:
        """Shrink the ISR if necessary; call every half replica.lag.time.max.ms."""
        self._do(self.state.tick(self._now_ms()))

    def brokers_changed(self) -> None:
        self._do(self.state.brokers_changed(self._now_ms()))
        self._advanced(0)  # an offline broker no longer holds back the low watermark

    def end(self) -> None:
        """End the role: another node leads, or no other replica is left."""
        self._is_over = True

    def caught_up_ms_ago(self, follower: int) -> int:
        """Return how many ms ago the follower last had the whole log."""
        return self._now_ms() - self.state.progress_of(follower).caught_up_ms

    def _now_ms(self) -> int:
        return int(self._log.clock.monotonic() * 1000)

    def _do(self, actions: Sequence[LeaderAction]) -> None:
        for action in actions:
            if isinstance(action, AdvanceHighWatermark):
                if self._log.advance_high_watermark(action.offset):
                    self._advanced(self._uncommitted_bytes.advance_to(self._log.high_watermark))
            elif isinstance(action, BeginEpoch):
                self._log.assign_epoch(action.leader_epoch, action.start_offset)
            else:
                self._propose_isr(
                    self._topic_id,
                    self._log.partition,
                    action,
                    partial(self._altered, action.proposal),
                )

    def _altered(self, proposal: IsrProposal, response: CommittedIsr | ErrorCode) -> None:
        isr = self.state.isr
        if self._is_over or proposal is not isr.proposal:
            return  # an image has resolved it
        before = isr.committed
        self._do(self.state.altered(proposal, response, self._now_ms()))
        after = isr.committed
        self._isr_changed(None if after == before else len(after) - len(before))
