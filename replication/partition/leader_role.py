"""A partition that this node leads with other replicas: what its `Leader` decides is done here.

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
from odradek.replication.partition.high_watermark import Unseen
from odradek.replication.partition.isr_state import Altered, Proposal
from odradek.replication.partition.leader_state import (
    Action,
    AdvanceHighWatermark,
    AlterPartition,
    BeginEpoch,
    Leader,
)
from odradek.seams.values import value_class
from odradek.storage.errors import DiskFull
from odradek.storage.log.partition_log import PartitionLog

Responded = Callable[[Altered | ErrorCode], None]


@value_class
class Surroundings:
    """What a leader knows of the rest of the cluster.

    `lag_max_ms` is replica.lag.time.max.ms. `propose` asks the controller for an in-sync set of a
    partition, by topic id and index, and has the answer told once, on the loop, never within the
    call; one that is asked for again waits for its turn. `disk_full` hears of an append that has met a
    full disk. `became` hears what became of a proposal, where that is known: by how many the in-sync set
    grew (fewer than 0: it shrank), or None where an answer says that it did not change.
    """

    brokers: Callable[[int], BrokerImage | None]
    lag_max_ms: int
    propose: Callable[[UUID, int, AlterPartition, Responded], None]
    disk_full: Callable[[PartitionLog, DiskFull], None]
    became: Callable[[int | None], None]


class LogView:
    """A `PartitionLog` as a `Leader` sees it."""

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


class Leading:
    """From one becoming leader to the next ceasing to be. `advanced` is told how many bytes became
    visible whenever the high watermark, or the least log start of the replicas, has moved."""

    def __init__(
        self,
        log: PartitionLog,
        node_id: int,
        topic_id: UUID,
        surroundings: Surroundings,
        advanced: Callable[[int], None],
    ) -> None:
        self.leader = Leader(
            node_id, LogView(log), surroundings.brokers, lag_max_ms=surroundings.lag_max_ms
        )
        self._log = log
        self._node_id = node_id
        self._topic_id = topic_id
        self._propose = surroundings.propose
        self._brokers = surroundings.brokers
        self._disk_full = surroundings.disk_full
        self._became = surroundings.became
        self._advanced = advanced
        self._unseen = Unseen(log.high_watermark, log.end_offset)
        self._is_over = False

    def adopt(self, image: PartitionImage) -> None:
        """This node leads by `image`. Raises LogFailed where an epoch can't begin in the log.

        A proposal that has come to pass may be seen here before it is answered: always, where this node
        is the active controller, too.
        """
        in_sync = self.leader.in_sync
        proposal, before = in_sync.proposal, in_sync.committed
        self._do(self.leader.adopt(image, self._now_ms()))
        if (
            proposal is not None
            and in_sync.proposal is None
            and in_sync.leader_epoch == proposal.leader_epoch
            and in_sync.committed == proposal.in_sync
        ):
            self._became(len(proposal.in_sync) - len(before))

    def is_ahead_of(self, image: PartitionImage) -> bool:
        """Whether the controller has answered this leader what `image` does not tell yet."""
        return image.partition_epoch < self.leader.in_sync.partition_epoch

    def appended(self, size_bytes: int) -> None:
        self._unseen.appended(self._log.tip.end_offset, size_bytes)
        self._do(self.leader.appended(self._now_ms()))

    def flushed(self) -> None:
        """More of the log may count than before."""
        self._do(self.leader.appended(self._now_ms()))

    def disk_full(self, error: DiskFull) -> None:
        """An append has met it; nothing was appended."""
        self._disk_full(self._log, error)

    def is_dispensable(self) -> bool:
        """Whether others are in sync and up, enough to take records without this node."""
        live = 0
        for each in self.leader.in_sync.committed - {self._node_id}:
            broker = self._brokers(each)
            live += broker is not None and broker.active
        return live >= max(1, self._log.config.min_insync_replicas)

    def fetched(self, follower: int, *, offset: int, start_offset: int, broker_epoch: int) -> None:
        """See `Leader.fetched`, which says what it raises."""
        before = self.leader.progress_of(follower).start_offset
        self._do(
            self.leader.fetched(
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
        self._do(self.leader.tick(self._now_ms()))

    def brokers_changed(self) -> None:
        self._do(self.leader.brokers_changed(self._now_ms()))
        self._advanced(0)  # one that is gone holds the low watermark no more

    def end(self) -> None:
        """This node leads no more, or leads alone."""
        self._is_over = True

    def caught_up_ms_ago(self, follower: int) -> int:
        """How long since it last had all there was."""
        return self._now_ms() - self.leader.progress_of(follower).caught_up_ms

    def _now_ms(self) -> int:
        return int(self._log.clock.monotonic() * 1000)

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, AdvanceHighWatermark):
                if self._log.advance_high_watermark(action.offset):
                    self._advanced(self._unseen.seen_to(self._log.high_watermark))
            elif isinstance(action, BeginEpoch):
                self._log.assign_epoch(action.leader_epoch, action.start_offset)
            else:
                self._propose(
                    self._topic_id,
                    self._log.partition,
                    action,
                    partial(self._altered, action.proposal),
                )

    def _altered(self, proposal: Proposal, respond: Altered | ErrorCode) -> None:
        in_sync = self.leader.in_sync
        if self._is_over or proposal is not in_sync.proposal:
            return  # an image was here first
        before = in_sync.committed
        self._do(self.leader.altered(proposal, respond, self._now_ms()))
        after = in_sync.committed
        self._became(None if after == before else len(after) - len(before))
