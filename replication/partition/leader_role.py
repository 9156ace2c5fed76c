"""A partition that this node leads with other replicas: what its `LeaderState` decides is done here.

Everything is synchronous, on the loop: an event goes in, the actions that come out are done before
the next event. What the controller answers to a proposal comes when it comes, and is for nobody if
this node has ceased to lead meanwhile.
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
    """What a leader knows of the rest of the cluster.

    `lag_max_ms` is replica.lag.time.max.ms. `propose` asks the controller for an in-sync set of a
    partition, by topic id and index, and has the answer told once, on the loop, never within the
    call; one that is asked for again waits for its turn. `disk_full` hears of an append that has met a
    full disk. `isr_changed` hears what became of a proposal, where that is known: by how many the in-sync set
    grew (fewer than 0: it shrank), or None where an answer says that it did not change.
    """

    brokers: Callable[[int], BrokerImage | None]
    lag_max_ms: int
    propose: Callable[[UUID, int, AlterPartition, OnAlterPartitionResponse], None]
    disk_full: Callable[[PartitionLog, DiskFull], None]
    isr_changed: Callable[[int | None], None]


class LeaderLogView:
    """A `PartitionLog` as a `LeaderState` sees it."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.tip.end_offset

    @property
    def counted_end(self) -> int:
        return self._log.counted_end

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def min_insync_replicas(self) -> int:
        return self._log.config.min_insync_replicas


class LeaderRole:
    """From one becoming leader to the next ceasing to be. `advanced` is told how many bytes became
    visible whenever the high watermark, or the least log start of the replicas, has moved."""

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
        """This node leads by `image`. Raises LogFailed where an epoch can't begin in the log.

        A proposal that has come to pass may be seen here before it is answered: always, where this node
        is the active controller, too.
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
        """Whether the controller has answered this leader what `image` does not tell yet."""
        return image.partition_epoch < self.state.isr.partition_epoch

    def appended(self, size_bytes: int) -> None:
        self._uncommitted_bytes.appended(self._log.tip.end_offset, size_bytes)
        self._do(self.state.appended(self._now_ms()))

    def flushed(self) -> None:
        """More of the log may count than before."""
        self._do(self.state.appended(self._now_ms()))

    def disk_full(self, error: DiskFull) -> None:
        """An append has met it; nothing was appended."""
        self._disk_full(self._log, error)

    def is_dispensable(self) -> bool:
        """Whether others are in sync and up, enough to take records without this node."""
        live = 0
        for each in self.state.isr.committed - {self._node_id}:
            broker = self._brokers(each)
            live += broker is not None and broker.active
        return live >= max(1, self._log.config.min_insync_replicas)

    def fetched(self, follower: int, *, offset: int, start_offset: int, broker_epoch: int) -> None:
        """See `LeaderState.fetched`, which says what it raises."""
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
        """Due every half replica.lag.time.max.ms."""
        self._do(self.state.tick(self._now_ms()))

    def brokers_changed(self) -> None:
        self._do(self.state.brokers_changed(self._now_ms()))
        self._advanced(0)  # one that is gone holds the low watermark no more

    def end(self) -> None:
        """This node leads no more, or leads alone."""
        self._is_over = True

    def caught_up_ms_ago(self, follower: int) -> int:
        """How long since it last had all there was."""
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
            return  # an image was here first
        before = isr.committed
        self._do(self.state.altered(proposal, response, self._now_ms()))
        after = isr.committed
        self._isr_changed(None if after == before else len(after) - len(before))
