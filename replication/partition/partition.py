"""A partition of which this node has a replica: who leads it, what is replicated, who waits for it.

The log below knows offsets and bytes, nothing of leaders. This object adds the leader epoch, the
in-sync set and the high watermark that follows from it, and tells its watchers (waiting fetches and
produces) synchronously when something became visible, so that no wait is ended by a timer that an
append could end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

import trio

from odradek.protocol.errors import KafkaError
from odradek.replication.controller.image import PartitionImage
from odradek.replication.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeader,
    UnknownLeaderEpoch,
)
from odradek.replication.partition.high_watermark import decide_high_watermark
from odradek.storage.log.partition_log import Appended, Origin, PartitionLog
from odradek.storage.log.verifications import Guard

ACKS_ALL = -1


class Watcher(Protocol):
    """Somebody who waits for a partition; called on the loop, between two awaits of anyone else."""

    def visible(self, partition: Partition, size_bytes: int) -> None:
        """The high watermark moved; `size_bytes` is how much was appended since the last call."""
        ...

    def interrupted(self, partition: Partition) -> None:
        """The role changed or the replica is gone: ask again and be told why."""
        ...


class Changed:
    """A watcher that waits for anything at all to change in some partitions, once."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self._event.set()

    def interrupted(self, partition: Partition) -> None:
        self._event.set()

    @classmethod
    async def wait(cls, partitions: Iterable[Partition]) -> None:
        """Return at the next change. Whoever decided to wait must not have awaited since."""
        watcher, watched = cls(), list(partitions)
        for partition in watched:
            partition.watch(watcher)
        try:
            await watcher._event.wait()
        finally:
            for partition in watched:
                partition.unwatch(watcher)


class Partition:
    """See the module. All methods are synchronous; errors are KafkaErrors with the code to answer."""

    def __init__(
        self, log: PartitionLog, *, topic_id: UUID, node_id: int, image: PartitionImage
    ) -> None:
        self.log = log
        self.topic = log.topic
        self.index = log.partition
        self.topic_id = topic_id
        self._node_id = node_id
        self._watchers: set[Watcher] = set()
        self._unannounced_bytes = 0
        self._gone: KafkaError | None = None
        self._adopt(image)
        self._advance()

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} epoch {self.leader_epoch}>"

    # The role

    def update(self, image: PartitionImage) -> None:
        """Take over what the cluster decided; whoever waits on the old role is interrupted."""
        role_before = (self.leader, self.leader_epoch)
        self._adopt(image)
        if (self.leader, self.leader_epoch) != role_before:
            self._interrupt()
        self._advance()

    def _adopt(self, image: PartitionImage) -> None:
        self.leader = image.leader
        self.leader_epoch = image.leader_epoch
        self.replicas = tuple(image.replicas)
        self.in_sync = frozenset(image.isr)
        self._is_alone = self.in_sync == {self._node_id}
        """The log's end is the high watermark, then."""
        self.assigned_directory = image.directory_of(self._node_id)
        """Where the cluster thinks that the log is (KIP-858)."""

    @property
    def is_leader(self) -> bool:
        return self.leader == self._node_id

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """That this node leads, in the epoch that the client thinks (-1: it does not say).

        Raises FencedLeaderEpoch, UnknownLeaderEpoch or NotLeader (KIP-320), and what `retire` was
        given.
        """
        self.check_epoch(current_leader_epoch)
        if self.leader != self._node_id:
            raise NotLeader(f"node {self.leader} leads {self.topic}-{self.index}")

    def check_epoch(self, current_leader_epoch: int) -> None:
        if self._gone is not None:
            raise self._gone
        if current_leader_epoch not in (-1, self.leader_epoch):
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"the leader epoch is {self.leader_epoch} by now")
            raise UnknownLeaderEpoch(f"the leader epoch here is still {self.leader_epoch}")

    # Producing

    def append(
        self,
        records: memoryview,
        *,
        acks: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        transaction_version: int = 0,
        guard: Guard | None = None,
    ) -> Appended:
        """Append as leader; `records` are stamped in place.

        `transaction_version` and `guard` are those of `PartitionLog.append_as_leader`.

        Raises NotLeader, NotEnoughReplicas (acks=-1 with fewer than `min_in_sync` replicas in
        sync), what `retire` was given, and whatever the log refuses.
        """
        if self._gone is not None or self.leader != self._node_id:
            self.check_leader()
        if acks == ACKS_ALL and len(self.in_sync) < self.log.config.min_insync_replicas:
            raise NotEnoughReplicas(
                f"{len(self.in_sync)} of {self.log.config.min_insync_replicas} required replicas "
                "are in sync"
            )
        appended = self.log.append_as_leader(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            transaction_version=transaction_version,
            guard=guard,
        )
        if not appended.duplicate:
            self._unannounced_bytes += len(records)
        self._advance()
        return appended

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, adds_partitions: bool
    ) -> Guard | None:
        """See `ProducerStates.begin_verification`. Raises NotLeader and LogFailed too."""
        self.check_leader()
        self.log.check_online()
        return self.log.producers.begin_verification(
            producer_id,
            epoch,
            sequence,
            adds_partitions=adds_partitions,
            now_ms=self.log.clock.wall_ms(),
        )

    def is_replicated(self, offset: int) -> bool:
        """Whether every in-sync replica has the record at `offset`."""
        return self.log.high_watermark > offset

    def _advance(self) -> None:
        if self.leader != self._node_id:
            return
        log = self.log
        if self._is_alone:
            high_watermark = log.tip.end_offset
        else:
            end_offsets = {self._node_id: log.end_offset}
            high_watermark = decide_high_watermark(
                log.high_watermark, self._node_id, end_offsets, self.in_sync
            )
        if log.advance_high_watermark(high_watermark):
            size_bytes, self._unannounced_bytes = self._unannounced_bytes, 0
            if self._watchers:
                for watcher in tuple(self._watchers):
                    watcher.visible(self, size_bytes)

    # Waiting

    def watch(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def retire(self, reason: KafkaError) -> None:
        """The replica is deleted or its directory failed: whoever waits, or asks later, is told."""
        self._gone = reason
        self._interrupt()

    def _interrupt(self) -> None:
        for watcher in tuple(self._watchers):
            watcher.interrupted(self)
