"""The cluster's state, kept: a quorum's log underneath, an image above it.

Operations are decided one after the other on the newest image, the one with all that was decided
before, and their records are appended at once; they are answered when the records are committed.
Whoever finds the disk idle flushes for all who have appended by then, so that commits that arrive
together share a flush. `image` is committed state: it moves, and listeners hear of it, in the order of
the log, between two awaits of anyone else.

A commit that has been appended is not cancelled: the log has it, and its answer waits for the disk. A
write or flush that fails is final (`failed` is set): what is on the disk is no longer known, and the
node must end.

    start:    format if new → recover → snapshot + log → image → vote → first records of the epoch
    commit:   decide → apply to the newest image → append → flush → high watermark → listeners
    snapshot: image at the time, written beside the log while it goes on → old snapshots, segments go

The quorum has one voter: this node. `state.py` decides as one of many would.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeVar
from uuid import UUID

import trio

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.control import ControlType
from odradek.protocol.schemas.serde import encode_metadata_record
from odradek.replication.controller.brokers import register_controller
from odradek.replication.controller.features import (
    CONTROLLER_REGISTRATION,
    KRAFT_VERSION,
    SUPPORTED_FEATURES,
    metadata_version,
    record_version,
)
from odradek.replication.controller.image import (
    ControllerImage,
    Endpoint,
    MetadataDelta,
    MetadataImage,
)
from odradek.replication.controller.operations import Plan
from odradek.replication.raft.actions import Action, Committed, Persist, StartEpoch
from odradek.replication.raft.bootstrap import (
    activation_records,
    format_directory,
    is_formatted,
    quorum_records,
    read_bootstrap_records,
)
from odradek.replication.raft.elections import Election
from odradek.replication.raft.errors import InvalidQuorum, NotController
from odradek.replication.raft.metadata_log import MetadataLog, MetadataLogSettings
from odradek.replication.raft.replay import Replay
from odradek.replication.raft.roles import QuorumSettings, Role
from odradek.replication.raft.snapshots import SnapshotId, SnapshotWriter
from odradek.replication.raft.state import Quorum
from odradek.replication.raft.voter_history import ControlChange, VoterHistory
from odradek.replication.raft.voters import QuorumInfo, Voter, VoterEndpoint
from odradek.seams import Seams
from odradek.seams.files import Path
from odradek.storage.errors import DiskFull, LogFailed

log = logging.getLogger("odradek.metadata")

T = TypeVar("T")
Listener = Callable[[MetadataDelta], None]

SNAPSHOT_BATCH_RECORDS: Final = 500
SNAPSHOT_CHECK_SECONDS: Final = 60.0


class Metadata:
    """See the module. `directory` is the metadata log directory (`__cluster_metadata-0` goes in it).

    `image` is committed state only. All listeners hear of every commit, in order, synchronously,
    after `image` has moved and before `perform` or `commit` returns.
    """

    def __init__(
        self,
        seams: Seams,
        directory: Path,
        *,
        node_id: int,
        cluster_id: str,
        directory_id: UUID,
        controller_listeners: Sequence[Endpoint] = (),
        settings: MetadataLogSettings | None = None,
        min_insync_replicas: int = 1,
    ) -> None:
        """`controller_listeners` are where other voters reach this one.

        `min_insync_replicas` is the static config, which a new cluster makes its own (KIP-966).
        """
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.image = MetadataImage()
        self.failed = trio.Event()
        self.failure: Exception | None = None
        self._seams = seams
        self._directory = directory
        self._directory_id = directory_id
        self._settings = settings or MetadataLogSettings()
        self._min_insync_replicas = min_insync_replicas
        self._controller_listeners = tuple(controller_listeners)
        self._me = Voter(
            node_id,
            directory_id,
            tuple(VoterEndpoint(each.name, each.host, each.port) for each in controller_listeners),
        )
        self._log = MetadataLog(seams.files, directory, seams.clock, self._settings)
        self._quorum: Quorum | None = None
        self._history = VoterHistory()
        self._newest = self.image  # with what is appended but not yet committed
        self._uncommitted: deque[tuple[MetadataDelta, int]] = deque()  # with their bytes
        self._high_watermark = 0
        self._flushing = trio.Lock()
        self._listeners: dict[int, Listener] = {}
        self._activity: list[Callable[[bool], None]] = []
        self._next_listener = 0
        self._bytes_since_snapshot = 0
        self._snapshot_wanted = trio.Event()
        self._last_snapshot_at = 0.0

    # What the quorum is

    @property
    def leader_id(self) -> int:
        """Which node leads the quorum; -1 if none does as far as this one knows."""
        return -1 if self._quorum is None else self._quorum.leader_id

    @property
    def leader_epoch(self) -> int:
        return 0 if self._quorum is None else self._quorum.epoch

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._quorum is not None and self._quorum.role is Role.LEADER

    def on_active(self, callback: Callable[[bool], None]) -> None:
        """Call back, on the loop, when this node becomes the active controller (True), which may be
        now, and when it ceases to be (False). Nothing may be awaited or raised there."""
        self._activity.append(callback)
        if self.is_active:
            callback(True)

    @property
    def leader_address(self) -> tuple[str, int] | None:
        """Where the controller listens that leads; None if that is not known, or this node."""
        return None

    @property
    def kraft_version(self) -> int:
        return self._history.kraft_version

    @property
    def finalized_features(self) -> dict[str, int]:
        """The levels of all features as ApiVersions tells them: kraft.version, if not 0, with them."""
        features = dict(self.image.features)
        if self.kraft_version > 0:
            features[KRAFT_VERSION] = self.kraft_version
        return features

    @property
    def quorum(self) -> QuorumInfo:
        return QuorumInfo(
            leader_id=self.leader_id,
            leader_epoch=self.leader_epoch,
            high_watermark=self._high_watermark,
            log_end_offset=self._newest.offset + 1,
            voters=tuple(self._history.voters),
            kraft_version=self.kraft_version,
        )

    # Starting

    async def start(self) -> None:
        """Recover log and image, become leader, write what a new cluster begins with.

        Raises InvalidMetadata or InvalidQuorum if the directory holds nothing this node can go on
        with, OSError or LogFailed if it cannot be read or written.
        """
        election = await self._blocking(self._open)
        replay = await self._load()
        self._adopt(replay)
        assert self._quorum is None
        self._quorum = Quorum(
            self._me,
            self._log,
            self._history,
            election,
            settings=QuorumSettings(cluster_id=self.cluster_id),
            jitter=self._seams.entropy.below,
        )
        await self._carry_out(self._quorum.start(self._now_ms()))
        await self._activate(in_transaction=replay.in_transaction)

    def _open(self) -> Election:
        """Blocks: everything that the disk is asked before the log is read."""
        files = self._seams.files
        if not is_formatted(files, self._directory):
            now_ms = self._seams.clock.wall_ms()
            format_directory(files, self._directory, self._me, now_ms=now_ms)
        self._log.open()
        return self._log.quorum_state.read() or Election()

    async def _load(self) -> Replay:
        replay = Replay()
        newest = self._log.snapshots.newest
        offset = 0
        if newest is not None:
            contents = await self._blocking(self._log.snapshots.read, newest)
            replay.snapshot(contents.batches(), end_offset=newest.end_offset, epoch=newest.epoch)
            offset = newest.end_offset
        for found in self._log.batches(offset):
            for batch in found:
                replay.batch(batch)
                self._bytes_since_snapshot += batch.size
            await trio.lowlevel.checkpoint()
        return replay

    def _adopt(self, replay: Replay) -> None:
        """Take over what was loaded. Raises InvalidQuorum if it is not this node's alone."""
        self._history = VoterHistory([self._me], replay.changes)
        others = set(self._history.voters.ids) | set(replay.static_voters)
        if others - {self.node_id}:
            raise InvalidQuorum(
                f"{self._directory} belongs to a quorum of the nodes {sorted(others)}; this node, "
                f"{self.node_id}, can only lead one of its own"
            )
        if replay.voters and replay.voters[0].directory_id != self._directory_id:
            raise InvalidQuorum(
                f"the voter in {self._directory} is directory {replay.voters[0].directory_id}, but "
                f"meta.properties says that this is {self._directory_id}"
            )
        self.image = self._newest = replay.finish().image
        self._high_watermark = self._log.end_offset
        self._last_snapshot_at = self._seams.clock.monotonic()

    async def _carry_out(self, actions: Sequence[Action]) -> None:
        """Do what the quorum decided."""
        for action in actions:
            match action:
                case Persist(election):
                    await self._blocking(self._log.quorum_state.write, election)
                case StartEpoch():
                    self._start_epoch(action)
                case Committed(high_watermark):
                    self._high_watermark = high_watermark
                    self._log.committed(high_watermark)

    def _start_epoch(self, start: StartEpoch) -> None:
        """The epoch's first batch: who leads, and in the first one of all the quorum's records."""
        from odradek.protocol.schemas import control_records as schemas

        assert self._quorum is not None
        change = schemas.LeaderChangeMessage(
            version=0,
            leader_id=self.node_id,
            voters=tuple(schemas.Voter(voter_id=each) for each in start.voters),
            granting_voters=tuple(schemas.Voter(voter_id=each) for each in start.granted),
        )
        records: list[tuple[ControlType, Any]] = [(ControlType.LEADER_CHANGE, change)]
        changes = []
        if start.quorum is not None:
            version, voters = start.quorum
            records += quorum_records(version, voters)
            first = self._log.end_offset
            changes = [ControlChange(first + 1, kraft_version=version)]
            changes += [ControlChange(first + 2, voters=voters)]
        last = self._log.append_control(records, start.epoch)
        self._quorum.appended(changes, self._now_ms())
        self._newest = _moved(self._newest, last, start.epoch)

    def _now_ms(self) -> int:
        return int(self._seams.clock.monotonic() * 1000)

    async def _activate(self, *, in_transaction: bool) -> None:
        bootstrap = await self._blocking(read_bootstrap_records, self._seams.files, self._directory)
        records = activation_records(
            self._newest,
            bootstrap,
            in_transaction=in_transaction,
            min_insync_replicas=self._min_insync_replicas,
        )
        if records:
            self._append(records, in_transaction=in_transaction)
        if metadata_version(self._newest.features) >= CONTROLLER_REGISTRATION:
            self._append(register_controller(self._newest, self._controller()).records)
        await self._commit_up_to(self._log.end_offset)
        self.image = self._newest

    def _controller(self) -> ControllerImage:
        return ControllerImage(
            id=self.node_id,
            incarnation_id=self._seams.entropy.uuid(),
            endpoints=self._controller_listeners,
            features=SUPPORTED_FEATURES,
        )

    # Deciding and committing

    async def perform(self, operation: Callable[[MetadataImage], Plan[T]]) -> T:
        """Decide on the newest state, commit what was decided, and return the result.

        Operations are decided one after the other, each seeing what those before it decided;
        flushes are shared by all that arrive together. Not cancelled half way: once appended, this
        waits until the records are committed. Raises what the operation raises (nothing is
        committed then), BatchTooLarge, NotController, DiskFull; LogFailed once the log is offline.
        Of a plan that is not atomic, the first batches may be committed though a later one is not.
        """
        self._check_leads()
        plan = operation(self._newest)
        for records in plan.batches():
            self._append(records)
        await self._commit_up_to(self._newest.offset + 1)
        return plan.result

    async def commit(self, records: Sequence[Any]) -> int:
        """Commit records decided elsewhere; the offset of the last one."""
        return await self.perform(lambda image: Plan(records, image.offset + len(records)))

    def _append(self, records: Sequence[Any], *, in_transaction: bool = False) -> None:
        """Apply and append, in one batch: all of it or, if this raises, nothing.

        How many records a client may cause is what the operations bound. They are applied first:
        what contradicts the state (a bug of ours) must not be written.
        """
        replay = Replay(self._newest, keep_records=True, in_transaction=in_transaction)
        for record in records:
            replay.apply(record)
        features = self._newest.features
        values = [
            encode_metadata_record(record, record_version(record, features)) for record in records
        ]
        try:
            last, size = self._log.append(values, self.leader_epoch)
        except LogFailed as error:
            self._fail(error)
            raise
        replay.offset, replay.epoch = last, self.leader_epoch
        replay.timestamp_ms = self._seams.clock.wall_ms()
        delta = replay.finish()
        self._newest = delta.image
        self._uncommitted.append((delta, size))

    async def _commit_up_to(self, offset: int) -> None:
        """Wait until all below `offset` is committed; flush, if nobody else is about to."""
        if self._high_watermark >= offset:
            return
        with trio.CancelScope(shield=True):
            while self._high_watermark < offset:
                async with self._flushing:
                    if self._high_watermark < offset:
                        await self._flush()

    async def _flush(self) -> None:
        self._check_leads()
        assert self._quorum is not None
        end, epoch = self._log.end_offset, self.leader_epoch
        try:
            await self._blocking(self._log.flush)
        except DiskFull:
            raise  # nothing is lost: the next flush does it all
        except Exception as error:
            self._fail(error)
            raise
        await self._carry_out(self._quorum.flushed(end, epoch, self._now_ms()))
        self._publish()

    def _publish(self) -> None:
        """Move `image` through all that is committed, and tell the listeners of each step."""
        while self._uncommitted and self._uncommitted[0][0].image.offset < self._high_watermark:
            delta, size = self._uncommitted.popleft()
            self.image = delta.image
            self._bytes_since_snapshot += size
            for listener in tuple(self._listeners.values()):
                listener(delta)
        if self._snapshot_is_due():
            self._snapshot_wanted.set()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call back at every commit from now on; returns the way to unsubscribe.

        Listeners are called in the order in which they subscribed, and must not block or raise.
        """
        number = self._next_listener
        self._next_listener += 1
        self._listeners[number] = listener

        def unsubscribe() -> None:
            self._listeners.pop(number, None)

        return unsubscribe

    def _check_leads(self) -> None:
        if self.failure is not None:
            raise LogFailed(f"the metadata log is offline: {self.failure}")
        if self._quorum is None or self._quorum.role is not Role.LEADER:
            raise NotController("this node does not lead the metadata quorum")

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            log.critical("the metadata log in %s failed: %s", self._directory, error)
        self.failed.set()

    async def _blocking(self, fn: Callable[..., T], *args: Any) -> T:
        return await self._seams.offload.run(fn, *args, lane=str(self._directory))

    # Snapshots

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take snapshots as they fall due and prune what they supersede, until cancelled."""
        task_status.started()
        while True:
            with trio.move_on_after(SNAPSHOT_CHECK_SECONDS):
                await self._snapshot_wanted.wait()
            self._snapshot_wanted = trio.Event()
            if self._snapshot_is_due():
                try:
                    await self.take_snapshot()
                except (
                    OSError,
                    KafkaError,
                ) as error:  # the log has all of it: the next try may find more space
                    log.error("no snapshot of the metadata in %s: %s", self._directory, error)

    def _snapshot_is_due(self) -> bool:
        if self._bytes_since_snapshot == 0:
            return False
        if self._bytes_since_snapshot >= self._settings.snapshot_bytes:
            return True
        since = self._seams.clock.monotonic() - self._last_snapshot_at
        return since * 1000 >= self._settings.snapshot_interval_ms

    async def take_snapshot(self) -> SnapshotId | None:
        """Write the image as it is now beside the log; None if there is such a snapshot already."""
        image, covered = self.image, self._bytes_since_snapshot
        snapshot = SnapshotId(image.offset + 1, image.epoch)
        newest = self._log.snapshots.newest
        if newest is not None and newest.end_offset >= snapshot.end_offset:
            return None
        writer = self._log.snapshots.writer(
            snapshot,
            now_ms=self._seams.clock.wall_ms(),
            timestamp_ms=image.timestamp_ms,
            control=quorum_records(*self._history.at(snapshot.end_offset)),
        )
        try:
            await _write_image(writer, image)
            await self._blocking(self._log.snapshots.publish, snapshot, writer)
        except OSError:
            self._log.snapshots.give_up(writer)
            raise
        self._bytes_since_snapshot -= covered
        self._last_snapshot_at = self._seams.clock.monotonic()
        await self._prune()
        return snapshot

    async def _prune(self) -> None:
        """Not beside a flush, which would sync what is removed; appends may go on meanwhile."""
        now_ms = self._seams.clock.wall_ms()
        with trio.CancelScope(shield=True):
            async with self._flushing:
                if self.failure is not None:
                    return
                dropped = await self._blocking(self._log.superseded, now_ms)
                self._log.forget(dropped, now_ms)
                self._history.compact(self._log.start_offset)
                await self._blocking(self._log.remove, dropped, now_ms)

    # Ending

    async def close(self) -> None:
        """Flush and close. The log directory's clean-shutdown mark is not this one's business."""
        if self._quorum is None or self._quorum.role is not Role.LEADER:
            return
        with trio.CancelScope(shield=True):
            async with self._flushing:
                self._quorum.resign(self._now_ms())
                for callback in self._activity:
                    callback(False)
                if self.failure is None:
                    await self._blocking(self._log.close)


def _moved(image: MetadataImage, offset: int, epoch: int) -> MetadataImage:
    """The same state, after a batch of control records."""
    return replace(image, offset=offset, epoch=epoch)


async def _write_image(writer: SnapshotWriter, image: MetadataImage) -> None:
    """The records of an image, a batch at a time; others run in between."""
    records = image.records()
    while batch := list(islice(records, SNAPSHOT_BATCH_RECORDS)):
        writer.append(
            [
                encode_metadata_record(record, record_version(record, image.features))
                for record in batch
            ]
        )
        await trio.lowlevel.checkpoint()
    writer.end()
