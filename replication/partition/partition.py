"""A partition of which this node has a replica: who leads it, what is replicated, who waits for it.

The log below knows offsets and bytes, nothing of leaders. This object adds the role, and tells its
watchers (waiting fetches and produces) synchronously when something became visible, so that no wait
is ended by a timer that an append could end. Where the high watermark comes from depends on the role:

| this node | the high watermark | |
|---|---|---|
| has the only replica | is the log's end, as far as that counts | `PartitionLog.counted_end` |
| leads others | follows from what these have fetched | `leader_role.py`, `leader.py` |
| follows | is what the leader says | `replicated`, which whoever fetches calls |

While a follower's change of its log runs in a thread (`begin_change`), this node does not become the
leader: the image that says so waits for `end_change`. One that is retired (deleted, or without a disk) never
leads again: there may be another replica of that name here by then, in a log of its own.
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
from odradek.storage.log.partition_log import Appended, AppendOrigin, PartitionLog
from odradek.storage.log.read import Tip
from odradek.storage.log.transaction_verification import VerificationGuard

if TYPE_CHECKING:
    from odradek.replication.partition.leader_role import ClusterContext, LeaderRole
    from odradek.replication.partition.refused_batches import RefusedBatches

ACKS_ALL = -1
NEWEST_BYTES_MAX = 4096
"""So large a batch is kept in memory for whoever waits for it: most of those that are waited for are
smaller, and reading one from its file costs more than the copy."""


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
    """Of one partition since it was opened, or of many.

    Bytes are those of batches. `produces` and `fetches` count partitions, not requests, as Kafka has
    it; what followers fetch is in neither `fetches` nor `bytes_out`.
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
        """A batch was."""
        self.produces += 1
        self.messages_in += messages
        self.bytes_in += size_bytes

    def refused(self, rejected_bytes: int) -> None:
        """A batch was; `rejected_bytes` of it, if it was too large."""
        self.produces += 1
        self.failed_produces += 1
        self.bytes_rejected += rejected_bytes

    def add(self, other: PartitionTraffic) -> None:
        """Count what `other` has counted, too."""
        for name in TRAFFIC_COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Watcher(Protocol):
    """Somebody who waits for a partition; called on the loop, between two awaits of anyone else."""

    def visible(self, partition: Partition, size_bytes: int) -> None:
        """The high watermark moved; `size_bytes` is how much was appended since the last call."""
        ...

    def interrupted(self, partition: Partition) -> None:
        """The role changed or the replica is gone: ask again and be told why."""
        ...


class _NewestBatch(NamedTuple):
    """The batch that was appended last, by a client."""

    tip: Tip
    """Of the log since; with another, it is not the last one any more."""
    first_offset: int
    data: bytes


class ChangeWatcher:
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
    """See the module. All methods are synchronous, but for one; errors are KafkaErrors with the code
    to answer."""

    def __init__(
        self,
        log: PartitionLog,
        *,
        topic_id: UUID,
        node_id: int,
        image: PartitionImage,
        cluster_context: Callable[[], ClusterContext] | None = None,
    ) -> None:
        """`cluster_context` is asked for when this node leads other replicas; without it none of these
        is ever known to have anything."""
        self.log = log
        self.traffic: PartitionTraffic | None = None
        """None where nobody is told of it."""
        self._refusals: RefusedBatches | None = None
        self.topic = log.topic
        self.index = log.partition
        self.topic_id = topic_id
        self._node_id = node_id
        self._cluster_context = cluster_context
        self._watchers: dict[Watcher, None] = {}  # told in the order in which they came
        self._end_watchers: dict[Watcher, None] = {}
        self._unannounced_bytes = 0
        self._newest: _NewestBatch | None = None
        self._uncommitted_bytes: UncommittedBytes | None = None
        """Of a follower."""
        self._retired_error: KafkaError | None = None
        self._change_ended: trio.Event | None = None
        """Set when the change that is under way has ended."""
        self._deferred_image: PartitionImage | None = None
        self.leader_role: LeaderRole | None = None
        """None where this node does not lead, or has the only replica."""
        self.leader_epoch = -1
        self.leading_since = -1
        """The leader epoch in which this node became the leader, and it has been since; -1: it is not."""
        log.on_flushed = self._flushed
        self._adopt(image)
        self._lead(image)

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} epoch {self.leader_epoch}>"

    # The role

    def update(self, image: PartitionImage) -> None:
        """Take over what the cluster decided; whoever waits on the old role is interrupted."""
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
        """Take it over. Where an epoch was left out another node may have led it, and had replicas
        cut: what this one knew of them, and what waited, is of another leadership then."""
        leads, before = image.leader == self._node_id, self.leading_since
        if not leads:
            self.leading_since = -1
        elif before < 0 or image.leader_epoch > self.leader_epoch + 1:
            self.leading_since = image.leader_epoch
        self.leader = image.leader
        self.leader_epoch = image.leader_epoch
        self.replicas = tuple(image.replicas)
        self._is_alone = self.replicas == (self._node_id,)
        self.assigned_directory = image.directory_of(self._node_id)
        """Where the cluster thinks that the log is (KIP-858)."""
        is_the_same = leads and self.leading_since == before
        if self.leader_role is not None and (self._is_alone or not is_the_same):
            self.leader_role.end()
            self.leader_role = None

    def _lead(self, image: PartitionImage) -> None:
        """Begin the epoch, if this node leads it, and see what is replicated by that."""
        if image.leader != self._node_id:
            return
        self._uncommitted_bytes = None
        self.log.ask_for_flush()
        try:
            if not self._is_alone and self._cluster_context is not None:
                if self.leader_role is None:
                    self.leader_role = self._begin_leading(self._cluster_context())
                self.leader_role.adopt(image)
                return
            if self.log.epochs.latest != image.leader_epoch:
                self.log.assign_epoch(image.leader_epoch, self.log.end_offset)
        except LogFailed:
            return  # its directory is offline: `retire` is on its way, and then another leader
        if self.log.high_watermark < self.log.end_offset:
            self._unannounced_bytes = UNCOUNTED_BYTES  # others were waited for; how much, they knew
        self._advance()

    def _begin_leading(self, cluster_context: ClusterContext) -> LeaderRole:
        from odradek.replication.partition.leader_role import LeaderRole

        return LeaderRole(self.log, self._node_id, self.topic_id, cluster_context, self._announce)

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
        if self._retired_error is not None:
            raise self._retired_error
        if current_leader_epoch not in (-1, self.leader_epoch):
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"the leader epoch is {self.leader_epoch} by now")
            raise UnknownLeaderEpoch(f"the leader epoch here is still {self.leader_epoch}")

    def check_led_since(self, epoch: int) -> None:
        """That this node has led ever since leader epoch `epoch`, so that its log has grown and no more.
        Raises NotLeader."""
        if not 0 <= self.leading_since <= epoch:
            raise NotLeader(f"{self.topic}-{self.index} was led by another since epoch {epoch}")

    # Producing

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
    ) -> Appended:
        """Append as leader; `records` are stamped in place.

        `transaction_version`, `guard`, `checked` and `at_once` are those of
        `PartitionLog.append_as_leader`.

        Raises NotLeader, NotEnoughReplicas (acks=-1 with fewer than min.insync.replicas in sync, or
        than there are replicas, for what is not committed already), what `retire` was given, and whatever the log refuses.
        """
        if self._retired_error is not None or self.leader != self._node_id:
            self.check_leader()
        leader_role = self.leader_role
        if leader_role is not None and acks == ACKS_ALL:
            try:
                leader_role.state.check_append()
            except NotEnoughReplicas:
                # One that is committed is no append. (Kafka refuses it too; its producer then takes it for one
                # that was never written, and what follows it for out of order.)
                before = (
                    self.log.find_committed_duplicate(records)
                    if origin is AppendOrigin.CLIENT
                    else None
                )
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
        if self.traffic is not None:  # what came in, as Kafka counts it
            self.traffic.appended(appended.last_offset - appended.first_offset + 1, len(records))
        size_bytes = appended.size_bytes  # what there is to be read of it
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
        """What the client that sent `records` is told where `append` raised `error`: that, or why a batch
        was refused that they come behind (see `refusals`)."""
        if self._refusals is None:
            from odradek.replication.partition.refused_batches import RefusedBatches

            self._refusals = RefusedBatches()
        return self._refusals.error_for_producer(records, error)

    def _keep_newest(self, appended: Appended) -> None:
        if appended.data is not None and appended.size_bytes <= NEWEST_BYTES_MAX:
            self._newest = _NewestBatch(self.log.tip, appended.first_offset, bytes(appended.data))

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, adds_partitions: bool
    ) -> VerificationGuard | None:
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

    def is_replicated(self, offset: int, epoch: int) -> bool:
        """Whether every in-sync replica has the record at `offset`, appended here in leader epoch
        `epoch`.

        Raises NotLeader if this node has not led ever since, for the record may be another one now,
        and NotEnoughReplicasAfterAppend if it is replicated to fewer than min.insync.replicas.
        """
        self.check_led_since(epoch)
        if self.leader_role is None:
            return self.log.high_watermark > offset
        return self.leader_role.state.is_replicated(offset + 1)

    # Being fetched from by followers

    def check_follower(
        self, follower: int, broker_epoch: int, *, has_leader_epoch: bool = True
    ) -> None:
        """Before a follower's fetch is read for, after `check_leader`; see `LeaderState.check_fetch`.

        One that does not tell the leader epoch it knows (before KIP-320) is told NotLeader in place of
        UnknownLeaderEpoch.
        """
        if self.leader_role is not None and (has_leader_epoch or follower in self.replicas):
            self.leader_role.state.check_fetch(follower, broker_epoch)
            return
        unknown = UnknownLeaderEpoch if has_leader_epoch else NotLeader
        raise unknown(f"broker {follower} has no replica of {self!r} yet")

    def fetched(self, follower: int, *, offset: int, start_offset: int, broker_epoch: int) -> None:
        """A follower's fetch was read for, and its log does not part from this one."""
        self.check_leader()
        if self.leader_role is None:
            raise NotLeader(f"{self!r} has no other replica now")
        self.leader_role.fetched(
            follower, offset=offset, start_offset=start_offset, broker_epoch=broker_epoch
        )

    @property
    def is_behind_its_epoch(self) -> bool:
        """Whether the high watermark is still that of the time before this leader epoch."""
        if self.leader_role is not None:
            return self.leader_role.state.start_offset > self.log.high_watermark
        epochs = self.log.epochs.entries
        return self.is_leader and bool(epochs) and epochs[-1].start_offset > self.log.high_watermark

    def low_watermark(self) -> int:
        """Where the logs of all replicas that are up start at the least; see `LeaderState`."""
        if self.leader_role is None:
            return self.log.log_start_offset
        return self.leader_role.state.low_watermark()

    def delete_before(self, offset: int, reason: str) -> None:
        """Move the log's start up; followers are told with their next answers."""
        if self.log.advance_log_start(offset, reason):
            for watcher in tuple(self._end_watchers):
                watcher.visible(self, 0)

    def _advance(self) -> None:
        """All that is appended, and that flush.messages does not hold back, is visible, where there are no
        other replicas."""
        if self._is_alone and self.log.advance_high_watermark(self.log.counted_end):
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

    # Following

    def begin_change(self) -> None:
        """A change of the log begins in a thread, during which this node must not become the leader."""
        assert self._change_ended is None, f"{self!r} is being changed"
        self._change_ended = trio.Event()

    def end_change(self) -> bool:
        """It is done, or failed. True if this node has the role now that had to wait for that."""
        assert self._change_ended is not None, f"{self!r} is not being changed"
        self._change_ended.set()
        self._change_ended = None
        image = self._deferred_image
        if image is None:
            return False
        self.update(image)
        return True

    async def wait_unchanged(self) -> None:
        """Return when no change of the log is under way."""
        while self._change_ended is not None:
            await self._change_ended.wait()

    def replicated(self, high_watermark: int, size_bytes: int) -> None:
        """As a follower: `size_bytes` were appended, and all below `high_watermark` is replicated."""
        log = self.log
        if self.traffic is not None:
            self.traffic.replicated_bytes_in += size_bytes
        if self._uncommitted_bytes is None:
            self._uncommitted_bytes = UncommittedBytes(log.high_watermark, log.end_offset)
        elif size_bytes:
            self._uncommitted_bytes.appended(log.end_offset, size_bytes)
        if log.advance_high_watermark(high_watermark):
            self._announce(self._uncommitted_bytes.advance_to(log.high_watermark))

    # Waiting

    def watch(self, watcher: Watcher, *, end: bool = False) -> None:
        """Tell `watcher` of what becomes visible; with `end`, of what the leader appends."""
        if end and self.leader_role is not None:
            self._end_watchers[watcher] = None
        else:
            self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        self._end_watchers.pop(watcher, None)
        if not self._watchers:
            self._newest = None

    def newest_batch(self, offset: int, limit: int) -> bytes | None:
        """All records from `offset` up to `limit`, if they are the small batch that a client appended last,
        and somebody waited for it while this was the only replica: such a one needs no look into the log.
        No transaction ends in it."""
        newest = self._newest
        if newest is None or newest.first_offset != offset:
            return None  # as it mostly is
        log = self.log
        is_last = log.tip is newest.tip and newest.tip.end_offset == limit
        is_there = offset >= log.log_start_offset and log.failure is None
        return newest.data if is_last and is_there else None

    def retire(self, reason: KafkaError) -> None:
        """The replica is deleted or its directory failed: whoever waits, or asks later, is told."""
        self._retired_error = reason
        self._deferred_image = None
        if self.leader_role is not None:
            self.leader_role.end()
            self.leader_role = None
        self._interrupt()

    def _interrupt(self) -> None:
        for watcher in (*self._watchers, *self._end_watchers):
            watcher.interrupted(self)
