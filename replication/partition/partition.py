"""Partition replica of this node: its role, its high watermark, and its watchers.

`PartitionLog` knows offsets and bytes, but no leaders. A Partition adds the role, and notifies its
watchers (waiting fetches and produces) synchronously when records become readable, so that an
append completes a wait without a timer. The role decides where the high watermark comes from:

| this node | the high watermark | by |
|---|---|---|
| has the only replica | is the log end offset, or the recovery point while a flush is due | `PartitionLog.reported_end_offset` |
| leads other replicas | is computed from their fetches | `leader_role.py`, `leader_state.py` |
| follows | comes from the leader | `replicated`, which the fetcher calls |

While a follower's change of its log runs in a thread (`begin_change`), this node does not become
the leader: the image waits for `end_change`. A retired partition (deleted, or its log directory
failed) never leads again: a new replica of the same name may exist by then, with another log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

import trio

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import Batch
from odradek.replication.controller.image import PartitionImage
from odradek.replication.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeader,
    UnknownLeaderEpoch,
)
from odradek.replication.partition.high_watermark import UNCOUNTED_BYTES, UncommittedBytes
from odradek.storage.errors import DiskFull, LogFailed
from odradek.storage.log.partition_log import AppendOrigin, AppendResult, PartitionLog
from odradek.storage.log.read import LogEnd
from odradek.storage.log.transaction_verification import VerificationGuard

if TYPE_CHECKING:
    from odradek.replication.partition.leader_role import ClusterContext, LeaderRole
    from odradek.replication.partition.rejected_batches import RejectedBatches

ACKS_ALL = -1
NEWEST_BYTES_MAX = 4096
"""Largest batch in bytes that is kept in memory for waiting fetches.

Most such batches are smaller, and reading one from its file costs more than the copy.
"""


TRAFFIC_COUNTERS = (
    "messages_in",
    "bytes_in",
    "bytes_out",
    "bytes_rejected",
    "produces",
    "failed_produces",
    "fetches",
    "failed_fetches",
    "replicated_bytes_in",
    "replicated_bytes_out",
)


class PartitionTraffic:
    """Traffic counters of one partition since it was opened, or sums over many.

    Bytes are those of batches. `produces` and `fetches` count partitions, not requests, as in
    Kafka. Fetches of followers are in neither `fetches` nor `bytes_out`.
    """

    __slots__ = TRAFFIC_COUNTERS

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_rejected = 0
        self.produces = 0
        self.failed_produces = 0
        self.fetches = 0
        self.failed_fetches = 0
        self.replicated_bytes_in = 0
        self.replicated_bytes_out = 0

    def appended(self, messages: int, size_bytes: int) -> None:
        """Count a batch that was appended."""
        self.produces += 1
        self.messages_in += messages
        self.bytes_in += size_bytes

    def refused(self, rejected_bytes: int) -> None:
        """Count a rejected batch; `rejected_bytes` is its size if it was too large."""
        self.produces += 1
        self.failed_produces += 1
        self.bytes_rejected += rejected_bytes

    def add(self, other: PartitionTraffic) -> None:
        """Add the counts of `other` to these."""
        for name in TRAFFIC_COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class PartitionWatcher(Protocol):
    """Waits for a change of a partition; its methods are called synchronously, on the loop."""

    def visible(self, partition: Partition, size_bytes: int) -> None:
        """Handle an advance of the high watermark that makes `size_bytes` readable."""
        ...

    def interrupted(self, partition: Partition) -> None:
        """Handle a change of role or the removal of the replica: check the partition again."""
        ...


class _NewestBatch(NamedTuple):
    """The last batch that a client appended."""

    log_end: LogEnd
    """Log end after the append; the batch is the last one while the log end is the same."""
    first_offset: int
    data: bytes


class PartitionChangeWatcher:
    """Watcher that waits for the next change of any of several partitions."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self._event.set()

    def interrupted(self, partition: Partition) -> None:
        self._event.set()

    @classmethod
    async def wait(cls, partitions: Iterable[Partition]) -> None:
        """Return at the next change. Call it without an await after the check that led to waiting."""
        watcher, watched = cls(), list(partitions)
        for partition in watched:
            partition.watch(watcher)
        try:
            await watcher._event.wait()
        finally:
            for partition in watched:
                partition.unwatch(watcher)


class Partition:
    """Replica of one partition on this node.

    All methods except `wait_unchanged` are synchronous. They raise KafkaErrors with the code for
    the response.
    """

    def __init__(
        self,
        log: PartitionLog,
        *,
        topic_id: UUID,
        node_id: int,
        image: PartitionImage,
        cluster_context: Callable[[], ClusterContext] | None = None,
    ) -> None:
        """`cluster_context` is called when this node leads other replicas. Without it their
        progress stays unknown."""
        self.log = log
        self.traffic: PartitionTraffic | None = None
        """None if the traffic of this partition is not counted."""
        self._rejected_batches: RejectedBatches | None = None
        self.topic = log.topic
        self.index = log.partition
        self.topic_id = topic_id
        self._node_id = node_id
        self._cluster_context = cluster_context
        self._watchers: dict[
            PartitionWatcher, None
        ] = {}  # notified in the order of their registration
        self._end_watchers: dict[PartitionWatcher, None] = {}
        self._unannounced_bytes = 0
        self._newest: _NewestBatch | None = None
        self._uncommitted_bytes: UncommittedBytes | None = None
        """Used only while this node follows."""
        self._retired_error: KafkaError | None = None
        self._change_ended: trio.Event | None = None
        """Set when the running change of the log has ended."""
        self._deferred_image: PartitionImage | None = None
        self.leader_role: LeaderRole | None = None
        """None if this node does not lead, or has the only replica."""
        self.leader_epoch = -1
        self.leading_since = -1
        """Leader epoch since which this node has led without interruption; -1 if it does not lead.
        """
        log.on_flushed = self._flushed
        self._adopt(image)
        self._lead(image)

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} epoch {self.leader_epoch}>"

    # Role

    def update(self, image: PartitionImage) -> None:
        """Take over the partition state of an image; a change of role interrupts the watchers."""
        if self._retired_error is not None and image.leader == self._node_id:
            return
        self._deferred_image = None
        if self.leader_role is not None and self.leader_role.is_ahead_of(image):
            return
        if self._change_ended is not None and image.leader == self._node_id != self.leader:
            self._deferred_image = image
            return
        role_before = (self.leader, self.leader_epoch)
        self._adopt(image)
        if (self.leader, self.leader_epoch) != role_before:
            self._interrupt()
        self._lead(image)

    def _adopt(self, image: PartitionImage) -> None:
        """Take over the state of the image.

        If a leader epoch was skipped, another node may have led it and truncated replicas. So what
        is known of the replicas, and what waits, belongs to an earlier leadership.
        """
        leads, before = image.leader == self._node_id, self.leading_since
        if not leads:
            self.leading_since = -1
        elif before < 0 or image.leader_epoch > self.leader_epoch + 1:
            self.leading_since = image.leader_epoch
        self.leader = image.leader
        self.leader_epoch = image.leader_epoch
        self.replicas = tuple(image.replicas)
        self._is_only_replica = self.replicas == (self._node_id,)
        self.assigned_directory = image.directory_of(self._node_id)
        """Id of the replica's log directory in the cluster metadata (KIP-858)."""
        is_the_same = leads and self.leading_since == before
        if self.leader_role is not None and (self._is_only_replica or not is_the_same):
            self.leader_role.end()
            self.leader_role = None

    def _lead(self, image: PartitionImage) -> None:
        """Begin the leader epoch if this node leads, and advance the high watermark."""
        if image.leader != self._node_id:
            return
        self._uncommitted_bytes = None
        self.log.request_flush()
        try:
            if not self._is_only_replica and self._cluster_context is not None:
                if self.leader_role is None:
                    self.leader_role = self._begin_leading(self._cluster_context())
                self.leader_role.adopt(image)
                return
            if self.log.epochs.latest != image.leader_epoch:
                self.log.assign_epoch(image.leader_epoch, self.log.end_offset)
        except LogFailed:
            return  # the directory is offline; `retire` and another leader follow
        if self.log.high_watermark < self.log.end_offset:
            # other replicas held it back; their sizes are unknown
            self._unannounced_bytes = UNCOUNTED_BYTES
        self._advance()

    def _begin_leading(self, cluster_context: ClusterContext) -> LeaderRole:
        from odradek.replication.partition.leader_role import LeaderRole

        return LeaderRole(self.log, self._node_id, self.topic_id, cluster_context, self._announce)

    @property
    def is_leader(self) -> bool:
        return self.leader == self._node_id

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Check that this node leads, and in the client's leader epoch (-1: not checked).

        Raises FencedLeaderEpoch, UnknownLeaderEpoch or NotLeader (KIP-320), or the error passed to
        `retire`.
        """
        self.check_epoch(current_leader_epoch)
        if self.leader != self._node_id:
            raise NotLeader(f"node {self.leader} leads {self.topic}-{self.index}")

    def check_epoch(self, current_leader_epoch: int) -> None:
        if self._retired_error is not None:
            raise self._retired_error
        if current_leader_epoch not in (-1, self.leader_epoch):
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"the leader epoch is {self.leader_epoch}")
            raise UnknownLeaderEpoch(f"the leader epoch here is still {self.leader_epoch}")

    def check_led_since(self, epoch: int) -> None:
        """Check that this node has led since leader epoch `epoch`, so that its log was only
        appended to.

        Raises NotLeader.
        """
        if not 0 <= self.leading_since <= epoch:
            raise NotLeader(f"another node has led {self.topic}-{self.index} since epoch {epoch}")

    # Produce

    def append(
        self,
        records: memoryview,
        *,
        acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = 0,
        guard: VerificationGuard | None = None,
        checked: Batch | None = None,
        at_once: bool = False,
    ) -> AppendResult:
        """Append as leader; offsets and leader epoch are written into `records` in place.

        `transaction_version`, `guard`, `checked` and `at_once` are those of
        `PartitionLog.append_as_leader`.

        Raises NotLeader, NotEnoughReplicas (acks=-1 with fewer in-sync replicas than the smaller of
        min.insync.replicas and the number of replicas, unless the batch is committed already), the
        error passed to `retire`, and the errors of the log.
        """
        if self._retired_error is not None or self.leader != self._node_id:
            self.check_leader()
        leader_role = self.leader_role
        if leader_role is not None and acks == ACKS_ALL:
            try:
                leader_role.state.check_append()
            except NotEnoughReplicas:
                # A committed duplicate is not appended again. (Kafka rejects it; its producer then
                # treats it as never written, and the following batches as out of order.)
                is_client = origin is AppendOrigin.CLIENT
                before = self.log.find_committed_duplicate(records) if is_client else None
                if before is None:
                    raise
                return before
        try:
            appended = self.log.append_as_leader(
                records,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                transaction_version=transaction_version,
                guard=guard,
                checked=checked,
                at_once=at_once,
            )
        except DiskFull as error:
            if leader_role is not None:
                leader_role.disk_full(error)
            raise
        if self.traffic is not None:  # the received bytes, as in Kafka
            self.traffic.appended(appended.last_offset - appended.first_offset + 1, len(records))
        size_bytes = appended.size_bytes  # readable bytes
        if leader_role is None:
            if self._watchers and origin is AppendOrigin.CLIENT:
                self._keep_newest(appended)
            if not appended.duplicate:
                self._unannounced_bytes += size_bytes
            self._advance()
        elif not appended.duplicate:
            for watcher in tuple(self._end_watchers):
                watcher.visible(self, size_bytes)
            leader_role.appended(size_bytes)
        return appended

    def error_for_producer(self, records: memoryview, error: KafkaError) -> KafkaError:
        """Return the error for the response to `records`, after `append` raised `error`.

        That is `error`, or the error of an earlier rejected batch (`rejected_batches.py`).
        """
        if self._rejected_batches is None:
            from odradek.replication.partition.rejected_batches import RejectedBatches

            self._rejected_batches = RejectedBatches()
        return self._rejected_batches.error_for_producer(records, error)

    def _keep_newest(self, appended: AppendResult) -> None:
        if appended.data is not None and appended.size_bytes <= NEWEST_BYTES_MAX:
            self._newest = _NewestBatch(
                self.log.log_end, appended.first_offset, bytes(appended.data)
            )

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, adds_partitions: bool
    ) -> VerificationGuard | None:
        """Begin a transaction verification (`ProducerStates`). Also raises NotLeader and LogFailed."""
        self.check_leader()
        self.log.check_online()
        return self.log.producers.begin_verification(
            producer_id,
            epoch,
            sequence,
            adds_partitions=adds_partitions,
            now_ms=self.log.clock.wall_ms(),
        )

    def is_replicated(self, offset: int, epoch: int) -> bool:
        """Whether all in-sync replicas have the record at `offset`, appended in leader epoch
        `epoch`.

        Raises NotLeader if another node has led since, because the offset may have another record
        now. Raises NotEnoughReplicasAfterAppend if fewer than min.insync.replicas have the record.
        """
        self.check_led_since(epoch)
        if self.leader_role is None:
            return self.log.high_watermark > offset
        return self.leader_role.state.is_replicated(offset + 1)

    # Fetches of followers

    def check_follower(
        self, follower: int, broker_epoch: int, *, has_leader_epoch: bool = True
    ) -> None:
        """Check a follower's fetch after `check_leader`, before it is read
        (`LeaderState.check_fetch`).

        A request without a leader epoch (before KIP-320) raises NotLeader in place of
        UnknownLeaderEpoch.
        """
        if self.leader_role is not None and (has_leader_epoch or follower in self.replicas):
            self.leader_role.state.check_fetch(follower, broker_epoch)
            return
        unknown = UnknownLeaderEpoch if has_leader_epoch else NotLeader
        raise unknown(f"broker {follower} has no replica of {self!r} yet")

    def fetched(self, follower: int, *, offset: int, start_offset: int, broker_epoch: int) -> None:
        """Record a fetch of a follower that was read and whose log does not diverge."""
        self.check_leader()
        if self.leader_role is None:
            raise NotLeader(f"{self!r} has no other replica now")
        self.leader_role.fetched(
            follower, offset=offset, start_offset=start_offset, broker_epoch=broker_epoch
        )

    @property
    def is_behind_its_epoch(self) -> bool:
        """Whether the high watermark is still below the start of this leader epoch."""
        if self.leader_role is not None:
            return self.leader_role.state.start_offset > self.log.high_watermark
        epochs = self.log.epochs.entries
        return self.is_leader and bool(epochs) and epochs[-1].start_offset > self.log.high_watermark

    def low_watermark(self) -> int:
        """Smallest log start offset of all unfenced replicas; see `LeaderState`."""
        if self.leader_role is None:
            return self.log.log_start_offset
        return self.leader_role.state.low_watermark()

    def delete_before(self, offset: int, reason: str) -> None:
        """Advance the log start offset; followers receive it in their next Fetch response."""
        if self.log.advance_log_start(offset, reason):
            for watcher in tuple(self._end_watchers):
                watcher.visible(self, 0)

    def _advance(self) -> None:
        """Advance the high watermark to the counted end if there are no other replicas."""
        if self._is_only_replica and self.log.advance_high_watermark(self.log.reported_end_offset):
            size_bytes, self._unannounced_bytes = self._unannounced_bytes, 0
            if self._watchers:
                self._announce(size_bytes)

    def _flushed(self) -> None:
        if self._retired_error is not None or not self.is_leader:
            return
        if self.leader_role is not None:
            self.leader_role.flushed()
        else:
            self._advance()

    def _announce(self, size_bytes: int) -> None:
        for watcher in tuple(self._watchers):
            watcher.visible(self, size_bytes)

    # Follower

    def begin_change(self) -> None:
        """Begin a change of the log in a thread; until it ends, this node does not become the
        leader."""
        assert self._change_ended is None, f"a change of {self!r} is running"
        self._change_ended = trio.Event()

    def end_change(self) -> bool:
        """End the change. Returns True if a deferred role took effect now."""
        assert self._change_ended is not None, f"no change of {self!r} is running"
        self._change_ended.set()
        self._change_ended = None
        image = self._deferred_image
        if image is None:
            return False
        self.update(image)
        return True

    async def wait_unchanged(self) -> None:
        """Return when no change of the log is running."""
        while self._change_ended is not None:
            await self._change_ended.wait()

    def replicated(self, high_watermark: int, size_bytes: int) -> None:
        """Advance the high watermark as a follower, after an append of `size_bytes`."""
        log = self.log
        if self.traffic is not None:
            self.traffic.replicated_bytes_in += size_bytes
        if self._uncommitted_bytes is None:
            self._uncommitted_bytes = UncommittedBytes(log.high_watermark, log.end_offset)
        elif size_bytes:
            self._uncommitted_bytes.appended(log.end_offset, size_bytes)
        if log.advance_high_watermark(high_watermark):
            self._announce(self._uncommitted_bytes.advance_to(log.high_watermark))

    # Watchers

    def watch(self, watcher: PartitionWatcher, *, end: bool = False) -> None:
        """Notify `watcher` when records become readable; with `end`, when the leader appends."""
        if end and self.leader_role is not None:
            self._end_watchers[watcher] = None
        else:
            self._watchers[watcher] = None

    def unwatch(self, watcher: PartitionWatcher) -> None:
        self._watchers.pop(watcher, None)
        self._end_watchers.pop(watcher, None)
        if not self._watchers:
            self._newest = None

    def newest_batch(self, offset: int, limit: int) -> bytes | None:
        """Return all records from `offset` to `limit` if they are the small batch appended last;
        else None.

        It is kept only while a fetch waits and this is the only replica, and saves the read of the
        log. No transaction ends in it.
        """
        newest = self._newest
        if newest is None or newest.first_offset != offset:
            return None  # the usual case
        log = self.log
        is_last = log.log_end is newest.log_end and newest.log_end.end_offset == limit
        is_there = offset >= log.log_start_offset and log.failure is None
        return newest.data if is_last and is_there else None

    def retire(self, reason: KafkaError) -> None:
        """Retire the replica: it was deleted or its log directory failed. Interrupts the watchers."""
        self._retired_error = reason
        self._deferred_image = None
        if self.leader_role is not None:
            self.leader_role.end()
            self.leader_role = None
        self._interrupt()

    def _interrupt(self) -> None:
        for watcher in (*self._watchers, *self._end_watchers):
            watcher.interrupted(self)
